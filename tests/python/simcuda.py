"""The simulated CUDA: the environment of a process that has it, and its control from inside such a process.

Where `SIMCUDA_FOLDER` names none, the device is what it is, and whatever needs control of it raises `Uncontrolled`.
"""

import ctypes
import os
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30

FOLDER = "SIMCUDA_FOLDER"
"""Names the folder with the simulated libraries: libcuda.so.1, libnvidia-ml.so.1, libcudart.so and stand-ins."""

SIMULATED = FOLDER in os.environ

KERNELS = Path(__file__).parents[1] / "torch" / "kernels"
"""On PYTHONPATH, it has torch's kernels computed by the CPU."""

SLOW_CYCLES = 1_000_000_000
"""About half a second on a present GPU."""


class Uncontrolled(Exception):
    """The device is not one that a test can control."""


def environment(kernels: bool = False) -> dict[str, str]:
    """Return the environment of a process in which torch finds the simulated CUDA, and if wanted the CPU's kernels."""
    if not SIMULATED:
        return dict(os.environ)
    folder = os.environ[FOLDER]
    path = [str(KERNELS)] * kernels + os.environ.get("PYTHONPATH", "").split(os.pathsep)
    preloaded = str(Path(folder) / "libcudart.so")
    paths = {"LD_LIBRARY_PATH": folder, "LD_PRELOAD": preloaded, "PYTHONPATH": os.pathsep.join(path)}
    return {**os.environ, **paths}


def settings(devices: int = 1, memory: int = 4 * GIB, **others: str) -> dict[str, str]:
    """Return what has to be in the environment for so many devices, each with so many bytes, when CUDA is started."""
    if not SIMULATED:
        if (devices, memory) != (1, 4 * GIB):
            raise Uncontrolled("how many devices there are, and their memory")
        return others
    return {"SIMCUDA_DEVICES": str(devices), "SIMCUDA_MEMORY": str(memory), **others}


def _library() -> ctypes.CDLL:
    if not SIMULATED:
        raise Uncontrolled("the simulation's own functions")
    library = ctypes.CDLL("libcuda.so.1")
    for name in ("counts", "idle_kernels", "violations"):
        getattr(library, f"simcuda_{name}").restype = ctypes.c_size_t
    return library


def _text(name: str) -> str:
    function = getattr(_library(), f"simcuda_{name}")
    room = function(None, ctypes.c_size_t(0)) + 4096
    buffer = ctypes.create_string_buffer(room)
    function(buffer, ctypes.c_size_t(room))
    return buffer.value.decode()


def _counts(text: str) -> dict[str, int]:
    return {name: int(count) for name, count in (line.rsplit(" ", 1) for line in text.splitlines())}


def counts() -> dict[str, int]:
    """Return how often each function was called."""
    return _counts(_text("counts"))


def read_counts(file: Path) -> dict[str, int]:
    """Return the counts that a process has written to `SIMCUDA_COUNTS`."""
    return _counts(file.read_text())


def takers(counts: dict[str, int]) -> set[tuple[str, str]]:
    """Return the functions that took device memory or pinned memory, with the libraries that called them."""
    return {tuple(name.split(":")[1:]) for name in counts if name.startswith("by:")}


def idle_kernels() -> dict[str, int]:
    """Return the kernels that were launched and have no effect in the simulation, and how often."""
    if not SIMULATED:
        return {}
    return _counts(_text("idle_kernels"))


def violations() -> list[str]:
    """Return what would be wrong data, an illegal address or a hang on a real device."""
    return _text("violations").splitlines()


def forgive() -> None:
    """Forget the violations: they were meant."""
    _library().simcuda_forgive()


def fail(call: str, nth: int = 1, code: int = 2) -> None:
    """Make the nth next call of a function fail; code 2 is out of memory."""
    _library().simcuda_fail(call.encode(), ctypes.c_uint64(nth), ctypes.c_uint32(code))


def break_with(code: int, device: int = 0) -> None:
    """Make every call that a device is asked for fail from now on, as after an illegal access."""
    assert _library().simcuda_break(device, ctypes.c_uint32(code)) == 0


def leave(nbytes: int, device: int = 0) -> None:
    """Let other processes hold all but so many bytes of a device."""
    _library().simcuda_leave(device, ctypes.c_uint64(nbytes))


def hold(stream: int, device: int = 0) -> None:
    """Keep what a stream gets from now on from being done; on a real device, for half a second."""
    if not SIMULATED:
        import torch

        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            torch.cuda._sleep(SLOW_CYCLES)
        return
    assert _library().simcuda_hold(device, ctypes.c_size_t(stream)) == 0


def resume(stream: int, device: int = 0) -> None:
    """Let a held stream go on; a real device does so by itself."""
    if not SIMULATED:
        return
    assert _library().simcuda_resume(device, ctypes.c_size_t(stream)) == 0


def advance(ns: int, device: int = 0) -> None:
    """Advance a device's clock."""
    assert _library().simcuda_advance(device, ctypes.c_uint64(ns)) == 0


def timing(kernel_ns: int, copy_ns_per_mib: int = 0) -> None:
    """Set how long kernels take from now on, and copies of a MiB, on the device's clock."""
    _library().simcuda_timing(ctypes.c_uint64(kernel_ns), ctypes.c_uint64(copy_ns_per_mib))
