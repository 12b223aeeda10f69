#!/usr/bin/env python3
"""Measure how near to the least memory blocks are placed that are met one after the other, in ignorance of what comes.

The blocks' lifetimes are read from files (lifetimes CSV, as MiniMalloc's benchmarks are), or made: a rectangle of time
and memory, cut into smaller ones again and again, so that they fit without a gap. Sizes are scaled so that the most
that is live at once is 512 pages of 2 MiB. Nothing can hold less than that.

Example:
    python benches/traces/packing.py                  # 8 instances of its own
    python benches/traces/packing.py A.csv B.csv
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import tempfile
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

from flagstone import _core

LEAST = 512 << 21
"""What is live at most after scaling, in bytes."""

BLOCKS = 400

WAYS = {
    "`handle:2MiB`": "handle:2MiB",
    "default": "",
    "`handle:2MiB,remap:off`": "handle:2MiB,remap:off",
}
"""Settings of the pool, by what tables call them."""

EXPANDABLE = "model of expandable segments"

Lifetime = tuple[int, int, int]
"""When a block is allocated, when it is freed, and its bytes."""


def cut(seed: int) -> list[Lifetime]:
    """Cut a rectangle of time and memory into blocks."""
    numbers = random.Random(seed)
    boxes: list[Lifetime] = [(0, 1 << 20, LEAST)]
    while len(boxes) < BLOCKS:
        place = numbers.randrange(len(boxes))
        begin, end, size = boxes[place]
        if numbers.random() < 0.5:
            if end - begin > 8:
                middle = numbers.randrange(begin + 1, end)
                boxes[place] = (begin, middle, size)
                boxes.append((middle, end, size))
        elif size > 1 << 20:
            part = 512 * numbers.randrange(1, size // 512)
            boxes[place] = (begin, end, part)
            boxes.append((begin, end, size - part))
    return boxes


def read(path: Path) -> list[Lifetime]:
    """Read the lifetimes of a file."""
    with path.open(newline="") as lines:
        return [(int(row["lower"]), int(row["upper"]), int(row["size"])) for row in csv.DictReader(lines)]


def held(lifetimes: Iterable[Lifetime]) -> dict[str, float]:
    """Return the most bytes held over the most that are live, for each way and for the model."""
    lifetimes = list(lifetimes)
    steps = [(end, -size) for _, end, size in lifetimes] + [(begin, size) for begin, _, size in lifetimes]
    # What ends at a moment ends before anything begins.
    live = max(accumulate(size for _, size in sorted(steps)))
    rows = [
        f"{number},{begin},{end},{max(1, size * LEAST // live)}\n"
        for number, (begin, end, size) in enumerate(lifetimes)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lifetimes.csv")
        path.write_text("id,lower,upper,size\n" + "".join(rows))
        trace = _core.Trace(path)
    reports = {way: _core.replay(trace, config=settings) for way, settings in WAYS.items()}
    reports[EXPANDABLE] = _core.model(trace, "torch-expandable")
    return {way: report["peak_reserved_bytes"] / report["peak_live_bytes"] for way, report in reports.items()}


def table(instances: dict[str, list[Lifetime]]) -> str:
    """Return a table of what is held for each instance, and at most."""
    found = {name: held(lifetimes) for name, lifetimes in instances.items()}
    columns = [*WAYS, EXPANDABLE]
    found["at most"] = {way: max(of[way] for of in found.values()) for way in columns}
    lines = [f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    lines += [f"| {name} | {' | '.join(f'{of[way]:.3f}' for way in columns)} |" for name, of in found.items()]
    return "\n".join(lines)


def own() -> dict[str, list[Lifetime]]:
    """Return the instances that are made here, by name."""
    return {f"seed {seed}": cut(seed) for seed in range(8)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path, help="lifetimes CSV")
    files = parser.parse_args().files
    print(table({path.stem: read(path) for path in files} if files else own()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
