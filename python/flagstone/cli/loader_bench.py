"""`flagstone bench dataloader`: batches of workers to the device, by torch's pinned memory and by flagstone's."""

import statistics
from collections.abc import Callable
from typing import Any

from flagstone.cli.contestants import NATIVE, Contestant

_WORKERS, _BATCHES, _WARM, _ROUNDS = 8, 1000, 50, 3
_QUICK = (2, 30, 15, 0)
_WAYS = {
    "torch": (NATIVE, "DataLoader(pin_memory=True)"),
    "pin_memory": ("flagstone", "flagstone.torch.pin_memory in the loop"),
    "pinning thread": ("flagstone", "flagstone.torch.pin_memory in a thread"),
    "Prefetcher": ("flagstone", "flagstone.torch.Prefetcher"),
}


def rows(quick: bool, say: Callable[[str], None], simulated: bool) -> list[dict[str, Any]]:
    """Load by each way in turn, round after round, each time in a process of its own; return a row for each way.

    `batches_per_second` is the median of the rounds, `ratio` the median of the ratios to torch's in the same round, and
    `cpu_ms_per_batch` the median of the processor time of the process without its workers.
    The other figures are the largest of all rounds, and of one more that looks at each byte. Calls for pinned memory
    are counted on a simulated device only.
    """
    workers, count, warm, rounds = _QUICK if quick else (_WORKERS, _BATCHES, _WARM, _ROUNDS)
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in _WAYS}
    for turn in range(rounds + 1):
        for way, (allocator, case) in _WAYS.items():
            say(f"dataloader: {case}, round {turn + 1} of {rounds + 1}")
            with Contestant(allocator, simulated=simulated) as contestant:
                arguments = {"way": way, "workers": workers, "count": count, "warm": warm, "simulated": simulated}
                results[way].append(contestant.ask("load", checked=turn == rounds, **arguments))
    return [_row(way, workers, results[way], results["torch"]) for way in _WAYS]


def _row(way: str, workers: int, runs: list[dict[str, Any]], torchs: list[dict[str, Any]]) -> dict[str, Any]:
    # The last one, which looks at each byte, is timed only where it is the only one.
    timed = slice(max(len(runs) - 1, 1))
    rates = [run["batches_per_second"] for run in runs[timed]]
    ratios = [rate / run["batches_per_second"] for rate, run in zip(rates, torchs[timed], strict=True)]
    allocator, case = _WAYS[way]
    most: dict[str, Any] = {
        name: max(run[name] for run in runs)
        for name in ("peak_pinned_bytes", "peak_pinned_in_use_bytes", "pinned_calls", "pinned_calls_when_warm")
        if name in runs[0]
    }
    return {
        "allocator": allocator,
        "case": case,
        "threads": workers,
        "batches_per_second": round(statistics.median(rates), 1),
        "batches_per_second_rounds": [round(rate, 1) for rate in rates],
        "ratio": round(statistics.median(ratios), 3),
        "cpu_ms_per_batch": round(statistics.median(run["cpu_ms_per_batch"] for run in runs[timed]), 2),
        **most,
        "pinned_ratio": round(max(run["peak_pinned_bytes"] / run["peak_pinned_in_use_bytes"] for run in runs), 3),
        "wrong_batches": runs[-1]["wrong_batches"],
    }
