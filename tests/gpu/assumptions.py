"""Asks the driver what the simulated device takes for granted, one question in each process.

Each question has the answer that the simulation gives. Where flagstone relies on it (`RELIED`), another answer fails
the step; where the simulation is stricter than it has to be, or follows what others saw, another answer is told.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64, c_void_p
from functools import partial
from typing import Any

import driver
import torch
from driver import NOT_READY, RELAXED, SUCCESS, code, given
from memory import in_child, read, slow, write

RELIED, TOLD = "relied on", "told"
LARGE = 64 << 20
"""Bytes by which free memory changes visibly, whatever else happens on the device."""

Question = tuple[str, Any, Callable[[], Any]]
QUESTIONS: list[Question] = []


def question(weight: str, expected: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Enter a question with the simulation's answer."""

    def enter(ask: Callable[[], Any]) -> Callable[[], Any]:
        QUESTIONS.append((weight, expected, ask))
        return ask

    return enter


def free_bytes() -> int:
    """Return the device's free memory."""
    return driver.memory()[0]


# Memory


@question(RELIED, {"first": [7, 7], "second": [9, 9], "order": [9, 9]})
def one_handle_at_two_addresses():
    """Both show the same bytes, in stream order, without a wait between."""
    page = driver.page()
    handle = driver.create(page)
    one, two = driver.mapped(handle, nbytes=page), driver.mapped(handle, nbytes=page)
    write(one, page, 7)
    first = read(two, page)
    write(two, page, 9)
    second = read(one, page)
    slow(torch.cuda.current_stream().cuda_stream)
    write(one, page, 8)
    write(two, page, 9)
    return {"first": first, "second": second, "order": read(one, page)}


@question(RELIED, {"readable": [7, 7], "back at release": False, "back at unmap": True})
def a_handle_released_while_it_is_mapped():
    """Its memory stays until it is unmapped."""
    handle = driver.create(LARGE)
    address = driver.mapped(handle, nbytes=LARGE)
    held = free_bytes()
    driver.check(code("cuMemRelease", handle))
    write(address, LARGE, 7)
    readable, released = read(address, LARGE), free_bytes() - held
    driver.check(driver.unmap_code(address, LARGE))
    return {
        "readable": readable,
        "back at release": released > LARGE // 2,
        "back at unmap": free_bytes() - held > LARGE // 2,
    }


@question(RELIED, {"back at unmap": False, "back at release": True, "address": SUCCESS})
def a_handle_released_after_it_was_unmapped():
    """Its memory stays until it is released, and its address can be given back."""
    handle = driver.create(LARGE)
    address = driver.mapped(handle, nbytes=LARGE)
    held = free_bytes()
    driver.check(driver.unmap_code(address, LARGE))
    unmapped = free_bytes() - held
    driver.check(code("cuMemRelease", handle))
    return {
        "back at unmap": unmapped > LARGE // 2,
        "back at release": free_bytes() - held > LARGE // 2,
        "address": code("cuMemAddressFree", c_uint64(address), c_size_t(LARGE)),
    }


@question(RELIED, {"access": SUCCESS, "bytes": [[7, 7]] * 4, "unmap": SUCCESS, "left": 0})
def one_call_for_a_run_of_mappings():
    """Set access and unmap take several whole mappings."""
    page, count = driver.page(), 4
    address = driver.reserve(count * page)
    for index in range(count):
        driver.check(driver.map_code(address + index * page, page, driver.create(page)))
    access = driver.access_code(address, count * page)
    write(address, count * page, 7)
    seen = [read(address + index * page, page) for index in range(count)]
    unmap = driver.unmap_code(address, count * page)
    return {"access": access, "bytes": seen, "unmap": unmap, "left": driver.allowed(address)}


@question(RELIED, {"mapped": 0, "given": 3, "mapped again": 0})
def access_is_lost_at_unmap():
    """A mapping gives no access by itself, also where there was one before."""
    page = driver.page()
    handle, address = driver.create(page), driver.reserve(page)
    driver.check(driver.map_code(address, page, handle))
    before = driver.allowed(address)
    driver.check(driver.access_code(address, page))
    during = driver.allowed(address)
    driver.check(driver.unmap_code(address, page), driver.map_code(address, page, handle))
    return {"mapped": before, "given": during, "mapped again": driver.allowed(address)}


@question(TOLD, {"map a half": False, "access to a half": False, "unmap a half": False, "map over": False})
def parts_of_mappings():
    """The simulation takes whole mappings only."""
    page = driver.page()
    handle, address = driver.create(2 * page), driver.reserve(4 * page)
    half = driver.map_code(address, page, handle) == SUCCESS
    if half:
        driver.check(driver.unmap_code(address, page))
    driver.check(driver.map_code(address, 2 * page, handle))
    over = driver.map_code(address + page, 2 * page, driver.create(2 * page)) == SUCCESS
    access = driver.access_code(address, page) == SUCCESS
    driver.check(driver.access_code(address, 2 * page))
    unmap = driver.unmap_code(address, page) == SUCCESS
    return {"map a half": half, "access to a half": access, "unmap a half": unmap, "map over": over}


@question(RELIED, SUCCESS)
def addresses_for_nine_eighths_of_the_memory():
    """Addresses cost nothing: each arena reserves more than the device has."""
    page, total = driver.page(), driver.memory()[1]
    nbytes = total * 9 // 8 // page * page
    address = c_uint64()
    sizes = (c_size_t(nbytes), c_size_t(0), c_uint64(0), c_uint64(0))
    codes = [code("cuMemAddressReserve", byref(address), *sizes) for _ in range(8)]
    return max(codes)


@question(TOLD, [0, 0])
def fresh_memory():
    """It reads as zeros."""
    return read(driver.mapped(driver.create(LARGE), nbytes=LARGE), LARGE)


@question(RELIED, {"device": 0, "host": 0})
def alignment():
    """Slabs are aligned to 512 bytes, pinned memory to 4 KiB."""
    slabs = [given("cuMemAlloc_v2", c_uint64, c_size_t(nbytes)) for nbytes in (1, 513, 3 << 20)]
    host = [given("cuMemHostAlloc", c_void_p, c_size_t(nbytes), 1) for nbytes in (1, 4097, 3 << 20)]
    return {"device": max(slab % 512 for slab in slabs), "host": max(address % 4096 for address in host)}


@question(
    TOLD,
    {
        "cuMemCreate": False,
        "cuMemMap": False,
        "cuMemSetAccess": False,
        "cuMemUnmap": False,
        "cuMemRelease": False,
        "cuMemAlloc": False,
        "cuMemFree": True,
        "cuMemHostAlloc": False,
        "cuMemFreeHost": True,
    },
)
def calls_that_wait_for_the_device():
    """Whether work on another stream is done when the call returns."""
    page, stream = driver.page(), driver.make_stream()
    address, spare = driver.reserve(page), driver.create(page)
    slab = given("cuMemAlloc_v2", c_uint64, c_size_t(page))
    pinned = given("cuMemHostAlloc", c_void_p, c_size_t(page), 1)
    calls = {
        "cuMemCreate": lambda: driver.create(page),
        "cuMemMap": lambda: driver.map_code(address, page, spare),
        "cuMemSetAccess": lambda: driver.access_code(address, page),
        "cuMemUnmap": lambda: driver.unmap_code(address, page),
        "cuMemRelease": lambda: code("cuMemRelease", spare),
        "cuMemAlloc": lambda: given("cuMemAlloc_v2", c_uint64, c_size_t(page)),
        "cuMemFree": lambda: code("cuMemFree_v2", c_uint64(slab)),
        "cuMemHostAlloc": lambda: given("cuMemHostAlloc", c_void_p, c_size_t(page), 1),
        "cuMemFreeHost": lambda: code("cuMemFreeHost", c_void_p(pinned)),
    }
    waits = {}
    for name, make in calls.items():
        event = driver.make_event()
        slow(stream.value)
        driver.check(code("cuEventRecord", event, stream))
        make()
        waits[name] = code("cuEventQuery", event) != NOT_READY
        driver.check(code("cuStreamSynchronize", stream))
    return waits


# Capture


@question(TOLD, {"gave": 900, "whole": False})
def the_identity_of_a_stream_that_captures():
    """It is refused, as CUDA's C++ library says, and that ends the capture. flagstone asks that first."""

    def ask(stream):
        number = c_uint64()
        return code("cuStreamGetId", stream, byref(number))

    return driver.captured(ask)


@question(RELIED, {"gave": [[SUCCESS, 1], [SUCCESS, 0], [SUCCESS, 0]], "whole": True})
def asking_which_streams_capture():
    """The stream itself, another one, and the default stream, which the capture does not touch."""
    other = driver.make_stream()
    return driver.captured(lambda stream: [list(driver.capture_status(asked)) for asked in (stream, other, None)])


@question(RELIED, {"gave": 906, "whole": True})
def asking_the_default_stream_while_a_blocking_stream_captures():
    """An error that ends no capture: flagstone takes it for a yes."""
    return driver.captured(lambda _: driver.capture_status(None)[0], flags=0)


def unsafe_calls() -> list[int]:
    """Make the calls that flagstone makes in relaxed mode only, and those of virtual memory; the results."""
    event, other, page = driver.make_event(), driver.make_stream(), driver.page()
    slab, pinned = c_uint64(), c_void_p()
    results = [code("cuEventRecord", event, other), code("cuEventQuery", event), code("cuEventSynchronize", event)]
    results += [code("cuMemAlloc_v2", byref(slab), c_size_t(page)), code("cuMemFree_v2", slab)]
    results += [code("cuMemHostAlloc", byref(pinned), c_size_t(page), 1), code("cuMemFreeHost", pinned)]
    return results + virtual_memory_calls()


def virtual_memory_calls() -> list[int]:
    """Create, map, give access, unmap, release, and the same for addresses; the results."""
    page, address, handle = driver.page(), c_uint64(), c_uint64()
    sizes = (c_size_t(page), c_size_t(0), c_uint64(0), c_uint64(0))
    return [
        code("cuMemAddressReserve", byref(address), *sizes),
        code("cuMemCreate", byref(handle), c_size_t(page), byref(driver.PINNED_ON_DEVICE), c_uint64(0)),
        driver.map_code(address.value, page, handle),
        driver.access_code(address.value, page),
        driver.unmap_code(address.value, page),
        code("cuMemRelease", handle),
        code("cuMemAddressFree", address, c_size_t(page)),
    ]


@question(RELIED, {"gave": 0, "whole": True})
def a_thread_in_relaxed_mode_beside_a_capture():
    """It may make every call that flagstone makes."""
    return driver.captured(lambda _: max(unsafe_calls()), own=RELAXED)


@question(TOLD, {"gave": 0, "whole": True})
def virtual_memory_in_a_capture_without_relaxed_mode():
    """PyTorch does so; flagstone exchanges the mode."""
    return driver.captured(lambda _: max(virtual_memory_calls()))


@question(TOLD, {"query": {"gave": 900, "whole": False}, "memory": {"gave": 900, "whole": False}})
def unsafe_calls_without_relaxed_mode():
    """They fail and end the capture: that is why flagstone exchanges the mode."""
    event, slab = driver.make_event(), c_uint64()
    return {
        "query": driver.captured(lambda _: code("cuEventQuery", event)),
        "memory": driver.captured(lambda _: code("cuMemAlloc_v2", byref(slab), c_size_t(512))),
    }


@question(TOLD, {"gave": 900, "whole": False})
def waiting_for_the_context_in_a_capture():
    """It ends the capture, also in relaxed mode: flagstone does not do so while it knows of one."""
    return driver.captured(lambda _: code("cuCtxSynchronize"), own=RELAXED)


@question(TOLD, {"query": {"gave": 907, "whole": False}, "later wait": 907})
def an_event_that_was_recorded_in_a_capture():
    """It belongs to the capture and says nothing outside."""
    event, other = driver.make_event(), driver.make_stream()

    def use(stream):
        driver.check(code("cuEventRecord", event, stream))
        return code("cuEventQuery", event)

    query = driver.captured(use, own=RELAXED)
    return {"query": query, "later wait": code("cuStreamWaitEvent", other, event, 0)}


@question(TOLD, True)
def a_forked_stream_without_work():
    """It need not be joined before the end."""
    event, other = driver.make_event(), driver.make_stream()

    def fork(stream):
        return [code("cuEventRecord", event, stream), code("cuStreamWaitEvent", other, event, 0)]

    return driver.captured(fork)["whole"]


# Streams and the host


@question(RELIED, {"ids differ": True, "handle comes back": True})
def a_new_stream_in_place_of_a_destroyed_one():
    """Handles come back, identities do not. That handles do is no promise: it is why identities are kept."""
    ids, handles = [], []
    for _ in range(64):
        stream = driver.make_stream()
        ids.append(driver.stream_id(stream))
        handles.append(stream.value)
        driver.check(code("cuStreamDestroy_v2", stream))
    return {"ids differ": len(set(ids)) == len(ids), "handle comes back": len(set(handles)) < len(handles)}


@question(TOLD, 400)
def a_destroyed_streams_identity():
    """An error; a real driver may crash."""
    stream, number = driver.make_stream(), c_uint64()
    driver.check(code("cuStreamDestroy_v2", stream))
    return code("cuStreamGetId", stream, byref(number))


@question(RELIED, True)
def membarrier_is_there():
    """Without it, magazines of sleeping threads cannot be taken, and flagstone has no magazines."""
    query, expedited, register, number = 0, 1 << 3, 1 << 4, 324
    has = ctypes.CDLL(None).syscall(number, query, 0, 0)
    return has >= 0 and has & (expedited | register) == expedited | register


def answer(ask: Callable[[], Any]) -> Any:
    """Ask with the driver started."""
    driver.start()
    return ask()


def main() -> int:
    """Ask everything. Return 1 where an answer differs that flagstone relies on."""
    wrong = 0
    for weight, expected, ask in QUESTIONS:
        seen = in_child(partial(answer, ask))
        same = seen == expected
        wrong += not same and weight == RELIED
        verdict = "as simulated" if same else f"differs, {weight}: {json.dumps(seen)}, simulated {json.dumps(expected)}"
        print(json.dumps({ask.__name__.replace("_", " "): verdict}), flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
