"""`flagstone run`: an unchanged script, with flagstone as torch's allocator."""

import argparse
import sys
import types
from collections.abc import Callable
from pathlib import Path

from flagstone.cli.output import Commands
from flagstone.errors import FlagstoneError

INTERRUPTED = 130


def add_parser(commands: Commands) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "run",
        help="run a script with flagstone as torch's allocator",
        description="Install flagstone as torch's allocator, with the settings of FLAGSTONE_CONF, and run a script.",
        epilog="example: FLAGSTONE_CONF=limit:20GiB flagstone run train.py --epochs 3",
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    arguments = parser.add_argument(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="what the script gets as arguments"
    )
    arguments.required = False  # there may be none; argparse's error would ask for them
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> Callable[[], int]:
    """Install, and return what runs the script and gives its exit status."""
    source = Path(options.script).read_bytes()
    try:
        from flagstone.torch import install
    except ImportError as error:
        raise FlagstoneError(f"torch cannot be imported: {error}") from error
    install()
    return lambda: _execute(options.script, source, options.arguments)


def _execute(script: str, source: bytes, arguments: list[str]) -> int:
    """Run the script as `__main__`. Its errors are shown as if it had been started by itself."""
    main = types.ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        exec(compile(source, script, "exec"), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        # Without the frame of this function.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0
