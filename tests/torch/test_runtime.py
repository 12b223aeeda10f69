"""The simulated runtime itself: it takes the place of the one that torch was built for, 12 or 13, and answers as it."""

import ctypes
import re
import subprocess
from importlib import metadata

import pytest
import torch

pytestmark = pytest.mark.process(install=False)

MAJOR = int(torch.version.cuda.split(".")[0])
RUNTIME = f"libcudart.so.{MAJOR}"
NOT_SUPPORTED = 801
UNTOUCHED = 0xA5
ROOM = 2048
NAME_BYTES = 256

library = ctypes.CDLL("libcuda.so.1")


def address(opened, name="cudaMalloc"):
    return ctypes.cast(getattr(opened, name), ctypes.c_void_p).value


def test_the_runtime_that_torch_was_built_for_is_the_simulated_one():
    torch.ones(10, device="cuda")
    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1].rsplit("/", 1)[1] for line in maps if "/libcudart." in line}
    assert loaded == {RUNTIME}, "of the other version there is none"
    runtime = ctypes.CDLL(RUNTIME)
    # What torch's library finds among the libraries that it needs.
    needs_it = ctypes.CDLL(f"{torch.__path__[0]}/lib/libc10_cuda.so")
    assert address(needs_it) == address(runtime) == address(library)
    version = ctypes.c_int()
    assert runtime.cudaRuntimeGetVersion(ctypes.byref(version)) == 0
    assert version.value // 1000 == MAJOR


def properties(name):
    """Call a function for a device's properties, and return its code and how many bytes it wrote."""
    room = (ctypes.c_uint8 * ROOM)(*[UNTOUCHED] * ROOM)
    code = getattr(library, name)(room, 0)
    written = [place for place, byte in enumerate(room) if byte != UNTOUCHED]
    assert written == list(range(len(written))), "in one piece"
    if code == 0:
        assert bytes(room[:NAME_BYTES]).rstrip(b"\0").decode() == torch.cuda.get_device_properties(0).name
    return code, len(written)


def test_a_devices_properties_have_the_form_of_the_runtime():
    torch.cuda.init()
    own, other = {12: ("_v2", ""), 13: ("", "_v2")}[MAJOR]
    # The sizes of cudaDeviceProp in the headers of CUDA.
    assert properties(f"cudaGetDeviceProperties{own}") == (0, {12: 1032, 13: 1008}[MAJOR])
    assert properties(f"cudaGetDeviceProperties{other}") == (NOT_SUPPORTED, 0)


def capture_info(name, count):
    """Call a function for a stream's capture; return its code, and which of `count` results it wrote."""
    stream = ctypes.c_size_t()
    assert library.cudaStreamCreate(ctypes.byref(stream)) == 0
    results = [ctypes.c_uint64(UNTOUCHED) for _ in range(count)]
    code = getattr(library, name)(stream, *(ctypes.byref(result) for result in results))
    return code, [result.value != UNTOUCHED for result in results]


def test_a_captures_state_has_the_results_of_the_runtime():
    torch.cuda.init()
    if MAJOR == 12:
        # Those after the second are no arguments there: registers with whatever the caller had in them.
        assert capture_info("cudaStreamGetCaptureInfo", 6) == (0, [True, True, False, False, False, False])
        assert capture_info("cudaStreamGetCaptureInfo_v2", 5) == (0, [True] * 5)
    else:
        assert capture_info("cudaStreamGetCaptureInfo", 6) == (0, [True] * 6)
        assert capture_info("cudaStreamGetCaptureInfo_v2", 5) == (NOT_SUPPORTED, [False] * 5)


CHANGED = [
    "EventElapsedTime",
    "GraphAddDependencies",
    "GraphAddNode",
    "GraphGetEdges",
    "GraphNodeGetDependencies",
    "GraphNodeGetDependentNodes",
    "GraphRemoveDependencies",
    "MemAdvise",
    "MemPrefetchAsync",
    "StreamUpdateCaptureDependencies",
]
"""Functions that CUDA 13 gave the arguments, or the meaning, of their second version in CUDA 12."""


@pytest.mark.parametrize("name", CHANGED)
def test_the_second_version_of_a_function_is_of_cuda_12_only(name):
    torch.cuda.init()
    events = [ctypes.c_size_t() for _ in range(2)]
    for event in events:
        assert library.cudaEventCreate(ctypes.byref(event)) == 0
        assert library.cudaEventRecord(event, None) == 0
    assert library.cudaDeviceSynchronize() == 0
    passed = ctypes.c_float(-1)
    code = getattr(library, f"cuda{name}_v2")(ctypes.byref(passed), *events)
    done = name == "EventElapsedTime" and MAJOR == 12
    assert (code, passed.value) == ((0, 0) if done else (NOT_SUPPORTED, -1))


def test_every_function_of_the_real_library_is_there():
    files = metadata.files("nvidia-cuda-runtime" if MAJOR == 13 else f"nvidia-cuda-runtime-cu{MAJOR}") or []
    real = next(file for file in files if file.name == RUNTIME)
    listed = subprocess.run(["nm", "-D", "--defined-only", real.locate()], capture_output=True, text=True, check=True)
    names = set(re.findall(r"(\w*cuda\w+)@@", listed.stdout)) - {"cudaCreateChannelDesc"}  # it returns a C++ structure
    assert len(names) > 400
    assert [name for name in sorted(names) if not hasattr(library, name)] == []
