"""flagstone under Numba: device arrays come from the pool.

Install it before the first use of CUDA, or set NUMBA_CUDA_MEMORY_MANAGER=flagstone.numba:

    import flagstone.numba

    flagstone.numba.install(limit="20GiB")
"""

import ctypes
from typing import Any

try:
    from numba import cuda
    from numba.cuda.cudadrv import driver
except ModuleNotFoundError as error:
    raise ImportError(f"{error}; pip install numba-cuda") from error

from flagstone import _core
from flagstone._process import Backend, configure

__all__ = ["MemoryManager", "install"]

_LEGACY = 0
"""The legacy default stream, which waits for all blocking streams."""


class MemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
    """Numba's interface for an external memory manager, for one context.

    Numba does not say on which stream an array is used. A block goes back when the last array over it is gone, and is
    given out again once everything is done that the legacy default stream and the streams that wait for it had by then:
    all of Numba's own (`cuda.stream()`, `cuda.per_thread_default_stream()`). Work on non-blocking streams,
    which are made elsewhere, has to be over before its arrays go, or is recorded with `Pool.record_stream`.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        """Serve the context that Numba passes."""
        super().__init__(*arguments, **keywords)
        self._stream: Any = None

    @property
    def interface_version(self) -> int:
        """The version of the interface."""
        return 1

    def initialize(self) -> None:
        """Do nothing: the pool is made when it is first asked."""

    def memalloc(self, size: int) -> Any:
        """Allocate `size` bytes, in any thread. Errors are those of `Pool.alloc`."""
        pool = self._pool()
        # The blocks' own stream has no work, but each has a use on the legacy one: its free waits for Numba's streams.
        if self._stream is None:
            self._stream = self.context.create_stream()
            pool.keep_stream(self._stream.handle)
        buffer = pool.alloc(size, self._stream.handle)
        pool.record_stream(buffer, _LEGACY)
        # Numba clears this on reset, which gives the memory back.
        self.allocations[buffer.ptr] = buffer
        finalizer = _Forget(self.allocations, buffer.ptr)
        return cuda.MemoryPointer(self.context, ctypes.c_void_p(buffer.ptr), size, finalizer=finalizer)

    def get_memory_info(self) -> Any:
        """Return what the device has free, with what the pool holds and no array has, and its memory."""
        free, total = driver.driver.cuMemGetInfo()
        stats = self._pool().stats()
        return cuda.MemoryInfo(free=free + stats.reserved_bytes - stats.allocated_bytes, total=total)

    def _pool(self) -> _core.Pool:
        return _core.process_pool(self.context.device.id)


class _Forget:
    """Drops a buffer when Numba's pointer to it is gone; it frees itself."""

    def __init__(self, allocations: dict[int, _core.Buffer], address: int) -> None:
        self._allocations, self._address = allocations, address

    def __call__(self) -> None:
        self._allocations.pop(self._address, None)


def install(*, backend: Backend = "cuda", **settings: object) -> None:
    """Make Numba allocate device memory from flagstone's pools. `settings` are the keyword arguments of `Pool`.

    Without any those stay in force that another library was installed with. `ConfigError` where they differ.
    """
    configure(backend, settings)
    cuda.set_memory_manager(MemoryManager)


_numba_memory_manager = MemoryManager
