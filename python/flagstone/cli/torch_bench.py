"""`flagstone bench torch`: torch's allocators and flagstone under torch, side by side."""

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from flagstone.cli.contestants import NATIVE, OPTIONS, Contestant
from flagstone.cli.output import size

_ROUNDS, _QUICK_ROUNDS = 5, 2
_BUDGET_NS, _QUICK_BUDGET_NS = 150_000_000, 2_000_000
_FEW = 300
"""Pairs that tell how many fit the time of one measurement."""


@dataclass(frozen=True)
class _Case:
    name: str
    what: str
    """What a contestant is asked for."""
    nbytes: int
    threads: int

    def measure(self, contestant: Contestant, count: int) -> "_Time":
        """Run so many pairs in each thread."""
        wall_ns, cpu_ns = contestant.ask(self.what, nbytes=self.nbytes, count=count, threads=self.threads)
        return _Time(wall_ns / (count * self.threads), cpu_ns / (count * self.threads))


class _Time(NamedTuple):
    """Nanoseconds for a pair, over the pairs of all threads together."""

    wall: float
    cpu: float


_KINDS = (
    ("raw_alloc + raw_delete", "pairs", 4 << 10),
    ("raw_alloc + raw_delete", "pairs", 4 << 20),
    ("torch.empty + del", "tensors", 1 << 20),
)
_CASES = [_Case(*kind, threads) for kind, threads in product(_KINDS, (1, 2, 4))]


def rows(quick: bool, say: Callable[[str], None], simulated: bool) -> list[dict[str, Any]]:
    """Time all allocators in turn, round after round; return a row for each case and allocator.

    `ns_per_pair` is the median of the rounds, `ns_per_pair_rounds` are all of them; `cpu_ns_per_pair` is processor
    time, which other programs disturb less. `ratio` is the median of the ratios to torch's own allocator in the same
    round, `ratio_least` and `ratio_most` are their spread, `cpu_ratio` is that of processor time.
    """
    rounds, budget_ns = (_QUICK_ROUNDS, _QUICK_BUDGET_NS) if quick else (_ROUNDS, _BUDGET_NS)
    result: list[dict[str, Any]] = []
    with ExitStack() as stack:
        contestants = {name: stack.enter_context(Contestant(name, simulated=simulated)) for name in OPTIONS}
        for case in _CASES:
            say(f"torch: {case.name}, {size(case.nbytes)}, threads: {case.threads}")
            counts = {
                name: max(_FEW, round(budget_ns / case.threads / case.measure(contestant, _FEW).wall))
                for name, contestant in contestants.items()
            }
            times: dict[str, list[_Time]] = {name: [] for name in contestants}
            for _ in range(rounds):
                for name, contestant in contestants.items():
                    times[name].append(case.measure(contestant, counts[name]))
            result += [_row(case, name, measured, times[NATIVE]) for name, measured in times.items()]
    return result


def _row(case: _Case, allocator: str, times: list[_Time], native: list[_Time]) -> dict[str, Any]:
    median = statistics.median(time.wall for time in times)
    ratios = [mine.wall / theirs.wall for mine, theirs in zip(times, native, strict=True)]
    cpu_ratios = [mine.cpu / theirs.cpu for mine, theirs in zip(times, native, strict=True)]
    return {
        "allocator": allocator,
        "case": f"{case.name}, {size(case.nbytes)}",
        "threads": case.threads,
        "ns_per_pair": round(median, 1),
        "ns_per_pair_rounds": [round(time.wall, 1) for time in times],
        "pairs_per_second": round(1e9 / median),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_least": round(min(ratios), 3),
        "ratio_most": round(max(ratios), 3),
        "cpu_ns_per_pair": round(statistics.median(time.cpu for time in times), 1),
        "cpu_ratio": round(statistics.median(cpu_ratios), 3),
    }
