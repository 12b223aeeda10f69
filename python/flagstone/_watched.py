"""The pools that metrics and `flagstone top` look at: the process's own, and those that a program names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from flagstone import _core
from flagstone.errors import ForkError

if TYPE_CHECKING:
    from flagstone._core import BasePool
    from flagstone.stats import Stats

PROCESS, PINNED = "process", "pinned"
"""The names of the process's pools, and of the pinned memory of `flagstone.torch`; one of each for a device."""


class Reading(NamedTuple):
    """What one pool says of itself at one moment."""

    name: str
    backend: str
    stats: Stats


class WatchedPools:
    """The process's pools as far as there are any, and named ones. These are kept alive."""

    def __init__(self, pools: Mapping[str, BasePool] | None = None) -> None:
        """Add `pools`, by name. `ValueError` for a name of the process's pools, `TypeError` for what is no pool."""
        self._named: dict[str, BasePool] = {}
        self.add(pools or {})

    def add(self, pools: Mapping[str, BasePool]) -> None:
        """Add more; a name that was given before is that of the new pool from now on."""
        # What is no pool would fail later, in the thread or the scrape that reads it.
        if not isinstance(pools, Mapping):
            raise TypeError(f"pools are given by name, as {{'mine': pool}}, not {type(pools).__name__}")
        for name, pool in pools.items():
            if not isinstance(pool, _core.BasePool):
                raise TypeError(f"{name!r} is no pool but {type(pool).__name__}")
        for name in (PROCESS, PINNED):
            if name in pools:
                raise ValueError(f"{name!r} is the name of pools that are always there; name yours otherwise")
        self._named = {**self._named, **pools}

    def read(self) -> list[Reading]:
        """Return the numbers of each pool; of none in a forked child, where pools are of no use."""
        pools = [(PROCESS, pool) for pool in _core.process_pools()]
        torch_part = sys.modules.get("flagstone.torch._pinned")
        pinned = torch_part._pools if torch_part else {}
        pools += [(PINNED, pool) for pool in tuple(pinned.values())]
        try:
            return [Reading(name, pool.backend, pool.stats()) for name, pool in [*pools, *self._named.items()]]
        except ForkError:
            return []
