"""`flagstone report`: a recorded run as one HTML page."""

import argparse
from pathlib import Path

from flagstone.cli.output import Commands, Progress, print_json, size, table
from flagstone.cli.replay import add_device


def add_parser(commands: Commands) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="show a recorded run as an HTML page",
        description="Write one page that needs no network: bytes over time, a map of the memory at any moment, who "
        "holds it, what fragmentation cost, and what other settings would have held. Known are the formats of "
        "flagstone replay; stacks are shown where the recording has them.",
        epilog="example: flagstone report snapshot.pickle -o report.html",
    )
    parser.add_argument("snapshot", metavar="SNAPSHOT", help="a snapshot or a trace")
    parser.add_argument("-o", "--output", metavar="PAGE", default="report.html", help="default: report.html")
    add_device(parser)
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY:VALUE", help="another setting to replay with, as limit:2GiB"
    )
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> None:
    """Write the page and say what is in it."""
    from flagstone.report import build

    output = Path(options.output)
    _try(output)
    with Progress() as progress:
        page, summary = build(
            options.snapshot,
            device=options.device,
            settings=tuple(options.conf),
            progress=lambda text: progress.say(f"report: {text}"),
        )
    output.write_text(page, encoding="utf-8")
    if options.json:
        print_json({"page": options.output, **summary})
        return
    rows = [(row["name"], size(row["peak_reserved_bytes"]), f"{row['utilisation']:.3f}") for row in summary["settings"]]
    print(f"{options.output}: {summary['trace']} ({summary['format']}), {summary['events']:,} events")
    print(f"live at most {size(summary['peak_live_bytes'])}, held at most {size(summary['peak_reserved_bytes'])}\n")
    print(table(("replayed with", "held at most", "utilisation"), rows))


def _try(path: Path) -> None:
    """Raise what writing there would: before the work, which can take a while."""
    was_there = path.exists()
    with path.open("ab"):
        pass
    if not was_there:
        path.unlink()
