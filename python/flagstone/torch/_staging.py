"""Batches to a device through pieces of pinned memory, all of one size: no batch is too large, and nothing
fragments."""

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

    def stage(self, batch: Any) -> "Staged":
        """Start to copy a batch. Its memory is the stream's until `Staged.hand_over`."""
        staged = Staged(self.device)

        def convert(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.layout != torch.strided or tensor.is_nested:
                staged.whole = False
                return tensor
            staged.tensors.append(self._tensor(tensor))
            return staged.tensors[-1]

        try:
            with torch.cuda.stream(self.stream):
                staged.value = map_tensors(batch, convert)
        finally:
            self._end_piece()
        staged.copied.record(self.stream)
        return staged

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
        if self._buffer is not None:
            self._buffer.record(self.stream)
        self._buffer, self._piece, self._used = None, torch.empty(0, dtype=torch.uint8), 0


class Staged:
    """A batch that is being copied."""

    def __init__(self, device: torch.device) -> None:
        """Begin with nothing."""
        self.value: Any = None
        self.tensors: list[torch.Tensor] = []
        self.whole = True
        """Whether all tensors could be copied so: the memory of sparse and nested ones cannot be told of another
        stream."""
        self.copied = torch.cuda.Event()
        self._device = device

    def hand_over(self) -> Any:
        """Return the batch for use on the current stream, which waits for the copies."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self.copied)
        for tensor in self.tensors:
            if tensor.device == self._device:
                tensor.record_stream(stream)
        if self.whole:
            return self.value
        return map_tensors(self.value, lambda tensor: tensor.to(self._device))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor without gaps, in the order in which they lie in memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
