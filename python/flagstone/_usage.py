"""`flagstone.statistics`: what a part of a program uses of a pool."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from flagstone import _core
from flagstone._text import size, table

if TYPE_CHECKING:
    from flagstone._core import BasePool
    from flagstone.stats import Stats

Function = TypeVar("Function", bound=Callable[..., Any])

_COUNTS = ("alloc_count", "free_count", "miss_count", "growth_count", "pressure_count", "out_of_memory_count")
_PEAKS = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")


@dataclass(eq=False)
class _Run:
    """A run that is under way."""

    pool: BasePool
    began: Stats
    highest: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_PEAKS, 0))


class statistics:
    """What a block of code, or a function, uses of a pool; with several runs the sums and the highest peaks.

        usage = flagstone.statistics(pool)
        with usage:
            step()
        print(usage)

        @flagstone.statistics(pool)
        def step(): ...

    Without a pool it is the process's pool of device 0, which torch's tensors have after `flagstone.torch.install()`.
    What other threads do with the pool meanwhile counts too. The pool's own peaks begin anew at each beginning and end.

    A function may be called by several threads at once, and be a coroutine: it is measured until it returns, with what
    other tasks do while it waits. Runs of several objects, and calls of one function, may be within each other or not;
    `with` blocks of one object are of one thread, and within each other.
    """

    def __init__(self, pool: BasePool | None = None) -> None:
        """Measure `pool`; `TypeError` for what is none, as the function that was to be decorated."""
        if pool is not None and not isinstance(pool, _core.BasePool):
            raise TypeError(
                f"a pool is measured, not {type(pool).__name__}; write @flagstone.statistics() for a function"
            )
        self._pool = pool
        self._blocks: list[_Run] = []
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

    def __call__(self, function: Function) -> Function:
        """Measure each call of `function`, all together. `TypeError` for a generator: it runs as somebody iterates."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            name = function.__name__
            raise TypeError(f"{name} is a generator, and its call runs nothing of it; write `with` in its body")
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def measured(*args: Any, **kwargs: Any) -> Any:
                run = self._begin()
                try:
                    return await function(*args, **kwargs)
                finally:
                    self._end(run)

        else:

            @wraps(function)
            def measured(*args: Any, **kwargs: Any) -> Any:
                run = self._begin()
                try:
                    return function(*args, **kwargs)
                finally:
                    self._end(run)

        return cast("Function", measured)

    def __enter__(self) -> statistics:
        """Begin a run."""
        self._blocks.append(self._begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run; what it used counts also when it failed."""
        self._end(self._blocks.pop())

    def _begin(self) -> _Run:
        with _lock:
            if self._pool is None:
                self._pool = _core.process_pool()
            run = _Run(self._pool, _fold(self._pool))
            _under_way.append(run)
        return run

    def _end(self, run: _Run) -> None:
        with _lock:
            now = _fold(run.pool)
            _under_way.remove(run)
            self.runs += 1
            for name in _COUNTS:
                setattr(self, name, getattr(self, name) + getattr(now, name) - getattr(run.began, name))
            for name in _PEAKS:
                setattr(self, f"peak_{name}", max(getattr(self, f"peak_{name}"), run.highest[name]))
            self.left_bytes += now.requested_bytes - run.began.requested_bytes
            self.added_bytes = max(self.added_bytes, run.highest["allocated_bytes"] - run.began.allocated_bytes)

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
_under_way: list[_Run] = []


def _fold(pool: BasePool) -> Stats:
    """Note the peaks so far in every run that is under way, and let them begin anew."""
    stats = pool.reset_peak()
    for run in _under_way:
        if run.pool == pool:
            for name in _PEAKS:
                run.highest[name] = max(run.highest[name], getattr(stats, f"peak_{name}"))
    return stats
