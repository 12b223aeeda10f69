"""torch.cuda.memory._record_memory_history and _dump_snapshot, and PyTorch's own tools that read the file."""

import pickle
import sys
import tempfile
import threading

import pytest
import torch
from simcuda import MIB
from torch.cuda import _memory_viz, memory

import flagstone.torch
from flagstone import _core, history
from flagstone.report import build
from flagstone.torch import _history


def used(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def used_on(device, nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{device}")


def dumped():
    """Return what a dumped snapshot has, read by an unpickler that knows no class."""
    with tempfile.NamedTemporaryFile() as file:
        memory._dump_snapshot(file.name)
        return pickle.loads(file.read())


def trace(snapshot, device=0):
    return [(entry["action"], entry["size"]) for entry in snapshot["device_traces"][device]]


def test_what_is_recorded_is_in_the_file():
    before = used(4 * MIB)
    memory._record_memory_history()
    kept = used(2 * MIB)
    used(3 * MIB)
    memory._record_memory_history(None)
    used(5 * MIB)
    snapshot = dumped()
    blocks = [entry for entry in trace(snapshot) if not entry[0].startswith("segment")]
    assert blocks == [
        ("alloc", 2 * MIB),
        ("alloc", 3 * MIB),
        ("free_requested", 3 * MIB),
        ("free_completed", 3 * MIB),
    ]
    (first, *_) = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    assert first["addr"] == kept.data_ptr()
    assert any(frame["name"] == "used" and frame["filename"] == __file__ for frame in first["frames"])
    live = {block["address"] for segment in snapshot["segments"] for block in segment["blocks"] if block["frames"]}
    assert live == {kept.data_ptr()}
    assert before.numel() == 4 * MIB


def test_pytorchs_own_tools_read_it():
    memory._record_memory_history(max_entries=1000)
    earlier = dumped()
    kept = [used(n * MIB) for n in (1, 2, 30)]
    del kept[1]
    snapshot = dumped()
    assert f"{torch.cuda.memory_reserved() / MIB:.1f}MiB" in _memory_viz.segsum(snapshot), _memory_viz.segsum(snapshot)
    assert ":30.0MiB]" in _memory_viz.trace(snapshot)
    assert "used" in _memory_viz.memory(snapshot, format_flamegraph=str)
    assert _memory_viz.segments(snapshot, format_flamegraph=str)
    assert _memory_viz.compare(earlier["segments"], snapshot["segments"], format_flamegraph=str)
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<script" in plot(snapshot)


def test_the_newest_events_are_kept():
    memory._record_memory_history(max_entries=10, context=None)
    for _ in range(100):
        used(MIB)
    used(2 * MIB)
    entries = trace(dumped())
    assert len(entries) <= 20, "a free is two of torch's"
    assert entries[-1] == ("free_completed", 2 * MIB)


def test_it_can_be_asked_and_begun_anew():
    assert not torch._C._cuda_isHistoryEnabled()
    memory._record_memory_history()
    assert torch._C._cuda_isHistoryEnabled()
    kept = used(MIB)
    memory._record_memory_history()
    assert ("alloc", MIB) in trace(memory._snapshot()), "recording goes on"
    traceback = getattr(memory, "_allocation_traceback", _history.traceback)  # older versions of torch have none
    assert any(frame["name"] == "used" for frame in traceback(kept.data_ptr()))
    assert traceback(0) is None
    memory._record_memory_history(clear_history=True)
    assert trace(memory._snapshot()) == []
    memory._record_memory_history(False)
    assert not torch._C._cuda_isHistoryEnabled()


def test_out_of_memory_is_in_it():
    memory._record_memory_history()
    with pytest.raises(torch.OutOfMemoryError):
        used(1 << 40)
    (entry,) = [entry for entry in memory._snapshot()["device_traces"][0] if entry["action"] == "oom"]
    assert entry["size"] == 1 << 40
    assert entry["device_free"] > 0


@pytest.mark.process(devices=2)
def test_each_device_in_use_has_its_own():
    second = torch.ones(MIB, device="cuda:1")
    memory._record_memory_history()
    used(MIB)
    second = second + 1
    first_trace, second_trace = (trace(memory._snapshot(), device) for device in (0, 1))
    assert ("alloc", MIB) in first_trace
    assert ("alloc", 4 * MIB) in second_trace
    assert second.numel() == MIB


@pytest.mark.process(devices=2)
def test_a_device_that_is_used_later_is_recorded_from_its_first_byte_on():
    memory._record_memory_history()
    later = used_on(1, 3 * MIB)
    snapshot = memory._snapshot()
    assert trace(snapshot, 1)[0][0] == "segment_map"
    (entry,) = [entry for entry in snapshot["device_traces"][1] if entry["action"] == "alloc"]
    assert (entry["size"], entry["addr"]) == (3 * MIB, later.data_ptr())
    assert any(frame["name"] == "used_on" for frame in entry["frames"])
    memory._record_memory_history(None)
    assert sys.getprofile() is None
    used_on(1, 5 * MIB)
    assert ("alloc", 5 * MIB) not in trace(memory._snapshot(), 1)


@pytest.mark.process(devices=2)
def test_a_device_that_is_used_after_the_recording_is_not_recorded():
    memory._record_memory_history()
    memory._record_memory_history(None)
    kept = used_on(1, MIB)
    assert trace(memory._snapshot(), 1) == []
    assert kept.numel() == MIB


@pytest.mark.process(devices=2)
def test_any_device_of_a_snapshot_can_be_shown_and_replayed():
    memory._record_memory_history()
    kept = [used(MIB) for _ in range(3)] + [used_on(1, 7 * MIB)]
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        memory._dump_snapshot(file.name)
        live = {device: build(file.name, device=device)[1]["peak_live_bytes"] for device in (None, 0, 1)}
        assert live == {None: 3 * MIB, 0: 3 * MIB, 1: 7 * MIB}
        assert _core.replay(_core.Trace(file.name, 1))["peak_live_bytes"] == 7 * MIB
        with pytest.raises(flagstone.TraceError, match="no history of device 2"):
            _core.Trace(file.name, 2)
    assert len(kept) == 4


def test_a_run_that_is_replayed_holds_as_much(tmp_path):
    """Two threads train in turn, each on a stream of its own, with batches from a third stream; torch's own threads
    free what these allocated."""
    pool = flagstone.torch.pool(0)
    side, one_at_a_time = torch.cuda.Stream(), threading.Lock()

    def train():
        with torch.cuda.stream(torch.cuda.Stream()):
            weights = [torch.nn.Parameter(torch.empty(512, device="cuda")) for _ in range(6)]
            optimizer = torch.optim.Adam(weights)
            for rows in (2048, 8192, 4096, 16384):
                with one_at_a_time:
                    with torch.cuda.stream(side):
                        batch = torch.empty(rows, 512, device="cuda")
                    torch.cuda.current_stream().wait_stream(side)
                    batch.record_stream(torch.cuda.current_stream())
                    result = batch
                    for weight in weights:
                        result = torch.nn.functional.gelu(result * weight)
                    result.square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()

    with history.record(pool):
        threads = [threading.Thread(target=train) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    recorded, held = pool.history(), pool.stats().peak_reserved_bytes
    assert len({event.thread for event in recorded.events}) > 2
    assert {"use", "free_waiting"} < {event.action for event in recorded.events}
    recorded.save(f"{tmp_path}/run.csv")
    report = _core.replay(_core.Trace(f"{tmp_path}/run.csv"))
    assert (report["errors"], report["peak_live_bytes"]) == (0, recorded.peak_requested_bytes())
    assert report["peak_reserved_bytes"] == pytest.approx(held, rel=0.01)


def test_without_stacks_where_somebody_else_profiles():
    sys.setprofile(lambda *_: None)
    with pytest.warns(UserWarning, match="without stacks"):
        memory._record_memory_history()
    kept = used(MIB)
    assert ("alloc", MIB) in trace(memory._snapshot())
    assert kept.numel() == MIB


def test_recording_leaves_no_trace_behind():
    memory._record_memory_history(context=None)
    tensors = [used(MIB) for _ in range(4)]
    memory._record_memory_history(None)
    del tensors
    assert flagstone.torch.memory_stats().live_blocks == 0
    assert used(MIB).numel() == MIB
