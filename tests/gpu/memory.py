"""Device memory by its address, with torch's kernels; a kernel that is slow; and processes of their own."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import torch

MIB = 1 << 20

ALLOWED_SECONDS = 20
"""For one question or scenario, so that none that hangs takes the others' time."""

SLOW_CYCLES = 400_000_000
"""About 0.2 seconds on a present GPU; the simulated one takes so many nanoseconds of its clock."""


class Range:
    """A range of device memory for `torch.as_tensor`."""

    def __init__(self, address: int, nbytes: int) -> None:
        """Describe bytes at an address."""
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def tensor(address: int, nbytes: int) -> torch.Tensor:
    """Return the memory as a tensor of bytes."""
    return torch.as_tensor(Range(address, nbytes), device="cuda")


def write(address: int, nbytes: int, value: int) -> None:
    """Fill memory by a kernel on the current stream."""
    tensor(address, nbytes).fill_(value)


def read(address: int, nbytes: int) -> list[int]:
    """Return the least and the greatest byte, when the current stream has come to it."""
    return [int(value) for value in tensor(address, nbytes).cpu().aminmax()]


def slow(stream: int, cycles: int = SLOW_CYCLES) -> None:
    """Give a stream a kernel that takes its time."""
    with torch.cuda.stream(torch.cuda.ExternalStream(stream) if stream else torch.cuda.default_stream()):
        torch.cuda._sleep(cycles)


def in_child(body: Callable[[], Any]) -> Any:
    """Return what `body` gives, as JSON has it, from a process of its own. This one has not touched the device yet."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(ALLOWED_SECONDS)
        try:
            said = body()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(said) if said else f"ended with status {status}"
