"""Pools: every method, and that the numbers add up."""

import dataclasses
import pickle
import weakref

import pytest

import flagstone
from flagstone.stats import Snapshot, Stats

MIB = 1 << 20


@pytest.fixture(params=[flagstone.Pool, flagstone.PinnedPool])
def any_pool(request):
    return request.param(backend="sim")


def test_what_a_pool_says_about_itself(any_pool):
    assert (any_pool.device, any_pool.backend, any_pool.limit) == (0, "sim", None)
    name = type(any_pool).__name__
    assert repr(any_pool) == f"<flagstone.{name} on sim device 0: 0 bytes in 0 blocks, 0 held>"


def test_raw_addresses_are_distinct_aligned_and_counted(any_pool):
    sizes = [0, 0, 1, 512, 513, 100_000, MIB, MIB + 1, 5 * MIB]
    blocks = [any_pool.alloc_raw(nbytes) for nbytes in sizes]
    assert len(set(blocks)) == len(blocks)
    assert 0 not in blocks
    assert all(block % 512 == 0 for block in blocks)
    stats = any_pool.stats()
    assert (stats.live_blocks, stats.requested_bytes) == (len(sizes), sum(sizes))
    assert stats.requested_bytes <= stats.allocated_bytes <= stats.active_bytes <= stats.reserved_bytes
    for block in blocks:
        any_pool.free_raw(block)
    stats = any_pool.stats()
    assert (stats.live_blocks, stats.requested_bytes, stats.allocated_bytes) == (0, 0, 0)
    assert (stats.alloc_count, stats.free_count) == (len(sizes), len(sizes))


def test_a_freed_block_is_given_out_again(pool):
    first = pool.alloc_raw(4096)
    pool.free_raw(first)
    assert pool.alloc_raw(4096) == first


def test_memory_is_used_again(any_pool):
    for _ in range(200):
        any_pool.free_raw(any_pool.alloc_raw(MIB))
    assert any_pool.stats().reserved_bytes <= 64 * MIB


def test_integers_of_other_libraries_are_sizes(pool):
    class Nine:
        def __index__(self):
            return 9

    assert pool.alloc(Nine()).nbytes == 9


def test_reserve_and_trim(pool):
    pool.reserve(8 * MIB)
    held = pool.stats().reserved_bytes
    assert held >= 8 * MIB
    buffer = pool.alloc(3 * MIB)
    assert pool.stats().reserved_bytes == held, "what was reserved is used"
    assert pool.trim(target=held) == 0
    buffer.free()
    assert pool.trim() == held
    assert pool.stats().reserved_bytes == 0


def test_the_limit_can_be_changed(pool):
    pool.limit = 4 * MIB
    assert pool.limit == pool.stats().limit == 4 * MIB
    with pytest.raises(flagstone.OutOfMemoryError):
        pool.alloc(8 * MIB)
    pool.limit = None
    assert pool.limit is None
    assert pool.alloc(8 * MIB).nbytes == 8 * MIB


@pytest.mark.parametrize(("limit", "expected"), [(3 * MIB, 3 * MIB), ("3MiB", 3 * MIB), (0.5, None), ("50%", None)])
def test_limits_are_bytes_text_or_parts_of_the_device(limit, expected):
    pool = flagstone.Pool(backend="sim", limit=limit)
    total = flagstone._core.devices("sim")[0]["total_bytes"]
    assert pool.limit == (total // 2 if expected is None else expected)


def test_keyword_arguments_go_before_the_environment(monkeypatch):
    monkeypatch.setenv("FLAGSTONE_CONF", "limit:2MiB,reserve:1MiB")
    assert flagstone.Pool(backend="sim").limit == 2 * MIB
    assert flagstone.Pool(backend="sim", limit="6MiB").limit == 6 * MIB


@pytest.mark.parametrize("kind", [flagstone.Pool, flagstone.PinnedPool])
def test_settings_make_a_pool_of_the_same_kind_elsewhere(kind, child):
    keywords = {"limit": 0.5, "growth": "4MiB", "remap": False, "wait": 2.5, "source": "slabs"}
    pool = kind(backend="sim", **keywords)
    assert pool.settings == {"limit": "0.5", "growth": "4194304", "remap": "off", "wait": "2.5", "source": "slabs"}
    assert kind(backend="sim").settings == {}
    pickled = pickle.dumps((pool.settings, pool.limit))
    ran = child(
        "import pickle, flagstone\n"
        f"settings, limit = pickle.loads({pickled!r})\n"
        f"pool = flagstone.{kind.__name__}(backend='sim', **settings)\n"
        "assert (pool.settings, pool.limit) == (settings, limit)\n"
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("what", ["stats", "snapshot", "history"])
def test_what_a_pool_says_can_be_pickled(pool, what):
    pool.start_history(stacks=True)
    with pool.alloc(1000):
        said = getattr(pool, what)()
    copy = pickle.loads(pickle.dumps(said))
    if what == "history":
        assert copy.events == said.events
        assert [copy.frames(event) for event in copy.events] == [said.frames(event) for event in said.events]
    else:
        assert copy == said


def test_a_pool_cannot_be_pickled(pool):
    for one in (pool, pool.alloc(8)):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(one)


def test_peaks_start_anew(pool):
    block = pool.alloc_raw(3 * MIB)
    pool.free_raw(block)
    assert pool.stats().peak_requested_bytes == 3 * MIB
    pool.reset_peak()
    assert pool.stats().peak_requested_bytes == 0


def test_stats_are_frozen_and_have_a_utilisation(pool):
    assert pool.stats().utilisation == 1
    buffer = pool.alloc(MIB)
    stats = pool.stats()
    assert isinstance(stats, Stats)
    assert 0 < stats.utilisation == stats.peak_active_bytes / stats.peak_reserved_bytes <= 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.live_blocks = 5
    del buffer


def test_a_snapshot_holds_every_block(pool):
    buffers = [pool.alloc(nbytes) for nbytes in (100, 70_000, 3 * MIB)]
    snapshot = pool.snapshot()
    assert isinstance(snapshot, Snapshot)
    assert snapshot.device == 0
    live = {
        block.addr: block.requested
        for segment in snapshot.segments
        for block in segment.blocks
        if block.state == "active_allocated"
    }
    assert live == {buffer.ptr: buffer.nbytes for buffer in buffers}
    for segment in snapshot.segments:
        assert sum(block.bytes for block in segment.blocks) == segment.bytes
    assert sum(segment.bytes for segment in snapshot.segments) == pool.stats().reserved_bytes


def test_pools_of_one_process_are_apart(pool):
    other = flagstone.Pool(backend="sim")
    block = pool.alloc_raw(100)
    with pytest.raises(flagstone.InvalidPointerError):
        other.free_raw(block)
    assert pool.stats().live_blocks == 1


def test_a_pool_can_be_referenced_weakly(any_pool):
    reference = weakref.ref(any_pool)
    assert reference() is any_pool


def test_auto_without_cuda_warns_once(child):
    ran = child(
        "import warnings, flagstone\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    pools = [flagstone.Pool(), flagstone.Pool(), flagstone.PinnedPool()]\n"
        "assert {pool.backend for pool in pools} == {'sim'}, pools\n"
        "assert [warning.category for warning in said] == [flagstone.SimulatedDeviceWarning], said\n"
        "assert issubclass(flagstone.SimulatedDeviceWarning, RuntimeWarning)\n"
        "print(said[0].message)\n",
        env={"FLAGSTONE_CONF": ""},
    )
    assert ran.returncode == 0, ran.stderr
    assert "simulated" in ran.stdout


def test_a_named_backend_warns_of_nothing(child):
    ran = child("import flagstone; flagstone.Pool(backend='sim').alloc(5)")
    assert (ran.returncode, ran.stderr) == (0, "")
