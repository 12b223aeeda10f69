"""A history as files: one function for each format."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import IO, Any, cast

from flagstone.history import Event, History, Kind
from flagstone.history._torch import snapshot


def save(history: History, path: str, kind: Kind) -> None:
    """Write one file."""
    if kind == "torch":
        with open(path, "wb") as file:
            pickle.dump(snapshot(history), file, protocol=4)
        return
    with _open(path) as file:
        _WRITERS[kind](history, file)


def _open(path: str) -> IO[str]:
    if path.endswith(".gz"):
        return cast("IO[str]", gzip.open(path, "wt", encoding="utf-8", newline="\n"))
    return open(path, "w", encoding="utf-8", newline="\n")


def _write_trace(history: History, file: IO[str]) -> None:
    file.write("op,id,size,stream,t_us,thread\n")
    for row in trace(history):
        file.write(",".join(map(str, row)) + "\n")


_NOTES = {"map": "m", "unmap": "u", "oom": "o"}


def trace(history: History) -> Iterator[tuple[str, int, int, int, int, int]]:
    """Yield the rows of the event CSV: operation, block, bytes, stream, microseconds, thread."""
    start = history.events[0].time_ns if history.events else 0
    live: dict[int, int] = {}
    waiting: dict[int, int] = {}
    count = 0
    for event in history.live_before():
        live[event.address] = count
        yield "p", count, event.requested, event.stream, 0, event.thread
        count += 1
    for event in history.events:
        row = event.requested, event.stream, (event.time_ns - start) // 1000, event.thread
        if event.action == "alloc":
            live[event.address] = count
            yield "a", count, *row
            count += 1
        elif event.action == "use":
            if event.address in live:
                yield "x", live[event.address], *row
        elif event.action in ("free", "free_waiting"):
            block = live.pop(event.address)
            if event.action == "free_waiting":
                waiting[event.address] = block
            yield "f", block, *row
        elif event.action == "free_done":
            # What waited before the first event has no number.
            if event.address in waiting:
                yield "c", waiting.pop(event.address), *row
        else:
            yield _NOTES[event.action], -1, event.nbytes or event.requested, *row[1:]


_RMM_ACTIONS = {"alloc": "allocate", "free": "free", "free_waiting": "free", "oom": "allocate failure"}


def _write_rmm(history: History, file: IO[str]) -> None:
    file.write("Thread,Time,Action,Pointer,Size,Stream\n")
    for event in [*history.live_before(), *history.events]:
        if event.action in _RMM_ACTIONS:
            time = datetime.fromtimestamp(event.time_ns // 10**9, timezone.utc).strftime("%H:%M:%S")
            micros = event.time_ns // 1000 % 10**6
            pointer = "(nil)" if event.action == "oom" else hex(event.address)
            # As C++ writes a pointer that is null.
            stream = hex(event.stream) if event.stream else "0"
            action = _RMM_ACTIONS[event.action]
            file.write(f"{event.thread},{time}.{micros:06},{action},{pointer},{event.requested},{stream}\n")


def _write_chrome(history: History, file: IO[str]) -> None:
    file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
    name = {"name": f"flagstone, device {history.device}"}
    file.write(json.dumps({"ph": "M", "name": "process_name", "pid": history.device, "args": name}))
    for row in _chrome_rows(history):
        file.write(",\n")
        file.write(json.dumps({"pid": history.device, **row}))
    file.write("\n]}\n")


def _chrome_rows(history: History) -> Iterator[dict[str, Any]]:
    """Yield the events of the Trace Event Format: a counter of bytes, a span for each block, marks for the rest."""
    before = history.live_before()
    requested = 0
    spans: dict[int, dict[str, Any]] = {}
    count = 0
    for event in [*before, *history.events]:
        base = {"ts": event.time_ns / 1000, "tid": event.thread, "cat": "memory"}
        if event.action == "alloc":
            requested += event.requested
            # chrome://tracing knows by all of these which end is whose.
            span = spans[event.address] = {"id": count, "name": _title(history, event)}
            yield {**base, "ph": "b", **span, "args": _arguments(history, event)}
            count += 1
        elif event.action in ("free", "free_waiting"):
            requested -= event.requested
            yield {**base, "ph": "e", **spans.pop(event.address)}
        else:
            yield {**base, "ph": "i", "s": "p", "name": event.action, "args": _arguments(history, event)}
        held = {"requested": requested, "idle": max(0, event.reserved - requested)}
        yield {**base, "ph": "C", "name": "bytes", "args": held}


def _title(history: History, event: Event) -> str:
    frames = history.frames(event)
    return f"{frames[0].name}, {event.requested} bytes" if frames else f"{event.requested} bytes"


def _arguments(history: History, event: Event) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "address": hex(event.address),
        "bytes": event.nbytes,
        "requested": event.requested,
        "stream": event.stream,
    }
    frames = history.frames(event)
    if frames:
        arguments["stack"] = "\n".join(f"{frame.filename}:{frame.line} {frame.name}" for frame in frames)
    return arguments


_WRITERS = {"trace": _write_trace, "rmm": _write_rmm, "chrome": _write_chrome}
