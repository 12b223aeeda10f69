#!/usr/bin/env python3
"""Generate allocation traces of known hard patterns. The same arguments give the same bytes.

Example:
    python benches/traces/generate.py comb comb.csv.gz --steps 200 --seed 1
    flagstone replay comb.csv.gz
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import random
import sys
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20
COMPUTE = 0
"""The default stream."""


class Trace:
    """The rows of a trace, written at a clock that each call advances."""

    def __init__(self, seed: int) -> None:
        """Start at time 0 without blocks; `seed` is that of all that is random."""
        self.random = random.Random(seed)
        self.time_us = 0
        self.rows: list[str] = []
        self._blocks: list[tuple[int, int]] = []  # size and stream of each
        self._ends: list[tuple[int, int, int]] = []  # uses that have not ended: time, block, stream

    def work(self, mean_us: float) -> None:
        """Let time pass: exponentially distributed, as the host's time between calls about is."""
        self.time_us += round(self.random.expovariate(1 / mean_us))
        while self._ends and self._ends[0][0] <= self.time_us:
            time_us, block, stream = heapq.heappop(self._ends)
            self._row("e", block, stream, time_us)

    def alloc(self, size: int, stream: int = COMPUTE) -> int:
        """Allocate bytes on a stream; returns the block."""
        self.work(8)
        block = len(self._blocks)
        self._blocks.append((size, stream))
        self._row("a", block, stream, self.time_us)
        return block

    def free(self, *blocks: int) -> None:
        """Free blocks, in that order."""
        for block in blocks:
            self.work(4)
            self._row("f", block, self._blocks[block][1], self.time_us)

    def use(self, block: int, stream: int, microseconds: int) -> None:
        """Use a block on another stream (record_stream) for some time."""
        self._row("x", block, stream, self.time_us)
        heapq.heappush(self._ends, (self.time_us + microseconds, block, stream))

    def text(self) -> str:
        """The event CSV; every use has ended."""
        while self._ends:
            self.work(self._ends[0][0] - self.time_us + 1)
        return "op,id,size,stream,t_us\n" + "".join(self.rows)

    def _row(self, op: str, block: int, stream: int, time_us: int) -> None:
        self.rows.append(f"{op},{block},{self._blocks[block][0]},{stream},{time_us}\n")


def variable_length(trace: Trace, steps: int) -> None:
    """Train a 16-layer transformer on batches of varying length: activations scale with it, weights do not."""
    hidden, layers, batch, vocabulary = 2048, 16, 4, 32_000
    weights = [trace.alloc(2 * size) for _ in range(layers) for size in (4 * hidden**2, 8 * hidden**2)]
    state: list[int] = []
    for _ in range(steps):
        rows = batch * trace.random.randrange(256, 2049, 8)
        saved = []
        for _ in range(layers):
            temporary = trace.alloc(2 * rows * hidden)
            saved.append([trace.alloc(2 * rows * width) for width in (hidden, 3 * hidden, hidden, hidden, 4 * hidden)])
            trace.free(temporary)
            trace.work(200)
        logits = [trace.alloc(rows * vocabulary * width) for width in (2, 4, 4)]
        trace.free(*reversed(logits))
        gradients = []
        for activations in reversed(saved):
            upstream = trace.alloc(2 * rows * hidden)
            for activation in reversed(activations):
                temporary = trace.alloc(2 * rows * hidden)
                trace.free(activation, temporary)
            gradients += [trace.alloc(2 * size) for size in (8 * hidden**2, 4 * hidden**2)]
            trace.free(upstream)
            trace.work(400)
        # Adam's two moments come to life in the first step, between what is left of the activations.
        state = state or [trace.alloc(4 * size) for _ in weights for size in (4 * hidden**2, 4 * hidden**2)]
        trace.free(*gradients)


def comb(trace: Trace, steps: int) -> None:
    """Free every second block of a row, then ask for blocks that fit none of the holes."""
    size = 16 * MIB
    for _ in range(steps):
        teeth = [trace.alloc(size - trace.random.randrange(4) * MIB) for _ in range(64)]
        trace.free(*teeth[::2])
        wide = []
        for _ in range(16):
            wide.append(trace.alloc(size + trace.random.randrange(1, 8) * MIB))
            trace.work(50)
        trace.free(*teeth[1::2])
        trace.random.shuffle(wide)
        trace.free(*wide)


def prefetch(trace: Trace, steps: int) -> None:
    """Three copy streams bring batches of varying size, freed by the host while the compute stream still reads them."""
    model = [trace.alloc(32 * MIB) for _ in range(8)]
    ahead: list[list[int]] = []
    for step in range(steps):
        stream = 1 + step % 3
        ahead.append([trace.alloc(trace.random.randrange(1, 65) * MIB, stream) for _ in range(4)])
        trace.work(150)
        if len(ahead) < 3:
            continue
        batch = ahead.pop(0)
        for block in batch:
            trace.use(block, COMPUTE, trace.random.randrange(500, 4000))
        activations = [trace.alloc(trace.random.randrange(4, 97) * MIB) for _ in range(8)]
        trace.free(*batch)
        trace.work(400)
        trace.free(*reversed(activations))
    trace.free(*(block for batch in ahead for block in batch), *model)


def experts(trace: Trace, steps: int) -> None:
    """Route tokens to 16 experts: every layer of every step has its own sizes."""
    hidden, width, layers, count, tokens = 1024, 3584, 12, 16, 16_384
    for _ in range(steps):
        saved = []
        for _ in range(layers):
            shares = [trace.random.expovariate(1) for _ in range(count)]
            routed = [max(1, round(2 * tokens * share / sum(shares))) for share in shares]
            kept = [trace.alloc(2 * tokens * hidden), trace.alloc(4 * tokens * count)]
            for rows in routed:
                inner = [trace.alloc(2 * rows * width) for _ in range(3)]
                kept.append(trace.alloc(2 * rows * hidden))
                trace.free(inner.pop(0))
                kept += inner
            saved.append(kept)
            trace.work(300)
        for kept in reversed(saved):
            for block in reversed(kept):
                gradient = trace.alloc(2 * trace.random.randrange(1, tokens // 4) * hidden)
                trace.free(block, gradient)
            trace.work(600)


SCENARIOS: dict[str, Callable[[Trace, int], None]] = {
    "variable-length": variable_length,
    "comb": comb,
    "prefetch": prefetch,
    "experts": experts,
}


def main() -> int:
    """Generate and write a trace as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    scenarios = "; ".join(f"{name}: {scenario.__doc__}" for name, scenario in SCENARIOS.items())
    parser.add_argument("scenario", choices=SCENARIOS, help=scenarios)
    parser.add_argument("output", type=Path, help="file to write, .csv or .csv.gz")
    parser.add_argument("--steps", type=int, default=20, help="how often the pattern repeats (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all that is random (default 0)")
    options = parser.parse_args()
    trace = Trace(options.seed)
    SCENARIOS[options.scenario](trace, options.steps)
    data = trace.text().encode()
    options.output.write_bytes(gzip.compress(data, mtime=0) if options.output.suffix == ".gz" else data)
    print(f"{options.output}: {len(trace.rows)} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
