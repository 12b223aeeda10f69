"""A training run recorded under the simulated CUDA, replayed without torch."""

import random
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn
from turns import run_in_turn

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


# What each thread keeps ready in the run is one thread's in the replay.
@pytest.mark.process(install={"magazine": 0})
@pytest.mark.parametrize("seed", range(3))
def test_a_recorded_run_of_threads_and_streams_replayed_holds_as_much(seed):
    """Three threads with a stream each, which call in turn; a fourth stream uses some of their tensors, too."""
    pool, copies = flagstone.torch.pool(), torch.cuda.Stream()
    streams = [torch.cuda.Stream() for _ in range(3)]

    def work(place, turn):
        random_ = random.Random(10 * seed + place)

        def used(nbytes, also=False):
            with turn():
                tensor = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
                if also:
                    tensor.record_stream(copies)
                return tensor

        with torch.cuda.stream(streams[place]):
            weights = [used(random_.randrange(1, 40) * MIB // 3) for _ in range(60)]
            for _ in range(3):
                activations = []
                for _ in range(60):
                    nbytes = random_.choice((700, 40 << 10, 3 * MIB, 9 * MIB + 5))
                    activations.append(used(nbytes, also=random_.random() < 0.1))
                while activations:
                    gradient = used(random_.randrange(1, 8 * MIB))
                    with turn():
                        del activations[-1]
                    with turn():
                        del gradient
            with turn():
                weights.clear()

    with history.record(pool):
        run_in_turn(len(streams), work)
    recorded, stats = pool.history(), pool.stats()
    assert len({event.thread for event in recorded.events}) == 3
    assert {event.stream for event in recorded.events} >= {stream.cuda_stream for stream in [copies, *streams]}
    with tempfile.NamedTemporaryFile(suffix=".csv.gz") as file:
        recorded.save(file.name)
        report = _core.replay(_core.Trace(file.name), lag_ms=0.0, config="magazine:0")
    assert report["errors"] == 0
    assert report["peak_live_bytes"] == recorded.peak_requested_bytes()
    assert report["peak_reserved_bytes"] == pytest.approx(stats.peak_reserved_bytes, rel=0.01)


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
