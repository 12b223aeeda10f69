"""`flagstone bench fragmentation`: traces on torch's allocators and on flagstone under torch."""

import argparse
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from flagstone.cli import picture
from flagstone.cli.contestants import Contestant
from flagstone.errors import ConfigError

ALLOCATORS = ("torch-native", "torch-expandable", "torch-async", "flagstone")
_DEVICE = {"SIMCUDA_MEMORY": str(1 << 40), "SIMCUDA_STRICT": "0"}
"""The simulated device: no trace runs out of memory, nor expandable segments, which are as long as it, of addresses."""

_MEMORY_CALLS = frozenset(
    f"cuMem{name}" for name in ("Alloc", "Free", "Create", "Release", "Map", "Unmap", "SetAccess", "AddressReserve")
)
_ENDINGS = (".csv", ".csv.gz", ".pickle", ".pickle.gz", ".log", ".log.gz")

Row = dict[str, Any]


def rows(options: argparse.Namespace, say: Callable[[str], None]) -> tuple[list[Row], str]:
    """Replay each trace on each allocator in a new process; return a row for each, and the backend.

    Draws the picture that is asked for. `passes` has what each pass cost: `peak_reserved_bytes`, and, on the simulated
    device, `driver_calls` by name, `memory_calls` of them, and `driver_time_us` by the price list, on a real one
    `ns_per_op`. `ConfigError` if there is no trace.
    """
    # A machine with a device may be in use: that is taken only where it is asked for.
    simulated = options.backend != "cuda"
    files = list(_files(options.traces))
    if not files:
        raise ConfigError("there is no trace in these folders; benches/traces/generate.py makes some")
    if options.picture:
        picture.need_matplotlib()
    reports = []
    with ExitStack() as stack:
        contestants = {
            name: stack.enter_context(Contestant(name, simulated=simulated, **(_DEVICE if simulated else {})))
            for name in ALLOCATORS
        }
        for path, (name, contestant) in product(files, contestants.items()):
            say(f"fragmentation: {path.name} on {name}")
            arguments = {"path": str(path), "passes": options.passes, "lag_ms": options.lag, "simulated": simulated}
            reports.append(_row(name, path, options.lag if simulated else None, contestant.ask("replay", **arguments)))
    if options.picture:
        picture.draw(reports, options.picture)
    rows = [{key: value for key, value in row.items() if key != "series"} for row in reports]
    return rows, "sim" if simulated else "cuda"


def summary(row: Row) -> Row:
    """Return what of a row fits a line of text."""
    first, *others = row["passes"]
    last = others[-1] if others else first
    held = {
        "trace": row["case"],
        "allocator": row["allocator"],
        "MiB held": row["peak_reserved_bytes"] >> 20,
        "utilisation": round(row["utilisation"], 3),
    }
    if "driver_calls" not in first:
        return {**held, "ns per operation": first["ns_per_op"], "ns, last pass": last["ns_per_op"]}
    return {
        **held,
        "memory calls": first["memory_calls"],
        "ms in the driver": round(first["driver_time_us"] / 1000, 1),
        "memory calls, last pass": last["memory_calls"],
        "ms, last pass": round(last["driver_time_us"] / 1000, 1),
    }


def _files(traces: Iterable[str]) -> Iterable[Path]:
    for path in map(Path, traces):
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.name.endswith(_ENDINGS))
        else:
            yield path


def _row(allocator: str, path: Path, lag_ms: float | None, report: Row) -> Row:
    for result in report["passes"]:
        if "driver_calls" in result:
            calls = result["driver_calls"].items()
            result["memory_calls"] = sum(count for name, count in calls if name in _MEMORY_CALLS)
    return {
        "allocator": allocator,
        "case": path.name.removesuffix(".gz").removesuffix(".csv"),
        "threads": 1,
        "lag_ms": lag_ms,
        **{key: value for key, value in report.items() if key != "trace"},
    }
