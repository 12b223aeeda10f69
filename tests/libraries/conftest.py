"""The real CuPy, Numba and cuda.core on the simulated CUDA, with flagstone under them, all in one process.

Kernels do not run: compilers are not there. Whatever else the libraries do goes to the simulated driver and runtime.
"""

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import simcuda

import flagstone
from flagstone import _core


@pytest.fixture(scope="session")
def cupy():
    """CuPy, with flagstone's allocator."""
    import static_runtime
    from cupy_backends.cuda.api import runtime

    assert static_runtime.lead(runtime.__file__) > 100
    import cupy

    import flagstone.cupy

    flagstone.cupy.install()
    return cupy


@pytest.fixture(scope="session")
def numba_cuda():
    """Numba, with flagstone's memory manager."""
    import flagstone.numba

    flagstone.numba.install()
    from numba import cuda

    cuda.current_context()
    return cuda


@pytest.fixture(scope="session")
def device():
    """cuda.core's device, with a pool of its own as its memory resource."""
    from cuda.core import Device

    import flagstone.cuda_core

    device = Device(0)
    device.set_current()
    device.memory_resource = flagstone.cuda_core.MemoryResource(flagstone.Pool(0, backend="cuda"))
    return device


@pytest.fixture
def pool() -> flagstone.Pool:
    """The process's pool, from which CuPy and Numba get their memory."""
    _core.configure("cuda")
    return _core.process_pool()


@pytest.fixture
def live(pool) -> Callable[[], int]:
    """Say how many more blocks of the process's pool are live than at the start of the test."""
    before = pool.stats().live_blocks
    return lambda: pool.stats().live_blocks - before


@pytest.fixture(autouse=True)
def _in_order() -> Iterator[None]:
    """No work touched memory that other work was not done with, and no dead handle was used."""
    yield
    gc.collect()
    found = simcuda.violations()
    simcuda.forgive()  # the next test is not to blame
    assert found == []


@pytest.fixture
def child() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python code in a process of its own."""

    def run(code: str, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, **options)

    return run
