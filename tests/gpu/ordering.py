"""Proves the order of uses with kernels: a slow kernel lets a stamp come late, and a block given out early shows it.

Each scenario is a process of its own. The last one is the other way round: with the protection taken away the wrong
data is seen, so the scenarios before it could have failed.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy
import torch
from memory import MIB, in_child, read, slow, write

import flagstone
import flagstone.torch

BYTES = 4 * MIB
STAMP, OURS = 1, 2

Scenario = Callable[[], Any]
SCENARIOS: list[tuple[Scenario, Any]] = []


def scenario(expected: Any) -> Callable[[Scenario], Scenario]:
    """Enter a scenario with what it has to give."""

    def enter(run: Scenario) -> Scenario:
        SCENARIOS.append((run, expected))
        return run

    return enter


def fresh(nbytes: int = BYTES) -> torch.Tensor:
    """Return a tensor of bytes."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def full(value: int = OURS, nbytes: int = BYTES) -> torch.Tensor:
    """Return a tensor that a kernel fills."""
    return fresh(nbytes).fill_(value)


def values(tensors: list[torch.Tensor]) -> list[int]:
    """Return the least and the greatest value of each tensor, each once, when the device is done."""
    torch.cuda.synchronize()
    return sorted({int(value) for tensor in tensors for value in tensor.cpu().aminmax()})


def late_stamp(stream: torch.cuda.Stream, tensor: torch.Tensor) -> None:
    """Give the stream a slow kernel, and one that stamps the tensor after it."""
    slow(stream.cuda_stream)
    with torch.cuda.stream(stream):
        tensor.fill_(STAMP)


@scenario({"the same block": True, "values": [OURS]})
def a_block_goes_back_to_its_own_stream_at_once():
    flagstone.torch.install()
    tensor = fresh()
    address = tensor.data_ptr()
    late_stamp(torch.cuda.current_stream(), tensor)
    del tensor
    again = full()
    return {"the same block": again.data_ptr() == address, "values": values([again])}


@scenario([OURS])
def a_block_of_another_stream_is_not_given_out_early():
    flagstone.torch.install()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensor = fresh()
    late_stamp(side, tensor)
    del tensor
    return values([full() for _ in range(8)])


def recorded_use() -> list[int]:
    """Use a tensor on a second stream, say so, free it, and return what tensors have that are made at once."""
    side = torch.cuda.Stream()
    tensor = fresh()
    late_stamp(side, tensor)
    tensor.record_stream(side)
    del tensor
    return values([full() for _ in range(8)])


@scenario([OURS])
def record_stream_is_kept():
    flagstone.torch.install()
    return recorded_use()


@scenario([OURS])
def record_stream_is_kept_in_a_mempool():
    with torch.cuda.use_mem_pool(flagstone.torch.MemPool()):
        return recorded_use()


@scenario([OURS])
def a_block_taken_from_another_stream_when_memory_is_short():
    flagstone.torch.install(limit=64 * MIB)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensor = fresh(48 * MIB)
    late_stamp(side, tensor)
    del tensor
    return values([full(OURS, 48 * MIB)])


@scenario({"small": [STAMP], "large": [OURS]})
def pages_of_freed_blocks_mapped_anew_behind_pending_kernels():
    flagstone.torch.install(limit=96 * MIB)
    tensors = [fresh(6 * MIB) for _ in range(12)]
    slow(0)
    for tensor in tensors:
        tensor.fill_(STAMP)
    kept = tensors[::2]
    del tensor, tensors
    large = full(OURS, 40 * MIB)
    return {"small": values(kept), "large": values([large])}


@scenario([OURS])
def the_cache_emptied_under_pending_kernels():
    flagstone.torch.install()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensor = fresh()
    late_stamp(side, tensor)
    del tensor
    torch.cuda.empty_cache()
    return values([full() for _ in range(8)])


@scenario({"graph": [STAMP], "eager": [OURS]})
def a_graphs_memory_is_its_own():
    flagstone.torch.install()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.cuda._sleep(100_000_000)
        middle = full(STAMP)
        result = middle.clone()
        del middle
    graph.replay()
    eager = [full() for _ in range(8)]
    graph.replay()
    return {"graph": values([result]), "eager": values(eager)}


@scenario([OURS])
def a_free_that_names_another_stream():
    pool = flagstone.Pool(backend="cuda")
    side = torch.cuda.Stream()
    block = pool.alloc(BYTES)
    slow(side.cuda_stream)
    with torch.cuda.stream(side):
        write(block.ptr, BYTES, STAMP)
    block.free(side)
    others = [pool.alloc(BYTES) for _ in range(8)]
    for other in others:
        write(other.ptr, BYTES, OURS)
    torch.cuda.synchronize()
    return sorted({value for other in others for value in read(other.ptr, BYTES)})


def pinned_copy(record: bool) -> list[int]:
    """Copy a pinned buffer late, free it, let the host write into buffers made at once; what the device has got."""
    pool = flagstone.PinnedPool(backend="cuda")
    side = torch.cuda.Stream()
    there = fresh()
    torch.cuda.synchronize()
    buffer = pool.alloc(BYTES)
    host = torch.from_numpy(numpy.asarray(buffer))
    host.fill_(OURS)
    slow(side.cuda_stream)
    with torch.cuda.stream(side):
        there.copy_(host, non_blocking=True)
    if record:
        pool.record_stream(buffer, side)
    pool.free_raw(buffer.ptr)
    for _ in range(8):
        torch.from_numpy(numpy.asarray(pool.alloc(BYTES))).fill_(STAMP)
    return values([there])


@scenario([OURS])
def a_pinned_buffer_is_kept_until_its_copy_is_done():
    return pinned_copy(record=True)


@scenario([OURS])
def a_pinned_buffer_whose_address_was_handed_out_waits_without_a_recorded_use():
    return pinned_copy(record=False)


@scenario(True)
def without_the_record_stream_hook_the_late_stamp_is_seen():
    flagstone.torch._swap.HOOKS.pop("set_record_stream_fn")
    flagstone.torch.install()
    return STAMP in recorded_use()


def main() -> int:
    """Run every scenario. Return 1 where one gives something else."""
    wrong = 0
    for run, expected in SCENARIOS:
        seen = in_child(run)
        same = seen == expected
        wrong += not same
        said = "as it has to be" if same else f"WRONG: {json.dumps(seen)} instead of {json.dumps(expected)}"
        print(json.dumps({run.__name__.replace("_", " "): said}), flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
