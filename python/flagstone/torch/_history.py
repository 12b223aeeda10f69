"""`torch.cuda.memory._record_memory_history` and what reads the record, by the pools' histories."""

import warnings
from typing import Any

import torch

from flagstone import _core
from flagstone.errors import FlagstoneError
from flagstone.history import _torch as form
from flagstone.history._stacks import start as follow_stacks
from flagstone.history._stacks import stop as follow_no_more

MOST = 1_000_000
"""Events that are kept of each pool where torch would keep all."""

_LATER = 0
"""Who follows stacks for pools that are not made yet; no pool has this address."""


def _pools() -> list[_core.Pool]:
    found = (_core.find_process_pool(device) for device in range(torch.cuda.device_count()))
    return [pool for pool in found if pool is not None]


def record(
    enabled: str | bool | None,
    context: str | bool | None = "all",
    _stacks: object = None,
    max_entries: int = MOST,
    clear: bool = False,
    *_others: object,
) -> None:
    """Begin or end recording, on every device: on those that are not in use yet from their first allocation on."""
    if not enabled:
        _core.record_later(None)
        follow_no_more(_LATER)
        for pool in _pools():
            pool.stop_history()
        return
    most = min(max_entries, MOST)
    stacks = bool(context) and _follow()
    _core.record_later(most, stacks=stacks)
    _core.process_pool(torch.cuda.current_device())
    for pool in _pools():
        if clear or not pool.is_recording:
            pool.start_history(most, stacks=stacks)


def record_legacy(enabled: bool, context: bool = True, max_entries: int = 1, *others: object) -> None:
    """As `record`, with the arguments that torch had first."""
    clear = others[2] if len(others) > 2 else False
    record(enabled, context, None, max_entries, bool(clear))


def _follow() -> bool:
    """Follow the stacks for the pools that are made later, and return whether that can be."""
    try:
        follow_stacks(_LATER, None)
    except FlagstoneError as error:
        warnings.warn(f"memory is recorded without stacks: {error}", stacklevel=5)
        return False
    return True


def is_recording() -> bool:
    """Whether anything is recorded."""
    return any(pool.is_recording for pool in _pools())


def segments(name: tuple[int, int] = (0, 0)) -> list[dict[str, Any]]:
    """Return the present segments, of one private pool if named."""
    found = [segment for pool in _pools() for segment in form.segments(pool.snapshot())]
    return [segment for segment in found if name in ((0, 0), segment["segment_pool_id"])]


def snapshot(which: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Return torch's dictionary: of everything with what was recorded, or the segments alone.

    Of a private pool, `which` is its id, and whether traces are wanted.
    """
    if which is not None:
        return {"segments": segments((which[0], which[1]))}
    result = form.snapshot(*(pool.history() for pool in _pools()))
    traces = result["device_traces"]
    traces.extend([] for _ in range(torch.cuda.device_count() - len(traces)))
    return result


def traceback(address: int) -> list[dict[str, Any]] | None:
    """Return the stack that allocated a block, where it was recorded."""
    for pool in _pools():
        history = pool.history()
        for event in reversed(history.events):
            if event.address == address and event.action == "alloc":
                return [frame._asdict() for frame in history.frames(event)]
    return None
