"""A training run recorded under the simulated CUDA, replayed without torch."""

import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

import flagstone.torch
from flagstone import _core, history
from flagstone.report import build

MIB = 1 << 20


def train(steps, words):
    """Train tables of words with momentum, on batches of different lengths: much memory, little to compute."""
    torch.manual_seed(0)
    tables = nn.ModuleList(nn.Embedding(words, width) for width in (48, 64, 200)).cuda()
    optimizer = torch.optim.SGD(tables.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        batch = torch.arange(1000 * (1 + step % 3), device="cuda") % words
        loss = sum(table(batch).square().mean() for table in tables)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test_a_recorded_training_replayed_holds_as_much():
    pool = flagstone.torch.pool()
    with history.record(pool):
        # Large enough that a page of 2 MiB is less than 1 %: the backward pass is another thread's.
        train(2, words=60_000)
    recorded = pool.history()
    assert recorded.dropped == 0
    stats = pool.stats()
    assert stats.peak_requested_bytes > 200 * MIB
    with tempfile.TemporaryDirectory() as folder:
        for name in ("run.csv.gz", "run.pickle"):
            recorded.save(Path(folder) / name)
            report = _core.replay(_core.Trace(Path(folder) / name), lag_ms=0.0)
            assert report["errors"] == 0
            assert report["peak_live_bytes"] == recorded.peak_requested_bytes()
            assert report["peak_reserved_bytes"] == pytest.approx(stats.peak_reserved_bytes, rel=0.01)
        _, page = build(Path(folder) / "run.pickle")
    assert page["placed_by"] == "flagstone"
    assert page["peak_live_bytes"] == recorded.peak_requested_bytes()
    assert page["peak_reserved_bytes"] == stats.peak_reserved_bytes
    assert recorded.peak_reserved_bytes() == stats.peak_reserved_bytes


def test_stacks_reach_through_torch():
    pool = flagstone.torch.pool()
    with history.record(pool, stacks=True):
        train(1, words=3_000)
        kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    recorded = pool.history()
    (*_, event) = [event for event in recorded.events if event.address == kept.data_ptr() and event.action == "alloc"]
    (*_, frame) = [frame for frame in recorded.frames(event) if frame.filename == __file__]
    assert frame.name == "test_stacks_reach_through_torch"
    names = {frame.name for event in recorded.events for frame in recorded.frames(event)}
    assert {"train", "forward", "backward"} <= names


@pytest.mark.process(install=False)
def test_a_snapshot_of_torch_s_own_allocator_becomes_a_page():
    kept = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.memory._record_memory_history(stacks="python")
    train(1, words=3_000)
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.memory._dump_snapshot(str(Path(folder) / "torch.pickle"))
        page, summary = build(Path(folder) / "torch.pickle")
    assert summary["placed_by"] == "torch"
    assert summary["peak_reserved_bytes"] == torch.cuda.max_memory_reserved()
    # What was asked for, where torch's number is rounded to 512 bytes a block.
    assert summary["peak_live_bytes"] == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.001)
    assert "train (" in page
    assert kept.numel() == 30 * MIB
