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
        trace.work(1500)
        if len(ahead) < 3:
            continue
        batch = ahead.pop(0)
        for block in batch:
            trace.use(block, COMPUTE, trace.random.randrange(3000, 12_000))
        activations = [trace.alloc(trace.random.randrange(4, 97) * MIB) for _ in range(8)]
        trace.free(*batch)
        trace.work(9000)
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


def adapters(trace: Trace, steps: int) -> None:
    """Fine-tune adapters on a frozen model with checkpointing: the backward pass computes each layer again."""
    hidden, layers, batch, rank = 2048, 24, 8, 16
    for _ in range(layers):
        trace.alloc(2 * 12 * hidden**2)
    state = [trace.alloc(width * rank * hidden) for _ in range(4 * layers) for width in (2, 8)]

    def layer(rows: int) -> list[int]:
        kept = [trace.alloc(2 * rows * width) for width in (hidden, 3 * hidden, rank, hidden, 4 * hidden, rank, hidden)]
        trace.work(200)
        return kept

    for _ in range(steps):
        rows = batch * trace.random.randrange(128, 1025, 8)
        checkpoints = []
        for _ in range(layers):
            checkpoints.append(trace.alloc(2 * rows * hidden))
            trace.free(*layer(rows))
        upstream = trace.alloc(2 * rows * hidden)
        gradients = []
        for checkpoint in reversed(checkpoints):
            again = layer(rows)
            below = trace.alloc(2 * rows * hidden)
            for activation in reversed(again):
                temporary = trace.alloc(2 * rows * hidden)
                trace.free(activation, temporary)
            gradients += [trace.alloc(2 * rank * hidden) for _ in range(4)]
            trace.free(upstream, checkpoint)
            upstream = below
        trace.free(upstream, *gradients)
    trace.free(*state)


def diffusion(trace: Trace, steps: int) -> None:
    """Train a U-Net on images of mixed resolution; every fifth step draws a sample and decodes it."""
    channels, levels = 320, 4
    for level in range(levels):
        for _ in range(4):
            trace.alloc(2 * 9 * (channels << level) ** 2)
    for step in range(steps):
        side = trace.random.choice((512, 640, 768, 896, 1024)) // 8
        other = trace.random.choice((512, 640, 768, 896, 1024)) // 8
        pixels, batch = side * other, trace.random.choice((2, 4))
        if step % 5 == 4:
            for _ in range(4):
                # The decoder's widest images come one after the other.
                trace.free(trace.alloc(4 * 64 * pixels * 128), trace.alloc(2 * 64 * pixels * 128))
        skipped = []
        for level in range(levels):
            plane = 2 * batch * (pixels >> 2 * level) * (channels << min(level, 2))
            skipped.append([trace.alloc(plane) for _ in range(3)])
            attention = trace.alloc(2 * batch * 8 * (pixels >> 2 * level) * min(4096, pixels >> 2 * level))
            trace.work(300)
            trace.free(attention)
        for level in reversed(range(levels)):
            plane = 2 * batch * (pixels >> 2 * level) * (channels << min(level, 2))
            joined = trace.alloc(2 * plane)
            for activation in skipped.pop():
                gradient = trace.alloc(plane)
                trace.free(activation, gradient)
            trace.work(500)
            trace.free(joined)


def serving(trace: Trace, steps: int) -> None:
    """Serve requests of random length whose key-value caches grow by copying to larger ones."""
    hidden, layers = 1024, 16
    for _ in range(layers):
        trace.alloc(2 * 12 * hidden**2)
    caches: list[tuple[list[int], int, int]] = []  # blocks of the layers, tokens that they hold, tokens at the end
    for _ in range(10 * steps):
        while len(caches) < 24 and trace.random.random() < 0.5:
            tokens = trace.random.randrange(16, 1025)
            prompt = [trace.alloc(2 * tokens * width) for width in (hidden, 4 * hidden, hidden)]
            blocks = [trace.alloc(4 * tokens * hidden) for _ in range(layers)]
            trace.free(*prompt)
            caches.append((blocks, tokens, tokens + trace.random.randrange(64, 2049)))
        index = trace.random.randrange(len(caches)) if caches else 0
        for blocks, tokens, end in caches[index : index + 1]:
            grown = tokens + trace.random.randrange(64, 257)
            for number, block in enumerate(blocks):
                blocks[number] = trace.alloc(4 * grown * hidden)
                trace.free(block)
            trace.work(300)
            caches[index] = (blocks, grown, end)
            if grown >= end:
                trace.free(*caches.pop(index)[0])
        logits = trace.alloc(4 * 32_000 * (1 + len(caches)))
        trace.work(100)
        trace.free(logits)


def loading(trace: Trace, steps: int) -> None:
    """Load weights through temporaries of full precision, quantise them, then run."""
    hidden, layers = 2048, 32
    for _ in range(max(1, steps // 10)):
        weights = []
        for _ in range(layers):
            for factor in (1, 1, 1, 1, 3, 3, 3):
                size = factor * hidden**2
                wide = trace.alloc(4 * size)
                half = trace.alloc(2 * size)
                trace.free(wide)
                weights.append((half, size))
        quantised = []
        for half, size in weights:
            scales = trace.alloc(size // 32)
            quantised += [trace.alloc(size // 2), scales]
            trace.free(half)
        for _ in range(10):
            rows = trace.random.randrange(64, 4097)
            for _ in range(layers):
                inner = [trace.alloc(2 * rows * width) for width in (hidden, 3 * hidden, hidden)]
                trace.work(100)
                trace.free(*reversed(inner))
        trace.free(*quantised)


def new_streams(trace: Trace, steps: int) -> None:
    """Make a new stream in every step and leave what was allocated on the old ones to it."""
    kept = [trace.alloc(32 * MIB) for _ in range(8)]
    for step in range(steps):
        stream = 1 + step
        batch = [trace.alloc(trace.random.randrange(1, 33) * MIB, stream) for _ in range(8)]
        scratch = [trace.alloc(trace.random.randrange(1, 17) * MIB, stream) for _ in range(4)]
        trace.work(1500)
        trace.free(*scratch)
        for block in batch:
            trace.use(block, COMPUTE, trace.random.randrange(3000, 12_000))
        activations = [trace.alloc(trace.random.randrange(4, 65) * MIB) for _ in range(8)]
        trace.work(9000)
        trace.free(*batch, *reversed(activations))
    trace.free(*kept)


SCENARIOS: dict[str, Callable[[Trace, int], None]] = {
    "variable-length": variable_length,
    "adapters": adapters,
    "experts": experts,
    "diffusion": diffusion,
    "serving": serving,
    "prefetch": prefetch,
    "comb": comb,
    "loading": loading,
    "new-streams": new_streams,
}


def write(scenario: str, steps: int, seed: int, output: Path) -> None:
    """Generate a trace and write it, compressed where the name ends in .gz."""
    trace = Trace(seed)
    SCENARIOS[scenario](trace, steps)
    data = trace.text().encode()
    output.write_bytes(gzip.compress(data, mtime=0) if output.suffix == ".gz" else data)
    print(f"{output}: {len(trace.rows)} events")


def main() -> int:
    """Generate and write as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    scenarios = "; ".join(f"{name}: {scenario.__doc__}" for name, scenario in SCENARIOS.items())
    parser.add_argument("scenario", choices=[*SCENARIOS, "all"], help=f"{scenarios}; all: each of them")
    parser.add_argument("output", type=Path, help="file to write, .csv or .csv.gz; for all, the folder")
    parser.add_argument("--steps", type=int, default=20, help="how often the pattern repeats (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all that is random (default 0)")
    options = parser.parse_args()
    if options.scenario != "all":
        write(options.scenario, options.steps, options.seed, options.output)
        return 0
    options.output.mkdir(parents=True, exist_ok=True)
    for scenario in SCENARIOS:
        write(scenario, options.steps, options.seed, options.output / f"{scenario}.csv.gz")
    return 0


if __name__ == "__main__":
    sys.exit(main())
