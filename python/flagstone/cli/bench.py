"""`flagstone bench`: compiled timing loops over the exported C functions, and over those of torch's allocators."""

import argparse
import os
import platform
import statistics
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from flagstone import _core
from flagstone.cli import fragmentation, history_bench, loader_bench, simulation, threads_bench, torch_bench
from flagstone.cli.instructions import instructions_per_pair
from flagstone.cli.output import Commands, Progress, add_json, print_json, size, table
from flagstone.cli.replay import LAG_HELP, milliseconds, positive
from flagstone.errors import FlagstoneError

Row = dict[str, Any]
Say = Callable[[str], None]

_REPEATS = 5
_KIB, _MIB = 1 << 10, 1 << 20
_LATENCY_SIZES = (512, 4 * _KIB, 64 * _KIB, _MIB, 2 * _MIB, 16 * _MIB)
_HOLES = (0, 4096, 16384, 65536)
_RANDOM_COUNTS = (1000, 10_000, 100_000)
_RANDOM_MIB = (1, 4, 64, 256, 1024, 4096)

_WHAT = {
    "latency": "a pair, by size",
    "holes": "a pair behind many free blocks",
    "rmm-random": "RMM's random_allocations",
    "history": "a pair while a history is recorded",
    "threads": "pairs in 1 to 8 threads",
    "producer-consumer": "blocks that one thread allocates and another frees",
    "torch": "pairs and tensors under torch, by allocator",
    "fragmentation": "bytes held and driver calls of traces under torch, by allocator",
    "dataloader": "batches to the device, by whose pinned memory",
}


def add_parser(commands: Commands) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="measure the pool",
        description="Time pairs of alloc and free, warm: by the exported C functions or, for torch, by torch's own, "
        "with its own allocators and with flagstone. Times are medians of 5.",
        epilog="example: flagstone bench latency --json",
    )
    every = argparse.ArgumentParser(add_help=False)
    every.add_argument("--backend", choices=("sim", "cuda", "auto"), default="auto", help="the device (default: auto)")
    add_json(every)
    names = parser.add_subparsers(title="benches", metavar="NAME", required=True, dest="name")
    for name, what in _WHAT.items():
        bench = names.add_parser(name, help=what, description=f"Measure {what}.", parents=[every])
        if name == "fragmentation":
            bench.add_argument("traces", metavar="TRACE", nargs="+", help="files, or folders of them")
            bench.add_argument("--passes", type=positive, default=3, metavar="N", help="how often (default: 3)")
            bench.add_argument("--lag", type=milliseconds, default=5.0, metavar="MS", help=LAG_HELP)
            bench.add_argument("--picture", metavar="FILE", help="draw bytes held over time (needs matplotlib)")
        else:
            bench.add_argument("--quick", action="store_true", help="fewer pairs, and the smaller cases only")
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> None:
    """Measure and print. A trace that could not be replayed is a failure, after the rows are printed."""
    with Progress() as progress:
        rows, backend = _measure(options, progress.say)
    if options.json:
        print_json({"bench": options.name, "machine": machine(backend), "rows": rows})
    else:
        _show([fragmentation.summary(row) for row in rows] if options.name == "fragmentation" else rows)
    for row in rows:
        if row.get("errors"):
            what = f"{row['errors']} allocations failed; the first: {row['first_error']}"
            raise FlagstoneError(f"{row['case']} on {row['allocator']}: {what}")


def _measure(options: argparse.Namespace, say: Say) -> tuple[list[Row], str]:
    """Return the rows, and the backend that they were measured on."""
    if options.name == "fragmentation":
        return fragmentation.rows(options, say)
    if options.name in _TORCH_BENCHES:
        simulated = simulation.is_wanted(options.backend)
        return _TORCH_BENCHES[options.name](options.quick, say, simulated), "sim" if simulated else "cuda"
    _core.configure(options.backend)
    backend = _core.process_pool().backend  # before anything is measured: its errors say more than those of the loops
    return _BENCHES[options.name](options.quick, say), backend


def _show(rows: list[Row]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key, value in row.items() if not isinstance(value, list)))
    print(table(columns, [[_cell(row.get(column)) for column in columns] for row in rows]))
    if any(row.get("instructions_per_pair", 0) is None for row in rows):
        print("instructions are not counted: valgrind is not installed")
    if _core.build_info()["profile"] == "debug":
        print("a debug build: the times say nothing about a release build")


def machine(backend: str) -> Row:
    """Return what the figures depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "flagstone": _core.build_info(),
        "backend": backend,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []  # Not Linux: the architecture has to do.
    return names[0] if names else platform.machine()


def functions() -> tuple[int, int]:
    """Return the addresses of the C functions that are measured."""
    addresses = _core.c_functions()
    return addresses["alloc"], addresses["free"]


def _latency(quick: bool, say: Say) -> list[Row]:
    """Time a pair for each size, on one thread and on two."""
    count = 20_000 if quick else 1_000_000
    rows: list[Row] = []
    for nbytes, threads in product(_LATENCY_SIZES, (1, 2)):
        say(f"latency: {size(nbytes)}, threads: {threads}")
        nanoseconds = _median(partial(_core.time_pairs, functions(), nbytes, count, threads=threads))
        rows.append(
            {
                "allocator": "flagstone",
                "case": size(nbytes),
                "bytes": nbytes,
                "threads": threads,
                "ns_per_pair": round(nanoseconds / count, 2),
                "pairs_per_second": round(threads * count * 1e9 / nanoseconds),
            }
        )
    say("latency: counting instructions")
    sizes = _LATENCY_SIZES[:1] if quick else _LATENCY_SIZES
    counted = instructions_per_pair(sizes) or {}
    for row in rows:
        if row["threads"] == 1 and row["bytes"] in sizes:
            row["instructions_per_pair"] = counted.get(row["bytes"])
    return rows


def _holes(quick: bool, say: Say) -> list[Row]:
    """Time a pair of 1 KiB behind free blocks of 1 KiB that have no free neighbour."""
    count = 20_000 if quick else 1_000_000
    rows: list[Row] = []
    for holes in _HOLES[:2] if quick else _HOLES:
        say(f"holes: {holes}")
        nanoseconds = _median(partial(_core.time_pairs_behind_holes, functions(), _KIB, count, holes=holes))
        row = {
            "allocator": "flagstone",
            "case": f"{holes} holes",
            "threads": 1,
            "ns_per_pair": round(nanoseconds / count, 2),
        }
        rows.append({**row, "ratio": round(row["ns_per_pair"] / (rows or [row])[0]["ns_per_pair"], 3)})
    return rows


def _random(quick: bool, say: Say) -> list[Row]:
    """Run RMM's random_allocations for each count and largest size."""
    rows = []
    for count in _RANDOM_COUNTS[:1] if quick else _RANDOM_COUNTS:
        for most_mib in _RANDOM_MIB:
            say(f"rmm-random: {count} allocations of at most {most_mib} MiB")
            pool = _core.process_pool()
            pool.trim()
            pool.reset_peak()
            runs = [_core.time_random(functions(), count, most_mib) for _ in range(_REPEATS)]
            reserved = pool.stats().peak_reserved_bytes
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
                    "peak_reserved_bytes": reserved,
                    "utilisation": round(run["peak_live_bytes"] / reserved, 3),
                }
            )
    return rows


def _median(measure: Callable[[], int]) -> float:
    return statistics.median(measure() for _ in range(_REPEATS))


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


_BENCHES: dict[str, Callable[[bool, Say], list[Row]]] = {
    "latency": _latency,
    "holes": _holes,
    "rmm-random": _random,
    "history": history_bench.rows,
    "threads": threads_bench.threads,
    "producer-consumer": threads_bench.producer_consumer,
}

_TORCH_BENCHES: dict[str, Callable[[bool, Say, bool], list[Row]]] = {
    "dataloader": loader_bench.rows,
    "torch": torch_bench.rows,
}
"""Those in processes with torch: they are told whether these have the simulated CUDA."""
