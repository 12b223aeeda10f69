"""What torch's pluggable interface asks of an allocator, and what goes wrong where one does not give it."""

import contextlib
import ctypes
import sys
import threading

import pytest
import simcuda
import torch
from simcuda import MIB

import flagstone
import flagstone.torch
from flagstone import _core

UNKNOWN = 0x1234_5600


def stats():
    return flagstone.torch.memory_stats(0)


def used(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def function(name, loader=ctypes.CDLL):
    """Return an exported function, called with the interpreter's lock (PyDLL) or without (CDLL)."""
    found = getattr(loader(_core.__file__), f"flagstone_{name}")
    found.restype = ctypes.c_void_p
    return found


def alloc(nbytes, loader=ctypes.CDLL):
    return function("alloc", loader)(ctypes.c_size_t(nbytes), 0, ctypes.c_void_p(0))


def free(address, nbytes, loader=ctypes.CDLL):
    function("free", loader)(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), 0, ctypes.c_void_p(0))


def test_sizes_come_as_they_were_asked_for_and_addresses_are_aligned():
    tensors = [torch.empty(n, device="cuda") for n in (1, 10, 129, 1000)]
    assert stats().requested_bytes == 4 * (1 + 10 + 129 + 1000)
    assert stats().allocated_bytes == 512 + 512 + 1024 + 4096
    assert all(tensor.data_ptr() % 512 == 0 for tensor in tensors)


def test_a_block_goes_back_to_its_own_stream_whatever_is_current():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        first = used(4 * MIB)
        address = first.data_ptr()
    thread = threading.Thread(target=lambda tensors: tensors.clear(), args=([first],))
    del first
    thread.start()
    thread.join()
    with torch.cuda.stream(side):
        assert used(4 * MIB).data_ptr() == address


def test_resizing_has_both_blocks_at_once():
    tensor = used(4 * MIB)
    tensor.resize_(8 * MIB)
    assert stats().peak_allocated_bytes == 12 * MIB
    assert stats().allocated_bytes == 8 * MIB


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_what_is_not_a_lack_of_memory_is_a_runtime_error_that_names_the_call(call):
    kept = torch.ones(10, device="cuda")
    simcuda.fail(call, code=999)
    with pytest.raises(RuntimeError, match=call) as caught:
        used(256 * MIB)
    assert not isinstance(caught.value, torch.OutOfMemoryError)
    assert used(256 * MIB).numel() == 256 * MIB
    assert (kept.cpu() == 1).all()


@pytest.mark.parametrize("call", ["cuEventCreate", "cuEventRecord", "cuStreamIsCapturing", "cuStreamGetId"])
def test_nothing_is_thrown_by_a_free_whose_calls_fail(call):
    side, tensor = torch.cuda.Stream(), used(4 * MIB)
    with torch.cuda.stream(side):
        tensor.fill_(1)
    tensor.record_stream(side)
    simcuda.fail(call, code=999)
    del tensor
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert stats().live_blocks == stats().pending_blocks == 0


def test_what_is_not_a_block_is_counted_and_changes_nothing():
    kept = torch.full((MIB,), 3.0, device="cuda")
    with pytest.raises(RuntimeError, match="not allocated here"):
        torch.cuda.memory.caching_allocator_delete(UNKNOWN)
    address = alloc(1000)
    for addr, nbytes in [(0, 0), (UNKNOWN, 10), (address, 999), (address, 1000), (kept.data_ptr() + 512, 0)]:
        free(addr, nbytes)
    function("record_stream")(ctypes.c_void_p(UNKNOWN), ctypes.c_void_p(0))
    counts = stats()
    assert counts.invalid_free_count == 2
    assert (counts.double_free_count, counts.wrong_size_free_count, counts.invalid_record_count) == (1, 1, 1)
    assert counts.live_blocks == 1
    assert (kept.cpu() == 3).all()


def test_memory_that_flagstone_did_not_give_out_may_be_recorded_on_a_stream():
    kept = used(MIB)
    lent = torch.from_dlpack(flagstone.Pool(backend="cuda").alloc(4096))
    lent.record_stream(torch.cuda.Stream())
    assert stats().invalid_record_count == 1
    assert lent.numel() + kept.numel() == 4096 + MIB


def test_the_hooks_run_beside_threads_that_have_the_interpreters_lock():
    # With the lock held throughout by one, and without it by others: nobody waits for ever.
    done = []

    def work(loader):
        for nbytes in range(1, 200):
            free(alloc(nbytes * 1000, loader), nbytes * 1000, loader)
        done.append(loader)

    threads = [threading.Thread(target=work, args=(loader,)) for loader in (ctypes.CDLL, ctypes.PyDLL) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(done) == 4
    assert stats().live_blocks == 0


def test_an_error_from_before_does_not_come_back():
    with contextlib.suppress(RuntimeError):
        used(1 << 50)
    assert used(MIB).numel() == MIB
    assert (torch.ones(10, device="cuda").cpu() == 1).all()


def before_the_swap():
    """Use everything of torch that leaves its allocator unused."""
    torch.cuda.is_available()
    torch.cuda.device_count()
    torch.manual_seed(1)
    torch.cuda.Stream()
    torch.cuda.Event()
    torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.get_allocator_backend()
    torch.cuda.graph_pool_handle()
    torch.accelerator.current_accelerator()


@pytest.mark.process(install=False)
def test_what_does_not_use_the_allocator_may_come_first():
    before_the_swap()
    flagstone.torch.install()
    kept = torch.ones(10, device="cuda")
    assert stats().live_blocks == 1
    assert (kept.cpu() == 1).all()


FIRST = {
    "init": torch.cuda.init,
    "set_device": lambda: torch.cuda.set_device(0),
    "current_device": torch.cuda.current_device,
    "get_device_name": torch.cuda.get_device_name,
    "mem_get_info": torch.cuda.mem_get_info,
    "synchronize": torch.cuda.synchronize,
}


@pytest.mark.process(install=False)
@pytest.mark.parametrize("name", FIRST)
def test_what_initialises_cuda_must_not(name):
    FIRST[name]()
    with pytest.raises(flagstone.FlagstoneError, match="before the first CUDA tensor"):
        flagstone.torch.install()
    assert torch.cuda.get_allocator_backend() == "native"


@pytest.mark.process(install=False)
def test_another_allocator_that_came_first_is_named():
    functions = _core.c_functions()
    torch._C._cuda_changeCurrentAllocator(torch._C._cuda_customAllocator(functions["alloc"], functions["free"]))
    with pytest.raises(flagstone.FlagstoneError, match="another allocator already"):
        flagstone.torch.install()
    assert "flagstone.torch._patch" not in sys.modules


@pytest.mark.process(PYTORCH_ALLOC_CONF="max_split_size_mb:64,garbage_collection_threshold:0.5")
def test_torchs_own_options_change_nothing():
    assert used(128 * MIB).numel() == 128 * MIB
    assert torch.cuda.memory_stats()["max_split_size"] == -1


def test_switching_torchs_allocator_off_changes_nothing():
    torch.cuda.memory.caching_allocator_enable(False)
    tensor = used(MIB)
    assert stats().live_blocks == 1
    assert tensor.numel() == MIB


def test_raw_blocks_are_the_pools():
    side = torch.cuda.Stream()
    addresses = [torch.cuda.memory.caching_allocator_alloc(1000, stream=stream) for stream in (None, side)]
    assert stats().live_blocks == 2
    assert len({*addresses}) == 2
    for address in addresses:
        torch.cuda.memory.caching_allocator_delete(address)
    assert stats().live_blocks == 0


def test_pinned_memory_is_torchs():
    kept = used(MIB)
    pinned = torch.ones(1000).pin_memory()
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] >= 4000
    assert stats().allocated_bytes == kept.numel() == MIB
    assert pinned.is_pinned()


def test_observers_of_out_of_memory_are_refused_by_name():
    with pytest.raises(RuntimeError, match=r"observers of torch's out-of-memory errors.*docs/torch\.md"):
        torch._C._cuda_attach_out_of_memory_observer(print)


@pytest.mark.process(install={"limit": "64MiB"}, PATH="/nowhere")
def test_no_compiler_is_needed():
    with pytest.raises(torch.OutOfMemoryError, match=r"limit 64\.00 MiB"):
        used(100 * MIB)
