"""`flagstone bench history`: what it costs to record one."""

import statistics
import timeit
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from flagstone import _core

Row = dict[str, Any]
Say = Callable[[str], None]

_REPEATS = 5
_NBYTES = 4 << 10


def rows(quick: bool, say: Say) -> list[Row]:
    """Time a pair of alloc and free, and the call of a Python function, with and without a recording."""
    from flagstone import history

    addresses = _core.c_functions()
    functions = addresses["alloc"], addresses["free"]
    count = 20_000 if quick else 1_000_000
    pool = _core.process_pool()
    ways: dict[str, AbstractContextManager[None]] = {
        "none is recorded": nullcontext(),
        "recorded": history.record(pool),
        "recorded with stacks": history.record(pool, stacks=True),
    }
    found = []
    for case, recording in ways.items():
        say(f"history: {case}")
        with recording:
            pairs = [_core.time_pairs(functions, _NBYTES, count) for _ in range(_REPEATS)]
            calls = list(_calls(count))
        found.append(
            {
                "allocator": "flagstone",
                "case": case,
                "threads": 1,
                "ns_per_pair": round(statistics.median(pairs) / count, 2),
                "ns_per_python_call": round(statistics.median(calls) / count, 2),
            }
        )
    return found


def _calls(count: int) -> Iterator[float]:
    """Yield the nanoseconds of so many calls, less those of the loop."""

    def nothing() -> None:
        pass

    for _ in range(_REPEATS):
        loop = timeit.timeit("pass", number=count)
        yield max(0.0, timeit.timeit("nothing()", globals={"nothing": nothing}, number=count) - loop) * 1e9
