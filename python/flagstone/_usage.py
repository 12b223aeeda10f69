"""`flagstone.statistics`: what a part of a program uses of a pool."""

from __future__ import annotations

import threading
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING

from flagstone import _core
from flagstone._text import size, table

if TYPE_CHECKING:
    from flagstone._core import BasePool
    from flagstone.stats import Stats

_COUNTS = ("alloc_count", "free_count", "miss_count", "growth_count", "pressure_count", "out_of_memory_count")
_PEAKS = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")


class statistics(ContextDecorator):
    """What a block of code, or a function, uses of a pool; with several runs the sums and the highest peaks.

        usage = flagstone.statistics(pool)
        with usage:
            step()
        print(usage)

        @flagstone.statistics(pool)
        def step(): ...

    Without a pool it is the process's pool of device 0, which torch's tensors have after `flagstone.torch.install()`.
    What other threads do with the pool meanwhile counts too. The pool's own peaks begin anew at each beginning and end.
    One object is for one thread, but several may be under way, within each other or not.
    """

    def __init__(self, pool: BasePool | None = None) -> None:
        """Measure `pool`; `TypeError` for what is none, as the function that was to be decorated."""
        if pool is not None and not isinstance(pool, _core.BasePool):
            raise TypeError(
                f"a pool is measured, not {type(pool).__name__}; write @flagstone.statistics() for a function"
            )
        self._pool = pool
        self._began: list[Stats] = []
        self._highest: list[dict[str, int]] = []
        self.runs = 0
        """How often the code has run."""
        self.alloc_count = 0
        """Allocations that succeeded in all runs; the other counts are as in `flagstone.stats.Stats`, of all runs."""
        self.free_count = 0
        self.miss_count = 0
        self.growth_count = 0
        self.pressure_count = 0
        self.out_of_memory_count = 0
        self.left_bytes = 0
        """By how much more was live after the runs than before, as asked for."""
        self.peak_requested_bytes = 0
        """The most that was live in a run, as asked for, with what was live before; the other peaks likewise."""
        self.peak_allocated_bytes = 0
        self.peak_active_bytes = 0
        self.peak_reserved_bytes = 0
        self.added_bytes = 0
        """The most that a run had live above what was live when it began, rounded."""

    def __enter__(self) -> statistics:
        """Begin a run."""
        if self._pool is None:
            self._pool = _core.process_pool()
        with _lock:
            self._began.append(_fold(self._pool))
            self._highest.append({})
            _under_way.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run; what it used counts also when it failed."""
        assert self._pool is not None
        with _lock:
            now = _fold(self._pool)
            _under_way.remove(self)
            began, highest = self._began.pop(), self._highest.pop()
        self.runs += 1
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(now, name) - getattr(began, name))
        for name in _PEAKS:
            setattr(self, f"peak_{name}", max(getattr(self, f"peak_{name}"), highest[name]))
        self.left_bytes += now.requested_bytes - began.requested_bytes
        self.added_bytes = max(self.added_bytes, highest["allocated_bytes"] - began.allocated_bytes)

    def _recreate_cm(self) -> statistics:
        """Return what a decorated function enters: this object, so that its calls add up."""
        return self

    def __repr__(self) -> str:
        """Say the most that was live; `str` has all numbers."""
        return f"<flagstone.statistics of {self._counted()}: {self.peak_requested_bytes} bytes live at most>"

    def __str__(self) -> str:
        """Lay the numbers out as a table."""
        rows = [(f"peak {name.removesuffix('_bytes')}", size(getattr(self, f"peak_{name}"))) for name in _PEAKS]
        rows += [("at most above the beginning", size(self.added_bytes)), ("left live", size(self.left_bytes))]
        rows += [
            ("allocations", f"{self.alloc_count:,}"),
            ("frees", f"{self.free_count:,}"),
            ("misses", f"{self.miss_count:,}"),
            ("growths", f"{self.growth_count:,}"),
            ("short of memory", f"{self.pressure_count:,}"),
            ("out of memory", f"{self.out_of_memory_count:,}"),
        ]
        return table((self._counted(), ""), rows)

    def _counted(self) -> str:
        return f"{self.runs:,} run" if self.runs == 1 else f"{self.runs:,} runs"


_lock = threading.Lock()
_under_way: list[statistics] = []


def _fold(pool: BasePool) -> Stats:
    """Note the peaks so far in every run that is under way, and let them begin anew."""
    stats = pool.stats()
    pool.reset_peak()
    for usage in {usage for usage in _under_way if usage._pool == pool}:
        for highest in usage._highest:
            for name in _PEAKS:
                highest[name] = max(highest.get(name, 0), getattr(stats, f"peak_{name}"))
    return stats
