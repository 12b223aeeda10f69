"""`flagstone replay`: a recorded trace on a pool, with what it cost."""

import argparse
from typing import Any

from flagstone import _core
from flagstone.cli.output import Commands, Progress, duration, print_json, size, table
from flagstone.errors import FlagstoneError

LAG_HELP = "milliseconds of the trace until the simulated device has done the work behind an event (default: 5)"


def add_parser(commands: Commands) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "replay",
        help="replay a recorded trace on a pool",
        description="Make the allocations and frees of a recorded trace on a new pool, and say what they cost. Known "
        "are event CSV, lifetimes CSV, RMM logs and snapshots of torch.cuda.memory, plain or gzip-compressed.",
        epilog="example: flagstone replay snapshot.pickle --passes 3 --json",
    )
    parser.add_argument("trace", metavar="TRACE", help="the file, of any known format")
    parser.add_argument(
        "--backend", choices=("sim", "cuda", "auto"), default="sim", help="what to replay on (default: sim)"
    )
    add_device(parser)
    parser.add_argument("--passes", type=positive, default=1, metavar="N", help="how often (default: 1)")
    parser.add_argument(
        "--lag",
        type=milliseconds,
        metavar="MS",
        help=f"{LAG_HELP[:-1]}, of a flagstone history 0)",
    )
    parser.add_argument(
        "--threads",
        type=positive,
        default=0,
        metavar="N",
        help="one thread allocates, and with more than 1 the others free (default: the threads of the recording)",
    )
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY:VALUE", help="a setting of the pool, as limit:2GiB"
    )
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> None:
    """Replay and print. A replay with errors is a failure, after its report is printed."""
    trace = _core.Trace(options.trace, options.device)
    with Progress() as progress:
        report = _core.replay(
            trace,
            backend=options.backend,
            passes=options.passes,
            lag_ms=options.lag,
            threads=options.threads,
            config=",".join(options.conf),
            progress=lambda done, of: progress.say(f"replay: {100 * done // max(of, 1)} %"),
        )
    del report["series"]
    if options.json:
        print_json(report)
    else:
        print(describe(report))
    if report["errors"]:
        raise FlagstoneError(f"{report['errors']} errors in the replay; the first: {report['first_error']}")


def describe(report: dict[str, Any]) -> str:
    """Write a report for people."""
    rows = [
        ("allocations", f"{report['allocations']:,}"),
        ("peak live", size(report["peak_live_bytes"])),
        ("peak active", size(report["peak_active_bytes"])),
        ("peak reserved", size(report["peak_reserved_bytes"])),
        ("utilisation", f"{report['utilisation']:.3f}"),
    ]
    if report["ns_per_op"] is not None:
        rows.append(("time of an operation", f"{report['ns_per_op']:.0f} ns"))
    if report["driver_time_us"] is not None:
        rows.append(("time in the driver", duration(report["driver_time_us"])))
    last = report["driver_calls_last_pass"]
    for name, count in sorted(report["driver_calls"].items(), key=lambda call: -call[1]):
        if count:
            rows.append((f"  {name}", f"{count:,} ({last.get(name, 0):,} in the last pass)"))
    head = f"{report['trace']} ({report['format']}) on {report['backend']}, {report['passes']} x"
    return f"{head}\n{table(('', report['allocator']), rows)}\ntimes in the driver: {report['price_source']}"


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses from a snapshot of several devices."""
    parser.add_argument(
        "--device",
        type=ordinal,
        metavar="N",
        help="of a torch snapshot of several devices, the one whose history it is (default: the longest)",
    )


def ordinal(text: str) -> int:
    """Parse the number of a device."""
    return int(within(text, int, 0, 1 << 16, "the number of a device, 0 for the first one"))


def positive(text: str) -> int:
    """Parse a number of at least 1."""
    return int(within(text, int, 1, 1 << 32, "a number from 1 on"))


def milliseconds(text: str) -> float:
    """Parse a time of at least 0."""
    return within(text, float, 0, 1e12, "a time from 0 on")


def within(text: str, kind: type[float], least: float, end: float, what: str) -> float:
    """Parse a number from `least` on and below `end`; what is none is said to be not `what`."""
    try:
        number = kind(text)
    except ValueError:
        number = end
    if not least <= number < end:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return number
