"""The simulated CUDA itself is as strict as a real one: what is wrong there fails here."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
import simcuda
import torch
from simcuda import MIB

pytestmark = pytest.mark.process(install=False)

OUT_OF_MEMORY, INVALID_HANDLE, ILLEGAL_ADDRESS, NOT_SUPPORTED, CAPTURE_UNSUPPORTED, INVALIDATED = (
    2,
    400,
    700,
    801,
    900,
    901,
)
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
DEVICE_TO_HOST, DEVICE_TO_DEVICE = 2, 3
PAGE = 2 * MIB

library = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    """Call a function with addresses, numbers or things to fill in, and return its code."""
    return getattr(library, name)(*(ctypes.c_size_t(item) if isinstance(item, int) else item for item in arguments))


def result(name, *arguments):
    """Call a function that gives an address or a handle as its first argument, and return that."""
    given = ctypes.c_size_t()
    assert call(name, ctypes.byref(given), *arguments) == 0
    return given.value


def elsewhere(function, *arguments):
    """Call a function on another thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)))
    thread.start()
    thread.join()
    return results[0]


def read_by_the_host(address):
    """Read a byte in a child process, and return how that ended."""
    child = os.fork()
    if child == 0:
        byte = ctypes.string_at(address, 1)[0]
        os._exit(byte)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_host_cannot_touch_device_memory():
    tensor = torch.full((1000,), 7, dtype=torch.uint8, device="cuda")
    pinned = torch.full((1000,), 7, dtype=torch.uint8).pin_memory()
    assert read_by_the_host(tensor.data_ptr()) == -signal.SIGSEGV
    assert read_by_the_host(pinned.data_ptr()) == 7
    assert tensor.cpu()[0] == 7


@pytest.mark.process(install={})
def test_the_host_cannot_touch_the_pools_memory():
    assert read_by_the_host(torch.ones(1000, device="cuda").data_ptr()) == -signal.SIGSEGV


@pytest.mark.process(SIMCUDA_STRICT="0")
def test_the_host_can_touch_it_where_that_is_asked_for():
    assert read_by_the_host(torch.full((1000,), 7, dtype=torch.uint8, device="cuda").data_ptr()) == 7


@pytest.mark.parametrize(
    ("mode", "same_thread", "relaxed", "refused"),
    [
        (GLOBAL, True, False, True),
        (GLOBAL, False, False, True),
        (GLOBAL, True, True, False),
        (THREAD_LOCAL, True, False, True),
        (THREAD_LOCAL, False, False, False),
        (RELAXED, True, False, False),
        (RELAXED, False, False, False),
    ],
)
def test_unsafe_calls_in_a_capture_are_refused_by_its_mode(mode, same_thread, relaxed, refused):
    stream = result("cudaStreamCreate")
    assert call("cudaStreamBeginCapture", stream, mode) == 0
    thread_mode = ctypes.c_uint32(RELAXED)
    if relaxed:
        assert call("cudaThreadExchangeStreamCaptureMode", ctypes.byref(thread_mode)) == 0
    taken = ctypes.c_size_t()
    allocate = ("cudaMalloc", ctypes.byref(taken), 1000)
    code = call(*allocate) if same_thread else elsewhere(call, *allocate)
    graph = ctypes.c_size_t()
    ended = call("cudaStreamEndCapture", stream, ctypes.byref(graph))
    assert (code, ended) == ((CAPTURE_UNSUPPORTED, INVALIDATED) if refused else (0, 0))
    assert (taken.value == 0, graph.value == 0) == (refused, refused)
    assert [("invalidated" in found) for found in simcuda.violations()] == [True] * refused
    simcuda.forgive()


@pytest.mark.parametrize("question", ["cudaStreamQuery", "cudaStreamSynchronize"])
def test_asking_for_a_capturing_streams_state_invalidates_in_every_mode(question):
    for mode in (GLOBAL, THREAD_LOCAL, RELAXED):
        stream = result("cudaStreamCreate")
        assert call("cudaStreamBeginCapture", stream, mode) == 0
        assert call(question, stream) == CAPTURE_UNSUPPORTED
        assert call("cudaStreamEndCapture", stream, ctypes.byref(ctypes.c_size_t())) == INVALIDATED
    simcuda.forgive()


def test_memory_nodes_are_not_supported():
    stream = result("cudaStreamCreate")
    block = result("cudaMallocAsync", 1000, stream)
    assert call("cudaStreamBeginCapture", stream, GLOBAL) == 0
    assert call("cudaMallocAsync", ctypes.byref(ctypes.c_size_t()), 1000, stream) == NOT_SUPPORTED
    assert call("cudaFreeAsync", block, stream) == NOT_SUPPORTED
    assert result_of_capture(stream) != 0
    assert call("cudaFreeAsync", block, stream) == 0


def result_of_capture(stream):
    graph = ctypes.c_size_t()
    assert call("cudaStreamEndCapture", stream, ctypes.byref(graph)) == 0
    return graph.value


def test_any_use_of_a_destroyed_stream_is_found():
    torch.cuda.init()
    memory, event = result("cudaMalloc", 1000), result("cudaEventCreate")
    stream = result("cudaStreamCreate")
    assert call("cudaStreamDestroy", stream) == 0
    given = ctypes.byref(ctypes.c_size_t())
    uses = [
        ("cudaStreamQuery", stream),
        ("cudaStreamSynchronize", stream),
        ("cudaStreamGetId", stream, given),
        ("cudaStreamIsCapturing", stream, given),
        ("cudaStreamBeginCapture", stream, RELAXED),
        ("cudaStreamEndCapture", stream, given),
        ("cudaStreamWaitEvent", stream, event, 0),
        ("cudaEventRecord", event, stream),
        ("cudaMemsetAsync", memory, 0, 1000, stream),
        ("cudaMemcpyAsync", memory, memory + 512, 8, DEVICE_TO_DEVICE, stream),
        ("cudaMallocAsync", given, 1000, stream),
        ("cudaStreamDestroy", stream),
        ("cuStreamQuery", stream),
        ("cuStreamSynchronize", stream),
        ("cuStreamGetId", stream, given),
        ("cuEventRecord", event, stream),
        ("cuStreamWaitEvent", stream, event, 0),
        ("cuStreamDestroy_v2", stream),
    ]
    for use in uses:
        simcuda.forgive()
        assert call(*use) == INVALID_HANDLE, use
        assert len(simcuda.violations()) == 1, use
    simcuda.forgive()


def mapped(handle):
    """Return an address at which a handle's memory is, without access."""
    address = result("cuMemAddressReserve", PAGE, 0, 0, 0)
    assert call("cuMemMap", address, PAGE, 0, handle, 0) == 0
    return address


def opened(address, *devices):
    """Return the address, with access to what is mapped there for the named devices."""
    access = (ctypes.c_uint32 * (3 * len(devices)))(*(field for device in devices for field in (1, device, 3)))
    assert call("cuMemSetAccess", address, PAGE, access, len(devices)) == 0
    return address


def handle_on(device):
    """Return the handle of a page of a device's memory."""
    assert call("cudaSetDevice", device) == 0
    return result("cuMemCreate", PAGE, (ctypes.c_uint32 * 8)(1, 0, 1, device), 0)


def page(device, *open_to):
    """Return a page of a device's memory that the named devices may use."""
    return opened(mapped(handle_on(device)), *open_to)


def multiply(result_at, a, b):
    """Multiply matrices of one element on the current device, and return the code of waiting for it."""
    context, one, zero = result("cublasCreate_v2"), ctypes.c_float(1), ctypes.c_float(0)
    sizes = [ctypes.c_int(1)] * 3
    factors = (ctypes.byref(one), ctypes.byref(zero))
    launched = library.cublasSgemm_v2(
        *(ctypes.c_size_t(context), 0, 0, *sizes, factors[0], ctypes.c_size_t(a), 1, ctypes.c_size_t(b), 1),
        *(factors[1], ctypes.c_size_t(result_at), 1),
    )
    assert launched == 0
    return call("cudaStreamSynchronize", 0)


def test_one_handle_at_two_addresses_is_one_memory():
    handle = handle_on(0)
    first, second = opened(mapped(handle), 0), opened(mapped(handle), 0)
    assert first != second
    seen = ctypes.create_string_buffer(10)
    assert call("cudaMemset", first, 7, 10) == 0
    assert call("cudaMemcpy", seen, second, 10, DEVICE_TO_HOST) == 0
    assert seen.raw == bytes([7] * 10)


def test_mapped_memory_without_access_is_an_illegal_address():
    closed = mapped(handle_on(0))
    call("cudaMemset", closed, 7, 10)
    assert call("cudaDeviceSynchronize") == ILLEGAL_ADDRESS
    assert len(simcuda.violations()) == 1
    simcuda.forgive()


@pytest.mark.process(devices=2)
def test_kernels_use_the_mappings_that_are_open_to_their_device():
    opened = page(1, 0, 1)
    own = page(0, 0)
    assert call("cudaSetDevice", 0) == 0
    assert multiply(own, opened, opened) == 0
    assert simcuda.violations() == []


@pytest.mark.process(devices=2)
def test_a_mapping_that_was_not_opened_to_a_device_is_an_illegal_address_there():
    closed, own = page(1, 1), page(0, 0)
    assert multiply(own, closed, own) == ILLEGAL_ADDRESS
    assert any("device 0" in found for found in simcuda.violations())
    simcuda.forgive()


@pytest.mark.process(devices=2)
def test_copies_between_devices_need_open_mappings_or_say_that_they_are_such():
    closed, opened, own = page(1, 1), page(1, 0, 1), page(0, 0)
    assert call("cudaMemcpyAsync", own, opened, 1000, DEVICE_TO_DEVICE, 0) == 0
    assert call("cudaMemcpyPeerAsync", own, 0, closed, 1, 1000, 0) == 0
    assert call("cudaStreamSynchronize", 0) == 0
    assert simcuda.violations() == []
    call("cudaMemcpyAsync", own, closed, 1000, DEVICE_TO_DEVICE, 0)
    assert call("cudaStreamSynchronize", 0) == ILLEGAL_ADDRESS
    simcuda.forgive()


@pytest.mark.process(devices=2)
def test_kernels_use_other_devices_plain_memory_with_peer_access_only():
    call("cudaSetDevice", 1)
    there = result("cudaMalloc", 1000)
    call("cudaSetDevice", 0)
    own = result("cudaMalloc", 1000)
    assert call("cudaMemcpyAsync", own, there, 1000, DEVICE_TO_DEVICE, 0) == 0
    assert call("cudaDeviceEnablePeerAccess", 1, 0) == 0
    assert multiply(own, there, there) == 0
    assert call("cudaDeviceDisablePeerAccess", 1) == 0
    assert multiply(own, there, there) == ILLEGAL_ADDRESS
    simcuda.forgive()


@pytest.mark.process(install={}, devices=2)
def test_what_flagstone_maps_is_open_to_all_devices():
    tensor = torch.full((1000,), 3.0, device="cuda:1")
    assert (tensor.to("cuda:0").cpu() == 3).all()
    with torch.cuda.device(0):
        own = torch.empty(1000, device="cuda:0")
        torch.cuda.synchronize(1)
        assert multiply(own.data_ptr(), tensor.data_ptr(), tensor.data_ptr()) == 0
        assert own[0].cpu() == 9


@pytest.mark.parametrize(
    "name", ["cudaStreamCreate", "cudaEventCreate", "cuEventCreate", "cudaMalloc", "cuMemAlloc_v2"]
)
def test_the_nth_call_of_any_function_can_be_made_to_fail(name):
    assert call("cudaSetDevice", 0) == 0
    simcuda.fail(name, nth=2, code=OUT_OF_MEMORY)
    codes = [call(name, ctypes.byref(ctypes.c_size_t()), 1000) for _ in range(4)]
    assert codes == [0, OUT_OF_MEMORY, 0, 0]
    assert simcuda.counts()[name] >= 4


WITHOUT_A_CODE = {
    "cudaGetErrorName",
    "cudaGetErrorString",
    "cudaGetLastError",
    "cudaPeekAtLastError",
}
"""Functions that give a text, or the code of another call."""


def test_every_function_is_counted_and_can_be_made_to_fail():
    listed = subprocess.run(["nm", "-D", "--defined-only", library_file()], capture_output=True, text=True, check=True)
    names = set(re.findall(r" T (cu(?:da)?[A-Z]\w+)$", listed.stdout, re.MULTILINE)) - WITHOUT_A_CODE
    assert len(names) > 900
    before = simcuda.counts()
    wrong = []
    for name in sorted(names):
        simcuda.fail(name, code=555)
        # It is refused before it looks at what it got.
        if call(name, *[0] * 6) != 555 or simcuda.counts().get(name) != before.get(name, 0) + 1:
            wrong.append(name)
    assert wrong == []


def library_file():
    with open("/proc/self/maps") as maps:
        return next(line.split()[-1] for line in maps if "libsimcuda" in line or "libcuda.so" in line)


def test_what_a_test_leaves_behind_fails_it():
    code = """
import simcuda, torch
from test_simulation import call, result
stream = result("cudaStreamCreate")
call("cudaStreamDestroy", stream)
call("cudaStreamQuery", stream)
"""
    environment = simcuda.environment()
    environment["PYTHONPATH"] += os.pathsep + os.path.dirname(__file__)
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=45)
    assert "simcuda: " in ran.stderr, "which fails the test whose process this is"
    assert "stream" in ran.stderr


@pytest.mark.process(SIMCUDA_FAIL="cudaHostAlloc:2:2,cudaEventQuery:1:999")
def test_failures_can_be_asked_for_by_the_environment():
    given = ctypes.byref(ctypes.c_size_t())
    assert [call("cudaHostAlloc", given, 10, 0) for _ in range(3)] == [0, OUT_OF_MEMORY, 0]
    assert call("cudaEventQuery", result("cudaEventCreate")) == 999


def test_what_is_not_simulated_says_so_and_is_counted():
    assert call("cudaArrayGetInfo") == NOT_SUPPORTED
    assert call("cuLaunchKernel") == NOT_SUPPORTED
    found, status = ctypes.c_size_t(1), ctypes.c_uint32(0)
    asked = (b"cuNoSuchFunction", ctypes.byref(found), 12000, 0, ctypes.byref(status))
    assert call("cudaGetDriverEntryPointByVersion", *asked) == 0
    assert (found.value, status.value) == (0, 1)
    counts = simcuda.counts()
    assert [counts[name] for name in ("cudaArrayGetInfo", "cuLaunchKernel", "missing:cuNoSuchFunction")] == [1, 1, 1]


def test_every_driver_function_that_torch_asks_for_is_there():
    torch.ones(10, device="cuda") * 2
    torch.cuda.synchronize()
    assert [name for name in simcuda.counts() if name.startswith("missing:")] == []
