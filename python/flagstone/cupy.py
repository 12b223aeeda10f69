"""flagstone under CuPy: arrays come from the pool, on CuPy's current stream.

Install it before the first array:

    import flagstone.cupy

    flagstone.cupy.install(limit="20GiB")
"""

try:
    import cupy
except ModuleNotFoundError as error:
    raise ImportError(f"{error}; install CuPy for your CUDA, as pip install cupy-cuda13x") from error

from flagstone import _core
from flagstone._process import Backend, configure

__all__ = ["allocator", "install"]


def install(*, backend: Backend = "cuda", **settings: object) -> None:
    """Make CuPy allocate device memory from flagstone's pools. `settings` are the keyword arguments of `Pool`.

    Without any those stay in force that another library was installed with. `ConfigError` where they differ.
    """
    configure(backend, settings)
    cupy.cuda.set_allocator(allocator)


def allocator(nbytes: int) -> "cupy.cuda.MemoryPointer":
    """Allocate as `cupy.cuda.set_allocator` and `cupy.cuda.using_allocator` ask for it.

    The memory belongs to the stream that is current now, and goes back when the last array over it is gone, in whatever
    thread. Errors are those of `Pool.alloc`.
    """
    device = cupy.cuda.Device().id
    buffer = _core.process_pool(device).alloc(nbytes, cupy.cuda.get_current_stream())
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(buffer.ptr, nbytes, buffer, device), 0)
