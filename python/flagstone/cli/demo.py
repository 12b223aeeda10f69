"""`flagstone demo`: one recorded model, and what four allocators make of it."""

import argparse
from typing import Any

from flagstone import _core
from flagstone.cli.output import Commands, Progress, duration, print_json, size, table

_MODELS = ("cudaMalloc", "torch-native", "torch-expandable")
_NAMES = {
    "cudaMalloc": "cudaMalloc and cudaFree",
    "torch-native": "best-fit caching (torch's default)",
    "torch-expandable": "caching, expandable segments",
    "flagstone": "flagstone",
}


def add_parser(commands: Commands) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="a recorded model on four allocators, side by side",
        description="Replay a recorded model and show what cudaMalloc, a caching allocator and flagstone make of it: "
        "time in the driver, bytes held, utilisation. Everything is simulated: no GPU is used, and driver calls cost "
        "what a list of measured prices says.",
        epilog="example: flagstone demo --json",
    )
    parser.add_argument(
        "trace", metavar="TRACE", nargs="?", help="another trace than the one that comes with flagstone"
    )
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> None:
    """Run the models and the pool, and print."""
    trace = _core.Trace(options.trace) if options.trace else _core.Trace.example()
    with Progress() as progress:
        reports = []
        for model in _MODELS:
            progress.say(f"demo: {_NAMES[model]}")
            reports.append(_core.model(trace, model))
        progress.say("demo: flagstone")
        reports.append(_core.replay(trace))
    for report in reports:
        del report["series"]
    if options.json:
        print_json({"simulated": True, "trace": trace.name, "rows": reports})
        return
    first = reports[0]
    print("SIMULATED: no GPU is used. Driver calls cost what a list of prices measured on real GPUs says.\n")
    what = "a GPT in training, sequences of varying length" if options.trace is None else trace.format
    live = size(first["peak_live_bytes"])
    print(f"{trace.name}: {what}; {first['allocations']:,} allocations, {live} live at most\n")
    header = ("allocator", "driver calls", "time in the driver", "held at most", "utilisation")
    print(table(header, map(_row, reports)))
    print("\nutilisation: bytes in use at the peak over bytes held from the driver at the peak; 1 wastes nothing")


def _row(report: dict[str, Any]) -> tuple[str, ...]:
    return (
        _NAMES[report["allocator"]],
        f"{sum(report['driver_calls'].values()):,}",
        duration(report["driver_time_us"]),
        size(report["peak_reserved_bytes"]),
        f"{report['utilisation']:.3f}",
    )
