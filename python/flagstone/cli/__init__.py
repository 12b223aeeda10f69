"""The command line. Exit status: 0 done, 1 the work failed, 2 wrong usage."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from flagstone import __version__
from flagstone.cli import bench, demo, info, replay, report, run, top
from flagstone.cli.output import add_json
from flagstone.errors import ConfigError, FlagstoneError

DONE, FAILED, WRONG_USAGE = 0, 1, 2


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    every = _Parser(
        prog="flagstone",
        description="A GPU memory pool: look at it, measure it, and replay recorded memory traces on it.",
        epilog="example: flagstone demo",
    )
    every.add_argument("--version", action="version", version=f"flagstone {__version__}")
    commands = every.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    for command in (info, demo, replay, report, top, bench, run):
        added = command.add_parser(commands)
        if command not in (bench, run):  # each bench has it
            add_json(added)
    return every


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    options = parser().parse_args(arguments)
    try:
        program = options.run(options)
        sys.stdout.flush()
    except ConfigError as error:
        return _fail(error, WRONG_USAGE)
    except (FlagstoneError, MemoryError) as error:
        return _fail(error, FAILED)
    except BrokenPipeError:
        # Whoever read the output has gone. Python must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else error, FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return DONE if program is None else program()


def _fail(error: object, status: int) -> int:
    print(f"flagstone: {error}", file=sys.stderr)
    return status
