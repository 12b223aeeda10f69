"""The profile function that follows Python's stacks, set while the history of any pool wants them."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING

from flagstone import _core
from flagstone.errors import FlagstoneError

if TYPE_CHECKING:
    from _typeshed import ProfileFunction

_wanted: dict[int, weakref.ref[_core.BasePool] | None] = {}
"""The pools that want stacks; with what ends that, for those that go with their object."""
_lock = threading.RLock()
"""Taken again by its own thread where the collector drops a pool meanwhile."""


def start(pool: int, owner: _core.BasePool | None) -> None:
    """Follow the stacks of this thread and of later ones; from Python 3.12 on of all. Ends when `owner` is dropped.

    `FlagstoneError` if this thread has another profile function.
    """
    with _lock:
        if not _wanted:
            other = sys.getprofile()
            if other not in (None, _core.follow_stack):
                raise FlagstoneError(
                    f"stacks need the profile function, and this thread has another one already: {other!r}"
                )
            _core.forget_stacks()
        known = pool in _wanted
        # First: from here on a pool that is dropped is not the last one.
        _wanted[pool] = None if owner is None else weakref.ref(owner, lambda _: stop(pool))
        if len(_wanted) == 1 and not known:
            _set(_core.follow_stack)


def stop(pool: int) -> None:
    """Follow them no more, once no pool wants them. A profile function that another set since then stays."""
    with _lock:
        if pool in _wanted:
            del _wanted[pool]
            if not _wanted:
                _unset()


def _set(function: ProfileFunction | None) -> None:
    # Threads first: the function would see the rest of this one.
    if sys.version_info >= (3, 12):
        threading.setprofile_all_threads(function)
    else:
        threading.setprofile(function)
        sys.setprofile(function)


def _unset() -> None:
    ours = (None, _core.follow_stack)
    if sys.getprofile() in ours and threading.getprofile() in ours:
        _set(None)
    elif threading.getprofile() in ours:
        threading.setprofile(None)
    elif sys.getprofile() in ours:
        sys.setprofile(None)
