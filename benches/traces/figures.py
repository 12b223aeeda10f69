#!/usr/bin/env python3
"""Measure the figures in docs/, on generated traces and the simulated device, and write them there.

Example:
    python benches/traces/figures.py          # writes the tables of the pages anew
    python benches/traces/figures.py --check  # fails where they are not what is measured now
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import packing
from generate import SCENARIOS, Trace

from flagstone import _core
from flagstone._text import duration, size

DOCS = Path(__file__).parents[2] / "docs"

Program = Callable[[Trace], None]

HIDDEN, LAYERS, ROWS, VOCABULARY = 1024, 12, 8192, 32_000
"""The model: a transformer, on 16 sequences of 512 tokens at a time."""

WIDTHS = (1, 3, 1, 1, 1, 4, 4)
"""What a layer keeps for its backward pass, each so many times the hidden size wide. The first is its input, the last
the result of its activation function."""


def train(trace: Trace, *, element: int = 4, parts: int = 1, checkpoint: bool = False, in_place: bool = False) -> None:
    """Train for three steps: `element` bytes a number of the activations, which are kept or computed again."""
    weights = [4 * factor * HIDDEN**2 for _ in range(LAYERS) for factor in (4, 8)] + [4 * VOCABULARY * HIDDEN]
    for weight in weights:
        trace.alloc(weight)
    moments = [trace.alloc(weight) for weight in weights for _ in range(2)]
    rows = ROWS // parts

    def layer(first: int) -> list[int]:
        return [trace.alloc(element * rows * HIDDEN * width) for width in WIDTHS[first : -1 if in_place else None]]

    for _ in range(3):
        # With mixed precision torch keeps a copy of each weight in the narrow type until the step ends.
        casts = [trace.alloc(element * weight // 4) for weight in weights] if element < 4 else []
        gradients: list[int] = []
        for _ in range(parts):
            saved = []
            for _ in range(LAYERS):
                kept = layer(0)
                trace.work(200)
                if checkpoint:
                    trace.free(*kept[1:])
                    kept = kept[:1]
                saved.append(kept)
            logits = [trace.alloc(width * rows * VOCABULARY) for width in (element, 4, 4)]
            upstream = trace.alloc(element * rows * HIDDEN)
            trace.free(*reversed(logits))
            new = [trace.alloc(weights[-1])]
            for kept in reversed(saved):
                kept += layer(1) if checkpoint else []
                for activation in reversed(kept):
                    temporary = trace.alloc(element * rows * HIDDEN)
                    trace.free(activation, upstream)
                    upstream = temporary
                new += [trace.alloc(4 * factor * HIDDEN**2) for factor in (8, 4)]
                trace.work(400)
                if gradients:  # added to those of the parts before
                    trace.free(*new)
                    new = []
            trace.free(upstream, *(new if gradients else []))
            gradients = gradients or new
        trace.free(*casts, *gradients)
    trace.free(*moments)


def serve(trace: Trace, *, reuse: bool) -> None:
    """Serve 64 requests, 16 at a time, whose caches grow by copying to larger blocks, or in blocks of full length."""
    step, most, layers = 256, 2048, 16
    whole = [[trace.alloc(4 * most * HIDDEN) for _ in range(layers)] for _ in range(16)] if reuse else []
    for _ in range(4):
        caches = [[] if reuse else [trace.alloc(4 * step * HIDDEN) for _ in range(layers)] for _ in range(16)]
        for tokens in range(2 * step, most + 1, step):
            for cache in caches:
                for number, block in enumerate(cache):
                    cache[number] = trace.alloc(4 * tokens * HIDDEN)
                    trace.free(block)
                trace.work(300)
        for cache in caches:
            trace.free(*cache)
    for cache in whole:
        trace.free(*cache)


TRAINING: dict[str, tuple[Program, str]] = {
    "nothing of it": (train, ""),
    "mixed precision": (partial(train, element=2), ""),
    "gradient accumulation, 4 parts": (partial(train, parts=4), ""),
    "activation checkpointing": (partial(train, checkpoint=True), ""),
    "all three": (partial(train, element=2, parts=4, checkpoint=True), ""),
}
RESERVING: dict[str, tuple[Program, str]] = {
    "training": (train, ""),
    "training, activation functions in place": (partial(train, in_place=True), ""),
    "training, `reserve:12GiB`": (train, "reserve:12GiB"),
    "serving, caches grow by copying": (partial(serve, reuse=False), ""),
    "serving, caches of full length, used again": (partial(serve, reuse=True), ""),
}
"""The rows of docs/less-memory.md: what is replayed, with which settings."""

WAITING = {"prefetch": "prefetch on side streams", "new-streams": "a new stream at every step"}
"""The rows of docs/limits.md: scenarios of generate.py."""


def recorded(program: Program) -> _core.Trace:
    """Return what the program allocates, as a trace."""
    trace = Trace(seed=0)
    program(trace)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.csv")
        path.write_text(trace.text())
        return _core.Trace(path)


def memory(rows: dict[str, tuple[Program, str]]) -> str:
    """Say what each row holds, and what the driver has to do for it."""
    lines = ["| | live at most | held at most | driver calls | time in the driver |", "|---|---|---|---|---|"]
    for name, (program, conf) in rows.items():
        report = _core.replay(recorded(program), config=conf)
        calls = sum(report["driver_calls"].values())
        live, held = size(report["peak_live_bytes"]), size(report["peak_reserved_bytes"])
        lines.append(f"| {name} | {live} | {held} | {calls:,} | {duration(report['driver_time_us'])} |")
    return "\n".join(lines)


def waiting() -> str:
    """Say what it saves that streams wait for each other's memory, and what it costs."""
    lines = [
        "| trace | model of expandable segments | `pressure` | `overlap` | `growth` | memory calls, third pass |",
        "|---|---|---|---|---|---|",
    ]
    for scenario, name in WAITING.items():
        trace = recorded(lambda trace, scenario=scenario: SCENARIOS[scenario](trace, 20))
        ways = [f"dependencies:{way}" for way in ("pressure", "overlap", "growth")]
        used = [_core.model(trace, "torch-expandable")["utilisation"]]
        used += [_core.replay(trace, config=way)["utilisation"] for way in ways]
        calls = [memory_calls(_core.replay(trace, config=way, passes=3)) for way in ways]
        counts = ", ".join(f"{count:,}" for count in calls)
        lines.append(f"| {name} | {' | '.join(f'{part:.3f}' for part in used)} | {counts} |")
    return "\n".join(lines)


def memory_calls(report: dict[str, Any]) -> int:
    """Return how many calls of the last pass made, mapped, unmapped or released memory."""
    return sum(count for name, count in report["driver_calls_last_pass"].items() if name.startswith("cuMem"))


def main() -> int:
    """Measure, and write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where figures have changed")
    check = parser.parse_args().check
    tables = {
        "training": memory(TRAINING),
        "reserving": memory(RESERVING),
        "waiting": waiting(),
        "packing": packing.table(packing.own()),
    }
    stale = []
    for path in sorted(DOCS.glob("*.md")):
        old = new = path.read_text()
        for name, table in tables.items():
            new = re.sub(rf"(<!-- figures: {name} -->\n\n)(?:\|.*\n)*", rf"\g<1>{table}\n", new)
        if new != old:
            stale.append(path.name)
            if not check:
                path.write_text(new)
    print(f"{', '.join(stale) or 'no page'}: figures have changed")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
