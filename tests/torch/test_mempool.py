"""flagstone.torch.MemPool: torch's own allocator takes its segments from the pool."""

import pytest
import simcuda
import torch

import flagstone
import flagstone.torch

pytestmark = pytest.mark.process(install=False)


def test_tensors_inside_come_from_the_pool_and_others_from_torch():
    pool = flagstone.torch.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.full((1 << 20,), 3.0, device="cuda")
    assert flagstone.torch.memory_stats(0).live_blocks == 1
    assert "cudaMalloc" not in simcuda.counts()
    outside = torch.full((1 << 20,), 4.0, device="cuda")
    assert simcuda.counts()["cudaMalloc"] == 1
    assert flagstone.torch.memory_stats(0).live_blocks == 1
    assert torch.cuda.memory_allocated() == 2 * 4 << 20
    assert (inside.cpu() == 3).all()
    assert (outside.cpu() == 4).all()


def test_the_segments_go_back_with_the_pool():
    pool = flagstone.torch.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.full((1 << 20,), 3.0, device="cuda")
    del inside, pool
    torch.cuda.empty_cache()
    assert flagstone.torch.memory_stats(0).live_blocks == 0


def test_out_of_memory_is_torchs():
    pool = flagstone.torch.MemPool(limit="64MiB")
    with torch.cuda.use_mem_pool(pool), pytest.raises(torch.OutOfMemoryError):
        torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_ooms"] == 1


@pytest.mark.process(devices=2)
def test_the_segments_are_on_the_device_that_the_tensor_names():
    with torch.cuda.device(1):
        pool = flagstone.torch.MemPool()  # torch makes it for the current device
    with torch.cuda.use_mem_pool(pool, device=1):
        inside = torch.full((1 << 20,), 3.0, device="cuda:1")
    assert [flagstone.torch.memory_stats(device).live_blocks for device in (0, 1)] == [0, 1]
    assert (inside.cpu() == 3).all()


@pytest.mark.process(install={})
def test_it_is_refused_where_flagstone_is_torchs_allocator():
    with pytest.raises(flagstone.FlagstoneError, match="already"):
        flagstone.torch.MemPool()
