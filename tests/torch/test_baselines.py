"""torch's own allocators run on the simulated CUDA: what flagstone is compared with, and a check of the simulation itself."""

import gc

import pytest
import simcuda
import torch
from simcuda import MIB


def exercise():
    """Allocate, compute on two streams, run out of memory and recover."""
    side = torch.cuda.Stream()
    tensor = torch.full((MIB,), 3.0, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        doubled = tensor * 2
    tensor.record_stream(side)
    del tensor
    torch.cuda.current_stream().wait_stream(side)
    assert (doubled.cpu() == 6).all()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    del doubled
    gc.collect()
    torch.cuda.empty_cache()
    assert (torch.full((64 * MIB,), 1.0, device="cuda")[-1].cpu() == 1).all()
    assert simcuda.idle_kernels() == {}


@pytest.mark.process(install=False)
def test_native():
    exercise()
    assert simcuda.counts()["cudaMalloc"] > 0


@pytest.mark.process(install=False, PYTORCH_ALLOC_CONF="expandable_segments:True")
def test_expandable_segments():
    exercise()
    assert simcuda.counts()["cuMemMap"] > 0
