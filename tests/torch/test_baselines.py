"""torch's own allocators on the simulated CUDA: what flagstone is compared with, and a check of the simulation."""

import gc
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.process(install=False, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def test_expandable_segments():
    exercise()
    assert simcuda.counts()["cuMemMap"] > 0


@pytest.mark.process(install=False)
def test_malloc_async():
    # torch reads which allocator it uses while it is loaded.
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_baselines as t; t.exercise(); "
    check = "assert t.simcuda.counts()['cudaMallocAsync'] > 0; assert t.simcuda.violations() == []"
    environment = {**simcuda.environment(), "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    ran = subprocess.run(
        [sys.executable, "-c", code + check], env=environment, capture_output=True, text=True, timeout=45
    )
    assert ran.returncode == 0, ran.stderr
