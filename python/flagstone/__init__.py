"""flagstone: a GPU memory pool.

    import flagstone

    pool = flagstone.Pool(device=0)
    with pool.alloc(1 << 20) as buffer:
        print(hex(buffer.ptr), pool.stats().reserved_bytes)

Importing this package loads no driver and touches no device; the first pool does. The submodules `torch`, `cupy`,
`numba` and `cuda_core` put the pool under another library, and are imported when they are first used.
"""

import importlib
import os

from flagstone._core import Buffer, BufferView, PinnedBuffer, PinnedPool, Pool, __version__
from flagstone.errors import (
    ConfigError,
    CudaUnavailableError,
    DeviceError,
    DoubleFreeError,
    DriverError,
    FlagstoneError,
    ForkError,
    InvalidPointerError,
    OutOfMemoryError,
    SimulatedDeviceWarning,
    StreamError,
    TooLargeError,
    TooManyError,
    TraceError,
)

TYPE_CHECKING = False  # Type checkers take it for true; importing it from typing costs 10 ms.
if TYPE_CHECKING:
    from flagstone import cuda_core as cuda_core
    from flagstone import cupy as cupy
    from flagstone import history as history
    from flagstone import metrics as metrics
    from flagstone import numba as numba
    from flagstone import stats as stats
    from flagstone import testing as testing
    from flagstone import torch as torch
    from flagstone._serve import serve_stats as serve_stats
    from flagstone._usage import statistics as statistics
    from flagstone._views import as_buffer as as_buffer
    from flagstone._views import from_dlpack as from_dlpack

__all__ = [
    "Buffer",
    "BufferView",
    "ConfigError",
    "CudaUnavailableError",
    "DeviceError",
    "DoubleFreeError",
    "DriverError",
    "FlagstoneError",
    "ForkError",
    "InvalidPointerError",
    "OutOfMemoryError",
    "PinnedBuffer",
    "PinnedPool",
    "Pool",
    "SimulatedDeviceWarning",
    "StreamError",
    "TooLargeError",
    "TooManyError",
    "TraceError",
    "__version__",
    "as_buffer",
    "from_dlpack",
    "serve_stats",
    "statistics",
]

_FUNCTIONS = {
    "as_buffer": "flagstone._views",
    "from_dlpack": "flagstone._views",
    "serve_stats": "flagstone._serve",
    "statistics": "flagstone._usage",
}
_SUBMODULES = frozenset({"cuda_core", "cupy", "history", "metrics", "numba", "stats", "testing", "torch"})


def __getattr__(name: str) -> object:
    """Import a submodule, or what is in one, when it is first asked for."""
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES, *_FUNCTIONS})


if "FLAGSTONE_SERVE_STATS" in os.environ:
    from flagstone._serve import serve_if_asked

    serve_if_asked()
