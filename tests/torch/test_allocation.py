"""Tensors on the swap: where their memory comes from, and what happens when there is none."""

import contextlib
import gc

import pytest
import simcuda
import torch
from simcuda import GIB, MIB

import flagstone.torch

NATIVE = ("cudaMalloc", "cudaFree", "cudaMallocAsync", "cudaFreeAsync", "cudaMallocManaged")


def stats():
    return flagstone.torch.memory_stats(0)


def test_every_allocation_comes_from_the_pool():
    assert torch.cuda.is_available()
    assert torch.cuda.get_allocator_backend() == "pluggable"
    kept = [torch.empty(n, device="cuda") for n in (1, 1000, 10**6)]
    results = [torch.ones(1000, device="cuda") * 2 + 1 for _ in range(10)]
    before = stats()
    assert before.alloc_count >= 33
    assert before.live_blocks == len(kept) + len(results)
    assert simcuda.counts().keys().isdisjoint(NATIVE)
    assert simcuda.counts()["cuMemCreate"] >= 1, "the memory is the pool's"


def test_copies_give_the_right_bytes():
    host = torch.randint(0, 256, (5 * MIB,), dtype=torch.uint8)
    device = host.cuda()
    assert torch.equal(device.cpu(), host)
    pinned = host.pin_memory()
    there = pinned.to("cuda", non_blocking=True)
    back = torch.empty_like(pinned).pin_memory().copy_(there.clone(), non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, host)


def test_arithmetic_is_right():
    a, b = torch.full((1000,), 3.0, device="cuda"), torch.full((1000,), 4.0, device="cuda")
    assert torch.equal(((a + b) * a + 1).cpu(), torch.full((1000,), 22.0))
    assert simcuda.idle_kernels() == {}


@pytest.mark.process(install={"limit": "64MiB"})
def test_out_of_memory_is_torchs_error_with_the_pools_numbers():
    kept = torch.full((MIB,), 7.0, device="cuda")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    message = str(caught.value)
    for part in ("device 0", "100.00 MiB", "4.00 MiB allocated", "limit 64.00 MiB", " free of "):
        assert part in message, message
    smaller = torch.full((2 * MIB,), 1.0, device="cuda")
    assert (smaller.cpu() == 1).all()
    assert (kept.cpu() == 7).all()
    assert stats().out_of_memory_count == 1


@pytest.mark.process(memory=64 * MIB)
def test_a_full_device_is_out_of_memory_and_freeing_helps():
    blocks = [torch.empty(16 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    del blocks[:2]
    again = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    assert again.data_ptr() != 0


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAddressReserve"])
def test_a_failing_driver_call_fails_one_request_at_most(call):
    first = torch.full((1000,), 5.0, device="cuda")
    simcuda.fail(call, code=2)
    with contextlib.suppress(RuntimeError):  # torch.OutOfMemoryError is one
        torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    large = torch.full((64 * MIB,), 6.0, device="cuda")
    assert large[-1].cpu() == 6
    assert (first.cpu() == 5).all()


def test_empty_tensors_have_addresses_of_their_own():
    empty = [torch.cuda.memory.caching_allocator_alloc(0) for _ in range(3)]
    assert len({*empty}) == 3
    assert 0 not in empty
    for address in empty:
        torch.cuda.memory.caching_allocator_delete(address)
    tensor = torch.empty(0, device="cuda")
    assert tensor.numel() == 0
    del tensor
    assert stats().live_blocks == 0


def test_resizing_keeps_the_data():
    tensor = torch.full((1000,), 3.0, device="cuda")
    tensor.resize_(100_000)
    assert (tensor[:1000].cpu() == 3).all()
    assert stats().live_blocks == 1


def test_views_and_cycles_give_memory_back():
    base = torch.full((1000,), 3.0, device="cuda")
    view = base[10:20]
    del base
    assert stats().live_blocks == 1
    assert (view.cpu() == 3).all()
    node = [view]
    node.append(node)
    del view, node
    gc.collect()
    assert stats().live_blocks == 0


def test_dlpack_exchange_keeps_the_block():
    tensor = torch.full((1000,), 3.0, device="cuda")
    address = tensor.data_ptr()
    other = torch.from_dlpack(tensor)
    del tensor
    assert other.data_ptr() == address
    assert stats().live_blocks == 1


@pytest.mark.process(devices=2)
def test_the_block_is_on_the_device_that_the_tensor_names():
    torch.cuda.set_device(0)
    second = torch.full((1000,), 2.0, device="cuda:1")
    first = torch.full((1000,), 1.0, device="cuda:0")
    assert second.device.index == 1
    assert flagstone.torch.memory_stats(1).live_blocks == 1
    assert flagstone.torch.memory_stats(0).live_blocks == 1
    assert (second.to("cuda:0").cpu() == 2).all()
    assert (first.cpu() == 1).all()
    torch.cuda.set_device(1)
    del first, second
    assert flagstone.torch.memory_stats(1).live_blocks == 0
    assert flagstone.torch.memory_stats(0).live_blocks == 0


@pytest.mark.process(memory=GIB)
def test_empty_cache_gives_memory_back():
    torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    free = torch.cuda.mem_get_info()[0]
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] >= free + 512 * MIB


def test_the_fraction_is_a_limit():
    nbytes = torch.cuda.get_device_properties(0).total_memory // 50
    torch.cuda.set_per_process_memory_fraction(0.01)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.empty(nbytes, dtype=torch.uint8, device="cuda").numel() == nbytes


@pytest.mark.process(devices=2)
def test_emptying_the_cache_unmaps_nothing_under_queued_work():
    """Work on streams of their own, of both devices, whichever is current."""
    simcuda.timing(kernel_ns=1_000_000_000)
    for device in (0, 1):
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream()):
            torch.full((MIB,), 1.0, device="cuda").add_(1)
    with torch.cuda.device(1):
        torch.cuda.empty_cache()
    assert [torch.cuda.memory_reserved(device) for device in (0, 1)] == [0, 0]
    assert simcuda.violations() == []


@pytest.mark.parametrize("way", ["from_dlpack", "as_buffer"])
def test_a_tensor_is_lent_as_bytes(way):
    tensor = torch.arange(1000, device="cuda", dtype=torch.float32)
    view = getattr(flagstone, way)(tensor)
    assert (view.ptr, view.nbytes, view.device, view.readonly) == (tensor.data_ptr(), 4000, 0, False)
    address = tensor.data_ptr()
    del tensor
    assert stats().live_blocks == 1, "the view holds the tensor's memory"
    assert torch.as_tensor(view, device="cuda").data_ptr() == address
    del view
    gc.collect()
    assert stats().live_blocks == 0


def test_a_tensor_that_is_no_buffer_is_refused():
    tensor = torch.ones(10, 10, device="cuda")
    with pytest.raises(BufferError, match="one piece"):
        flagstone.as_buffer(tensor.t())
    with pytest.raises(BufferError, match="gradient"):
        flagstone.as_buffer(tensor.requires_grad_())
    with pytest.raises(BufferError, match="on the host, and the pool on device 0"):
        flagstone.as_buffer(torch.ones(10), pool=flagstone.torch.pool(0))


def test_a_view_is_used_on_the_stream_that_waits():
    own, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(own):
        tensor = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        simcuda.hold(own.cuda_stream)
        tensor.fill_(7)
        simcuda.resume(own.cuda_stream)
        view = flagstone.as_buffer(tensor, stream=other)
    assert view.stream == other.cuda_stream
    with torch.cuda.stream(other):
        copied = torch.as_tensor(view, device="cuda").clone()
    flagstone.torch.pool(0).record_stream(view, other)
    del tensor, view
    torch.cuda.synchronize()
    assert copied.numel() == 1 << 20


def test_a_tensor_of_the_host_is_lent_too():
    tensor = torch.arange(8, dtype=torch.int64)
    view = flagstone.from_dlpack(tensor)
    assert (view.ptr, view.nbytes, view.device) == (tensor.data_ptr(), 64, None)
