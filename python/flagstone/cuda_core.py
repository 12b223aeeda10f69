"""flagstone under cuda.core: a memory resource over a pool.

Buffers of a device come from the pool with:

    import flagstone
    import flagstone.cuda_core
    from cuda.core import Device

    device = Device(0)
    device.memory_resource = flagstone.cuda_core.MemoryResource(flagstone.Pool(0))
"""

from typing import Any

try:
    import cuda.core
except ModuleNotFoundError as error:
    raise ImportError(f"{error}; pip install cuda-core") from error

from flagstone._core import Pool

__all__ = ["MemoryResource"]


class MemoryResource(cuda.core.MemoryResource):
    """Allocates `cuda.core.Buffer`s from a pool, in stream order."""

    def __init__(self, pool: Pool) -> None:
        """Allocate from `pool`, which lives as long as the resource; `TypeError` for what is no pool of a device."""
        if not isinstance(pool, Pool):
            raise TypeError(f"a resource is over a flagstone.Pool, not {type(pool).__name__}")
        self._pool = pool

    def allocate(self, size: int, *, stream: Any) -> "cuda.core.Buffer":
        """Allocate `size` bytes on `stream`, on which the buffer is also closed unless it is told otherwise.

        In any thread; errors are those of `Pool.alloc`.
        """
        address = self._pool.alloc_raw(size, stream)
        try:
            return cuda.core.Buffer.from_handle(address, size, mr=self, stream=stream)
        except BaseException:
            self._pool.free_raw(address)
            raise

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Free what `allocate` returned, when `stream` is done with it. The pool knows the size."""
        self._pool.free_raw(int(ptr), stream)

    @property
    def pool(self) -> Pool:
        """The pool."""
        return self._pool

    @property
    def device_id(self) -> int:
        """The device's ordinal."""
        return self._pool.device

    @property
    def is_device_accessible(self) -> bool:
        """Whether the device can use the memory: yes."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """Whether the host can use the memory: no."""
        return False

    @property
    def is_managed(self) -> bool:
        """Whether the memory is managed: no."""
        return False
