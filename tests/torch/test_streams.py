"""Stream order: a block that work may still use is not given out to other streams, whoever frees it."""

import ctypes
import threading

import pytest
import simcuda
import torch
from simcuda import MIB

import flagstone.torch

COUNT = 1 << 20


def full(value):
    return torch.full((COUNT,), float(value), device="cuda")


def test_a_block_goes_back_to_its_own_stream_at_once():
    tensor = full(1)
    address = tensor.data_ptr()
    del tensor
    assert full(2).data_ptr() == address


def test_a_block_in_use_on_its_stream_is_not_given_to_another():
    side = torch.cuda.Stream()
    tensor = full(1)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        simcuda.hold(side.cuda_stream)
        mine = full(1)
        address = mine.data_ptr()
        del mine
    others = [full(2) for _ in range(8)]
    assert address not in {other.data_ptr() for other in others}
    simcuda.resume(side.cuda_stream)
    torch.cuda.synchronize()
    assert all((other.cpu() == 2).all() for other in others)
    assert (tensor.cpu() == 1).all()


def test_what_is_freed_on_one_stream_serves_the_others():
    for _ in range(4):
        with torch.cuda.stream(torch.cuda.Stream()):
            tensors = [full(1) for _ in range(8)]
            del tensors
    assert flagstone.torch.memory_stats(0).reserved_bytes < 2 * 8 * 4 * COUNT
    assert flagstone.torch.memory_stats(0).synchronize_count == 0


def test_a_stream_of_another_library_may_end():
    handle, library = ctypes.c_void_p(), ctypes.CDLL("libcuda.so.1")
    assert library.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
    with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
        tensors = [full(1) for _ in range(8)]
        del tensors
    assert library.cudaStreamDestroy(handle) == 0
    with torch.cuda.stream(torch.cuda.Stream()):
        assert all((full(2) + 1)[0].cpu() == 3 for _ in range(16))


def test_record_stream_holds_the_block_until_the_other_stream_is_done():
    side = torch.cuda.Stream()
    tensor = full(1)
    address = tensor.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    simcuda.hold(side.cuda_stream)
    with torch.cuda.stream(side):
        doubled = tensor * 2
    tensor.record_stream(side)
    del tensor
    stamps = [full(9) for _ in range(4)]
    assert address not in {stamp.data_ptr() for stamp in stamps}
    assert flagstone.torch.memory_stats(0).pending_blocks == 1
    simcuda.resume(side.cuda_stream)
    side.synchronize()
    assert (doubled.cpu() == 2).all(), "the block was not overwritten while it was read"
    # Its event is seen complete when memory of its size is wanted.
    later = [full(9) for _ in range(64)]
    assert address in {tensor.data_ptr() for tensor in later}


def test_record_stream_with_the_blocks_own_stream_changes_nothing():
    tensor = full(1)
    address = tensor.data_ptr()
    tensor.record_stream(torch.cuda.current_stream())
    del tensor
    assert full(2).data_ptr() == address
    assert flagstone.torch.memory_stats(0).pending_blocks == 0


def test_without_the_wait_the_simulation_shows_wrong_data():
    side = torch.cuda.Stream()
    simcuda.timing(kernel_ns=1000)
    tensor = full(1)
    with torch.cuda.stream(side):
        doubled = tensor * 2
    torch.cuda.synchronize()
    assert any("unordered work" in violation for violation in simcuda.violations())
    simcuda.forgive()
    assert doubled.numel() == COUNT


def test_tensors_freed_by_the_autograd_thread_are_given_back():
    before = flagstone.torch.memory_stats(0).live_blocks
    for _ in range(3):
        weight = torch.ones(1000, device="cuda", requires_grad=True)
        loss = ((weight * 2) * (weight + 1)).sum()
        loss.backward()
        assert weight.grad is not None
        del weight, loss
    stats = flagstone.torch.memory_stats(0)
    assert stats.live_blocks == before
    assert stats.invalid_free_count == stats.double_free_count == stats.wrong_size_free_count == 0


def test_threads_allocate_and_free_each_others_tensors():
    made, errors = [], []

    def make(number):
        try:
            made.extend(full(number * 100 + n) for n in range(20))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len({tensor.data_ptr() for tensor in made}) == 80
    assert all((tensor.cpu() == tensor[0].cpu()).all() for tensor in made)
    made.clear()
    assert flagstone.torch.memory_stats(0).live_blocks == 0


def test_an_event_after_a_side_stream_orders_the_reuse():
    side = torch.cuda.Stream()
    event = torch.cuda.Event()
    with torch.cuda.stream(side):
        tensor = full(3)
        event.record(side)
    torch.cuda.current_stream().wait_event(event)
    assert (tensor + 1).cpu()[0] == 4


@pytest.mark.process(install=False)
def test_without_the_record_stream_hook_the_simulation_finds_the_fault():
    flagstone.torch._swap.HOOKS.pop("set_record_stream_fn")
    flagstone.torch.install()
    side = torch.cuda.Stream()
    tensor = full(1)
    side.wait_stream(torch.cuda.current_stream())
    simcuda.hold(side.cuda_stream)
    with torch.cuda.stream(side):
        doubled = tensor * 2
    tensor.record_stream(side)
    del tensor
    assert full(9).numel() == COUNT
    simcuda.resume(side.cuda_stream)
    side.synchronize()
    assert doubled[0].cpu() == 18, "the block was overwritten while it was to be read"
    assert any("unordered work" in violation for violation in simcuda.violations())
    simcuda.forgive()


@pytest.mark.process(install={"patch": False})
@pytest.mark.parametrize("priority", [0, -1])
def test_torch_is_asked_which_streams_are_its_own(priority):
    """As when each step makes streams: torch's own allocator holds 4 GiB then. No Python tells the pool of them."""
    for _ in range(40):
        with torch.cuda.stream(torch.cuda.Stream(priority=priority)):
            pair = [torch.empty(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
        del pair
        torch.cuda.synchronize()
    assert flagstone.torch.memory_stats(0).peak_reserved_bytes <= 3 * 128 * MIB


def test_a_stream_of_the_programs_may_be_destroyed_after_its_blocks():
    runtime = torch.cuda.cudart()
    for _ in range(5):
        handle = ctypes.c_size_t()
        assert int(runtime.cudaStreamCreate(ctypes.addressof(handle))) == 0
        stream = torch.cuda.ExternalStream(handle.value)
        with torch.cuda.stream(stream):
            full(1)
            torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        full(2).record_stream(stream)
        torch.cuda.synchronize()
        assert int(runtime.cudaStreamDestroy(handle.value)) == 0
        # Others grow, and look for what the stream has left.
        for user in (torch.cuda.Stream(), torch.cuda.default_stream()):
            with torch.cuda.stream(user):
                torch.empty(96 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert simcuda.violations() == []
