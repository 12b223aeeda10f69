"""Recordings of every format as what the page shows: events with addresses, and what was there before them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from flagstone import _core
from flagstone.errors import FlagstoneError, TraceError
from flagstone.history._torch import snapshot
from flagstone.report._runs import Runs

KINDS = ("alloc", "free_requested", "free_completed", "map", "unmap", "oom")
"""What a row says; the page knows them by their places."""

_ACTIONS = {
    "alloc": 0,
    "free_requested": 1,
    "free_completed": 2,
    "segment_alloc": 3,
    "segment_map": 3,
    "segment_free": 4,
    "segment_unmap": 4,
    "oom": 5,
}
ALLOC, FREE, FREED, MAP, UNMAP, OOM = range(len(KINDS))


_FRAMES = 1000
"""Frames of one stack that are shown."""

_NAME = 1000
"""Characters of a name that are shown."""

_STACK_TEXT = 1 << 28
"""Characters of all stacks together."""


class Row(NamedTuple):
    """One event."""

    kind: int
    address: int
    size: int
    stream: int
    stack: int
    time_us: int
    reserved: int


@dataclass(frozen=True)
class Recording:
    """Events in order, and the blocks (address, bytes, stream) and memory (address, bytes) that were there before."""

    rows: list[Row]
    stacks: list[list[str]]
    blocks: list[tuple[int, int, int]]
    memory: list[tuple[int, int]]
    placed_by: str
    """Whose addresses these are: "torch" or "flagstone"."""

    def peaks(self) -> tuple[int, int]:
        """Return the most bytes that were live, and the most that were held."""
        live = most = sum(size for _, size, _ in self.blocks)
        held = sum(size for _, size in self.memory)
        for row in self.rows:
            if row.kind == ALLOC:
                live += row.size
                most = max(most, live)
            elif row.kind == FREE:
                live -= row.size
            held = max(held, row.reserved)
        return most, held

    def columns(self) -> dict[str, Any]:
        """Return the data as the page reads it."""
        return {
            "columns": {name: [row[place] for row in self.rows] for place, name in enumerate(Row._fields)},
            "stacks": self.stacks,
            "blocks": self.blocks,
            "memory": self.memory,
        }


def load(path: str | PathLike[str], trace: _core.Trace) -> Recording:
    """Read a recording; `trace` is what flagstone's own reader, which checks everything, made of the file."""
    with Path(path).open("rb") as file:
        if file.read(1) == b"\x80":
            file.seek(0)
            data = _unpickle(file, str(path))
            try:
                return _from_snapshot(data, trace.device or 0)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                message = f"{path}: not a snapshot that can be shown: {type(error).__name__}: {error}"
                raise TraceError(message, file=str(path)) from error
    return _from_trace(trace)


class _NoClasses(pickle.Unpickler):
    """Reads plain data; a pickle that wants to load anything is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it would load {module}.{name}")


def _unpickle(file: IO[bytes], name: str) -> dict[str, Any]:
    try:
        result: dict[str, Any] = _NoClasses(file).load()
    except (pickle.UnpicklingError, EOFError) as error:
        raise TraceError(f"{name}: not plain data: {error}", file=name) from error
    return result


def _from_snapshot(data: dict[str, Any], device: int) -> Recording:
    """Take the history of one device."""
    traces: Sequence[Sequence[dict[str, Any]]] = data["device_traces"]
    segments = [segment for segment in data["segments"] if segment.get("device", 0) == device]
    known: dict[str, int] = {}
    # A pickle may name one list of frames, and one long name, as often as it likes: each is read once, and not whole.
    seen: dict[int, int] = {}
    left = _STACK_TEXT

    def place(frames: Sequence[dict[str, Any]]) -> int:
        nonlocal left
        if id(frames) not in seen:
            lines = [
                f"{frame['name'][:_NAME]} ({frame['filename'][:_NAME]}:{frame['line']})" for frame in frames[:_FRAMES]
            ]
            text = "\n".join(lines)
            left -= len(text)
            if left < 0:
                raise ValueError(f"its stacks have more than {_STACK_TEXT} characters")
            seen[id(frames)] = known.setdefault(text, len(known))
        return seen[id(frames)]

    nothing: tuple[dict[str, Any], ...] = ()
    place(nothing)
    entries = [entry for entry in traces[device] if entry["action"] in _ACTIONS]
    memory = Runs((segment["address"], segment["total_size"]) for segment in segments)
    for entry in reversed(entries):
        kind = _ACTIONS[entry["action"]]
        if kind == MAP:
            memory.remove(entry["addr"], entry["size"])
        elif kind == UNMAP:
            memory.add(entry["addr"], entry["size"])
    before = list(memory)
    held = memory.bytes
    rows: list[Row] = []
    for entry in entries:
        kind = _ACTIONS[entry["action"]]
        held += {MAP: entry["size"], UNMAP: -entry["size"]}.get(kind, 0)
        rows.append(
            Row(
                kind,
                entry.get("addr", 0),
                entry["size"],
                entry.get("stream", 0),
                place(entry.get("frames", nothing)),
                entry.get("time_us", len(rows)),
                entry.get("reserved", held),
            )
        )
    own = str((data.get("allocator_settings") or {}).get("allocator", "")).startswith("flagstone")
    return Recording(
        rows=rows,
        stacks=[text.split("\n") if text else [] for text in known],
        blocks=list(_live_before(rows, segments)),
        memory=before,
        placed_by="flagstone" if own else "torch",
    )


def _live_before(rows: Sequence[Row], segments: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int, int]]:
    """Yield the blocks that were live before the first event."""
    known = set()
    for row in rows:
        if row.kind in (ALLOC, FREE) and row.address not in known:
            known.add(row.address)
            if row.kind == FREE:
                yield row.address, row.size, row.stream
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)
            if block["state"] == "active_allocated" and address not in known:
                yield address, block.get("requested_size") or block["size"], segment.get("stream", 0)
            address += block["size"]


def _from_trace(trace: _core.Trace) -> Recording:
    """Replay a trace as the table of settings does, while the pool's history is recorded, in the trace's time."""
    history = _core.replay(trace, history=8 * len(trace) + 1000)["history"]
    if history.dropped:
        raise FlagstoneError(f"{trace.name} makes more events than can be shown; cut it into parts")
    recording = _from_snapshot(snapshot(history), history.device)
    schedule = trace.schedule()
    failed: set[int] = set()
    # What failed is not freed, and a use leaves no row.
    calls = (
        (time // 1000, block)
        for time, call, block, *_ in schedule["steps"][: schedule["own_steps"]]
        if call == "alloc" or (call == "free" and block not in failed)
    )
    now = 0
    rows: list[Row] = []
    waiting: list[Row] = []
    for row in recording.rows:
        if row.kind in (ALLOC, FREE, OOM):
            call = next(calls, None)
            if call is None:
                break  # A replay frees what is left at its end, which the trace does not say.
            now, block = call
            if row.kind == OOM:
                failed.add(block)
            # What the pool does for a request comes before it, and has its time.
            rows += [one._replace(time_us=now) for one in (*waiting, row)]
            waiting.clear()
        else:
            waiting.append(row)
    rows += [one._replace(time_us=now) for one in waiting]
    return Recording(rows, recording.stacks, recording.blocks, recording.memory, "flagstone")
