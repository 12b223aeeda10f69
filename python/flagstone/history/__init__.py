"""What happened to a pool's memory, event by event: recorded, and written as files that other tools open.

import flagstone
from flagstone import history

pool = flagstone.Pool()
with history.record(pool, stacks=True):
    ...
pool.history().save("run.pickle")  # opens in PyTorch's memory_viz; also .json (Perfetto) and .csv (flagstone replay)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from os import PathLike, fspath
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from flagstone.errors import FlagstoneError
from flagstone.stats import Snapshot

if TYPE_CHECKING:
    from types import CodeType

    from flagstone._core import BasePool

__all__ = ["AddressInfo", "Event", "Frame", "History", "Kind", "record"]

Action: TypeAlias = Literal["alloc", "free", "free_waiting", "free_done", "use", "map", "unmap", "oom"]

Kind: TypeAlias = Literal["torch", "chrome", "trace", "rmm"]

_SUFFIXES: dict[str, Kind] = {
    ".pickle": "torch",
    ".pkl": "torch",
    ".json": "chrome",
    ".json.gz": "chrome",
    ".csv": "trace",
    ".csv.gz": "trace",
}


class Event(NamedTuple):
    """One event."""

    time_ns: int
    """Nanoseconds since 1970, as `time.time_ns`; never goes back."""
    action: Action
    """`alloc`; `free`, after which the block is ready for its own stream, or `free_waiting`, after which it waits for
    others until its `free_done`; `use` on another stream (`record_stream`); `map` and `unmap` of memory; `oom`: a
    request failed, and `address` is the number of bytes that the device had free."""
    thread: int
    """A number that no other thread of the process has or had; 0 for one that was ending."""
    address: int
    nbytes: int
    """Rounded to the size class."""
    requested: int
    """As asked for."""
    stream: int
    """The handle of the stream whose memory it is; of a `use`, of the stream that uses it."""
    reserved: int
    """Bytes that the pool held from the driver then."""
    stack: int
    """The Python stack, as a place in `History.stacks`; 0 is none."""


class Frame(NamedTuple):
    """A place in a Python program."""

    filename: str
    line: int
    name: str


class AddressInfo(NamedTuple):
    """Whose an address is, or was: what `Pool.describe` returns. `str` of it is the report."""

    address: int
    """The block's first address."""
    nbytes: int
    """Rounded to the size class."""
    requested: int
    """As asked for."""
    stream: int
    """The handle of the stream whose memory it is."""
    state: Literal["live", "waiting", "freed"]
    """`waiting`: freed, and the device may not be done with it."""
    offset: int
    """From the block's first address to the one asked for: negative before it, `requested` or more behind it."""
    alloc_stack: tuple[Frame, ...]
    """Where it was allocated, innermost frame first; empty where no history with stacks was recorded then."""
    free_stack: tuple[Frame, ...]
    """Where it was freed."""

    def __str__(self) -> str:
        """Say where the address is and who had the block."""
        if self.offset < 0:
            place = f"{-self.offset} bytes before"
        elif self.offset >= self.requested:
            place = f"{self.offset - self.requested} bytes behind the end of"
        else:
            place = f"at byte {self.offset} of"
        state = {"live": "live", "waiting": "freed (the device may still use it)", "freed": "freed"}[self.state]
        lines = [
            f"{self.address + self.offset:#x} is {place} a block of {self.requested} bytes at {self.address:#x}, "
            f"stream {self.stream:#x}, {state}"
        ]
        for name, frames in (("allocated", self.alloc_stack), ("freed", self.free_stack)):
            if frames:
                lines += [f"{name} at"] + [f'  File "{file}", line {line}, in {code}' for file, line, code in frames]
        return "\n".join(lines)


_NOTHING = Event(0, "alloc", 0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class History:
    """What was recorded of one pool, and what the pool held when it was asked."""

    device: int
    """The device's ordinal."""
    events: list[Event]
    """The newest events, in order."""
    dropped: int
    """How many older ones there were."""
    stacks: list[tuple[Frame, ...]]
    """Each different stack, its innermost frame first."""
    snapshot: Snapshot
    """Every segment with its blocks, at the end."""

    def __repr__(self) -> str:
        """Say how much there is, instead of all of it."""
        return f"<flagstone.history.History of device {self.device}: {len(self.events)} events, {self.dropped} dropped>"

    def frames(self, event: Event) -> tuple[Frame, ...]:
        """Return the stack of an event, innermost frame first; empty where none was recorded."""
        return self.stacks[event.stack] if event.stack else ()

    def live_before(self) -> list[Event]:
        """Return the blocks that were live when the first event was recorded, as allocations at its time."""
        born: set[int] = set()
        before: dict[int, Event] = {}
        for event in self.events:
            if event.action == "alloc":
                born.add(event.address)
            elif event.action in ("free", "free_waiting") and event.address not in born:
                before.setdefault(event.address, event)
        known = born | before.keys()
        first = self.events[0] if self.events else _NOTHING
        for segment in self.snapshot.segments:
            for block in segment.blocks:
                if block.state == "active_allocated" and block.addr not in known:
                    before[block.addr] = first._replace(
                        address=block.addr, nbytes=block.bytes, requested=block.requested, stream=segment.stream
                    )
        return [
            event._replace(action="alloc", time_ns=first.time_ns, reserved=first.reserved, stack=0)
            for event in before.values()
        ]

    def live_after(self) -> list[Event]:
        """Return the blocks that were live after the last event, as the allocations that made them, oldest first."""
        live = {event.address: event for event in self.live_before()}
        for event in self.events:
            if event.action == "alloc":
                live[event.address] = event
            elif event.action in ("free", "free_waiting"):
                live.pop(event.address, None)
        return list(live.values())

    def peak_requested_bytes(self) -> int:
        """Return the most bytes that were live together, as asked for, from the first event on."""
        signs = {"alloc": 1, "free": -1, "free_waiting": -1}
        start = sum(event.requested for event in self.live_before())
        changes = (signs.get(event.action, 0) * event.requested for event in self.events)
        return max(accumulate(changes, initial=start))

    def peak_reserved_bytes(self) -> int:
        """Return the most bytes that the pool held at any event."""
        return max((event.reserved for event in self.events), default=0)

    def save(self, path: str | PathLike[str], kind: Kind | None = None) -> None:
        """Write the history to a file.

        Without `kind` the name decides: `.pickle` is "torch", a snapshot as `torch.cuda.memory._dump_snapshot` writes
        it, for PyTorch's memory_viz and `flagstone report`; `.json` is "chrome", for Perfetto and chrome://tracing;
        `.csv` is "trace", for `flagstone replay`. "rmm" is the log of RMM's logging resource adaptor. Names of text
        formats that end in `.gz` are compressed. `ValueError` for a name that says nothing, or another kind.
        """
        from flagstone.history import _files

        name = fspath(path)
        if kind is None:
            kind = next((known for suffix, known in _SUFFIXES.items() if name.endswith(suffix)), None)
        if kind is None:
            raise ValueError(f"{name} ends in none of {', '.join(_SUFFIXES)}: pass kind=")
        if kind not in get_args(Kind):
            raise ValueError(f"{kind!r} is no kind of file; there are {', '.join(get_args(Kind))}")
        _files.save(self, name, kind)


@contextmanager
def record(pool: BasePool, *, max_events: int = 1_000_000, stacks: bool = False) -> Iterator[None]:
    """Record what happens to a pool's memory within the block; `pool.history()` has it afterwards.

    The newest `max_events` events are kept, 64 bytes each. While this goes on no request is a hit, and each event takes
    a short lock. With `stacks` each event has the Python stack of its thread, which makes every Python call slower
    (`flagstone bench history` measures both); threads that run already are followed from Python 3.12 on.
    `FlagstoneError` if stacks are wanted and another profile function is set, or if the pool is being recorded already:
    a second recording would forget the first, as `pool.start_history` does.
    """
    if pool.is_recording:
        raise FlagstoneError(
            "this pool is being recorded already; end that first, or read pool.history() as it goes on"
        )
    pool.start_history(max_events, stacks=stacks)
    try:
        yield
    finally:
        pool.stop_history()


def _resolve(stacks: Sequence[Sequence[tuple[CodeType, int]]]) -> list[tuple[Frame, ...]]:
    """Turn code objects, each with the place of an instruction, into frames."""
    known: dict[tuple[CodeType, int], Frame] = {}

    def frame(code: CodeType, at: int) -> Frame:
        key = (code, at)
        if key not in known:
            lines = (line for start, end, line in code.co_lines() if start <= at < end and line is not None)
            known[key] = Frame(code.co_filename, next(lines, code.co_firstlineno), code.co_name)
        return known[key]

    return [tuple(frame(code, at) for code, at in stack) for stack in stacks]
