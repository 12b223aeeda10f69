"""torch's statistics, answered from flagstone's pools: under another allocator than its own torch refuses them.

What nobody can answer says so by name.

What is replaced are the functions of `torch._C` that `torch.cuda.memory_stats` and the like call, not these themselves:
so names that were imported from torch before answer too.
"""

import warnings
from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch

from flagstone import _core
from flagstone.errors import FlagstoneError
from flagstone.history._torch import segments
from flagstone.stats import Stats
from flagstone.torch import _stats

_totals: dict[int, Stats] = {}
"""What the totals of a device were when they were last reset."""

_NOTHING = Stats(
    **dict.fromkeys(Stats.__dataclass_fields__.keys() - {"limit", "miss_times"}, 0), limit=None, miss_times=()
)


def apply() -> None:
    """Replace the functions, those that this version of torch has."""
    for name, function in _FUNCTIONS.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)
    for owner, name, what in _REFUSED:
        if hasattr(owner, name):
            setattr(owner, name, _refusal(what))


class NotServedError(FlagstoneError, RuntimeError):
    """A function of torch that goes through its own allocator. Where torch raises `RuntimeError`, this is one too."""


def _refusal(what: str) -> Callable[..., NoReturn]:
    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise NotServedError(
            f"{what}: not with flagstone as torch's allocator, it needs torch's own; docs/torch.md has what works"
        )

    return refuse


def _stats_of(device: int) -> Stats:
    # A device that was not used gets no pool, and no context, for being asked about.
    pool = _core.find_process_pool(device)
    return _NOTHING if pool is None else pool.stats()


def _memory_stats(device: int) -> dict[str, Any]:
    return _stats.nested(_stats_of(device), _totals.get(device, _NOTHING))


def _reset_peaks(device: int) -> None:
    pool = _core.find_process_pool(device)
    if pool is not None:
        pool.reset_peak()


def _reset_totals(device: int) -> None:
    _totals[device] = _stats_of(device)


def _fraction(device: int) -> float:
    pool = _core.find_process_pool(device)
    limit = None if pool is None else pool.stats().limit
    return 1.0 if limit is None else limit / torch.cuda.mem_get_info(device)[1]


def _snapshot(*_arguments: object) -> dict[str, Any]:
    devices = range(torch.cuda.device_count())
    pools = [pool for pool in map(_core.find_process_pool, devices) if pool is not None]
    return {
        "segments": [segment for pool in pools for segment in segments(pool.snapshot())],
        "device_traces": [[] for _ in devices],
        "host_segments": [],
        "host_traces": [],
        "external_annotations": [],
        "allocator_settings": {"allocator": f"flagstone {_core.__version__}"},
    }


def _record_history(enabled: str | None, *_arguments: object, **_options: object) -> None:
    if enabled is not None:
        warnings.warn("flagstone records no history: snapshots show the present state only", stacklevel=3)


def _history_is_recorded() -> bool:
    return False


def _empty_cache() -> None:
    torch._C._cuda_emptyCache()


def _is_initialized() -> bool:
    return bool(torch.cuda.is_initialized())


_FUNCTIONS = {
    "_cuda_memoryStats": _memory_stats,
    "_cuda_resetPeakMemoryStats": _reset_peaks,
    "_cuda_resetAccumulatedMemoryStats": _reset_totals,
    "_cuda_getMemoryFraction": _fraction,
    "_cuda_memorySnapshot": _snapshot,
    "_cuda_record_memory_history": _record_history,
    "_cuda_record_memory_history_legacy": _record_history,
    "_cuda_isHistoryEnabled": _history_is_recorded,
    "_accelerator_isAllocatorInitialized": _is_initialized,
    "_accelerator_getDeviceStats": _memory_stats,
    "_accelerator_resetPeakStats": _reset_peaks,
    "_accelerator_resetAccumulatedStats": _reset_totals,
    "_accelerator_emptyCache": _empty_cache,
}
"""The functions of `torch._C`, and what takes their place."""

_TREES: Final = 'torch.compile(mode="reduce-overhead")'

_REFUSED: Final = [
    (torch._C, "_cuda_getCheckpointState", _TREES),
    (torch._C, "_cuda_setCheckpointPoolState", _TREES),
    (torch._C, "_cuda_checkPoolLiveAllocations", _TREES),
    (torch.UntypedStorage, "_share_cuda_", "sharing CUDA tensors between processes"),
    (torch.cuda.MemPool, "__init__", "torch.cuda.MemPool"),
]
"""Functions that go through torch's own allocator: where they are, and what asks for them."""
