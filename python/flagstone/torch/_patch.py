"""torch's statistics, answered from flagstone's pools: under another allocator than its own torch refuses them.

What nobody can answer says so by name.

What is replaced are the functions of `torch._C` that `torch.cuda.memory_stats` and the like call, not these themselves:
so names that were imported from torch before answer too.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any, Final, NoReturn

import torch

from flagstone import _core
from flagstone.errors import FlagstoneError
from flagstone.stats import LargeStats, Stats
from flagstone.torch import _captures, _history, _private, _stats
from flagstone.torch._swap import version

_totals: dict[int, Stats] = {}
"""What the totals of a device were when they were last reset."""

_KNOWS_PRIVATE_POOLS = version() >= (2, 13)
"""Whether `torch.cuda.memory_stats` takes ids of pools for keys."""

_NOTHING = Stats(
    **{
        field.name: 0
        for field in fields(Stats)
        if field.name not in {"backend", "settings", "limit", "steps", "large", "hit_times", "miss_times"}
    },
    backend="",
    settings="",
    limit=None,
    steps=(),
    hit_times=(),
    miss_times=(),
    large=LargeStats(**{field.name: 0 for field in fields(LargeStats)}),
)


def apply() -> None:
    """Replace the functions, those that this version of torch has."""
    for name, function in _FUNCTIONS.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)
    for owner, name, what in _REFUSED:
        if hasattr(owner, name):
            setattr(owner, name, _refusal(what))
    if hasattr(torch.cuda.CUDAGraph, "_retain_pool"):
        torch.cuda.CUDAGraph._retain_pool = _retain_pool
    if version() < (2, 14):
        _captures.apply()
    torch.cuda.MemPool = torch.cuda.memory.MemPool = _private.MemPool
    torch.cuda.Stream.__new__ = staticmethod(_keeping(torch.cuda.Stream.__new__))


def _keeping(make: Callable[..., Any]) -> Callable[..., Any]:
    """Tell the pool of each stream that torch makes: none of them is ever destroyed.

    So what is freed on one can be given to another once its work is done. Of other streams only a wait for the whole
    device shows that. Streams that torch's C++ makes are found when they are used (src/capi/own_streams.rs), but for
    those of priorities below -1.
    """

    def new(cls: type, *arguments: Any, **options: Any) -> Any:
        stream = make(cls, *arguments, **options)
        # One that is there already may be of another library, and come to its end.
        if not options.keys() & {"stream_id", "stream_ptr"}:
            with suppress(FlagstoneError):  # whoever allocates there is told
                _core.process_pool(stream.device_index).keep_stream(stream.cuda_stream)
        return stream

    return new


def _refusal(what: str) -> Callable[..., NoReturn]:
    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise _private.not_served(what)

    return refuse


def _find_pool(device: int) -> _core.Pool | None:
    """Return a device's pool. One that was not used gets none, and no context, for being asked about."""
    pool = _core.find_process_pool(device)
    if pool is None and not 0 <= device < torch.cuda.device_count():
        raise RuntimeError(
            f"invalid device argument: {device}; there are {torch.cuda.device_count()} devices, from 0 on"
        )
    return pool


def _stats_of(device: int) -> Stats:
    pool = _find_pool(device)
    return _NOTHING if pool is None else pool.stats()


def _memory_stats(device: int) -> dict[str, Any]:
    private = _core.private_pools(device) if _KNOWS_PRIVATE_POOLS else {}
    return _stats.nested(_stats_of(device), _totals.get(device, _NOTHING), private)


def _reset_peaks(device: int) -> None:
    pool = _find_pool(device)
    if pool is not None:
        pool.reset_peak()


def _reset_totals(device: int) -> None:
    _totals[device] = _stats_of(device)


def _fraction(device: int) -> float:
    pool = _core.find_process_pool(device)
    limit = None if pool is None else pool.stats().limit
    return 1.0 if limit is None else limit / torch.cuda.mem_get_info(device)[1]


def _retain_pool(graph: Any, pool: object) -> None:
    # Until the graph is gone; the pool holds its memory by itself.
    vars(graph).setdefault("_flagstone_pools", []).append(pool)


def _empty_cache() -> None:
    torch._C._cuda_emptyCache()


def _is_initialized() -> bool:
    return bool(torch.cuda.is_initialized())


_FUNCTIONS = {
    "_cuda_memoryStats": _memory_stats,
    "_cuda_resetPeakMemoryStats": _reset_peaks,
    "_cuda_resetAccumulatedMemoryStats": _reset_totals,
    "_cuda_getMemoryFraction": _fraction,
    "_cuda_memorySnapshot": _history.snapshot,
    "_cuda_record_memory_history": _history.record,
    "_cuda_record_memory_history_legacy": _history.record_legacy,
    "_cuda_isHistoryEnabled": _history.is_recording,
    "_cuda_allocationTraceback": _history.traceback,
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
    (torch.UntypedStorage, "_share_cuda_", "sending CUDA tensors to other processes"),
    (torch.UntypedStorage, "_new_shared_cuda", "receiving CUDA tensors from other processes"),
    (torch.cuda.MemPool, "__init__", "the class torch.cuda.MemPool from before install()"),
    (torch._C, "_cuda_attach_out_of_memory_observer", "observers of torch's out-of-memory errors"),
]
"""Functions that go through torch's own allocator: where they are, and what asks for them."""
