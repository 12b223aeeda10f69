"""Stream order: a block that work may still use is not given out to other streams, whoever frees it."""

import threading

import pytest
import simcuda
import torch

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
