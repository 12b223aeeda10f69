"""flagstone under Numba: device arrays come from the pool.

Install it before the first use of CUDA, or set NUMBA_CUDA_MEMORY_MANAGER=flagstone.numba:

    import flagstone.numba

    flagstone.numba.install(limit="20GiB")
"""

import ctypes
from typing import Any

from numba import cuda
from numba.cuda.cudadrv import driver

from flagstone import _core
from flagstone._process import Backend, configure

__all__ = ["MemoryManager", "install"]


class MemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
    """Numba's interface for an external memory manager. Memory belongs to the default stream, as Numba names none.

    Blocks go back when the last array over them is gone: work on non-blocking streams has to be over then, or recorded
    with `Pool.record_stream`.
    """

    @property
    def interface_version(self) -> int:
        """The version of the interface."""
        return 1

    def initialize(self) -> None:
        """Do nothing: the pool is made when it is first asked."""

    def memalloc(self, size: int) -> Any:
        """Allocate `size` bytes."""
        buffer = self._pool().alloc(size)
        # Numba clears this on reset, which gives the memory back.
        self.allocations[buffer.ptr] = buffer
        finalizer = _Forget(self.allocations, buffer.ptr)
        return cuda.MemoryPointer(self.context, ctypes.c_void_p(buffer.ptr), size, finalizer=finalizer)

    def get_memory_info(self) -> Any:
        """Return what the device has free, with what the pool holds unused, and its memory."""
        free, total = driver.driver.cuMemGetInfo()
        return cuda.MemoryInfo(free=free + self._pool().stats().cached_bytes, total=total)

    def _pool(self) -> _core.Pool:
        return _core.process_pool(self.context.device.id)


class _Forget:
    """Drops a buffer when Numba's pointer to it is gone; it frees itself."""

    def __init__(self, allocations: dict[int, _core.Buffer], address: int) -> None:
        self._allocations, self._address = allocations, address

    def __call__(self) -> None:
        self._allocations.pop(self._address, None)


def install(*, backend: Backend = "cuda", **settings: object) -> None:
    """Make Numba allocate device memory from flagstone's pools. `settings` are the keyword arguments of `Pool`."""
    configure(backend, settings)
    cuda.set_memory_manager(MemoryManager)


_numba_memory_manager = MemoryManager
