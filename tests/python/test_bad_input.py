"""What Python code can get wrong: each is a typed error, and the pool's accounts are as before."""

import dataclasses
import pickle

import pytest

import flagstone

MIB = 1 << 20


def accounts(pool):
    """The pool's numbers but those that count failures."""
    stats = dataclasses.asdict(pool.stats())
    failures = {"invalid_free_count", "invalid_record_count", "double_free_count", "out_of_memory_count"}
    failures |= {"miss_count", "pressure_count"}
    return {name: value for name, value in stats.items() if name not in failures}


BAD_SIZES = [
    (-1, ValueError, "-1"),
    (-(2**70), ValueError, str(-(2**70))),
    (2**64, OverflowError, str(2**64)),
    (2**70, OverflowError, str(2**70)),
    (1.5, TypeError, "float"),
    ("1", TypeError, "str"),
    (None, TypeError, "NoneType"),
    (True, TypeError, "bool"),
]


@pytest.mark.parametrize(("nbytes", "error", "named"), BAD_SIZES)
@pytest.mark.parametrize("method", ["alloc", "alloc_raw", "reserve", "trim"])
def test_sizes(pool, method, nbytes, error, named):
    block = pool.alloc(100)
    before = accounts(pool)
    with pytest.raises(error, match=named):
        getattr(pool, method)(nbytes)
    assert accounts(pool) == before
    del block


@pytest.mark.parametrize("nbytes", [2**50, 2**63, 2**64 - 1])
def test_sizes_that_no_device_has(pool, nbytes):
    before = accounts(pool)
    with pytest.raises(MemoryError) as caught:
        pool.alloc(nbytes)
    assert isinstance(caught.value, (flagstone.TooLargeError, flagstone.OutOfMemoryError))
    assert caught.value.requested == nbytes
    assert accounts(pool) == before


def test_a_size_above_the_limit_tells_all_numbers(pool):
    pool.limit = 16 * MIB
    block = pool.alloc(2 * MIB)
    before = accounts(pool)
    with pytest.raises(flagstone.OutOfMemoryError, match=str(15 * MIB)) as caught:
        pool.alloc(15 * MIB)
    error = caught.value
    assert (error.requested, error.device, error.limit, error.allocated) == (15 * MIB, 0, 16 * MIB, 2 * MIB)
    assert error.reserved == error.allocated + error.pending + error.cached <= error.limit
    assert error.device_free <= error.device_total
    assert all(isinstance(name, str) and nbytes >= 0 and time >= 0 for name, nbytes, time in error.steps)
    after = accounts(pool)
    # Idle memory may have gone back to the device on the way, and other memory taken.
    held = {"growth_count", "reserved_bytes", "cached_bytes", "magazine_bytes", "segments", "largest_free_bytes"}
    held |= {
        "steps",
        "taken_bytes",
        "given_bytes",
        "take_count",
        "give_count",
        "peak_held_count",
        "synchronize_count",
        "large",
    }
    assert {key: after[key] for key in after.keys() - held} == {key: before[key] for key in before.keys() - held}
    assert pool.stats().out_of_memory_count == 1
    block.free()
    assert pool.alloc(15 * MIB).nbytes == 15 * MIB


def test_a_block_freed_twice(pool):
    block = pool.alloc_raw(100)
    pool.free_raw(block)
    before = accounts(pool)
    with pytest.raises(flagstone.DoubleFreeError, match=f"{block:#x}") as caught:
        pool.free_raw(block)
    assert caught.value.address == block
    assert accounts(pool) == before
    assert pool.stats().double_free_count == 1


def test_a_buffer_freed_twice(pool):
    buffer = pool.alloc(100)
    buffer.free()
    other = pool.alloc(100)
    before = accounts(pool)
    with pytest.raises(flagstone.DoubleFreeError):
        buffer.free()
    assert accounts(pool) == before
    assert not other.freed


@pytest.mark.parametrize("address", [0, 1, 0x7F00_0000_0000, 2**64 - 1])
def test_pointers_of_nobody(pool, address):
    block = pool.alloc_raw(100)
    before = accounts(pool)
    for use in (pool.free_raw, lambda pointer: pool.record_stream(pointer, 0)):
        with pytest.raises(flagstone.InvalidPointerError) as caught:
            use(address)
        assert caught.value.address == address
    with pytest.raises(flagstone.InvalidPointerError):
        pool.free_raw(block + 8)
    assert accounts(pool) == before
    assert (pool.stats().invalid_free_count, pool.stats().invalid_record_count) == (2, 1)


@pytest.mark.parametrize(
    ("pointer", "error"), [(-1, ValueError), (2**64, OverflowError), (None, TypeError), ("x", TypeError)]
)
def test_pointers_that_are_no_addresses(pool, pointer, error):
    before = accounts(pool)
    with pytest.raises(error):
        pool.free_raw(pointer)
    with pytest.raises(error):
        pool.record_stream(pointer, 0)
    assert accounts(pool) == before


class Versioned:
    def __cuda_stream__(self):
        return (7, 0)


@pytest.mark.parametrize(
    ("stream", "error", "named"),
    [
        (-1, ValueError, "-1"),
        (2**64, OverflowError, str(2**64)),
        (1.5, TypeError, "float"),
        ("x", TypeError, "str"),
        (object(), TypeError, "object"),
        (False, TypeError, "bool"),
        (Versioned(), ValueError, "version 7"),
    ],
)
def test_streams_that_are_none(pool, stream, error, named):
    block = pool.alloc(100)
    before = accounts(pool)
    for use in (
        lambda: pool.alloc(100, stream),
        lambda: pool.alloc_raw(100, stream=stream),
        lambda: pool.record_stream(block, stream),
        lambda: block.free(stream=stream),
        lambda: pool.free_raw(block.ptr, stream),
    ):
        with pytest.raises(error, match=named):
            use()
    assert accounts(pool) == before


def test_a_stream_that_does_not_exist(pool):
    block = pool.alloc(100)
    before = accounts(pool)
    for use in (lambda: pool.alloc(100, stream=0xDEAD0), lambda: pool.record_stream(block, 0xDEAD0)):
        with pytest.raises(flagstone.StreamError, match="0xdead0") as caught:
            use()
        assert (caught.value.stream, caught.value.device) == (0xDEAD0, 0)
    assert accounts(pool) == before


@pytest.mark.parametrize("device", [-1, 99])
def test_devices_that_do_not_exist(device):
    for kind in (flagstone.Pool, flagstone.PinnedPool):
        with pytest.raises(flagstone.DeviceError, match=str(device)) as caught:
            kind(device, backend="sim")
        assert caught.value.device == device
        assert caught.value.count >= 1


@pytest.mark.parametrize("device", ["cuda", None, 0.5, True])
def test_devices_that_are_no_ordinals(device):
    with pytest.raises(TypeError, match=f"an ordinal.*SimulatedDevice, not {type(device).__name__}") as caught:
        flagstone.Pool(device)
    assert ("backend=" in str(caught.value)) == isinstance(device, str)


@pytest.mark.parametrize("events", [-1, 0])
def test_a_history_of_no_events(pool, events):
    with pytest.raises(ValueError, match=f"max_events is 1 or more, not {events}"):
        pool.start_history(events)
    assert not pool.is_recording


def test_callbacks_that_are_not_there(pool):
    assert not any(pool.remove_callback(number) for number in (-1, 99))


@pytest.mark.parametrize("part", [-0.1, 1.5])
def test_parts_that_are_none(pool, part):
    for times in (pool.stats().hit_time_below, pool.stats().miss_time_below):
        with pytest.raises(ValueError, match=f"from 0 to 1.*{part}"):
            times(part)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"limit": "much"}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"growth": "-5"}, "growth"),
        ({"magazine": "x"}, "magazine"),
        ({"source": "cloud"}, "source"),
        ({"reserve": "x"}, "reserve"),
        ({"cache": "x"}, "cache"),
        ({"release_after": "soon"}, "release_after"),
        ({"headroom": 1.5}, "headroom"),
        ({"wait": "-1"}, "wait"),
        ({"wait": -1}, "wait"),
        ({"limit": -1}, "limit"),
        ({"limit": 2**70}, "limit"),
        ({"poison": -1}, "poison"),
        ({"backend": "tpu"}, "backend"),
    ],
)
def test_settings(settings, key):
    with pytest.raises(flagstone.ConfigError, match=key) as caught:
        flagstone.Pool(**{"backend": "sim", **settings})
    assert (caught.value.key, caught.value.value) == (key, str(settings[key]))
    assert caught.value.allowed


def test_settings_of_the_environment(monkeypatch):
    monkeypatch.setenv("FLAGSTONE_CONF", "limti:2GiB")
    with pytest.raises(flagstone.ConfigError, match="limti") as caught:
        flagstone.Pool(backend="sim")
    assert "key:value, with the keys limit" in caught.value.allowed


def test_unknown_keyword_arguments():
    with pytest.raises(TypeError, match="'limti'; its settings are limit,"):
        flagstone.Pool(backend="sim", limti=1)


def test_settings_of_another_type():
    with pytest.raises(TypeError, match=r'"limit" takes bytes as .*, not list'):
        flagstone.Pool(backend="sim", limit=[1])


def test_cuda_that_is_not_there():
    try:
        flagstone._core.cuda_device_count()
    except flagstone.CudaUnavailableError as error:
        reason = str(error)
    else:
        pytest.skip("this machine has CUDA")
    with pytest.raises(flagstone.CudaUnavailableError) as caught:
        flagstone.Pool(backend="cuda")
    assert str(caught.value) == reason


def test_errors_can_be_pickled(pool):
    with pytest.raises(flagstone.InvalidPointerError) as caught:
        pool.free_raw(12)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.address) == (type(caught.value), str(caught.value), 12)


def test_every_error_is_a_flagstone_error():
    names = [name for name in flagstone.__all__ if name.endswith("Error")]
    assert len(names) > 5
    assert all(issubclass(getattr(flagstone, name), flagstone.FlagstoneError) for name in names)
    assert issubclass(flagstone.OutOfMemoryError, MemoryError)
