"""Logs of the real RMM: what it writes is read, and what is written here looks the same."""

import re

import pytest
import simcuda

import flagstone
from flagstone import _core, history


@pytest.fixture
def log(device, tmp_path, monkeypatch):
    """A log of RMM's own adaptor, over a pool with a history."""
    import rmm
    from rmm.pylibrmm.stream import Stream

    # It asks for the device by a CUDA runtime of its own, which the simulation does not reach.
    monkeypatch.setattr("rmm.pylibrmm.memory_resource._memory_resource.getDevice", lambda: 0)
    pool = flagstone.Pool(0, backend="cuda", limit="64MiB")
    callbacks = rmm.mr.CallbackMemoryResource(pool.alloc_raw, lambda address, _, stream: pool.free_raw(address, stream))
    logged = rmm.mr.LoggingResourceAdaptor(callbacks, log_file_name=str(tmp_path / "rmm.csv"))
    with history.record(pool):
        kept = logged.allocate(1000)
        stream = Stream(device.create_stream())
        logged.deallocate(logged.allocate(5 << 20, stream), 5 << 20, stream)
        with pytest.raises(MemoryError):
            logged.allocate(1 << 30)
        logged.deallocate(kept, 1000)
    logged.flush()
    (file,) = tmp_path.glob("rmm*.csv")
    assert simcuda.violations() == []
    return file, pool.history()


def test_a_log_of_rmm_is_read(log):
    file, recorded = log
    assert file.read_text().splitlines()[0] == "Thread,Time,Action,Pointer,Size,Stream"
    trace = _core.Trace(file)
    assert (trace.format, trace.blocks) == ("RMM log", 2)
    report = _core.replay(trace)
    assert (report["errors"], report["peak_live_bytes"]) == (0, recorded.peak_requested_bytes())


def test_what_is_written_here_looks_as_what_rmm_writes(log, tmp_path):
    file, recorded = log
    recorded.save(tmp_path / "ours.csv", "rmm")
    shapes = []
    for path in (file, tmp_path / "ours.csv"):
        head, *lines = path.read_text().splitlines()
        rows = [line.split(",") for line in lines]
        # Threads and times are others; a pointer is named by when it was met first.
        pointers = list(dict.fromkeys(row[3] for row in rows))
        assert all(re.fullmatch(r"\d\d:\d\d:\d\d\.\d{6}", row[1]) for row in rows), rows
        assert all(re.fullmatch(r"0x[0-9a-f]+|\(nil\)", row[3]) for row in rows), rows
        shapes.append([head, *([*row[2:3], pointers.index(row[3]), *row[4:]] for row in rows)])
    assert shapes[0] == shapes[1]
