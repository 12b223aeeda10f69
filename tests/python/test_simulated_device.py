"""The simulated device that users' tests get: pools over it obey its streams, faults and clock."""

import pytest

import flagstone
from flagstone.testing import SimulatedDevice

MIB = 1 << 20


@pytest.fixture
def device():
    return SimulatedDevice(capacity=64 * MIB)


@pytest.fixture
def pool(device):
    return flagstone.Pool(device)


def test_a_pool_cannot_hold_more_than_the_device(device, pool):
    assert device.capacity == 64 * MIB
    with pytest.raises(flagstone.OutOfMemoryError) as caught:
        pool.alloc(65 * MIB)
    assert caught.value.device_total == 64 * MIB
    assert pool.alloc(60 * MIB).nbytes == 60 * MIB


def test_a_block_in_use_on_another_stream_is_not_given_out(device, pool):
    copy = device.create_stream()
    buffer = pool.alloc(MIB)
    address = buffer.ptr
    device.hold(copy)
    device.launch(copy, reads=[buffer])
    pool.record_stream(buffer, copy)
    buffer.free()
    assert pool.stats().pending_blocks == 1
    assert pool.alloc_raw(MIB) != address
    device.release(copy)
    pool.trim()
    assert pool.stats().pending_blocks == 0
    assert device.violations() == []


def test_a_block_waits_for_a_stream_that_is_kept_alone(device, pool):
    copy, other = device.create_stream(), device.create_stream()
    pool.keep_stream(copy)
    device.hold(other)
    device.launch(other)
    buffer = pool.alloc(MIB)
    device.launch(copy, reads=[buffer])
    pool.record_stream(buffer, copy)
    buffer.free()
    for _ in range(3):
        pool.alloc_raw(MIB)
    assert pool.stats().pending_blocks == 0, "another stream still has work, and is not waited for"
    with pytest.raises(flagstone.StreamError):
        pool.keep_stream(0xDEAD0)


@pytest.mark.parametrize("how", ["alloc", "record_stream", "free", "default"])
def test_pinned_memory_is_not_given_out_while_a_copy_may_run(device, how):
    pinned = flagstone.PinnedPool(device)
    copy = None if how == "default" else device.create_stream()
    buffer = pinned.alloc(MIB, copy if how == "alloc" else None)
    address = buffer.ptr
    device.hold(copy)
    device.launch(copy, reads=[buffer])
    if how == "record_stream":
        pinned.record_stream(buffer, copy)
    buffer.free(stream=copy if how == "free" else None)
    assert address not in {pinned.alloc_raw(MIB) for _ in range(100)}
    device.release(copy)
    assert device.violations() == []


def test_what_the_checker_finds_is_told(device, pool):
    copy = device.create_stream()
    buffer = pool.alloc(MIB)
    device.hold()
    device.launch(writes=[(buffer.ptr, 100)])
    device.launch(copy, reads=[buffer])
    (violation,) = device.violations()
    assert f"{buffer.ptr:#x}" in violation


def test_a_driver_call_that_fails_fails_one_request(device, pool):
    device.fail_call("cuMemCreate", times=1000, code=999)
    with pytest.raises((flagstone.DriverError, flagstone.OutOfMemoryError)):
        pool.alloc(MIB)
    assert pool.stats().live_blocks == 0
    device.clear_faults()
    assert pool.alloc(MIB).nbytes == MIB
    with pytest.raises(ValueError, match="cuMemCreate"):
        device.fail_call("cuMemInvent")


def test_driver_errors_carry_the_call_and_the_code(device):
    with pytest.raises(flagstone.DriverError) as caught:
        device.destroy_stream(0xBAD0)
    error = caught.value
    assert (error.call, error.code, error.name) == ("cuStreamDestroy", 400, "CUDA_ERROR_INVALID_HANDLE")


def test_a_warm_pool_makes_no_driver_call(device, pool):
    pool.alloc(MIB).free()
    device.reset_counts()
    for _ in range(100):
        pool.alloc(MIB).free()
    assert sum(device.counts().values()) == 0
    assert sum(device.driver_time().values()) == 0


def test_memory_has_bytes(device, pool):
    buffer = pool.alloc(16)
    device.write(buffer.ptr, bytes(range(16)))
    assert device.read(buffer.ptr + 4, 8) == bytes(range(4, 12))
    with pytest.raises(flagstone.DriverError):
        device.read(0x10, 8)


def test_streams_of_a_device_are_destroyed(device, pool):
    stream = device.create_stream()
    buffer = pool.alloc(100, stream)
    assert buffer.stream == stream
    buffer.free()
    device.destroy_stream(stream)
    with pytest.raises(flagstone.StreamError):
        pool.alloc(100, stream)


def test_consumers_wait_for_the_work_of_the_producer(device, pool):
    producer, consumer = device.create_stream(), device.create_stream()
    buffer = pool.alloc(MIB, producer)
    device.hold(producer)
    device.launch(producer, writes=[buffer])
    capsule = buffer.__dlpack__(stream=consumer)
    device.launch(consumer, reads=[buffer])
    del capsule
    address = buffer.ptr
    buffer.free()
    assert pool.alloc_raw(MIB, producer) != address, "the consumer still reads it"
    device.release(producer)
    assert device.violations() == []


def test_the_clock_moves_when_told(device):
    assert device.now == 0
    device.advance(1500)
    assert device.now == 1500


def test_pools_share_a_device_and_its_streams(device):
    pool, pinned = flagstone.Pool(device), flagstone.PinnedPool(device)
    first = pool.alloc(40 * MIB)
    with pytest.raises(flagstone.OutOfMemoryError):
        flagstone.Pool(device).alloc(40 * MIB)
    assert pinned.alloc(100).nbytes == first.nbytes - 40 * MIB + 100
    with pytest.raises(ValueError, match="cuda"):
        flagstone.Pool(device, backend="cuda")


def test_a_device_without_virtual_memory_or_bytes(device):
    plain = flagstone.Pool(SimulatedDevice(virtual_memory=False))
    plain.alloc(3 * MIB).free()
    with pytest.raises(flagstone.ConfigError, match="source"):
        flagstone.Pool(SimulatedDevice(virtual_memory=False), source="virtual_memory")
    large = flagstone.Pool(SimulatedDevice(capacity=1 << 40, backed=False))
    assert large.alloc(1 << 39).nbytes == 1 << 39


def test_callbacks_free_what_an_allocation_needs():
    device = SimulatedDevice(capacity=64 << 20)
    pool = flagstone.Pool(device)
    cache = [pool.alloc(20 << 20), pool.alloc(20 << 20), pool.alloc(20 << 20)]
    asked = []

    def evict(nbytes):
        asked.append(nbytes)
        pool.alloc(1 << 20).free()
        cache.pop().free()

    number = pool.on_out_of_memory(evict)
    with pool.alloc(20 << 20):
        assert asked == [20 << 20]
        assert len(cache) == 2
    (step,) = [step for step in pool.stats().steps if step.name == "callbacks"]
    assert (step.count, step.sufficed) == (1, 1)
    assert pool.remove_callback(number)
    assert not pool.remove_callback(number)
    with pytest.raises(flagstone.OutOfMemoryError):
        pool.alloc(40 << 20)
    assert len(asked) == 1
    with pytest.raises(TypeError, match="int"):
        pool.on_out_of_memory(1)


def test_a_callback_that_allocates_leaves_the_later_ones_their_turn():
    pool = flagstone.Pool(SimulatedDevice(capacity=64 << 20))
    whole = pool.alloc(60 << 20)
    asked = []

    def first(nbytes):
        pool.alloc(1 << 10).free()
        asked.append(("first", nbytes))

    def second(nbytes):
        asked.append(("second", nbytes))
        whole.free()

    numbers = [pool.on_out_of_memory(first), pool.on_out_of_memory(second)]
    pool.alloc(32 << 20).free()
    assert asked == [("first", 32 << 20), ("second", 32 << 20)]
    assert all(pool.remove_callback(number) for number in numbers)


def test_what_a_callback_raises_is_reported_and_the_allocation_goes_on(monkeypatch):
    pool = flagstone.Pool(SimulatedDevice(capacity=64 << 20))
    whole = pool.alloc(64 << 20)
    raised = []
    monkeypatch.setattr("sys.unraisablehook", lambda report: raised.append(report.exc_value))
    pool.on_out_of_memory(lambda _: 1 / 0)
    pool.on_out_of_memory(lambda _: whole.free())
    pool.alloc(64 << 20).free()
    assert [type(error) for error in raised] == [ZeroDivisionError]


def test_idle_memory_above_the_ceiling_is_released():
    pool = flagstone.Pool(SimulatedDevice(capacity=1 << 30), cache="20MiB", wait=5)
    blocks = [pool.alloc(20 << 20) for _ in range(4)]
    for block in blocks:
        block.free()
    assert pool.release_idle() == 60 << 20
    assert pool.stats().cached_bytes == 20 << 20
