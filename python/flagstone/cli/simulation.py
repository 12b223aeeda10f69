"""The simulated CUDA for child processes with torch: where a machine has no GPU, or must not use it."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from flagstone import _core
from flagstone.errors import CudaUnavailableError, FlagstoneError

FOLDER = "SIMCUDA_FOLDER"
"""Names the folder with the simulated libraries: libcuda.so.1, libnvidia-ml.so.1, libcudart.so and stand-ins."""


def environment() -> dict[str, str]:
    """Return the environment of a process in which torch finds the simulated CUDA.

    `FlagstoneError` where the libraries are not at hand.
    """
    folder = os.environ.get(FOLDER)
    if folder is None:
        raise FlagstoneError(
            f"{FOLDER} does not say where the simulated CUDA is: `make simcuda` in a checkout of flagstone builds it, "
            "with a Python that has torch, and says how to use it; with a GPU, use --backend cuda"
        )
    library = Path(folder).resolve() / "libcudart.so"
    if not library.exists():
        raise FlagstoneError(f"{library}: not found; `make simcuda` in a checkout of flagstone builds it anew")
    paths = [str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths)), "LD_PRELOAD": str(library)}


def is_wanted(backend: str) -> bool:
    """Whether processes for a backend ("sim", "cuda" or "auto") have the simulated CUDA.

    With auto it is where the environment names it, and where there is no device.
    """
    if backend != "auto" or FOLDER in os.environ:
        return backend != "cuda"
    try:
        return _core.cuda_device_count() == 0
    except CudaUnavailableError:
        return True


class Device:
    """The simulated device 0, from inside a process that has it. Times are nanoseconds since it was made."""

    def __init__(self) -> None:
        """Find the library, which is loaded; `OSError` where it is not."""
        library = ctypes.CDLL("libcuda.so.1")
        library.simcuda_now.restype = library.simcuda_held.restype = ctypes.c_uint64
        library.simcuda_bill.restype = library.simcuda_counts.restype = ctypes.c_size_t
        library.simcuda_set_time.argtypes = library.simcuda_lag.argtypes = (ctypes.c_int, ctypes.c_uint64)
        library.simcuda_read.argtypes = (ctypes.c_int, ctypes.c_size_t, *[ctypes.c_uint64] * 3)
        self._library = library

    def now_ns(self) -> int:
        """Return the time."""
        return int(self._library.simcuda_now(0))

    def set_time(self, ns: int) -> None:
        """Set the clock, which does not go back."""
        self._library.simcuda_set_time(0, ns)

    def set_lag(self, ns: int) -> None:
        """Set how much later than they are recorded events complete."""
        self._library.simcuda_lag(0, ns)

    def read(self, stream: int, addr: int, nbytes: int, until_ns: int) -> None:
        """Give a stream work that reads memory until that time."""
        self._library.simcuda_read(0, stream, addr, nbytes, until_ns)

    def held_bytes(self) -> int:
        """Return the bytes of the device's memory that are in use by anybody."""
        return int(self._library.simcuda_held(0))

    def bill(self) -> dict[str, tuple[int, int]]:
        """Return how often each driver function was carried out, and its nanoseconds by the price list."""
        lines = self._text(self._library.simcuda_bill, 0)
        return {name: (int(count), int(ns)) for name, count, ns in map(str.split, lines)}

    def calls(self) -> dict[str, int]:
        """Return how often each function of CUDA's libraries was called."""
        return {name: int(count) for name, count in map(str.split, self._text(self._library.simcuda_counts))}

    @staticmethod
    def _text(function: Callable[..., int], *arguments: int) -> list[str]:
        room = function(*arguments, None, ctypes.c_size_t(0)) + 4096
        buffer = ctypes.create_string_buffer(room)
        function(*arguments, buffer, ctypes.c_size_t(room))
        return buffer.value.decode().splitlines()
