"""`flagstone bench threads` and `producer-consumer`: the C functions, and torch's own allocator where it can run."""

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from typing import Any

from flagstone import _core
from flagstone.cli.contestants import NATIVE, Contestant
from flagstone.cli.output import size
from flagstone.errors import FlagstoneError

Row = dict[str, Any]
Say = Callable[[str], None]
_Measure = Callable[..., int]
"""Nanoseconds of what is asked for: `nbytes`, `count` and maybe `threads`."""

_ROUNDS, _QUICK_ROUNDS = 5, 1
_SIZES = (4 << 10, 16 << 20)
_THREADS = (1, 2, 4, 8)


def threads(quick: bool, say: Say) -> list[Row]:
    """Time pairs of alloc and free in 1, 2, 4 and 8 threads, each with blocks of its own, on each allocator in turn.

    `scaling` is the pairs per second of all threads together to those of one, the median of the ratios in a round.
    """
    count, rounds = (80_000, _QUICK_ROUNDS) if quick else (8_000_000, _ROUNDS)
    with ExitStack() as stack:
        allocators = _allocators(stack, say, "pairs", _core.time_pairs)
        times: dict[tuple[int, int, str], list[float]] = {}
        for _, nbytes, number, (name, measure) in product(range(rounds), _SIZES, _THREADS, allocators.items()):
            say(f"threads: {size(nbytes)}, threads: {number}, {name}")
            # Long beside the turns that the system gives to more threads than cores: 0.1 s, and torch's are slower.
            pairs = (count if name == "flagstone" else count // 20) // number
            nanoseconds = measure(nbytes=nbytes, count=pairs, threads=number) / (pairs * number)
            times.setdefault((nbytes, number, name), []).append(nanoseconds)
    return [
        {
            "allocator": name,
            "case": size(nbytes),
            "threads": number,
            "ns_per_pair": round(statistics.median(measured), 2),
            "pairs_per_second": round(1e9 / statistics.median(measured)),
            "scaling": _ratio(times[nbytes, 1, name], measured),
        }
        for (nbytes, number, name), measured in times.items()
    ]


def producer_consumer(quick: bool, say: Say) -> list[Row]:
    """Time blocks that one thread allocates and another frees, on each allocator in turn.

    `peak_reserved_bytes` is the most that flagstone held, after the first round and after the last.
    """
    count, rounds = (20_000, 2 * _QUICK_ROUNDS) if quick else (10_000_000, _ROUNDS)
    pool = _core.process_pool()
    reserved: list[int] = []
    times: dict[str, list[float]] = {}
    nbytes = _SIZES[0]
    with ExitStack() as stack:
        allocators = _allocators(stack, say, "handed_over", _core.time_handed_over)
        for turn, (name, measure) in product(range(rounds), allocators.items()):
            say(f"producer-consumer: {name}, round {turn + 1} of {rounds}")
            # torch's takes microseconds a block.
            blocks = count if name == "flagstone" else count // 10
            times.setdefault(name, []).append(measure(nbytes=nbytes, count=blocks) / blocks)
            if name == "flagstone":
                reserved.append(pool.stats().peak_reserved_bytes)
    held = {"peak_reserved_bytes_first": reserved[0], "peak_reserved_bytes": reserved[-1], "blocks": count * rounds}
    return [
        {
            "allocator": name,
            "case": f"{size(nbytes)}, handed over",
            "threads": 2,
            "ns_per_block": round(statistics.median(measured), 2),
            "blocks_per_second": round(1e9 / statistics.median(measured)),
            **(held if name == "flagstone" else {}),
        }
        for name, measured in times.items()
    ]


def _allocators(stack: ExitStack, say: Say, what: str, measure: Callable[..., int]) -> dict[str, _Measure]:
    """Return how to measure flagstone's C functions, and torch's own allocator in a process that has it."""
    addresses = _core.c_functions()

    def flagstone(**arguments: int) -> int:
        return measure((addresses["alloc"], addresses["free"]), **arguments)

    allocators: dict[str, _Measure] = {"flagstone": flagstone}
    try:
        simulated = _core.process_pool().backend == "sim"
        contestant = stack.enter_context(Contestant(NATIVE, simulated=simulated))
    except FlagstoneError as error:
        say(f"without torch's own allocator: {error}")
        return allocators

    def torchs(**arguments: int) -> int:
        wall_ns, _ = contestant.ask(what, **arguments)
        return int(wall_ns)

    return {**allocators, NATIVE: torchs}


def _ratio(ones: list[float], measured: list[float]) -> float:
    return round(statistics.median(one / time for one, time in zip(ones, measured, strict=True)), 3)
