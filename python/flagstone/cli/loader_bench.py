"""`flagstone bench dataloader`: batches of workers to the device, by torch's pinned memory and by flagstone's."""

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from flagstone.cli.contestants import NATIVE, Contestant

_WORKERS, _BATCHES, _WARM = 8, 1000, 50
_ROUNDS, _SHORT = 9, 250
"""Many and short, with the ways in turn: what else the machine does in one of them does not decide."""
_QUICK_WORKERS, _QUICK_BATCHES, _QUICK_WARM = 2, 30, 15
_WAYS = {
    "torch": (NATIVE, "DataLoader(pin_memory=True)"),
    "pin_memory": ("flagstone", "flagstone.torch.pin_memory in the loop"),
    "pinning thread": ("flagstone", "flagstone.torch.pin_memory in a thread"),
    "Prefetcher": ("flagstone", "flagstone.torch.Prefetcher"),
}
_Run = dict[str, Any]


def rows(quick: bool, say: Callable[[str], None], simulated: bool) -> list[dict[str, Any]]:
    """Load by each way in a process of its own; return a row for each way.

    What is held is that of one long run, which also looks at each byte. The rates are medians of short rounds after it,
    in which the ways have their turns: `ratio` is the median of the ratios to torch's in the same round, and half of
    them lie between `ratio_low` and `ratio_high`. `cpu_ms_per_batch` is the processor time of the process without its
    workers. Calls for pinned memory are counted on a simulated device only.
    """
    workers, count, warm = (_QUICK_WORKERS, _QUICK_BATCHES, _QUICK_WARM) if quick else (_WORKERS, _BATCHES, _WARM)
    rounds, short = (1, count) if quick else (_ROUNDS, _SHORT)
    held: dict[str, _Run] = {}
    timed: dict[str, list[_Run]] = {way: [] for way in _WAYS}
    with ExitStack() as processes:
        contestants = {
            way: processes.enter_context(Contestant(allocator, simulated=simulated))
            for way, (allocator, _) in _WAYS.items()
        }

        def load(way: str, count: int, checked: bool) -> _Run:
            run: _Run = contestants[way].ask(
                "load", way=way, workers=workers, count=count, warm=warm, checked=checked, simulated=simulated
            )
            return run

        for way, (_, case) in _WAYS.items():
            say(f"dataloader: {case}, {count} batches")
            held[way] = load(way, count, checked=True)
        for turn in range(rounds):
            say(f"dataloader: round {turn + 1} of {rounds}")
            # Forth and back: none is always behind the same one.
            for way in list(_WAYS)[:: -1 if turn % 2 else 1]:
                timed[way].append(load(way, short, checked=False))
    return [_row(way, workers, held[way], timed[way], timed["torch"]) for way in _WAYS]


def _row(way: str, workers: int, held: _Run, timed: list[_Run], torchs: list[_Run]) -> dict[str, Any]:
    rates = [run["batches_per_second"] for run in timed]
    ratios = [rate / run["batches_per_second"] for rate, run in zip(rates, torchs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3
    allocator, case = _WAYS[way]
    names = ("peak_pinned_bytes", "peak_pinned_in_use_bytes", "pinned_calls", "pinned_calls_when_warm", "wrong_batches")
    return {
        "allocator": allocator,
        "case": case,
        "threads": workers,
        "batches_per_second": round(statistics.median(rates), 1),
        "ratio": round(middle, 3),
        "ratio_low": round(low, 3),
        "ratio_high": round(high, 3),
        "cpu_ms_per_batch": round(statistics.median(run["cpu_ms_per_batch"] for run in timed), 2),
        **{name: held[name] for name in names if name in held},
        "pinned_ratio": round(held["peak_pinned_bytes"] / held["peak_pinned_in_use_bytes"], 3),
    }
