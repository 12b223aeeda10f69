"""A training script gives the right losses whoever gives out the memory, and all of it comes from where it should."""

import pytest
import simcuda
import torch
import training

import flagstone.torch


def train():
    """Train on the simulated device and on the CPU, which must agree."""
    losses = training.main("cuda")
    assert simcuda.idle_kernels() == {}, "all that it computes is computed"
    assert losses == pytest.approx(training.main("cpu"), rel=1e-3)
    assert losses[-1] < losses[0] / 10


def test_with_the_swap():
    train()
    assert "cudaMalloc" not in simcuda.counts()
    stats = flagstone.torch.memory_stats(0)
    assert stats.live_blocks <= 2, "cuBLAS's workspaces"
    assert stats.invalid_free_count == stats.double_free_count == stats.wrong_size_free_count == 0


@pytest.mark.process(install=False)
def test_with_torchs_own_allocator():
    train()
    assert "cuMemCreate" not in simcuda.counts()
    assert simcuda.counts()["cudaMalloc"] > 0


@pytest.mark.process(install=False)
def test_in_a_mempool():
    with torch.cuda.use_mem_pool(flagstone.torch.MemPool()):
        train()
    # Autograd's threads are outside the pool.
    assert simcuda.counts()["cuMemCreate"] > 0
    assert flagstone.torch.memory_stats(0).alloc_count > 0
