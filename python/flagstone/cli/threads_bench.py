"""`flagstone bench threads` and `producer-consumer`: the C functions, and torch's own allocator where it can run."""

import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

from flagstone import _core
from flagstone.cli.contestants import NATIVE, Contestant
from flagstone.cli.output import size
from flagstone.errors import FlagstoneError

Row = dict[str, Any]
_Key = tuple[str, int, str]
"""The case, the number of threads, and the allocator."""
Say = Callable[[str], None]

_ROUNDS, _QUICK_ROUNDS = 21, 1
"""Many and short: what else the machine does in one of them does not decide."""
_HANDED_OVER_ROUNDS = 10
_SIZES = (4 << 10, 16 << 20)
_THREADS = (1, 2, 4, 8)
_RANDOM = "100 to 10,000 bytes, a shared table"
_RANDOM_THREADS, _RANDOM_STEPS = 4, 100_000
_MACHINE = "memory of each thread's own"


class _Flagstone:
    """flagstone's C functions in this process."""

    def __init__(self) -> None:
        addresses = _core.c_functions()
        self._functions = addresses["alloc"], addresses["free"]

    def pairs(self, **arguments: int) -> int:
        return _core.time_pairs(self._functions, **arguments)

    def handed_over(self, **arguments: int) -> int:
        return _core.time_handed_over(self._functions, **arguments)

    def random_shared(self, **arguments: int) -> int:
        return _core.time_random_shared(self._functions, **arguments)

    def takes(self) -> int | None:
        return _core.process_pool().stats().growth_count


class _Torch:
    """torch's own allocator in a process that has it."""

    def __init__(self, contestant: Contestant, simulated: bool) -> None:
        self._contestant = contestant
        self._simulated = simulated

    def _ask(self, what: str, arguments: dict[str, int]) -> int:
        wall_ns, _ = self._contestant.ask(what, **arguments)
        return int(wall_ns)

    def pairs(self, **arguments: int) -> int:
        return self._ask("pairs", arguments)

    def handed_over(self, **arguments: int) -> int:
        return self._ask("handed_over", arguments)

    def random_shared(self, **arguments: int) -> int:
        return self._ask("random_shared", arguments)

    def takes(self) -> int | None:
        """None on a real device, whose calls are not counted."""
        return int(self._contestant.ask("counts").get("cudaMalloc", 0)) if self._simulated else None


_Side = _Flagstone | _Torch


def threads(quick: bool, say: Say) -> list[Row]:
    """Time pairs of alloc and free in 1, 2, 4 and 8 threads, each with blocks of its own, on each allocator in turn.

    And blocks of random sizes that 4 threads allocate and free, whoever allocated them: two steps are a pair.
    Rows of the allocator `none` are what the machine itself does: an allocator's kind of work, where threads share
    nothing.

    Several threads of pairs are bound to the processors in turn. Each round measures an allocator's numbers of threads
    one right after the other. `scaling` is the pairs per second of all threads together to those of one,
    `to_two_threads` to those of two, and `ratio` the time of a pair to that of torch's own allocator: medians of the
    ratios in a round, of which half lie between `scaling_low` and `scaling_high`, and so on. `driver_takes` says how
    often memory was taken from the driver, in all rounds.
    """
    count, steps, rounds = (80_000, 1_000, _QUICK_ROUNDS) if quick else (4_000_000, _RANDOM_STEPS // 4, _ROUNDS)
    times: dict[_Key, list[float]] = {}
    takes: dict[_Key, int] = {}

    def measure(case: str, number: int, name: str, side: _Side, timed: Callable[[], int], pairs: float) -> None:
        say(f"threads: {case}, threads: {number}, {name}")
        key, before = (case, number, name), side.takes()
        times.setdefault(key, []).append(timed() / pairs)
        after = side.takes()
        if before is not None and after is not None:
            takes[key] = takes.get(key, 0) + after - before

    with _sides(say) as sides:
        for _ in range(rounds):
            for number in _THREADS:
                say(f"threads: {_MACHINE}, threads: {number}")
                each = count // number
                nanoseconds = _core.time_machine(each, threads=number) / (each * number)
                times.setdefault((_MACHINE, number, "none"), []).append(nanoseconds)
            for nbytes, (name, side), number in product(_SIZES, sides.items(), _THREADS):
                # Long beside the turns that the system gives to more threads than cores: 50 ms, and torch's are slower.
                each = (count if name == "flagstone" else count // 20) // number

                def own(side: _Side = side, nbytes: int = nbytes, each: int = each, number: int = number) -> int:
                    return side.pairs(nbytes=nbytes, count=each, threads=number)

                measure(size(nbytes), number, name, side, own, each * number)
        # After all pairs: for so many sizes the pool grows, and then keeps no large blocks at hand for a while.
        for _, (name, side) in product(range(rounds), sides.items()):

            def shared(side: _Side = side) -> int:
                return side.random_shared(count=steps, threads=_RANDOM_THREADS)

            measure(_RANDOM, _RANDOM_THREADS, name, side, shared, steps * _RANDOM_THREADS / 2)
    return [
        {
            "allocator": name,
            "case": case,
            "threads": number,
            "ns_per_pair": round(statistics.median(measured), 2),
            "pairs_per_second": round(1e9 / statistics.median(measured)),
            **_ratios("scaling", times.get((case, 1, name)), measured),
            **(_ratios("to_two_threads", times.get((case, 2, name)), measured) if number > 2 else {}),
            **_ratios("ratio", measured, times.get((case, number, NATIVE))),
            **({"driver_takes": takes[case, number, name]} if (case, number, name) in takes else {}),
        }
        for (case, number, name), measured in times.items()
    ]


def producer_consumer(quick: bool, say: Say) -> list[Row]:
    """Time blocks that one thread allocates and another frees, on each allocator in turn, and the handing over without
    any allocator.

    `peak_reserved_bytes` is the most that flagstone held, after the first of ten rounds and after the last;
    `driver_takes` says how often memory was taken from the driver after the first.
    """
    count, rounds = (20_000, 2 * _QUICK_ROUNDS) if quick else (10_000_000, _HANDED_OVER_ROUNDS)
    pool = _core.process_pool()
    reserved: list[int] = []
    times: dict[str, list[float]] = {}
    warm: dict[str, int | None] = {}
    takes: dict[str, int | None] = {}
    nbytes = _SIZES[0]
    with _sides(say) as sides:
        for turn, (name, side) in product(range(rounds), sides.items()):
            say(f"producer-consumer: {name}, round {turn + 1} of {rounds}")
            # torch's takes microseconds a block.
            blocks = count if name == "flagstone" else count // 10
            times.setdefault(name, []).append(side.handed_over(nbytes=nbytes, count=blocks) / blocks)
            takes[name] = side.takes()
            warm.setdefault(name, takes[name])
            if name == "flagstone":
                reserved.append(pool.stats().peak_reserved_bytes)
    times["none"] = [_core.time_handing_over(count) / count for _ in range(rounds)]
    held = {"peak_reserved_bytes_first": reserved[0], "peak_reserved_bytes": reserved[-1], "blocks": count * rounds}
    rows = []
    for name, measured in times.items():
        row: Row = {
            "allocator": name,
            "case": f"{size(nbytes)}, handed over",
            "threads": 2,
            "ns_per_block": round(statistics.median(measured), 2),
            "blocks_per_second": round(1e9 / statistics.median(measured)),
            **(held if name == "flagstone" else {}),
        }
        before, after = warm.get(name), takes.get(name)
        rows.append(row if before is None or after is None else {**row, "driver_takes": after - before})
    return rows


@contextmanager
def _sides(say: Say) -> Iterator[dict[str, _Side]]:
    """Give flagstone's C functions, and torch's own allocator where it can run."""
    simulated = _core.process_pool().backend == "sim"
    try:
        contestant = Contestant(NATIVE, simulated=simulated)
    except FlagstoneError as error:
        say("")
        print(f"flagstone: without torch's own allocator: {error}", file=sys.stderr)
        yield {"flagstone": _Flagstone()}
        return
    with contestant:
        yield {"flagstone": _Flagstone(), NATIVE: _Torch(contestant, simulated)}


def _ratios(name: str, one: list[float] | None, other: list[float] | None) -> Row:
    """Return the median of what the times of each round are to the others', and the quartiles; nothing without them."""
    if one is None or other is None:
        return {}
    ratios = [first / second for first, second in zip(one, other, strict=True)]
    low, median, high = statistics.quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3
    return {name: round(median, 3), f"{name}_low": round(low, 3), f"{name}_high": round(high, 3)}
