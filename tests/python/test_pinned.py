"""Pinned memory is given out again when the copies that use it are done, whoever started them, and not before."""

import threading
import time

import pytest

import flagstone
from flagstone.testing import SimulatedDevice

MIB = 1 << 20


@pytest.fixture
def device():
    made = SimulatedDevice(capacity=1 << 30)
    yield made
    assert made.violations() == []


@pytest.fixture
def pinned(device):
    return flagstone.PinnedPool(device)


@pytest.mark.parametrize(
    "conf", ["source:virtual_memory", "source:driver_pool", "reserve:100MiB", "headroom:2GiB", "limit:1MiB"]
)
def test_what_the_environment_says_of_the_device_is_not_of_pinned_memory(device, conf, monkeypatch):
    monkeypatch.setenv("FLAGSTONE_CONF", conf)
    pool = flagstone.PinnedPool(device)
    assert pool.limit is None
    assert pool.stats().reserved_bytes == 0
    with pool.alloc(4 * MIB):
        assert pool.stats().reserved_bytes < 100 * MIB


def test_keyword_arguments_and_the_rest_of_the_environment_are_of_pinned_memory(device, monkeypatch):
    monkeypatch.setenv("FLAGSTONE_CONF", "limit:1MiB,growth:8MiB")
    pool = flagstone.PinnedPool(device, limit="16MiB")
    assert pool.limit == 16 * MIB
    with pool.alloc(MIB):
        assert pool.stats().reserved_bytes == 8 * MIB
    assert flagstone.PinnedPool(device, reserve="4MiB").stats().reserved_bytes >= 4 * MIB


def copy_later(device, buffer, stream):
    """Give a stream that is held a copy from the buffer."""
    device.hold(stream)
    device.launch(stream, reads=[buffer])


def is_given_out(pool, address, nbytes=MIB):
    """Whether the pool gives out an address when asked for all that it has and some more."""
    blocks = [pool.alloc(nbytes) for _ in range(pool.stats().reserved_bytes // nbytes + 1)]
    found = address in {block.ptr for block in blocks}
    for block in blocks:
        block.free(stream=0)
    return found


def test_a_recorded_copy_is_waited_for(device, pinned):
    copy, buffer = device.create_stream(), pinned.alloc(MIB)
    address = buffer.ptr
    copy_later(device, buffer, copy)
    buffer.record(copy)
    buffer.free()
    assert not is_given_out(pinned, address)
    device.release(copy)
    device.advance(1)
    assert is_given_out(pinned, address)


def test_what_the_stream_gets_after_the_record_is_not_waited_for(device, pinned):
    copy, buffer = device.create_stream(), pinned.alloc(MIB)
    address = buffer.ptr
    device.launch(copy, reads=[buffer])
    buffer.record(copy)
    device.hold(copy)
    device.launch(copy, nanoseconds=1)
    buffer.free()
    device.advance(1)
    assert is_given_out(pinned, address)
    device.release(copy)


def test_the_last_of_several_records_counts(device, pinned):
    copy, buffer = device.create_stream(), pinned.alloc(MIB)
    address = buffer.ptr
    device.launch(copy, reads=[buffer])
    buffer.record(copy)
    copy_later(device, buffer, copy)
    buffer.record(copy)
    events = pinned.stats().event_count
    buffer.free()
    assert pinned.stats().event_count == events == 2
    device.advance(1)
    assert not is_given_out(pinned, address)
    device.release(copy)


def test_a_use_until_the_free_covers_records_before_and_after(device, pinned):
    pinned.keep_stream(copy := device.create_stream())
    buffer = pinned.alloc(MIB)
    address = buffer.ptr
    buffer.record(copy)
    pinned.record_stream(buffer, copy)
    buffer.record(copy)
    copy_later(device, buffer, copy)
    buffer.free()
    assert not is_given_out(pinned, address)
    device.release(copy)


def test_each_stream_that_was_recorded_is_waited_for(device, pinned):
    streams = [device.create_stream() for _ in range(3)]
    buffer = pinned.alloc(MIB)
    address = buffer.ptr
    for stream in streams:
        copy_later(device, buffer, stream)
        buffer.record(stream)
    buffer.free()
    for stream in streams:
        assert not is_given_out(pinned, address)
        device.release(stream)
        device.advance(1)
    assert is_given_out(pinned, address)


def test_a_stream_may_be_destroyed_after_the_record(device, pinned):
    copy, buffer = device.create_stream(), pinned.alloc(MIB)
    address = buffer.ptr
    device.launch(copy, reads=[buffer])
    buffer.record(copy)
    device.destroy_stream(copy)
    buffer.free()
    device.advance(1)
    assert is_given_out(pinned, address)


@pytest.mark.parametrize("order", [1, -1])
def test_unready_copies_do_not_hold_up_ready_ones(device, pinned, order):
    """Neither those of other streams nor later ones of the same stream, in whatever order the buffers are freed."""
    done, stuck = device.create_stream(), device.create_stream()
    first, second, third = (pinned.alloc(MIB) for _ in range(3))
    address = first.ptr
    device.launch(done, reads=[first])
    first.record(done)
    copy_later(device, second, done)
    second.record(done)
    copy_later(device, third, stuck)
    third.record(stuck)
    kept = {second.ptr, third.ptr}
    for buffer in (first, second, third)[::order]:
        buffer.free()
    device.advance(1)
    given = {pinned.alloc(MIB).ptr for _ in range(3)}
    assert address in given
    assert kept.isdisjoint(given)
    device.release(done)
    device.release(stuck)


@pytest.mark.parametrize("how", ["ptr", "__array_interface__", "__dlpack__"])
def test_a_view_with_no_recorded_copy_waits_for_a_synchronisation(device, pinned, how):
    copy, buffer = device.create_stream(), pinned.alloc(MIB)
    address = pinned.snapshot().segments[0].addr
    view = getattr(buffer, how)
    copy_later(device, (address, MIB), copy)
    if how == "__dlpack__":
        view = view()
        del view
    buffer.free()
    device.release(copy)
    device.advance(1)
    assert not is_given_out(pinned, address), "nobody has seen that the copy is over"
    pinned.synchronize()
    assert is_given_out(pinned, address)


def test_memory_that_nobody_saw_is_given_out_at_once(pinned):
    pinned.alloc(MIB).free()
    assert pinned.stats().pending_blocks == 0


def test_what_waits_for_a_synchronisation_does_not_make_the_pool_grow_without_end(pinned):
    for _ in range(200):
        with pinned.alloc(4 * MIB) as buffer:
            assert buffer.ptr
    assert pinned.stats().peak_reserved_bytes <= 100 * MIB


def test_under_the_limit_the_device_is_waited_for_before_a_request_fails(device):
    pool = flagstone.PinnedPool(device, limit=40 * MIB)
    for _ in range(5):
        with pool.alloc(20 * MIB) as buffer:
            assert buffer.ptr
    with pytest.raises(flagstone.OutOfMemoryError):
        pool.alloc(41 * MIB)


def test_trim_gives_pinned_memory_back(device, pinned):
    buffers = [pinned.alloc(3 * MIB) for _ in range(20)]
    kept = buffers.pop()
    buffers.clear()
    assert pinned.trim() > 0
    assert pinned.stats().reserved_bytes < 60 * MIB
    assert device.counts()["cuMemFreeHost"] > 0
    kept.free()


def test_free_neighbours_become_one(pinned):
    """No powers of two: what two buffers leave serves one that is as large as both."""
    pinned.reserve(7 * MIB)
    one, two = pinned.alloc(3 * MIB), pinned.alloc(4 * MIB)
    one.free()
    two.free()
    with pinned.alloc(7 * MIB):
        assert pinned.stats().reserved_bytes == pinned.stats().peak_reserved_bytes == 8 * MIB


def test_what_idle_slabs_have_becomes_one_slab(pinned):
    """What two buffers leave is in two places: it is given back, and as much taken in one, with a little more."""
    one, two = pinned.alloc(3 * MIB), pinned.alloc(4 * MIB)
    held = pinned.stats().reserved_bytes
    one.free()
    two.free()
    with pinned.alloc(7 * MIB):
        stats = pinned.stats()
        assert stats.peak_reserved_bytes <= 1.1 * held
        assert len(pinned.snapshot().segments) == 1


def test_what_copies_are_done_with_is_one_with_its_neighbours_before_more_is_cut(device):
    """Also where something else would do for the next buffer: a later and larger one finds room."""
    pool = flagstone.PinnedPool(device, growth="8MiB")
    copied = pool.alloc(4 * MIB)
    copy = device.create_stream()
    copy_later(device, copied, copy)
    copied.record(copy)
    copied.free()
    device.release(copy)
    device.advance(1)
    with pool.alloc(2 * MIB), pool.alloc(6 * MIB):
        assert pool.stats().active_bytes == 8 * MIB
        assert pool.stats().reserved_bytes == 8 * MIB


def test_sizes_are_not_rounded_to_powers_of_two(pinned):
    with pinned.alloc(259 * MIB // 2):
        assert pinned.stats().reserved_bytes == 259 * MIB // 2


def test_a_few_small_buffers_do_not_pin_a_large_slab(device):
    """The labels of a batch beside its data; many of them take few calls all the same."""
    pool = flagstone.PinnedPool(device)
    buffers = [pool.alloc(1024)]
    assert pool.stats().reserved_bytes <= MIB // 16
    buffers += [pool.alloc(1024) for _ in range(20_000)]
    stats = pool.stats()
    assert stats.reserved_bytes <= 2 * stats.requested_bytes
    assert device.counts()["cuMemHostAlloc"] <= 15
    buffers.clear()
    assert pool.trim() == stats.reserved_bytes


def test_all_of_a_limit_can_be_reserved_beside_small_buffers(device):
    pool = flagstone.PinnedPool(device, limit=10 * MIB)
    with pool.alloc(100):
        pool.reserve(10 * MIB)
        assert 8 * MIB < pool.stats().reserved_bytes <= 10 * MIB


def test_record_says_what_is_wrong(device, pinned):
    buffer = pinned.alloc(MIB)
    stream = device.create_stream()
    with pytest.raises(flagstone.StreamError):
        buffer.record(0xDEAD0)
    buffer.free()
    with pytest.raises(flagstone.InvalidPointerError):
        buffer.record(stream)


def test_a_copy_whose_event_cannot_be_recorded_waits_for_a_synchronisation(device, pinned):
    copy, buffer = device.create_stream(), pinned.alloc(MIB)
    address = buffer.ptr
    device.fail_call("cuEventRecord")
    copy_later(device, buffer, copy)
    buffer.record(copy)
    buffer.free()
    device.release(copy)
    device.advance(1)
    assert not is_given_out(pinned, address)
    pinned.synchronize()
    assert is_given_out(pinned, address)


def test_prewarmed_memory_is_there_when_it_is_wanted(device, pinned):
    warming = pinned.prewarm(200 * MIB)
    assert warming.wait()
    assert warming.done
    assert pinned.stats().reserved_bytes >= 200 * MIB
    device.reset_counts()
    buffers = [pinned.alloc(20 * MIB) for _ in range(6)]
    assert "cuMemHostAlloc" not in device.counts()
    del buffers


def test_prewarming_more_than_the_limit_says_so(device):
    pool = flagstone.PinnedPool(device, limit=100 * MIB)
    with pytest.raises(flagstone.OutOfMemoryError):
        pool.prewarm(200 * MIB).wait()
    pool.alloc(20 * MIB)
    with pytest.raises(ValueError, match="timeout"):
        pool.prewarm(1).wait(-1)


def test_prewarming_goes_on_when_nobody_waits(device):
    pool = flagstone.PinnedPool(device)
    pool.prewarm(100 * MIB)
    for _ in range(4000):
        if pool.stats().reserved_bytes >= 100 * MIB:
            break
        time.sleep(0.01)
    assert pool.stats().reserved_bytes >= 100 * MIB


def test_buffers_of_many_threads_with_copies_that_are_late(device, pinned):
    """Threads take, copy, record and free; another one lets the copies end. The checker finds no use after a free."""
    errors = []

    def load(seed):
        try:
            stream = device.create_stream()
            for turn in range(60):
                buffer = pinned.alloc(1000 + (turn * 7919 + seed) % (3 * MIB))
                device.launch(stream, reads=[buffer], nanoseconds=1000)
                buffer.record(stream)
                buffer.free()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=load, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        device.advance(700)
    for thread in threads:
        thread.join()
    assert errors == []
    pinned.synchronize()
    stats = pinned.stats()
    assert (stats.live_blocks, stats.pending_blocks) == (0, 0)
