"""`flagstone top`: what the pools of a running process hold, in the terminal, until it ends or Ctrl-C."""

import argparse
import contextlib
import json
import os
import socket
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from flagstone import _serve
from flagstone._text import duration, size, table
from flagstone.cli.output import Commands, print_json
from flagstone.cli.replay import positive, within
from flagstone.errors import FlagstoneError

_SECONDS = 2.0
"""How long a process may take to answer: it may be in a call that holds the interpreter lock."""

_BAR = 16
_HOW = "start it with FLAGSTONE_SERVE_STATS=1, or call flagstone.serve_stats() in it"

Answer = dict[str, Any]
"""What a process says: see `flagstone._serve`."""


def add_parser(commands: Commands) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "top",
        help="watch the pools of a running process",
        description="Show what the pools of a running process hold and do, until it ends or Ctrl-C. The process must "
        "have been started with FLAGSTONE_SERVE_STATS=1, or have called flagstone.serve_stats(). Where standard output "
        "is no terminal, it is shown once.",
        epilog="example: flagstone top 4711",
    )
    parser.add_argument("pid", metavar="PID", type=positive, nargs="?", help="default: the one that can be watched")
    parser.add_argument(
        "--interval", metavar="SECONDS", type=_seconds, default=1.0, help="from one look to the next (default: 1)"
    )
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> None:
    """Watch, or look once."""
    path = _find(options.pid) if options.pid else _only()
    answer = _ask(path)
    if options.json:
        print_json(answer)
    elif sys.stdout.isatty():
        _watch(path, answer, options.interval)
    else:
        print(describe(answer, None, 0))


_MEMORY = ("pool", "live", "held", "peak", "limit", "")
_WORK = ("", "blocks", "allocations/s", "misses/s", "growths", "short", "failed")


def describe(now: Answer, before: Answer | None, seconds: float, width: int | None = None) -> str:
    """Write the pools of a process as tables; `before` is what it said so many seconds ago, for rates.

    What is wider than `width` has each pool's numbers below each other instead.
    """
    if not now["pools"]:
        return "it has no pools yet"
    earlier = {_name(pool): pool for pool in before["pools"]} if before else {}
    memory, work, steps = [], [], []
    for pool in now["pools"]:
        name, past = _name(pool), earlier.get(_name(pool))
        live, held, peak = (size(pool[f"{field}_bytes"]) for field in ("requested", "reserved", "peak_reserved"))
        limit = "none" if pool["limit"] is None else size(pool["limit"])
        memory.append((name, live, held, peak, limit, bar(pool)))
        rates = [
            f"{(pool[field] - past[field]) / seconds:,.0f}" if past else "" for field in ("alloc_count", "miss_count")
        ]
        counts = [pool[field] for field in ("growth_count", "pressure_count", "out_of_memory_count")]
        work.append((name, f"{pool['live_blocks']:,}", *rates, *(f"{count:,}" for count in counts)))
        for step in pool["steps"]:
            if step["count"]:
                enough, took = f"{step['sufficed']:,} of {step['count']:,}", duration(step["nanoseconds"] / 1000)
                steps.append((f"{name}: {step['name']}", enough, took))
    tables = [table(_MEMORY, memory), table(_WORK, work)]
    if width is not None and max(map(len, "\n".join(tables).splitlines())) > width:
        heads = (*_MEMORY[1:], *_WORK[1:])
        tables = [
            table((held[0], ""), zip(heads, (*held[1:], *done[1:]), strict=True))
            for held, done in zip(memory, work, strict=True)
        ]
    if steps:
        tables.append(table(("short of memory", "enough", "took"), steps))
    return "\n\n".join(tables)


def _name(pool: Answer) -> str:
    return f"{pool['name']}:{pool['device']}" + (" (sim)" if pool["backend"] == "sim" else "")


def bar(pool: Answer) -> str:
    """Draw what is in use (#), what waits for streams (+) and what is held idle (-), of the limit or of the peak."""
    whole = pool["limit"] or max(pool["peak_reserved_bytes"], pool["reserved_bytes"]) or 1
    ends = [
        min(_BAR, round(_BAR * pool[field] / whole)) for field in ("allocated_bytes", "active_bytes", "reserved_bytes")
    ]
    drawn, text = 0, ""
    for sign, end in zip("#+-", ends, strict=True):
        text += sign * (end - drawn)
        drawn = max(drawn, end)
    return f"[{text:<{_BAR}}]"


def _watch(path: Path, answer: Answer, interval: float) -> None:
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ImportError as error:
        raise FlagstoneError(f"a terminal is drawn with rich ({error}); pip install 'flagstone[top]'") from error

    def screen(text: str) -> Text:
        head = f"flagstone top: {_title(answer)}, {time.strftime('%H:%M:%S')}"
        return Text(f"{head}\n\n{text}\n\n{_LEGEND}", no_wrap=True)

    console = Console()
    text, asked = describe(answer, None, 0, console.width), time.monotonic()
    end = "is no longer watched"
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(screen(text), console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            time.sleep(interval)
            before, asked_before = answer, asked
            try:
                answer, asked = _ask(path), time.monotonic()
            except TimeoutError:
                live.update(screen(f"{text}\n\nno answer for {time.monotonic() - asked:.0f} s"), refresh=True)
                continue
            except FlagstoneError:
                end = "has ended"
                break
            text = describe(answer, before, asked - asked_before, console.width)
            live.update(screen(text), refresh=True)
    print(f"{_title(answer)} {end}; last:\n\n{text}")


_LEGEND = (
    "# in use  + waits for streams  - held idle\n"
    "short: needed more than growth  failed: out of memory\n"
    "Ctrl-C ends this"
)


def _title(answer: Answer) -> str:
    command = textwrap.shorten(" ".join(answer["command"]), 70, placeholder=" ...")  # may be a program of many lines
    return f"process {answer['pid']} ({command})"


def _find(pid: int) -> Path:
    """Return the socket of a process; `FlagstoneError` where there is none."""
    try:
        user = Path(f"/proc/{pid}").stat().st_uid
    except FileNotFoundError as error:
        raise FlagstoneError(f"there is no process {pid}") from error
    for folder in _serve.folders(user):
        if (folder / f"{pid}.sock").exists():
            return folder / f"{pid}.sock"
    raise FlagstoneError(f"process {pid} serves no numbers; {_HOW}")


def _only() -> Path:
    """Return the one socket of this user's processes; `FlagstoneError` where there are none, or several."""
    found = []
    for folder in _serve.folders(os.getuid()):
        _serve.remove_stale(folder)
        found += [path for path in folder.glob("*.sock") if path.stem != str(os.getpid())]
    if not found:
        raise FlagstoneError(f"no process serves its numbers; {_HOW}")
    if len(found) > 1:
        raise FlagstoneError(f"several processes serve their numbers, name one: {', '.join(p.stem for p in found)}")
    return found[0]


def _ask(path: Path) -> Answer:
    """Return what the process says; `TimeoutError` where it takes too long, `FlagstoneError` where it has gone."""
    parts = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        try:
            connection.connect(str(path))
            while part := connection.recv(1 << 16):
                parts.append(part)
        except TimeoutError as error:
            raise TimeoutError(f"process {path.stem} does not answer within {_SECONDS:g} s") from error
        except OSError as error:
            raise FlagstoneError(f"process {path.stem} has ended, or serves its numbers no more ({error})") from error
    if not parts:
        raise FlagstoneError(f"process {path.stem} has ended")
    answer: Answer = json.loads(b"".join(parts))
    return answer


def _seconds(text: str) -> float:
    """Parse a time of at least a tenth of a second."""
    return within(text, float, 0.1, 1e6, "a time from 0.1 on")
