import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol, SupportsIndex, TypeAlias, final

from typing_extensions import CapsuleType, Self, disjoint_base

from flagstone.stats import Snapshot, Stats

class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

class _CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...

_Stream: TypeAlias = SupportsIndex | _CudaStream | _TorchStream | _CupyStream | None
_Amount: TypeAlias = SupportsIndex | float | str
_Backend: TypeAlias = Literal["auto", "cuda", "sim"]
_Range: TypeAlias = BaseBuffer | tuple[SupportsIndex, SupportsIndex]
_Functions: TypeAlias = tuple[int, int]

__version__: Final[str]
__all__ = [
    "BaseBuffer",
    "BasePool",
    "Buffer",
    "PinnedBuffer",
    "PinnedPool",
    "Pool",
    "SimulatedDevice",
    "Trace",
    "__version__",
    "build_info",
    "c_functions",
    "configure",
    "cuda_device_count",
    "devices",
    "find_process_pool",
    "last_error",
    "model",
    "process_pool",
    "replay",
    "time_pairs",
    "time_pairs_behind_holes",
    "time_random",
    "torch_error",
]

@disjoint_base
class BaseBuffer:
    @property
    def ptr(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def stream(self) -> int: ...
    @property
    def freed(self) -> bool: ...
    def free(self, stream: _Stream = None) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Buffer(BaseBuffer):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

@final
class PinnedBuffer(BaseBuffer):
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

@disjoint_base
class BasePool:
    limit: int | None
    @property
    def device(self) -> int: ...
    @property
    def backend(self) -> Literal["cuda", "sim"]: ...
    def alloc_raw(self, nbytes: SupportsIndex, stream: _Stream = None) -> int: ...
    def free_raw(self, ptr: SupportsIndex, stream: _Stream = None) -> None: ...
    def record_stream(self, block: BaseBuffer | SupportsIndex, stream: _Stream) -> None: ...
    def keep_stream(self, stream: _Stream) -> None: ...
    def reserve(self, nbytes: SupportsIndex) -> None: ...
    def trim(self, target: SupportsIndex = 0) -> int: ...
    def release_idle(self) -> int: ...
    def on_out_of_memory(self, callback: Callable[[int], object]) -> int: ...
    def remove_callback(self, number: int) -> bool: ...
    def stats(self) -> Stats: ...
    def reset_peak(self) -> None: ...
    def snapshot(self) -> Snapshot: ...

@final
class Pool(BasePool):
    def __new__(
        cls,
        device: int | SimulatedDevice = 0,
        *,
        backend: _Backend = "auto",
        limit: _Amount | None = None,
        growth: _Amount | None = None,
        magazine: _Amount | None = None,
        source: Literal["auto", "virtual_memory", "slabs", "driver_pool"] | None = None,
        reserve: _Amount | None = None,
        dependencies: Literal["off", "pressure", "growth"] | None = None,
        cache: _Amount | None = None,
        release_after: float | str | None = None,
        headroom: _Amount | None = None,
        wait: float | str | None = None,
        remap: bool | str | None = None,
        release_threshold: _Amount | None = None,
        reuse_event_dependencies: bool | str | None = None,
        reuse_opportunistic: bool | str | None = None,
        reuse_internal_dependencies: bool | str | None = None,
    ) -> Self: ...
    def alloc(self, nbytes: SupportsIndex, stream: _Stream = None) -> Buffer: ...

@final
class PinnedPool(BasePool):
    def __new__(
        cls,
        device: int | SimulatedDevice = 0,
        *,
        backend: _Backend = "auto",
        limit: _Amount | None = None,
        growth: _Amount | None = None,
        magazine: _Amount | None = None,
        source: Literal["auto", "virtual_memory", "slabs", "driver_pool"] | None = None,
        reserve: _Amount | None = None,
        dependencies: Literal["off", "pressure", "growth"] | None = None,
        cache: _Amount | None = None,
        release_after: float | str | None = None,
        headroom: _Amount | None = None,
        wait: float | str | None = None,
        remap: bool | str | None = None,
        release_threshold: _Amount | None = None,
        reuse_event_dependencies: bool | str | None = None,
        reuse_opportunistic: bool | str | None = None,
        reuse_internal_dependencies: bool | str | None = None,
    ) -> Self: ...
    def alloc(self, nbytes: SupportsIndex, stream: _Stream = None) -> PinnedBuffer: ...

@final
class SimulatedDevice:
    def __new__(
        cls,
        *,
        capacity: SupportsIndex = 17179869184,
        host_capacity: SupportsIndex | None = None,
        virtual_memory: bool = True,
        backed: bool = True,
        lag: int = 0,
    ) -> Self: ...
    @property
    def capacity(self) -> int: ...
    @property
    def now(self) -> int: ...
    def advance(self, nanoseconds: int) -> None: ...
    def create_stream(self) -> int: ...
    def destroy_stream(self, stream: _Stream) -> None: ...
    def hold(self, stream: _Stream = None) -> None: ...
    def release(self, stream: _Stream = None) -> None: ...
    def launch(
        self,
        stream: _Stream = None,
        *,
        reads: Sequence[_Range] = (),
        writes: Sequence[_Range] = (),
        nanoseconds: int = 0,
    ) -> None: ...
    def read(self, address: SupportsIndex, nbytes: int) -> bytes: ...
    def write(self, address: SupportsIndex, data: bytes) -> None: ...
    def fail_call(self, function: str, *, nth: int = 1, times: int = 1, code: int = 2) -> None: ...
    def clear_faults(self) -> None: ...
    def counts(self) -> dict[str, int]: ...
    def driver_time(self) -> dict[str, int]: ...
    def reset_counts(self) -> None: ...
    def violations(self) -> list[str]: ...

@final
class Trace:
    def __new__(cls, path: str | os.PathLike[str]) -> Self: ...
    @staticmethod
    def example() -> Trace: ...
    @property
    def name(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def blocks(self) -> int: ...
    @property
    def streams(self) -> int: ...
    def schedule(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...

def replay(
    trace: Trace,
    *,
    backend: _Backend = "sim",
    passes: int = 1,
    lag_ms: float = 5.0,
    threads: int = 1,
    config: str = "",
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]: ...
def model(
    trace: Trace,
    allocator: str,
    *,
    passes: int = 1,
    lag_ms: float = 5.0,
) -> dict[str, Any]: ...
def c_functions() -> dict[str, int]: ...
def configure(backend: _Backend = "auto", conf: str = "") -> None: ...
def process_pool(device: int = 0) -> Pool: ...
def find_process_pool(device: int) -> Pool | None: ...
def last_error() -> BaseException | None: ...
def torch_error() -> Literal["OutOfMemoryError", "RuntimeError"] | None: ...
def build_info() -> dict[str, Any]: ...
def cuda_device_count() -> int: ...
def devices(backend: _Backend = "auto") -> list[dict[str, Any]]: ...
def time_pairs(
    functions: _Functions, nbytes: int, count: int, *, threads: int = 1, device: int = 0, stream: int = 0
) -> int: ...
def time_object_pairs(this: int, methods: _Functions, nbytes: int, count: int, *, threads: int = 1) -> int: ...
def plain_functions(malloc: int, free: int) -> _Functions: ...
def time_pairs_behind_holes(
    functions: _Functions, nbytes: int, count: int, *, holes: int, device: int = 0, stream: int = 0
) -> int: ...
def time_random(
    functions: _Functions, count: int, most_mib: int, *, device: int = 0, stream: int = 0
) -> dict[str, int]: ...
