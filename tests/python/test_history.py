"""Histories: what is recorded, and the files that are made of it."""

import csv
import gc
import gzip
import json
import pickle
import random
import sys
import threading
from collections import Counter
from itertools import pairwise

import pytest
from turns import run_in_turn

import flagstone
from flagstone import _core, history
from flagstone.testing import SimulatedDevice

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def device():
    return SimulatedDevice(capacity=1 << 30, backed=False)


def actions(recorded):
    return [event.action for event in recorded.events]


def test_records_from_start_to_stop(device):
    pool = flagstone.Pool(device)
    before = pool.alloc_raw(1000)
    assert not pool.is_recording
    with history.record(pool):
        assert pool.is_recording
        address = pool.alloc_raw(2000)
        pool.free_raw(address)
        pool.free_raw(before)
    pool.free_raw(pool.alloc_raw(500))
    recorded = pool.history()
    assert actions(recorded) == ["alloc", "free", "free"]
    assert [event.address for event in recorded.events] == [address, address, before]
    assert [(event.nbytes, event.requested) for event in recorded.events] == [(2048, 2000), (2048, 2000), (1024, 1000)]
    assert {event.stream for event in recorded.events} == {0}
    assert {event.reserved for event in recorded.events} == {pool.stats().reserved_bytes}
    assert all(first.time_ns <= second.time_ns for first, second in pairwise(recorded.events))
    assert [(event.address, event.requested) for event in recorded.live_before()] == [(before, 1000)]
    assert recorded.peak_requested_bytes() == 3000
    assert recorded.dropped == 0


def test_what_is_live_after_the_last_event(device):
    pool = flagstone.Pool(device)
    other = device.create_stream()
    kept, freed = pool.alloc_raw(3 * MIB), pool.alloc_raw(5 * MIB)
    with history.record(pool, stacks=True):
        pool.free_raw(freed)
        again = pool.alloc_raw(5 * MIB)
        waits = pool.alloc_raw(7 * MIB)
        pool.record_stream(waits, other)
        pool.free_raw(waits)
        last = pool.alloc_raw(MIB)
        stays = pool.alloc_raw(100)
        pool.free_raw(last)
    recorded = pool.history()
    live = {event.address: event.requested for event in recorded.live_after()}
    assert live == {kept: 3 * MIB, again: 5 * MIB, stays: 100}
    assert [bool(recorded.frames(event)) for event in recorded.live_after()] == [False, True, True]
    for address in live:
        pool.free_raw(address)


def test_a_recording_does_not_forget_the_one_around_it(device):
    pool = flagstone.Pool(device)
    with history.record(pool):
        pool.alloc_raw(MIB)
        with pytest.raises(flagstone.FlagstoneError, match="recorded already"), history.record(pool):
            pass
        assert pool.is_recording
    assert [event.action for event in pool.history().events] == ["map", "alloc"]


def test_records_hits_misses_growth_and_memory_given_back(device):
    pool = flagstone.Pool(device)
    with history.record(pool):
        for _ in range(3):
            pool.free_raw(pool.alloc_raw(32 * MIB))
        pool.trim()
    recorded = pool.history()
    assert actions(recorded)[0] == "map"
    assert Counter(actions(recorded)) == {"map": 1, "unmap": 1, "alloc": 3, "free": 3}
    assert [event.nbytes for event in recorded.events if event.action in ("map", "unmap")] == [32 * MIB] * 2
    assert recorded.peak_reserved_bytes() == 32 * MIB
    assert recorded.snapshot.segments == ()


def test_records_what_happens_on_other_streams(device):
    pool = flagstone.Pool(device)
    other = device.create_stream()
    with history.record(pool):
        buffer = pool.alloc(MIB)
        device.hold(other)
        device.launch(other, reads=[buffer])
        pool.record_stream(buffer, other)
        buffer.free(other)
        assert pool.alloc_raw(MIB) != 0
        device.release(other)
        pool.trim()
    events = [event for event in pool.history().events if event.action not in ("map", "unmap")]
    assert [event.action for event in events] == ["alloc", "use", "use", "free_waiting", "alloc", "free_done"]
    assert [event.stream for event in events[:4]] == [0, other, other, 0]
    assert events[0].address == events[5].address


def test_records_that_memory_ran_out(device):
    pool = flagstone.Pool(device, limit=16 * MIB)
    with history.record(pool), pytest.raises(flagstone.OutOfMemoryError):
        pool.alloc_raw(32 * MIB)
    (event,) = pool.history().events
    assert (event.action, event.requested, event.address) == ("oom", 32 * MIB, device.capacity)


def test_keeps_the_newest_events(device):
    pool = flagstone.Pool(device)
    with history.record(pool, max_events=10):
        for _ in range(20):
            pool.free_raw(pool.alloc_raw(100))
        last = pool.alloc_raw(300)
    recorded = pool.history()
    assert (len(recorded.events), recorded.events[-1].address) == (10, last)
    assert recorded.dropped == 41 + actions(recorded).count("map") + 1 - 10
    assert "10 events" in repr(recorded)
    with pytest.raises(ValueError, match="1 or more"):
        pool.start_history(0)
    pool.start_history()
    assert pool.history().events == []
    pool.stop_history()
    pool.stop_history()


def test_a_block_of_an_ended_history_is_freed_as_any_other(device):
    pool = flagstone.Pool(device)
    with history.record(pool):
        address = pool.alloc_raw(1000)
    pool.free_raw(address)
    with pytest.raises(flagstone.DoubleFreeError):
        pool.free_raw(address)
    with history.record(pool):
        again = pool.alloc_raw(1000)
        pool.record_stream(again, device.create_stream())
        pool.start_history()
        pool.free_raw(again)
    assert actions(pool.history()) == ["free_waiting"]
    assert pool.stats().live_blocks == 0


def test_every_thread_is_recorded_in_one_order(device):
    pool = flagstone.Pool(device)
    addresses = [[] for _ in range(4)]

    def work(mine):
        for round_ in range(200):
            mine.append(pool.alloc_raw(512 * (1 + round_ % 7)))
            if round_ % 3:
                pool.free_raw(mine.pop(0))

    with history.record(pool):
        threads = [threading.Thread(target=work, args=(mine,)) for mine in addresses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    recorded = pool.history()
    live = set()
    for event in recorded.events:
        if event.action == "alloc":
            assert event.address not in live, "given out before its free"
            live.add(event.address)
        elif event.action == "free":
            live.remove(event.address)
    assert live == {address for mine in addresses for address in mine}
    assert len({event.thread for event in recorded.events}) == 4


def allocate_here(pool):
    return pool.alloc_raw(100)


def test_stacks_are_those_of_the_program(device):
    pool = flagstone.Pool(device)

    def inner():
        return allocate_here(pool)

    with history.record(pool, stacks=True):
        first = inner()
        assert sys.getprofile() is not None
        pool.free_raw(first)
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()
    assert sys.getprofile() is None
    recorded = pool.history()
    alloc, free, other = [event for event in recorded.events if event.action in ("alloc", "free")]
    names = [frame.name for frame in recorded.frames(alloc)]
    assert names[:3] == ["allocate_here", "inner", "test_stacks_are_those_of_the_program"]
    innermost, within, outer = recorded.frames(alloc)[:3]
    assert innermost.filename == __file__
    code = allocate_here.__code__
    assert innermost.line == code.co_firstlineno + 1
    assert within.line == inner.__code__.co_firstlineno + 1
    assert recorded.frames(free)[0] == outer._replace(line=outer.line + 2)
    assert [frame.name for frame in recorded.frames(other)] == [
        "allocate_here",
        "inner",
        "run",
        "_bootstrap_inner",
        "_bootstrap",
    ]


def test_stacks_survive_exceptions_and_generators(device):
    pool = flagstone.Pool(device)

    def generate():
        yield pool.alloc_raw(100)
        yield pool.alloc_raw(100)

    def fail():
        raise KeyError

    with history.record(pool, stacks=True):
        steps = generate()
        next(steps)
        with pytest.raises(KeyError):
            fail()
        next(steps)
        allocate_here(pool)
    recorded = pool.history()
    allocs = [event for event in recorded.events if event.action == "alloc"]
    names = [[frame.name for frame in recorded.frames(event)[:2]] for event in allocs]
    here = "test_stacks_survive_exceptions_and_generators"
    assert names == [["generate", here], ["generate", here], ["allocate_here", here]]


def test_another_profiler_is_left_alone(device):
    pool = flagstone.Pool(device)

    def profiler(*_):
        pass

    sys.setprofile(profiler)
    try:
        with pytest.raises(flagstone.FlagstoneError, match="another one"):
            pool.start_history(stacks=True)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert not pool.is_recording


def test_another_profiler_set_meanwhile_stays(device):
    pool = flagstone.Pool(device)

    def profiler(*_):
        pass

    pool.start_history(stacks=True)
    assert sys.getprofile() is _core.follow_stack
    sys.setprofile(profiler)
    try:
        pool.start_history(stacks=True)
        pool.stop_history()
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert threading.getprofile() is None


def test_a_pool_that_is_dropped_wants_no_stacks(device):
    kept, dropped = flagstone.Pool(device), flagstone.Pool(device)
    dropped.start_history(stacks=True)
    kept.start_history(stacks=True)
    kept.stop_history()
    assert sys.getprofile() is _core.follow_stack
    del dropped
    gc.collect()
    assert sys.getprofile() is None
    assert threading.getprofile() is None


def test_stacks_may_be_stopped_in_another_thread_and_started_again(device):
    pool = flagstone.Pool(device)
    pool.start_history(stacks=True)
    thread = threading.Thread(target=pool.stop_history)
    thread.start()
    thread.join()
    with history.record(pool, stacks=True):
        pool.free_raw(allocate_here(pool))
    assert pool.history().frames(pool.history().events[0])
    assert sys.getprofile() is None


def test_the_pool_of_the_process_is_followed_though_its_object_is_dropped(child):
    ran = child(
        "import gc, sys\n"
        "from flagstone import _core\n"
        "_core.configure('sim')\n"
        "_core.process_pool(0).start_history(stacks=True)\n"
        "gc.collect()\n"
        "assert sys.getprofile() is _core.follow_stack\n"
        "_core.process_pool(0).stop_history()\n"
        "assert sys.getprofile() is None\n"
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.fixture
def recorded(device):
    """Small and large blocks, some of them live before and after."""
    pool = flagstone.Pool(device)
    before = [pool.alloc_raw(5000) for _ in range(3)]
    other = device.create_stream()
    with history.record(pool, stacks=True):
        kept = pool.alloc_raw(3 * MIB)
        pool.free_raw(pool.alloc_raw(100 * KIB))
        pool.free_raw(before.pop())
        pool.record_stream(kept, other)
        pool.free_raw(kept)
        allocate_here(pool)
        pool.trim()
    return pool.history()


def test_a_snapshot_has_what_torch_puts_there(recorded, tmp_path):
    recorded.save(tmp_path / "run.pickle")
    snapshot = pickle.loads((tmp_path / "run.pickle").read_bytes())
    (trace,) = snapshot["device_traces"]
    assert [entry["action"] for entry in trace if not entry["action"].startswith("segment")] == [
        *["alloc", "alloc", "free_requested", "free_completed", "free_requested", "free_completed"],
        *["free_requested", "alloc", "free_completed"],
    ]
    assert {"addr", "size", "stream", "time_us", "frames"} <= trace[0].keys()
    assert any(frame["name"] == "allocate_here" for entry in trace for frame in entry["frames"])
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    live = [block for block in blocks if block["state"] == "active_allocated"]
    assert sorted(block["requested_size"] for block in live) == [100, 5000, 5000]
    assert [bool(block["frames"]) for block in sorted(live, key=lambda block: block["requested_size"])] == [
        True,
        False,
        False,
    ]
    for segment in snapshot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    trace = _core.Trace(tmp_path / "run.pickle")
    assert (trace.format, trace.blocks) == ("torch snapshot, device 0", 6)


def test_a_trace_is_replayed(recorded, tmp_path):
    for name in ("run.csv", "run.csv.gz"):
        recorded.save(tmp_path / name)
        trace = _core.Trace(tmp_path / name)
        assert (trace.format, trace.blocks) == ("event CSV", 6)
        assert (trace.lag_ms, _core.Trace.example().lag_ms) == (0, 5)
        report = _core.replay(trace)
        assert report["errors"] == 0
        assert report["peak_live_bytes"] == recorded.peak_requested_bytes()
    with gzip.open(tmp_path / "run.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    assert "".join(row["op"] for row in rows if row["op"] not in "mu") == "pppaaffxfac"


def test_an_rmm_log_is_read_as_one(recorded, tmp_path):
    recorded.save(tmp_path / "rmm.csv", "rmm")
    trace = _core.Trace(tmp_path / "rmm.csv")
    assert (trace.format, trace.blocks, len(trace)) == ("RMM log", 6, 9)
    first = (tmp_path / "rmm.csv").read_text().splitlines()[1].split(",")
    assert first[2:] == ["allocate", hex(recorded.live_before()[0].address), "5000", "0"]


def test_a_chrome_trace_has_spans_and_counters(recorded, tmp_path):
    recorded.save(tmp_path / "run.json")
    rows = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    phases = Counter(row["ph"] for row in rows)
    assert (phases["b"], phases["e"], phases["M"]) == (6, 3, 1)
    begun, ended = ({(row["cat"], row["id"], row["name"]) for row in rows if row["ph"] == phase} for phase in "be")
    assert ended < begun
    counters = [row["args"] for row in rows if row["ph"] == "C"]
    assert max(counter["requested"] for counter in counters) == recorded.peak_requested_bytes()
    assert all("ts" in row for row in rows if row["ph"] != "M")
    assert any("allocate_here" in row.get("name", "") for row in rows)


def test_a_name_without_a_format_is_an_error(recorded, tmp_path):
    with pytest.raises(ValueError, match=r"run\.txt ends in none of \.pickle"):
        recorded.save(tmp_path / "run.txt")
    with pytest.raises(ValueError, match="'perfetto' is no kind of file; there are torch, chrome, trace, rmm"):
        recorded.save(tmp_path / "run.csv", "perfetto")
    assert not list(tmp_path.iterdir())
    recorded.save(tmp_path / "run.txt", "trace")
    assert _core.Trace(tmp_path / "run.txt").blocks == 6


def test_an_empty_history_can_be_written(device, tmp_path):
    empty = flagstone.Pool(device).history()
    for name in ("run.pickle", "run.json", "run.csv"):
        empty.save(tmp_path / name)
    assert (empty.peak_requested_bytes(), empty.peak_reserved_bytes()) == (0, 0)
    assert json.loads((tmp_path / "run.json").read_text())["traceEvents"]


@pytest.mark.parametrize("seed", range(3))
def test_a_recorded_run_of_threads_and_streams_replayed_holds_as_much(seed, tmp_path):
    """Three threads with a stream each, which call in turn; a copy stream reads some of the blocks, and each thread
    frees another's."""
    device = SimulatedDevice(capacity=8 << 30, backed=False)
    pool = flagstone.Pool(device)
    copies = device.create_stream()
    streams = [device.create_stream() for _ in range(3)]
    for stream in (copies, *streams):
        pool.keep_stream(stream)
    handed_over = [[] for _ in streams]
    meet = threading.Barrier(len(streams))

    def work(place, turn):
        random_ = random.Random(10 * seed + place)
        stream = streams[place]

        def allocate(nbytes, read=False):
            with turn():
                block = pool.alloc_raw(nbytes, stream)
                if read:
                    pool.record_stream(block, copies)
                return block

        def free(block):
            with turn():
                pool.free_raw(block)

        weights = [allocate(random_.randrange(1, 40) * 500 * KIB) for _ in range(40)]
        for _ in range(3):
            meet.wait()
            for _ in range(60):
                nbytes = random_.choice((700, 40 * KIB, 3 * MIB, 9 * MIB + 5))
                handed_over[place].append(allocate(nbytes, read=random_.random() < 0.2))
            meet.wait()
            for block in handed_over[place - 1]:
                free(block)
            handed_over[place - 1].clear()
        for block in weights:
            free(block)

    with history.record(pool):
        run_in_turn(len(streams), work)
    recorded = pool.history()
    assert recorded.dropped == 0
    assert {"use", "free"} < set(actions(recorded))
    assert len({event.thread for event in recorded.events}) == len(streams)
    stats = pool.stats()
    for name, lag in (("run.csv.gz", None), ("run.pickle", 0.0)):
        recorded.save(tmp_path / name)
        report = _core.replay(_core.Trace(tmp_path / name), lag_ms=lag)
        assert report["errors"] == 0
        assert report["peak_live_bytes"] == recorded.peak_requested_bytes()
        assert report["peak_reserved_bytes"] == pytest.approx(stats.peak_reserved_bytes, rel=0.01), name


@pytest.mark.parametrize("hands_over", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_threads_keep_ready_is_replayed(seed, hands_over, tmp_path):
    """Threads that share a stream: each in its turn needs most, and what the others keep ready by then is no use to it.
    Calls that overlap have no one order, so that here they do not."""
    pool = flagstone.Pool(SimulatedDevice(capacity=8 << 30, backed=False))
    threads = 8
    live = [[] for _ in range(threads)]
    meet, one_at_a_time = threading.Barrier(threads), threading.Lock()

    def work(place):
        chance = random.Random(10 * seed + place)
        mine, freed = live[place], live[place - hands_over]
        for phase in range(threads):
            meet.wait()
            for _ in range(400 if phase == place else 20):
                with one_at_a_time:
                    mine.append(pool.alloc_raw(chance.randrange(1, 400) * KIB))
            meet.wait()
            for block in freed:
                with one_at_a_time:
                    pool.free_raw(block)
            freed.clear()

    with history.record(pool):
        running = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    recorded, held = pool.history(), pool.stats().peak_reserved_bytes
    recorded.save(tmp_path / "run.csv")
    trace = _core.Trace(tmp_path / "run.csv")
    report = _core.replay(trace)
    assert (report["errors"], report["peak_live_bytes"]) == (0, recorded.peak_requested_bytes())
    assert report["peak_reserved_bytes"] == pytest.approx(held, rel=0.01)
    # In one thread nothing of it is kept from anybody.
    assert _core.replay(trace, threads=1)["peak_reserved_bytes"] < 0.95 * held


@pytest.mark.parametrize("seed", range(3))
def test_a_recorded_run_replayed_holds_as_much(seed, tmp_path):
    """A training step's shape: weights that stay, activations that come and go in order, buffers of random size."""
    device = SimulatedDevice(capacity=8 << 30, backed=False)
    pool = flagstone.Pool(device)
    random_ = random.Random(seed)
    with history.record(pool):
        weights = [pool.alloc_raw(random_.randrange(1, 40) * 300 * KIB) for _ in range(60)]
        for _ in range(4):
            activations = []
            for _ in range(200):
                scratch = pool.alloc_raw(random_.randrange(1, 4 * MIB))
                activations.append(pool.alloc_raw(random_.choice((700, 40 * KIB, 3 * MIB, 9 * MIB + 5))))
                pool.free_raw(scratch)
            while activations:
                gradient = pool.alloc_raw(random_.randrange(1, 8 * MIB))
                pool.free_raw(activations.pop())
                pool.free_raw(gradient)
        for address in weights:
            pool.free_raw(address)
    recorded = pool.history()
    assert recorded.dropped == 0
    recorded.save(tmp_path / "run.csv.gz")
    report = _core.replay(_core.Trace(tmp_path / "run.csv.gz"))
    stats = pool.stats()
    assert report["peak_live_bytes"] == stats.peak_requested_bytes == recorded.peak_requested_bytes()
    assert recorded.peak_reserved_bytes() == stats.peak_reserved_bytes
    assert report["peak_reserved_bytes"] == pytest.approx(stats.peak_reserved_bytes, rel=0.01)
