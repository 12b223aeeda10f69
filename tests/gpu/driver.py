"""The CUDA driver, called directly: what it does, not what flagstone makes of it. Device 0, its primary context."""

import ctypes
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p
from typing import Any

SUCCESS, NOT_READY = 0, 600
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NON_BLOCKING = 1


class Location(ctypes.Structure):
    """`CUmemLocation`, of device 0."""

    _fields_ = (("kind", c_int), ("id", c_int))


class Properties(ctypes.Structure):
    """`CUmemAllocationProp`"""

    _fields_ = (
        ("kind", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("compression", c_ubyte),
        ("rdma", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    )


class Access(ctypes.Structure):
    """`CUmemAccessDesc`"""

    _fields_ = (("location", Location), ("flags", c_int))


DEVICE = Location(1, 0)
PINNED_ON_DEVICE = Properties(kind=1, location=DEVICE)
READ_WRITE = Access(DEVICE, 3)


class DriverError(Exception):
    """A call of the driver that failed."""


def code(name: str, *arguments: Any) -> int:
    """Call a function by its exported name and return its result."""
    return getattr(library(), name)(*arguments)


def call(name: str, *arguments: Any) -> None:
    """Call a function that has to succeed."""
    result = code(name, *arguments)
    if result != SUCCESS:
        raise DriverError(f"{name} gave {result}")


def library() -> ctypes.CDLL:
    """Return the driver's library: that which torch has, too."""
    return ctypes.CDLL("libcuda.so.1")


def start() -> None:
    """Start the driver and make the context current that torch uses."""
    context = c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", byref(context), 0)
    call("cuCtxSetCurrent", context)


def given(name: str, kind: type, *arguments: Any) -> int:
    """Return what a function writes to its first argument."""
    result = kind()
    call(name, byref(result), *arguments)
    return result.value or 0


def attribute(number: int) -> int:
    """Return an attribute of the device by its number in `CUdevice_attribute`."""
    return given("cuDeviceGetAttribute", c_int, number, 0)


def page() -> int:
    """Return the granularity, in bytes."""
    return given("cuMemGetAllocationGranularity", c_size_t, byref(PINNED_ON_DEVICE), 0)


def memory() -> tuple[int, int]:
    """Return free and total bytes."""
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value


def create(nbytes: int) -> c_uint64:
    """Return a new handle."""
    return c_uint64(given("cuMemCreate", c_uint64, c_size_t(nbytes), byref(PINNED_ON_DEVICE), c_uint64(0)))


def reserve(nbytes: int) -> int:
    """Return an address."""
    return given("cuMemAddressReserve", c_uint64, c_size_t(nbytes), c_size_t(0), c_uint64(0), c_uint64(0))


def map_code(address: int, nbytes: int, handle: c_uint64) -> int:
    """Map a handle from its begin; the result."""
    return code("cuMemMap", c_uint64(address), c_size_t(nbytes), c_size_t(0), handle, c_uint64(0))


def access_code(address: int, nbytes: int) -> int:
    """Give the device access; the result."""
    return code("cuMemSetAccess", c_uint64(address), c_size_t(nbytes), byref(READ_WRITE), c_size_t(1))


def unmap_code(address: int, nbytes: int) -> int:
    """Unmap; the result."""
    return code("cuMemUnmap", c_uint64(address), c_size_t(nbytes))


def allowed(address: int) -> int:
    """Return the device's access to an address: 3 for reading and writing, 0 for none."""
    return given("cuMemGetAccess", c_uint64, byref(DEVICE), c_uint64(address))


def check(*results: int) -> None:
    """Raise unless all results are success."""
    if any(results):
        raise DriverError(f"results {results}")


def mapped(*handles: c_uint64, nbytes: int) -> int:
    """Map handles of so many bytes side by side, give access to all of them in one call, and return the address."""
    address = reserve(nbytes * len(handles))
    check(*(map_code(address + index * nbytes, nbytes, handle) for index, handle in enumerate(handles)))
    check(access_code(address, nbytes * len(handles)))
    return address


def make_stream(flags: int = NON_BLOCKING) -> c_void_p:
    """Return a new stream."""
    return c_void_p(given("cuStreamCreate", c_void_p, c_uint(flags)))


def stream_id(stream: c_void_p) -> int:
    """Return the number that no other stream of the process has or had."""
    number = c_uint64()
    call("cuStreamGetId", stream, byref(number))
    return number.value


def make_event() -> c_void_p:
    """Return a new event without timing."""
    return c_void_p(given("cuEventCreate", c_void_p, c_uint(2)))


def capture_status(stream: c_void_p | None) -> tuple[int, int]:
    """Return the result of asking whether a stream captures, and the answer."""
    status = c_int(-1)
    return code("cuStreamIsCapturing", stream, byref(status)), status.value


def exchange(mode: int) -> int:
    """Set the thread's capture mode and return the one before."""
    exchanged = c_int(mode)
    call("cuThreadExchangeStreamCaptureMode", byref(exchanged))
    return exchanged.value


def captured(body: Callable[[c_void_p], Any], own: int = GLOBAL, flags: int = NON_BLOCKING) -> dict[str, Any]:
    """Call `body` with a stream that captures in global mode, the thread being in mode `own`; what both gave."""
    stream, graph = make_stream(flags), c_void_p()
    call("cuStreamBeginCapture_v2", stream, GLOBAL)
    before = exchange(own)
    gave = body(stream)
    exchange(before)
    return {"gave": gave, "whole": code("cuStreamEndCapture", stream, byref(graph)) == SUCCESS}


def nanoseconds(function: Any, *arguments: Any) -> int:
    """Return the time of one call, without what a call from Python takes by itself."""
    start = time.perf_counter_ns()
    result = function(*arguments)
    took = time.perf_counter_ns() - start
    check(result)
    return max(took - OVERHEAD, 0)


def _overhead() -> int:
    """Return what a call from Python takes that does next to nothing."""
    version, function = c_int(), ctypes.CDLL(None).getppid
    took = []
    for _ in range(1000):
        start = time.perf_counter_ns()
        function(byref(version), None)
        took.append(time.perf_counter_ns() - start)
    return sorted(took)[len(took) // 2]


OVERHEAD = _overhead()
