"""Batches to a device through a few pieces of pinned memory, in turn: no batch is too large, and nothing fragments."""

from collections import deque
from typing import Any

import torch

from flagstone._core import PinnedPool
from flagstone.errors import OutOfMemoryError
from flagstone.torch._pinned import is_plain, pinned_pool
from flagstone.torch._tree import map_tensors

PIECE = 2 << 20
"""Bytes of a piece: enough for the bus's full rate."""
PIECES = 8
"""How many there are: the host fills some while the device copies from others."""

_ALIGNMENT = 512


class Stager:
    """Copies batches to a device, on a stream of its own. Used in one thread at a time, inside a `with` block."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream."""
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self._pool = pinned_pool(device)
        self._idle: deque[_Piece] = deque()
        """The pieces in the order of their last copies, which may still run."""
        self._piece: _Piece | None = None
        self._events: deque[torch.cuda.Event] = deque()
        """Those of batches that were handed over."""

    def stage(self, batch: Any) -> "Staged":
        """Start to copy a batch. Its memory is the stream's until `Staged.hand_over`."""
        staged = Staged(self.device, self._events)
        loaders = torch.cuda.current_stream(self.device)

        def convert(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.is_cuda:
                # The loader's own work on the device comes before what the batch is used for.
                self.stream.wait_stream(loaders)
            if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
                staged.whole = False
                return tensor
            staged.tensors.append(self._tensor(tensor))
            return staged.tensors[-1]

        torch.cuda.set_stream(self.stream)
        try:
            staged.value = map_tensors(batch, convert)
        finally:
            self._end_piece()
            torch.cuda.set_stream(loaders)
        staged.copied.record(self.stream)
        return staged

    def __enter__(self) -> None:
        """Begin with no piece."""

    def __exit__(self, *exception: object) -> None:
        """Give the pieces back to their pool, which waits for the copies."""
        for piece in self._idle:
            piece.buffer.record(self.stream)
        self._idle.clear()

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if not is_plain(tensor) or tensor.requires_grad or tensor.is_pinned():
            return tensor.to(self.device, non_blocking=True)
        there = torch.empty_like(tensor, device=self.device)
        if there.numel() > 0:
            # Where a tensor has gaps or overlaps the result has not, and the source is made like it.
            same = tensor.stride() == there.stride()
            self._copy(_bytes(tensor if same else torch.empty_like(tensor).copy_(tensor)), _bytes(there))
        return there

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy bytes, through as many pieces as it takes."""
        while source.numel() > 0:
            if self._piece is None or self._piece.used >= PIECE:
                self._end_piece()
                self._piece = self._next_piece()
            part = self._piece.take(source.numel())
            count = part.numel()
            part.copy_(source[:count])
            target[:count].copy_(part, non_blocking=True)
            source, target = source[count:], target[count:]

    def _next_piece(self) -> "_Piece":
        if len(self._idle) < PIECES:
            try:
                return _Piece(self._pool)
            except OutOfMemoryError:
                # With fewer pieces it takes longer.
                if not self._idle:
                    raise
        piece = self._idle.popleft()
        piece.copied.synchronize()
        piece.used = 0
        return piece

    def _end_piece(self) -> None:
        if self._piece is not None:
            self._piece.copied.record(self.stream)
            self._idle.append(self._piece)
            self._piece = None


class _Piece:
    """Pinned memory that is filled from its start."""

    def __init__(self, pool: PinnedPool) -> None:
        self.buffer = pool.alloc(PIECE)
        self.copied = torch.cuda.Event()
        self.used = 0
        self._bytes = torch.from_dlpack(self.buffer)

    def take(self, most: int) -> torch.Tensor:
        """Return the next bytes, as many as there are."""
        part = self._bytes[self.used : self.used + most]
        self.used += (part.numel() + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        return part


class Staged:
    """A batch that is being copied."""

    def __init__(self, device: torch.device, events: "deque[torch.cuda.Event]") -> None:
        """Begin with nothing, and one of the events that are not used any more."""
        self.value: Any = None
        self.tensors: list[torch.Tensor] = []
        self.whole = True
        """Whether all tensors could be copied so: sparse, nested and quantized ones cannot be told of other streams."""
        self.copied = events.popleft() if events else torch.cuda.Event()
        self._events = events
        self._device = device

    def hand_over(self) -> Any:
        """Return the batch for use on the current stream, which waits for the copies."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self.copied)
        # The wait is for what was recorded by now, whatever is recorded later.
        self._events.append(self.copied)
        for tensor in self.tensors:
            tensor.record_stream(stream)
        if self.whole:
            return self.value
        return map_tensors(self.value, lambda tensor: tensor.to(self._device))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor without gaps, in the order in which they lie in memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
