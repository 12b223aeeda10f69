"""The other side of `contestants`: a process with torch and one allocator, which answers a line of JSON with one.

It exits at once when its standard input ends, and leaves memory and pools as they are.
"""

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

import flagstone.torch
from flagstone import _core
from flagstone.cli import simulation
from flagstone.cli.loading import load
from flagstone.cli.torch_replay import replay

_ALLOCATOR = "_ZN3c104cuda20CUDACachingAllocator9allocatorE"
_CLASS = "22CUDAPluggableAllocator22CUDAPluggableAllocator"
_ENOUGH = 1000
"""Entries of a table of virtual functions within which those of torch's allocators are."""


def prepare(allocator: str) -> None:
    """Put the allocator in place, and initialise CUDA."""
    if allocator == "flagstone":
        flagstone.torch.install()
    elif allocator == "torch-plain":
        alloc, free = _core.plain_functions(_cuda_function("cudaMalloc"), _cuda_function("cudaFree"))
        torch._C._cuda_changeCurrentAllocator(torch._C._cuda_customAllocator(alloc, free))
    torch.cuda.init()


def pairs(nbytes: int, count: int, threads: int) -> tuple[int, int]:
    """Run pairs of raw_alloc and raw_delete in a compiled loop in each thread.

    Returns nanoseconds from the first start to the last end, and of processor time.
    """
    this, methods = _allocator()
    before = time.process_time_ns()
    wall_ns = _core.time_object_pairs(this, methods, nbytes, count, threads=threads)
    return wall_ns, time.process_time_ns() - before


def handed_over(nbytes: int, count: int) -> tuple[int, int]:
    """Have one thread allocate so many blocks and another free them, in a compiled loop; returns as `pairs`."""
    this, methods = _allocator()
    before = time.process_time_ns()
    wall_ns = _core.time_object_handed_over(this, methods, nbytes, count)
    return wall_ns, time.process_time_ns() - before


def random_shared(count: int, threads: int) -> tuple[int, int]:
    """Allocate and free blocks of random sizes in a table that all threads share; returns as `pairs`."""
    this, methods = _allocator()
    before = time.process_time_ns()
    wall_ns = _core.time_object_random_shared(this, methods, count, threads=threads)
    return wall_ns, time.process_time_ns() - before


def tensors(nbytes: int, count: int, threads: int) -> tuple[int, int]:
    """Make and delete so many tensors in each thread; returns as `pairs`."""
    barrier = threading.Barrier(threads)
    spans: list[tuple[int, int]] = []

    def make() -> None:
        empty, device, dtype = torch.empty, torch.device("cuda"), torch.uint8
        empty(nbytes, device=device, dtype=dtype)
        barrier.wait()
        start = time.perf_counter_ns()
        for _ in repeat(None, count):
            empty(nbytes, device=device, dtype=dtype)
        spans.append((start, time.perf_counter_ns()))

    before = time.process_time_ns()
    workers = [threading.Thread(target=make) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if len(spans) < threads:
        raise RuntimeError("a thread failed")
    cpu_ns = time.process_time_ns() - before
    return max(end for _, end in spans) - min(start for start, _ in spans), cpu_ns


def _cuda_function(name: str) -> int:
    """Return the address of a function of CUDA's runtime: of a library that was loaded first, else of torch's."""
    for library in (ctypes.CDLL(None), _torch_library("c10_cuda")):
        if hasattr(library, name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    raise RuntimeError(f"CUDA's runtime has no {name}")


def _torch_library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / f"lib{name}.so"))


def _allocator() -> tuple[int, tuple[int, int]]:
    """Return the address of torch's allocator in use, and of its methods raw_alloc and raw_delete.

    They are virtual, and where in the table they are depends on torch's version. One class has its table and its
    methods exported, and so tells it for all.
    """
    cuda = _torch_library("torch_cuda")
    known = ctypes.addressof(ctypes.c_char.in_dll(cuda, f"_ZTVN5torch4cuda{_CLASS}E"))
    this = ctypes.c_void_p.in_dll(_torch_library("c10_cuda"), _ALLOCATOR).value or 0
    # The first two entries come before what an object points to.
    table = known + 2 * ctypes.sizeof(ctypes.c_void_p)
    methods = []
    for name in ("9raw_allocEm", "10raw_deleteEPv"):
        wanted = ctypes.cast(getattr(cuda, f"_ZN5torch4cuda{_CLASS}{name}"), ctypes.c_void_p).value
        index = next(index for index in range(_ENOUGH) if _word(table, index) == wanted)
        methods.append(_word(_word(this, 0), index))
    return this, (methods[0], methods[1])


def _word(address: int, index: int) -> int:
    return ctypes.c_size_t.from_address(address + index * ctypes.sizeof(ctypes.c_size_t)).value


def counts() -> dict[str, int]:
    """Return how often each function of the simulated CUDA was called."""
    return simulation.Device().calls()


_ABILITIES: dict[str, Callable[..., Any]] = {
    "pairs": pairs,
    "handed_over": handed_over,
    "random_shared": random_shared,
    "tensors": tensors,
    "counts": counts,
    "replay": replay,
    "load": load,
}
_APART = ("replay",)
"""What is done in a process of its own, where nothing was allocated before."""


def main() -> None:
    """Answer until there is nothing more to answer."""
    allocator, prepared = sys.argv[1], False
    for line in sys.stdin:
        command = json.loads(line)
        apart = command["what"] in _APART
        if apart and os.fork():
            if os.wait()[1] != 0:
                os._exit(1)
            continue
        if not prepared:
            prepare(allocator)
            prepared = True
        print(json.dumps(_ABILITIES[command["what"]](**command["arguments"])), flush=True)
        if apart:
            break
    os._exit(0)


if __name__ == "__main__":
    main()
