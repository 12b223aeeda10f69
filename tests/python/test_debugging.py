"""Hunting wrong uses of memory: filled and guarded blocks, and whose an address is."""

import signal

import pytest

import flagstone
from flagstone import history
from flagstone.testing import SimulatedDevice

MIB = 1 << 20


def test_poison_fills_what_is_freed_and_what_is_given_out():
    device = SimulatedDevice(capacity=64 * MIB)
    pool = flagstone.Pool(device, poison=0xA5)
    with pool.alloc(1000) as buffer:
        address = buffer.ptr
        assert device.read(address, 1000) == b"\xa5" * 1000
        device.write(address, b"secret")
    assert device.read(address, 1000) == b"\xa5" * 1000


@pytest.mark.parametrize("value", ["256", -1, "none!", True, 0.5])
def test_poison_is_a_byte(value):
    with pytest.raises((flagstone.ConfigError, OverflowError, ValueError)):
        flagstone.Pool(backend="sim", poison=value)


def test_guards_are_of_devices_and_not_of_the_host(monkeypatch):
    with pytest.raises(flagstone.ConfigError, match="guard"):
        flagstone.PinnedPool(backend="sim", guard="1GiB")
    monkeypatch.setenv("FLAGSTONE_CONF", "guard:1GiB,poison:1")
    flagstone.PinnedPool(backend="sim").alloc(100).free()


@pytest.mark.parametrize(
    ("place", "freed"), [("end", False), ("start", True)], ids=["behind the end", "after the free"]
)
def test_a_wrong_use_faults_at_once(child, place, freed):
    ran = child(
        "import ctypes, faulthandler, flagstone\n"
        "pool = flagstone.Pool(backend='sim', guard='1GiB')\n"
        "buffer = pool.alloc(1024)\n"
        "start, end = buffer.ptr, buffer.ptr + 1024\n"
        "ctypes.memset(start, 1, 1024)\n"
        f"{'buffer.free()' if freed else 'pass'}\n"
        "print('good', flush=True)\n"
        f"ctypes.memset({place}, 1, 1)\n"
    )
    assert (ran.returncode, ran.stdout) == (-signal.SIGSEGV, "good\n")


def allocate(pool):
    return pool.alloc(1000)


def test_an_address_is_described_with_the_stacks_of_its_block():
    pool = flagstone.Pool(backend="sim", guard="1GiB")
    with history.record(pool, stacks=True):
        buffer, other = allocate(pool), allocate(pool)
        address = buffer.ptr
        buffer.free()
    info = pool.describe(address + 1030)
    assert info is not None
    assert (info.address, info.nbytes, info.requested, info.stream) == (address, 1024, 1000, 0)
    assert (info.state, info.offset) == ("freed", 1030)
    assert [frame.name for frame in info.alloc_stack[:2]] == [
        "allocate",
        "test_an_address_is_described_with_the_stacks_of_its_block",
    ]
    assert info.free_stack[0].name == "test_an_address_is_described_with_the_stacks_of_its_block"
    report = str(info)
    assert report.startswith(f"{address + 1030:#x} is 30 bytes behind the end of a block of 1000 bytes at {address:#x}")
    assert "freed at" in report
    assert "in allocate" in report
    live = pool.describe(other.ptr + 5)
    assert live is not None
    assert (live.state, live.offset, live.free_stack) == ("live", 5, ())
    assert "at byte 5 of" in str(live)
    before = pool.describe(other.ptr - 8)
    assert before is not None
    assert "8 bytes before" in str(before)


def test_what_nobody_had_has_no_description(pool):
    assert pool.describe(0) is None
    assert pool.describe(2**64 - 1) is None
    address = pool.alloc_raw(1000)
    assert pool.describe(address + 999).offset == 999
    pool.free_raw(address)
    assert pool.describe(address) is None
    for wrong in (-1, 2**64, "x", None):
        with pytest.raises((OverflowError, TypeError, ValueError)):
            pool.describe(wrong)


def test_a_kernel_that_uses_freed_memory_breaks_the_device_and_every_error_says_so():
    device = SimulatedDevice(capacity=64 * MIB)
    pool = flagstone.Pool(device, guard="1GiB")
    buffer = pool.alloc(5000)
    address = buffer.ptr
    buffer.free()
    device.launch(writes=[(address, 100)])
    device.advance(1)
    for wrong in (lambda: pool.alloc(1), lambda: pool.trim(), lambda: pool.reserve(50 * MIB)):
        with pytest.raises(flagstone.DriverError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*compute-sanitizer"):
            wrong()
    assert pool.describe(address).state == "freed"
