import os
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, SupportsIndex, TypeAlias, final

from typing_extensions import CapsuleType, Self

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
_Functions: TypeAlias = tuple[int, int]

__version__: Final[str]
__all__: list[str]

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

class BasePool:
    limit: int | None
    @property
    def device(self) -> int: ...
    @property
    def backend(self) -> Literal["cuda", "sim"]: ...
    def alloc_raw(self, nbytes: SupportsIndex, stream: _Stream = None) -> int: ...
    def free_raw(self, ptr: SupportsIndex, stream: _Stream = None) -> None: ...
    def record_stream(self, block: BaseBuffer | SupportsIndex, stream: _Stream) -> None: ...
    def reserve(self, nbytes: SupportsIndex) -> None: ...
    def trim(self, target: SupportsIndex = 0) -> int: ...
    def stats(self) -> Stats: ...
    def reset_peak(self) -> None: ...
    def snapshot(self) -> Snapshot: ...

@final
class Pool(BasePool):
    def __new__(
        cls,
        device: int = 0,
        *,
        backend: _Backend = "auto",
        limit: _Amount | None = None,
        growth: _Amount | None = None,
        magazine: _Amount | None = None,
        source: Literal["auto", "virtual_memory", "slabs"] | None = None,
        reserve: _Amount | None = None,
    ) -> Self: ...
    def alloc(self, nbytes: SupportsIndex, stream: _Stream = None) -> Buffer: ...

@final
class PinnedPool(BasePool):
    def __new__(
        cls,
        device: int = 0,
        *,
        backend: _Backend = "auto",
        limit: _Amount | None = None,
        growth: _Amount | None = None,
        magazine: _Amount | None = None,
        source: Literal["auto", "virtual_memory", "slabs"] | None = None,
        reserve: _Amount | None = None,
    ) -> Self: ...
    def alloc(self, nbytes: SupportsIndex, stream: _Stream = None) -> PinnedBuffer: ...

def build_info() -> dict[str, Any]: ...
def cuda_device_count() -> int: ...
def devices(backend: _Backend = "auto") -> list[dict[str, Any]]: ...
def time_pairs(
    functions: _Functions, nbytes: int, count: int, *, threads: int = 1, device: int = 0, stream: int = 0
) -> int: ...
def time_pairs_behind_holes(
    functions: _Functions, nbytes: int, count: int, *, holes: int, device: int = 0, stream: int = 0
) -> int: ...
def time_random(
    functions: _Functions, count: int, most_mib: int, *, device: int = 0, stream: int = 0
) -> dict[str, int]: ...
