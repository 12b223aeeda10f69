"""How the commands speak: JSON or text on standard output, progress and errors on standard error."""

import argparse
import json
import sys
from typing import TypeAlias

from flagstone._text import duration, size, table

__all__ = ["Commands", "Progress", "add_json", "duration", "print_json", "size", "table"]

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""What a command adds its parser to."""


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option that all commands have but `run`, which prints what the script prints."""
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def print_json(value: object) -> None:
    """Print one JSON object."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


class Progress:
    """One line on standard error that says what is under way. Silent unless that is a terminal."""

    def __init__(self) -> None:
        """Look once whether anybody would see it."""
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> "Progress":
        """Return itself."""
        return self

    def say(self, text: str) -> None:
        """Replace the line."""
        if self._shown:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def __exit__(self, *exception: object) -> None:
        """Take the line away."""
        self.say("")
