"""Measures what each call of the driver takes. `prices.py` makes the simulated device's prices of these figures."""

import json
import os
import statistics
import sys
from ctypes import CDLL, byref, c_size_t, c_void_p

import driver
import torch

from flagstone import _core

ROUNDS = 20
ASYNC_SIZES = (512, 2 << 20, 64 << 20)


def calls() -> list[dict]:
    """Return a row for each function that flagstone calls, by its own compiled timing."""
    rows = []
    for timed in _core.time_driver(rounds=ROUNDS):
        samples = timed["nanoseconds"]
        row = {"call": timed["call"], "bytes": timed["nbytes"], "mappings": timed["mappings"]}
        rows.append({**row, "ns_per_call": statistics.median(samples), "least": min(samples), "most": max(samples)})
    return rows


def runtime() -> CDLL:
    """Return the runtime that torch has: the simulated one is in the process from its start."""
    return CDLL(None) if os.environ.get("FLAGSTONE_REHEARSAL") else CDLL("libcudart.so.13")


def stream_ordered() -> list[dict]:
    """Return a row for each size of cudaMallocAsync and cudaFreeAsync; after the first, the driver's pool is warm."""
    library, stream, rows = runtime(), torch.cuda.Stream().cuda_stream, []
    for nbytes in ASYNC_SIZES:
        taken, given = [], []
        for _ in range(ROUNDS):
            address = c_void_p()
            arguments = (byref(address), c_size_t(nbytes), c_void_p(stream))
            taken.append(driver.nanoseconds(library.cudaMallocAsync, *arguments))
            given.append(driver.nanoseconds(library.cudaFreeAsync, address, c_void_p(stream)))
        for call, samples in (("cudaMallocAsync", taken), ("cudaFreeAsync", given)):
            rows.append({"call": call, "bytes": nbytes, "ns_per_call": statistics.median(samples), "first": samples[0]})
    return rows


def main() -> None:
    """Measure."""
    print(json.dumps({"driver": calls()}), flush=True)
    torch.cuda.init()
    print(json.dumps({"stream ordered": stream_ordered()}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
