"""Captures that fail: before torch 2.14 no allocator is told that they are over, so their memory would stay theirs."""

from typing import Any

import torch


def apply() -> None:
    """Have the end of every capture told to the pools, also where it failed."""
    graph = torch.cuda.CUDAGraph
    begin, end = graph.capture_begin, graph.capture_end

    def capture_begin(self: Any, pool: Any = None, capture_error_mode: str = "global") -> None:
        name = torch.cuda.graph_pool_handle() if pool is None else pool
        device = torch.cuda.current_device()
        begin(self, name, capture_error_mode)
        self._flagstone_capture = device, name

    def capture_end(self: Any) -> None:
        try:
            end(self)
        except BaseException:
            if not _is_told(self):
                device, name = self._flagstone_capture
                torch._C._cuda_endAllocateToPool(device, name)
                torch._C._cuda_releasePool(device, name)
            raise

    graph.capture_begin, graph.capture_end = capture_begin, capture_end


def _is_told(graph: Any) -> bool:
    """Whether torch has ended the capture for its allocator, and so will release its pool: only then has it one."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True
