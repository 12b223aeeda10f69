"""A device that has failed for good: each later call is an error that names it, and nothing hangs."""

import ctypes

import pytest
import simcuda
import torch
from simcuda import MIB

import flagstone.torch
from flagstone import _core

FAILURES = pytest.mark.parametrize(
    ("code", "name"),
    [(700, "CUDA_ERROR_ILLEGAL_ADDRESS"), (719, "CUDA_ERROR_LAUNCH_FAILED")],
)


@FAILURES
def test_tensors(code, name):
    side = torch.cuda.Stream()
    kept = [torch.empty(5 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    kept[0].record_stream(side)
    simcuda.break_with(code)
    for _ in range(3):
        with pytest.raises(RuntimeError, match=name):
            torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(RuntimeError, match=name), torch.cuda.stream(side):
            torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    kept[1].record_stream(side)
    kept.clear()
    torch.cuda.empty_cache()
    stats = flagstone.torch.memory_stats(0)
    assert stats.live_blocks == 0
    assert stats.reserved_bytes > 0, "nothing can be given back"


@pytest.mark.process(install=False)
@pytest.mark.parametrize("kind", ["Pool", "PinnedPool"])
@FAILURES
def test_pools(kind, code, name):
    pool = getattr(flagstone, kind)(backend="cuda", limit=64 * MIB)
    kept = [pool.alloc(20 * MIB) for _ in range(2)]
    simcuda.break_with(code)
    for use in (lambda: pool.alloc(30 * MIB), pool.trim, lambda: pool.reserve(60 * MIB)) * 2:
        with pytest.raises(flagstone.DriverError, match=rf"{name}.*start"):
            use()
    for block in kept:
        block.free()
    assert pool.stats().live_blocks == 0


@pytest.mark.process(install=False)
@FAILURES
def test_c_functions(code, name):
    _core.configure("cuda", "limit:64MiB")
    address = _core.c_functions()
    alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(address["alloc"])
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(address["free"])
    block = alloc(5 * MIB, 0, None)
    simcuda.break_with(code)
    for _ in range(3):
        assert alloc(50 * MIB, 0, None) is None
        error = _core.last_error()
        assert isinstance(error, flagstone.DriverError)
        assert name in str(error)
    free(block, 5 * MIB, 0, None)
    assert _core.process_pool().stats().live_blocks == 0
