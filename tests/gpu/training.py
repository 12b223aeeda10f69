"""Trains three times, with torch's own allocator, with the swap and in a MemPool: the losses have to be the same."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "torch"
SCRIPT = [str(FOLDER / "train.py"), "--steps", "8"]
WAYS = {
    "native": [],
    "swap": ["-m", "flagstone", "run"],
    "MemPool": [str(FOLDER / "in_mempool.py")],
}
REHEARSAL = bool(os.environ.get("FLAGSTONE_REHEARSAL"))
TOLERANCE = 0.0 if REHEARSAL else 1e-3
"""On a real device some sums are made in no fixed order."""


Line = dict[str, float]


def close(one: list[Line], other: list[Line]) -> bool:
    """Whether two ways printed the same figures."""
    return [line.keys() for line in one] == [line.keys() for line in other] and all(
        math.isclose(mine[name], theirs[name], rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        for mine, theirs in zip(one, other, strict=True)
        for name in mine
    )


def environment() -> dict[str, str]:
    """Return the environment of the script. In a rehearsal the CPU computes what kernels would."""
    path = [str(FOLDER / "kernels")] * REHEARSAL + [os.environ.get("PYTHONPATH", "")]
    # Kernels and copies that take their time show a missing wait.
    simulated = {"OMP_NUM_THREADS": "1", "SIMCUDA_TIMING": "2000,40000000"} if REHEARSAL else {}
    return {**os.environ, **simulated, "PYTHONPATH": os.pathsep.join(path)}


def main() -> int:
    """Train in all ways at once, and compare with the first."""
    losses: dict[str, list[Line]] = {}
    running = {
        way: subprocess.Popen([sys.executable, *way_in, *SCRIPT], env=environment(), stdout=subprocess.PIPE, text=True)
        for way, way_in in WAYS.items()
    }
    for way, process in running.items():
        printed = process.communicate()[0]
        if process.returncode:
            print(f"{way}: exit status {process.returncode}")
            return 1
        losses[way] = [json.loads(line) for line in printed.splitlines()]
        print(json.dumps({way: losses[way]}), flush=True)
    different = [way for way in WAYS if not losses[way] or not close(losses[way], losses["native"])]
    if different:
        print(f"the losses are not those of native: {', '.join(different)}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
