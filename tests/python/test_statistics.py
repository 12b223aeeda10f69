"""What a pool says about itself, and what a block of code used."""

import asyncio
import dataclasses
import re
import threading

import pytest

import flagstone
from flagstone import stats
from flagstone.testing import SimulatedDevice

MIB = 1 << 20


@pytest.fixture
def device():
    return SimulatedDevice(capacity=1 << 30, backed=False)


def test_the_tables_have_what_a_report_needs(device):
    pool = flagstone.Pool(device, limit=64 * MIB, remap=False)
    kept = [pool.alloc_raw(10 * MIB), pool.alloc_raw(1000)]
    pool.free_raw(pool.alloc_raw(20 * MIB))
    with pytest.raises(flagstone.OutOfMemoryError):
        pool.alloc_raw(60 * MIB)
    with pytest.raises(flagstone.InvalidPointerError):
        pool.free_raw(12345)
    with pytest.raises(flagstone.InvalidPointerError):
        pool.record_stream(12345, device.create_stream())
    numbers = pool.stats()
    table = str(numbers)
    assert max(map(len, table.splitlines())) <= 100
    whose, settings, *lines = [re.split(r"  +", line) for line in table.splitlines()]
    assert whose == [f"flagstone {flagstone.__version__}, device 0, backend sim"]
    assert settings == [f"settings: limit:{64 * MIB}, remap:off"]
    assert ["memory", "now", "peak", "in all", "given back"] in lines
    requested = lines.index(["requested", "10.0 MiB", "30.0 MiB", "30.0 MiB", "20.0 MiB"])
    assert lines[requested + 1] == ["", "up to 1 MiB", "1000 bytes", "1000 bytes", "1000 bytes", "0 bytes"]
    assert lines[requested + 2] == ["", "above 1 MiB", "10.0 MiB", "30.0 MiB", "30.0 MiB", "20.0 MiB"]
    blocks = lines.index(["live blocks", "2", "3", "3", "1"])
    assert lines[blocks + 1] == ["", "up to 1 MiB", "1", "1", "1", "0"]
    assert lines[blocks + 2] == ["", "above 1 MiB", "1", "2", "2", "1"]
    assert ["limit", "64.0 MiB"] in lines
    assert ["fragmentation", f"{100 * numbers.fragmentation:.1f} %"] in lines
    assert ["segments", str(numbers.segments)] in lines
    assert ["out of memory", "1"] in lines
    assert ["frees of foreign pointers", "1"] in lines
    assert ["uses recorded for foreign pointers", "1"] in lines
    assert not any("double frees" in line for line in lines)
    (step,) = (step for step in numbers.steps if step.name == "waited for the device")
    assert step.summary().startswith("enough in 0 of 1, ")
    assert ["", step.name, step.summary()] in lines
    assert not any("callbacks" in cell for line in lines for cell in line), "none was there to ask"
    for block in kept:
        pool.free_raw(block)


def test_the_tables_are_narrow_with_large_numbers_and_long_settings(device):
    numbers = flagstone.Pool(device).stats()
    changes = {
        field.name: 10**10 for field in dataclasses.fields(numbers) if isinstance(getattr(numbers, field.name), int)
    }
    settings = ", ".join(f"key_{number}:value" for number in range(20))
    step = stats.StepTotal("made streams wait for each other", 10**4, 10**4, 10**4, 10**15)
    table = str(dataclasses.replace(numbers, **changes, settings=settings, steps=(step,)))
    assert max(map(len, table.splitlines())) <= 100
    assert "made streams wait for each other" in table
    assert all(part in table for part in settings.split())
    assert "settings: the defaults" in str(numbers)


def test_misses_are_timed_and_few_hits_are_not(device):
    pool = flagstone.Pool(device)
    assert pool.stats().miss_time_below(0.5) == 0
    for _ in range(100):
        pool.free_raw(pool.alloc_raw(1000))
    numbers = pool.stats()
    assert 0 < sum(numbers.miss_times) <= numbers.miss_count < 100
    assert len(numbers.miss_times) == 32
    assert 0 < numbers.miss_time_below(0.5) <= numbers.miss_time_below(1)
    assert sum(numbers.hit_times) == 0
    assert str(numbers).count("99 % of the timed below") == 1


@pytest.mark.parametrize("nbytes", [1000, 4 * MIB])
@pytest.mark.parametrize("default", [True, False])
def test_one_hit_in_1024_is_timed(device, nbytes, default):
    pool = flagstone.Pool(device)
    stream = 0 if default else device.create_stream()
    for _ in range(10_000):
        pool.free_raw(pool.alloc_raw(nbytes, stream))
    numbers = pool.stats()
    assert len(numbers.hit_times) == 32
    assert numbers.hit_count == 10_000 - numbers.miss_count > 9_700, "a timed hit is no miss"
    assert sum(numbers.hit_times) == 9
    assert 0 < numbers.hit_time_below(0.5) <= numbers.hit_time_below(1)
    assert str(numbers).count("99 % of the timed below") == 2


def total(row):
    return (row.alloc_count, row.requested_bytes, row.allocated_bytes)


def test_totals_are_divided_by_stream_size_and_private_pool(device):
    pool = flagstone.Pool(device)
    stream = device.create_stream()
    for _ in range(5):
        pool.free_raw(pool.alloc_raw(1000))
    pool.alloc_raw(1001, stream)
    for _ in range(3):
        pool.free_raw(pool.alloc_raw(3 * MIB, stream))
    pool.free_raw(pool.alloc_raw(4 * MIB, stream))
    totals = pool.totals()
    assert totals.device == 0
    streams = totals.by_stream()
    assert total(streams[0]) == (5, 5000, 5 * 1024)
    assert total(streams[stream]) == (5, 1001 + 13 * MIB, 1024 + 13 * MIB)
    sizes = totals.by_size()
    assert total(sizes[1024]) == (6, 6001, 6 * 1024)
    assert total(sizes[4 * MIB]) == (4, 13 * MIB, 13 * MIB), "3 MiB count to the next power of two"
    assert sizes.keys() == {1024, 4 * MIB}
    (everything,) = totals.by_private_pool().values()
    numbers = pool.stats()
    assert total(everything) == (
        numbers.alloc_count,
        numbers.requested_bytes + numbers.freed_requested_bytes,
        numbers.allocated_bytes + numbers.freed_bytes,
    )


def test_totals_of_threads_stay_when_the_threads_end(device):
    pool = flagstone.Pool(device)
    sizes = [512, 1000, 5000, 70_000, 2 * MIB, 5 * MIB]

    def work():
        for _ in range(200):
            for block in [pool.alloc_raw(size) for size in sizes]:
                pool.free_raw(block)

    for _ in range(3):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    by_size = pool.totals().by_size()
    for size in sizes:
        rounded = -(-size // 512) * 512
        key = rounded if size <= MIB else 1 << (size - 1).bit_length()
        assert total(by_size[key]) == (2400, 2400 * size, 2400 * rounded)
    numbers = pool.stats()
    assert numbers.alloc_count == numbers.free_count == 2400 * len(sizes)
    assert numbers.live_blocks == numbers.allocated_bytes == numbers.large.allocated_bytes == 0


def test_totals_of_streams_that_are_gone_stay(device):
    pool = flagstone.Pool(device)
    for _ in range(300):
        stream = device.create_stream()
        pool.free_raw(pool.alloc_raw(1000, stream))
        pool.free_raw(pool.alloc_raw(2 * MIB, stream))
        device.destroy_stream(stream)
    assert {size: row.alloc_count for size, row in pool.totals().by_size().items()} == {1024: 300, 2 * MIB: 300}


def test_fragmentation_is_what_is_not_in_the_largest_range(device):
    pool = flagstone.Pool(device, source="slabs", growth="64MiB")
    blocks = [pool.alloc_raw(8 * MIB) for _ in range(8)]
    assert (pool.stats().cached_bytes, pool.stats().fragmentation) == (0, 0.0)
    for block in blocks[::2]:
        pool.free_raw(block)
    assert pool.stats().fragmentation == pytest.approx(0.75)
    for block in blocks[1::2]:
        pool.free_raw(block)
    assert pool.stats().fragmentation == 0.0


def test_a_snapshot_is_divided_by_stream_size_and_private_pool(device):
    pool = flagstone.Pool(device)
    stream, other = device.create_stream(), device.create_stream()
    pool.keep_stream(other)
    pool.alloc_raw(1000)
    pool.alloc_raw(1001, stream)
    buffer = pool.alloc(3 * MIB, stream)
    device.hold(other)
    pool.record_stream(buffer, other)
    buffer.free()
    snapshot = pool.snapshot()
    streams = snapshot.by_stream()
    assert streams.keys() == {0, stream}
    assert (streams[0].live_blocks, streams[0].requested_bytes, streams[0].allocated_bytes) == (1, 1000, 1024)
    assert (streams[stream].live_blocks, streams[stream].pending_bytes) == (1, 3 * MIB)
    sizes = snapshot.by_size()
    assert (sizes[1024].live_blocks, sizes[1024].requested_bytes) == (2, 2001)
    assert sizes[3 * MIB].pending_bytes == 3 * MIB
    (everything,) = snapshot.by_private_pool().values()
    numbers = pool.stats()
    assert everything.requested_bytes == numbers.requested_bytes
    assert everything.allocated_bytes == numbers.allocated_bytes
    assert everything.pending_bytes == numbers.active_bytes - numbers.allocated_bytes
    assert everything.cached_bytes == numbers.cached_bytes
    for shares in (streams, sizes):
        assert sum(share.cached_bytes for share in shares.values()) == numbers.cached_bytes
    device.release(other)


def test_numbers_are_frozen(device):
    with pytest.raises(AttributeError):
        flagstone.Pool(device).stats().live_blocks = 3
    assert isinstance(flagstone.Pool(device).stats(), stats.Stats)


def test_peaks_begin_again_and_what_they_were_is_returned(device):
    pool = flagstone.Pool(device)
    kept = pool.alloc_raw(3 * MIB)
    pool.free_raw(pool.alloc_raw(5 * MIB))
    before = pool.reset_peak()
    assert (before.peak_allocated_bytes, before.peak_active_bytes) == (8 * MIB, 8 * MIB)
    assert before.peak_reserved_bytes == before.reserved_bytes >= 8 * MIB
    assert (before.allocated_bytes, before.alloc_count) == (3 * MIB, 2)
    pool.trim()
    again = pool.reset_peak()
    assert (again.peak_allocated_bytes, again.peak_reserved_bytes) == (3 * MIB, before.peak_reserved_bytes)
    assert pool.stats().peak_reserved_bytes == pool.stats().reserved_bytes < before.peak_reserved_bytes
    pool.free_raw(kept)


def test_a_block_of_code_and_what_it_used(device):
    pool = flagstone.Pool(device)
    before = pool.alloc_raw(5 * MIB)
    usage = flagstone.statistics(pool)
    with usage:
        pool.free_raw(pool.alloc_raw(30 * MIB))
        pool.alloc_raw(2 * MIB)
    pool.alloc_raw(100 * MIB)
    assert (usage.runs, usage.alloc_count, usage.free_count) == (1, 2, 1)
    assert usage.peak_requested_bytes == usage.peak_allocated_bytes == usage.peak_active_bytes == 35 * MIB
    assert usage.peak_reserved_bytes == 36 * MIB, "5 MiB are three pages"
    assert (usage.added_bytes, usage.left_bytes) == (30 * MIB, 2 * MIB)
    with usage:
        pool.free_raw(before)
    assert (usage.runs, usage.alloc_count, usage.free_count) == (2, 2, 2)
    assert (usage.peak_requested_bytes, usage.left_bytes) == (107 * MIB, -3 * MIB)
    lines = [line.split() for line in str(usage).splitlines()]
    assert lines[0] == ["2", "runs"]
    with flagstone.statistics(pool) as once:
        pass
    assert str(once).splitlines()[0] == "1 run"
    assert ["peak", "requested", "107.0", "MiB"] in lines


def test_a_function_s_calls_add_up(device):
    pool = flagstone.Pool(device)
    usage = flagstone.statistics(pool)

    @usage
    def step(size):
        pool.free_raw(pool.alloc_raw(size))
        return size

    assert [step(size) for size in (MIB, 3 * MIB, 2 * MIB)] == [MIB, 3 * MIB, 2 * MIB]
    assert (usage.runs, usage.alloc_count, usage.peak_requested_bytes) == (3, 3, 3 * MIB)

    @usage
    def fail():
        pool.alloc_raw(7 * MIB)
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (usage.runs, usage.left_bytes, usage.peak_requested_bytes) == (4, 7 * MIB, 7 * MIB)


def test_blocks_within_each_other_and_beside_each_other(device):
    pool = flagstone.Pool(device)
    outer, inner, beside = (flagstone.statistics(pool) for _ in range(3))
    with outer:
        pool.free_raw(pool.alloc_raw(10 * MIB))
        with inner:
            pool.free_raw(pool.alloc_raw(4 * MIB))
        beside.__enter__()
        with inner:
            pool.free_raw(pool.alloc_raw(6 * MIB))
    pool.free_raw(pool.alloc_raw(20 * MIB))
    beside.__exit__(None, None, None)
    assert outer.peak_requested_bytes == 10 * MIB
    assert (inner.peak_requested_bytes, inner.runs) == (6 * MIB, 2)
    assert beside.peak_requested_bytes == 20 * MIB


def test_a_function_that_calls_itself(device):
    pool = flagstone.Pool(device)
    usage = flagstone.statistics(pool)

    @usage
    def down(depth):
        block = pool.alloc_raw(depth * MIB)
        if depth > 1:
            down(depth - 1)
        pool.free_raw(block)

    down(4)
    assert (usage.runs, usage.peak_requested_bytes, usage.added_bytes) == (4, 10 * MIB, 10 * MIB)


def test_calls_of_several_threads_at_once(device):
    pool = flagstone.Pool(device)
    usage = flagstone.statistics(pool)
    allocated, began = threading.Event(), threading.Event()

    @usage
    def first():
        block = pool.alloc_raw(8 * MIB)
        allocated.set()
        assert began.wait(10)
        pool.free_raw(block)

    @usage
    def second():
        began.set()
        thread.join()
        pool.free_raw(pool.alloc_raw(20 * MIB))

    thread = threading.Thread(target=first)
    thread.start()
    assert allocated.wait(10)
    second()
    assert (usage.runs, usage.free_count, usage.left_bytes) == (2, 1 + 2, -8 * MIB)
    assert (usage.peak_requested_bytes, usage.added_bytes) == (20 * MIB, 12 * MIB)


def test_tasks_that_wait_for_each_other(device):
    pool = flagstone.Pool(device)
    usage = flagstone.statistics(pool)

    @usage
    async def first(go):
        block = pool.alloc_raw(8 * MIB)
        await go.wait()
        pool.free_raw(block)
        return 1

    @usage
    async def second(go):
        pool.free_raw(pool.alloc_raw(2 * MIB))
        go.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        # The first one has ended: nothing of this is its.
        pool.free_raw(pool.alloc_raw(20 * MIB))
        raise KeyError

    async def both():
        go = asyncio.Event()
        return await asyncio.gather(first(go), second(go), return_exceptions=True)

    one, error = asyncio.run(both())
    assert one == 1
    assert isinstance(error, KeyError)
    assert (usage.runs, usage.free_count) == (2, 2 + 3)
    assert usage.left_bytes == -8 * MIB, "the second one began with the first one's block"
    assert (usage.peak_requested_bytes, usage.added_bytes) == (20 * MIB, 12 * MIB)


def test_a_generator_is_refused(device):
    def steps():
        yield

    async def tasks():
        yield

    for generator in (steps, tasks):
        with pytest.raises(TypeError, match=generator.__name__):
            flagstone.statistics(flagstone.Pool(device))(generator)


def test_without_a_pool_it_is_the_process_s(child):
    ran = child(
        "from flagstone import _core; import flagstone\n"
        "_core.configure('sim')\n"
        "with flagstone.statistics() as usage:\n"
        "    _core.process_pool().alloc(1000)\n"
        "assert _core.process_pool() == _core.process_pool() != flagstone.Pool(backend='sim')\n"
        "assert len({_core.process_pool(), _core.process_pool()}) == 1\n"
        "print(usage.alloc_count, usage.left_bytes)"
    )
    assert ran.stdout == "1 0\n", ran.stderr


def test_what_is_no_pool_is_refused_at_once():
    with pytest.raises(TypeError, match="not function; write @"):

        @flagstone.statistics
        def step(): ...


def test_other_threads_count(device):
    pool = flagstone.Pool(device)
    with flagstone.statistics(pool) as usage:
        thread = threading.Thread(target=lambda: pool.alloc_raw(MIB))
        thread.start()
        thread.join()
    assert (usage.alloc_count, usage.left_bytes) == (1, MIB)
