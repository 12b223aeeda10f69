"""The profile function that follows Python's stacks, set while the history of any pool wants them."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from flagstone import _core
from flagstone.errors import FlagstoneError

if TYPE_CHECKING:
    from _typeshed import ProfileFunction

_wanted: set[int] = set()
"""The pools that want stacks."""
_lock = threading.Lock()


def start(pool: int) -> None:
    """Follow the stacks of this thread and of later ones; from Python 3.12 on of all.

    `FlagstoneError` if this thread has another profile function.
    """
    with _lock:
        if not _wanted:
            other = sys.getprofile()
            if other is not None:
                raise FlagstoneError(
                    f"stacks need the profile function, and this thread has another one already: {other!r}"
                )
            _core.forget_stacks()
            _set(_core.follow_stack)
        _wanted.add(pool)


def stop(pool: int) -> None:
    """Follow them no more, once no pool wants them."""
    with _lock:
        if pool in _wanted:
            _wanted.remove(pool)
            if not _wanted:
                _set(None)


def _set(function: ProfileFunction | None) -> None:
    # Threads first: the function would see the rest of this one.
    if sys.version_info >= (3, 12):
        threading.setprofile_all_threads(function)
    else:
        threading.setprofile(function)
        sys.setprofile(function)
