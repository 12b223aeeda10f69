"""Trains three times, with torch's own allocator, with the swap and in a MemPool: the losses have to be the same."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "torch/training.py"

IN_MEMPOOL = """
import runpy, sys, torch, flagstone.torch
del sys.argv[0]
with torch.cuda.use_mem_pool(flagstone.torch.MemPool()):
    runpy.run_path(sys.argv[0], run_name="__main__")
"""

WAYS = {
    "native": [sys.executable, str(SCRIPT)],
    "swap": [sys.executable, "-m", "flagstone", "run", str(SCRIPT)],
    "MemPool": [sys.executable, "-c", IN_MEMPOOL, str(SCRIPT)],
}

TOLERANCE = 0.0 if os.environ.get("FLAGSTONE_REHEARSAL") else 1e-3
"""On a real device some sums are made in no fixed order."""


def numbers(value: object) -> list[float]:
    """Return all numbers in what the script printed."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [float(value)]


def main() -> int:
    """Train, and compare with the first way."""
    losses = {}
    for way, command in WAYS.items():
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if ran.returncode:
            print(f"{way}: exit status {ran.returncode}")
            return 1
        losses[way] = [number for line in ran.stdout.splitlines() for number in numbers(json.loads(line))]
        print(
            json.dumps({way: {"losses": len(losses[way]), "first": losses[way][0], "last": losses[way][-1]}}),
            flush=True,
        )
    native = losses["native"]
    for way, other in losses.items():
        same = len(other) == len(native) and all(
            math.isclose(*pair, rel_tol=TOLERANCE, abs_tol=TOLERANCE) for pair in zip(native, other, strict=True)
        )
        if not same:
            print(f"{way}: {other} instead of {native}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
