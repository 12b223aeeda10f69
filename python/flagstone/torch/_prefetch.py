"""Batches of a loader on the device ahead of time, copied beside the program's own work."""

import contextlib
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

from flagstone.errors import FlagstoneError
from flagstone.torch._pinned import device_index
from flagstone.torch._staging import Staged, Stager

_JOIN_SECONDS = 12.0
"""How long the end of an iteration waits for its thread, which may be waiting for the loader: torch looks for dead
workers every 5 seconds, and waits as long for live ones to end."""


class Prefetcher:
    """The batches of a loader, on a device: `for batch in Prefetcher(DataLoader(...), "cuda")`.

    A thread takes batches from the loader and copies them through pooled pinned memory on a stream of its own,
    `depth` batches ahead. A batch may be any nest of mappings, lists, tuples, named tuples and dataclasses; tensors
    in it come from torch's allocator, whichever that is, and may be used on the current stream at once; everything
    else is left alone.

    It can be iterated over again, one iteration at a time. An exception of the loader or its workers is raised where
    its batch would have been, with its traceback; it ends the iteration, and so does leaving the loop. The loader
    should not pin memory itself.
    """

    def __init__(self, loader: Iterable[Any], device: object = "cuda", depth: int = 2) -> None:
        """Take any iterable; `depth` is how many batches may be on the device before they are asked for, from 1 on."""
        if not isinstance(depth, int):
            raise TypeError(f"depth is a number of batches, as 2, not {depth!r}")
        if depth < 1:
            raise ValueError(f"depth is the number of batches that are copied ahead, 1 or more, not {depth}")
        if not isinstance(device, int) and device is not None and torch.device(device).type != "cuda":
            raise FlagstoneError(
                f"batches are copied to a CUDA device, not to {device}; iterate over the loader itself"
            )
        self.loader = loader
        self.device = torch.device("cuda", device_index(device))
        self.depth = depth
        self._stager: Stager | None = None
        self._work: _Work | None = None

    def __iter__(self) -> Iterator[Any]:
        """Start to load. An earlier iteration ends: a loader with persistent workers has one at a time."""
        if self._work is not None:
            self._work.close(timeout=None)
        if self._stager is None:
            self._stager = Stager(self.device)
        # In this thread: the deaths of workers are told to the main one only if they were started there.
        self._work = _Work(iter(self.loader), self._stager, self.depth)
        return _Iteration(self._work)

    def __len__(self) -> int:
        """The loader's length; `TypeError` if it has none."""
        return len(self.loader)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Pass the number of the epoch on: to the loader, or to its samplers and data set, whichever have
        `set_epoch`."""
        own = getattr(self.loader, "set_epoch", None)
        if own is not None:
            own(epoch)
            return
        batch_sampler = getattr(self.loader, "batch_sampler", None)
        parts: list[Any] = [
            getattr(self.loader, "sampler", None),
            batch_sampler,
            getattr(batch_sampler, "sampler", None),
            getattr(self.loader, "dataset", None),
        ]
        for part in {id(part): part for part in parts}.values():
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)


class _Work:
    """The thread of an iteration, and what both share. Refers to no iteration, so that dropping that can end the
    thread."""

    def __init__(self, batches: Iterator[Any], stager: Stager, depth: int) -> None:
        self.device = stager.device
        self.results: SimpleQueue[Staged | _End] = SimpleQueue()
        self.slots = threading.Semaphore(depth)
        self.stopped = False
        self._thread = threading.Thread(
            target=self._run, args=(batches, stager), name="flagstone-prefetch", daemon=True
        )
        self._thread.start()

    def close(self, timeout: float | None = _JOIN_SECONDS) -> None:
        """End the thread, and wait for it so many seconds."""
        self.stopped = True
        self.slots.release()
        # The garbage collector may drop an iteration in any thread.
        if self._thread is threading.current_thread():
            return
        end = None if timeout is None else time.monotonic() + timeout
        while self._thread.is_alive() and (end is None or time.monotonic() < end):
            # torch raises the death of a worker in the main thread, for each child that ends until the loader has gone.
            with contextlib.suppress(RuntimeError):
                self._thread.join(None if end is None else max(0.0, end - time.monotonic()))

    def _run(self, batches: Iterator[Any], stager: Stager) -> None:
        error = None
        try:
            # For this thread only: the copies into pinned memory should not take the cores of the workers.
            torch.set_num_threads(1)
            with torch.cuda.device(self.device), stager:
                self._stage_all(batches, stager)
        except BaseException as raised:
            error = raised
        self.results.put(_End(error))

    def _stage_all(self, batches: Iterator[Any], stager: Stager) -> None:
        while True:
            self.slots.acquire()
            if self.stopped:
                return
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.results.put(stager.stage(batch))
            del batch


class _End(NamedTuple):
    error: BaseException | None


class _Iteration:
    """One pass over the loader. Dropping it ends it, and so does the end of the interpreter."""

    def __init__(self, work: _Work) -> None:
        self._work = work
        self._ended = False
        weakref.finalize(self, work.close)

    def __iter__(self) -> "_Iteration":
        return self

    def __next__(self) -> Any:
        work = self._work
        if self._ended:
            raise StopIteration
        if work.stopped:
            raise RuntimeError("this iteration was ended by a later one over the same Prefetcher; use one at a time")
        try:
            result = work.results.get()
        except BaseException:  # An interrupt, or the death of a worker, which torch raises in the main thread.
            self._end()
            raise
        if isinstance(result, _End):
            self._end()
            if result.error is None:
                raise StopIteration
            raise result.error
        work.slots.release()
        return result.hand_over()

    def _end(self) -> None:
        self._ended = True
        self._work.close()
