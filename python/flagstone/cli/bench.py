"""`flagstone bench`: compiled timing loops over the exported C functions, with no Python in them."""

import argparse
import os
import platform
import statistics
from collections.abc import Callable
from typing import Any

from flagstone import _core
from flagstone.cli.instructions import instructions_per_pair
from flagstone.cli.output import Commands, Progress, print_json, size, table

Row = dict[str, Any]

_REPEATS = 5
_KIB, _MIB = 1 << 10, 1 << 20
_LATENCY_SIZES = (512, 4 * _KIB, 64 * _KIB, _MIB, 2 * _MIB, 16 * _MIB)
_HOLES = (0, 4096, 16384, 65536)
_RANDOM_COUNTS = (1000, 10_000, 100_000)
_RANDOM_MIB = (1, 4, 64, 256, 1024, 4096)


def add_parser(commands: Commands) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="measure the pool",
        description="Time pairs of alloc and free through the exported C functions. Times are medians of 5.",
        epilog="example: flagstone bench latency --json",
    )
    parser.add_argument(
        "name",
        choices=sorted(_BENCHES),
        help="latency: a warm pair by size; holes: a pair behind many free blocks; "
        "rmm-random: RMM's random_allocations",
    )
    parser.add_argument("--quick", action="store_true", help="fewer pairs and the smaller cases")
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    with Progress() as progress:
        rows = _BENCHES[options.name](options.quick, progress.say)
    if options.json:
        print_json({"bench": options.name, "machine": machine(), "rows": rows})
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    print(table(columns, [[_cell(row.get(column)) for column in columns] for row in rows]))
    if any(row.get("instructions_per_pair", 0) is None for row in rows):
        print("instructions are not counted: valgrind is not installed")
    if _core.build_info()["profile"] == "debug":
        print("a debug build: the times say nothing about a release build")


def machine() -> Row:
    """Return what the figures depend on."""
    processor = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), processor)
    except OSError:
        pass  # Not Linux: the architecture has to do.
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "flagstone": _core.build_info(),
        "backend": _core.process_pool(0).backend,
    }


def _latency(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Time a warm pair for each size, on one thread and on two."""
    count = 20_000 if quick else 1_000_000
    rows = []
    for nbytes in _LATENCY_SIZES:
        for threads in (1, 2):
            say(f"latency: {size(nbytes)}, {threads} thread{'s' * (threads > 1)}")
            nanoseconds = _median(lambda: _core.time_pairs(_core.functions(), nbytes, count, threads=threads))
            rows.append(
                {
                    "allocator": "flagstone",
                    "case": size(nbytes),
                    "threads": threads,
                    "ns_per_pair": round(nanoseconds / count, 2),
                    "pairs_per_second": round(threads * count * 1e9 / nanoseconds),
                }
            )
    say("latency: counting instructions")
    counted = instructions_per_pair(_LATENCY_SIZES)
    for row, nbytes in zip((row for row in rows if row["threads"] == 1), _LATENCY_SIZES, strict=True):
        row["instructions_per_pair"] = counted[nbytes] if counted else None
    return rows


def _holes(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Time a pair of 1 KiB behind free blocks of 1 KiB that have no free neighbour."""
    count = 20_000 if quick else 1_000_000
    rows: list[Row] = []
    for holes in _HOLES[:2] if quick else _HOLES:
        say(f"holes: {holes}")
        nanoseconds = _median(lambda: _core.time_pairs_behind_holes(_core.functions(), _KIB, count, holes=holes))
        rows.append(
            {
                "allocator": "flagstone",
                "case": f"{holes} holes",
                "threads": 1,
                "ns_per_pair": round(nanoseconds / count, 2),
            }
        )
        rows[-1]["ratio"] = round(rows[-1]["ns_per_pair"] / rows[0]["ns_per_pair"], 3)
    return rows


def _random(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Run RMM's random_allocations for each count and largest size."""
    rows = []
    for count in _RANDOM_COUNTS[:1] if quick else _RANDOM_COUNTS:
        for most_mib in _RANDOM_MIB:
            say(f"rmm-random: {count} allocations of at most {most_mib} MiB")
            runs = [_core.time_random(_core.functions(), count, most_mib) for _ in range(_REPEATS)]
            run = sorted(runs, key=lambda run: run["nanoseconds"])[_REPEATS // 2]
            rows.append(
                {
                    "allocator": "flagstone",
                    "case": f"{count}/{most_mib} MiB",
                    "threads": 1,
                    "milliseconds": round(run["nanoseconds"] / 1e6, 3),
                    "ns_per_step": round(run["nanoseconds"] / (2 * count), 1),
                    "failures": run["failures"],
                    "peak_live_bytes": run["peak_live_bytes"],
                }
            )
    return rows


def _median(measure: Callable[[], int]) -> float:
    return statistics.median(measure() for _ in range(_REPEATS))


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


_BENCHES: dict[str, Callable[[bool, Callable[[str], None]], list[Row]]] = {
    "latency": _latency,
    "holes": _holes,
    "rmm-random": _random,
}
