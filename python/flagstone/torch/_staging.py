"""Batches to a device through pieces of pinned memory, all of one size: no batch is too large, and nothing fragments."""

from typing import Any

import torch

from flagstone._core import PinnedBuffer
from flagstone.torch._pinned import is_plain, pinned_pool
from flagstone.torch._tree import map_tensors

PIECE = 2 << 20
"""Bytes of a piece: copied at the bus's full rate, and little enough that the end of a batch wastes little."""

_ALIGNMENT = 512


class Stager:
    """Copies batches to a device, on a stream of its own. Used in one thread."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream."""
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self._pool = pinned_pool(device)
        self._buffer: PinnedBuffer | None = None
        self._piece = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def stage(self, batch: Any) -> tuple[Any, list[torch.Tensor], torch.cuda.Event]:
        """Start to copy a batch; return it on the device, its tensors, and the event after the last copy."""
        made: list[torch.Tensor] = []

        def convert(tensor: torch.Tensor) -> torch.Tensor:
            there = self._tensor(tensor)
            if there.is_cuda:
                made.append(there)
            return there

        try:
            with torch.cuda.stream(self.stream):
                moved = map_tensors(batch, convert)
        finally:
            self._end_piece()
        event = torch.cuda.Event()
        event.record(self.stream)
        return moved, made, event

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if not is_plain(tensor) or tensor.requires_grad or tensor.is_pinned():
            return tensor.to(self.device, non_blocking=True)
        there = torch.empty_like(tensor, device=self.device)
        if there.numel() > 0:
            # Where a tensor has gaps or overlaps the result has not, and the source is made like it.
            same = tensor.stride() == there.stride()
            self._bytes(_bytes(tensor if same else torch.empty_like(tensor).copy_(tensor)), _bytes(there))
        return there

    def _bytes(self, source: torch.Tensor, target: torch.Tensor) -> None:
        done, end = 0, source.numel()
        while done < end:
            if self._used >= self._piece.numel():
                self._begin_piece()
            count = min(end - done, self._piece.numel() - self._used)
            part = self._piece[self._used : self._used + count]
            part.copy_(source[done : done + count])
            target[done : done + count].copy_(part, non_blocking=True)
            done += count
            self._used = (self._used + count + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT

    def _begin_piece(self) -> None:
        self._end_piece()
        self._buffer = self._pool.alloc(PIECE)
        self._piece = torch.from_dlpack(self._buffer)

    def _end_piece(self) -> None:
        """Give the piece back: the pool waits for the copies that the stream has by now."""
        self._piece, self._used = torch.empty(0, dtype=torch.uint8), 0
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            buffer.free(self.stream)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor without gaps, in the order in which they lie in memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
