"""Counts the instructions of a pair of alloc and free: callgrind runs it more and less often, the difference tells.

Counted is what runs between the entry of a C function and its return; the loop that calls them is not.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import flagstone

_FEW, _MANY = 1000, 101_000

_FUNCTIONS = ("flagstone_alloc", "flagstone_free")
_OPTIONS = (
    "--tool=callgrind",
    "--callgrind-out-file=/dev/null",
    *(f"--toggle-collect={function}" for function in _FUNCTIONS),
)

_CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from flagstone import _core
_core.configure("sim")
functions = _core.c_functions()
for size, count in zip(sys.argv[2::2], sys.argv[3::2]):
    _core.time_pairs((functions["alloc"], functions["free"]), int(size), int(count))
"""


def instructions_per_pair(sizes: Sequence[int]) -> dict[int, float] | None:
    """Return the instructions of one warm pair for each size, within the C functions; None where valgrind is not
    installed."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    few = _count(valgrind, dict.fromkeys(sizes, _FEW))
    counted = {}
    for size in sizes:
        many = _count(valgrind, {**dict.fromkeys(sizes, _FEW), size: _MANY})
        counted[size] = round((many - few) / (_MANY - _FEW), 1)
    return counted


def _count(valgrind: str, counts: dict[int, int]) -> int:
    """Return the instructions of a child that runs the given number of pairs for each size."""
    package = str(Path(flagstone.__file__).parents[1])
    pairs = [str(number) for pair in counts.items() for number in pair]
    command = [sys.executable, "-S", "-c", _CHILD, package, *pairs]
    ran = subprocess.run(
        [valgrind, *_OPTIONS, *command],
        capture_output=True,
        text=True,
        check=False,
        # Python itself has to do the same in every child.
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    collected = re.search(r"Collected : (\d+)", ran.stderr)
    if ran.returncode != 0 or collected is None:
        lines = ran.stderr.strip().splitlines() or ["no output"]
        raise OSError(f"valgrind failed with status {ran.returncode}: {lines[-1]}")
    return int(collected[1])
