#!/usr/bin/env python3
"""Record what a GPT allocates while it trains, with no GPU and no memory: every tensor is fake.

The model runs under torch's FakeTensorMode, which computes shapes and no values. A dispatch mode sees each tensor that
an operation returns; a weak reference to the tensor's storage tells when it is freed. What a GPU would add, scratch
memory inside operations, is not seen.

Example:
    python benches/traces/record.py gpt.csv.gz --layers 24
    flagstone replay gpt.csv.gz
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Event = tuple[str, int, int]
"""`a` or `f` for allocated or freed, the block's number, its bytes."""


class Recorder(TorchDispatchMode):
    """Notes when each storage appears and when it goes."""

    def __init__(self) -> None:
        """Start without events."""
        super().__init__()
        self.events: list[Event] = []
        self.live_bytes = 0
        self.peak_bytes = 0
        self._blocks = 0
        # Storages that are alive, by the address of the C++ object. The weak reference calls back when one goes.
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and look at what it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive or size == 0:
            return
        block = self._blocks
        self._blocks += 1
        self.events.append(("a", block, size))
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

        def gone(_: weakref.ref[torch.UntypedStorage]) -> None:
            del self._alive[key]
            self.events.append(("f", block, size))
            self.live_bytes -= size

        self._alive[key] = weakref.ref(storage, gone)


class Block(nn.Module):
    """One transformer layer: attention and a feed-forward network, each with a residual connection."""

    def __init__(self, hidden: int, heads: int) -> None:
        """Make the layer's weights."""
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm_feed_forward = nn.LayerNorm(hidden)
        self.feed_forward = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer on (batch, sequence, hidden)."""
        qkv = self.qkv(self.norm_attention(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        attention = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norm_feed_forward(x))


class GPT(nn.Module):
    """A decoder-only language model."""

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, sequence: int) -> None:
        """Make the model's weights, for at most `sequence` tokens."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(sequence, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Compute the loss of next-token prediction."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def record(options: argparse.Namespace) -> tuple[list[Event], int]:
    """Train the model for some steps; return the events and the most bytes that were live."""
    lengths = random.Random(options.seed)
    shortest = options.shortest or options.sequence
    recorder = Recorder()
    with FakeTensorMode(), recorder:
        torch.set_default_dtype(torch.bfloat16)
        model = GPT(options.layers, options.hidden, options.heads, options.vocabulary, options.sequence)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for _ in range(options.steps):
            length = lengths.randrange(shortest, options.sequence + 1, 8)
            ids = torch.zeros(options.batch, length, dtype=torch.long)
            targets = torch.zeros(options.batch, length, dtype=torch.long)
            model(ids, targets).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            del ids, targets
        # A copy: what is freed from here on is the end of the program, not of a step.
        return recorder.events.copy(), recorder.peak_bytes


def write(events: list[Event], path: Path) -> None:
    """Write event CSV, compressed where the name ends in .gz. The same events give the same bytes."""
    text = "op,id,size,stream\n" + "".join(f"{op},{block},{size},0\n" for op, block, size in events)
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def main() -> int:
    """Record and write a trace as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="file to write, .csv or .csv.gz")
    for name, default, text in [
        ("layers", 12, "transformer layers"),
        ("hidden", 1024, "hidden size"),
        ("heads", 16, "attention heads"),
        ("vocabulary", 50257, "tokens in the vocabulary"),
        ("batch", 8, "sequences in a batch"),
        ("sequence", 1024, "tokens of a sequence at most"),
        ("shortest", 256, "tokens of a sequence at least; 0: all have the same length"),
        ("steps", 6, "training steps"),
        ("seed", 0, "seed of the sequence lengths"),
    ]:
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default {default})")
    options = parser.parse_args()
    events, peak_bytes = record(options)
    write(events, options.output)
    print(f"{options.output}: {len(events)} events, {peak_bytes / 2**30:.3f} GiB live at most")
    return 0


if __name__ == "__main__":
    sys.exit(main())
