"""A history, and a pool's segments, in the form of PyTorch's memory snapshots: what memory_viz reads."""

from __future__ import annotations

from typing import Any

from flagstone._core import __version__
from flagstone.history import Event, History
from flagstone.stats import Segment, Snapshot

_ACTIONS = {
    "alloc": ("alloc",),
    "free": ("free_requested", "free_completed"),
    "free_waiting": ("free_requested",),
    "free_done": ("free_completed",),
    "map": ("segment_map",),
    "unmap": ("segment_unmap",),
    "oom": ("oom",),
}
"""torch's names. A use on another stream has none."""


def snapshot(*histories: History) -> dict[str, Any]:
    """Return the dictionary of `torch.cuda.memory._snapshot`, with the histories of different devices."""
    traces: list[list[dict[str, Any]]] = [
        [] for _ in range(1 + max((history.device for history in histories), default=-1))
    ]
    for history in histories:
        traces[history.device] = entries(history)
    return {
        "segments": [segment for history in histories for segment in _annotated(history)],
        "device_traces": traces,
        "host_segments": [],
        "host_traces": [],
        "external_annotations": [],
        "allocator_settings": {"allocator": f"flagstone {__version__}", "expandable_segments": True},
    }


def entries(history: History) -> list[dict[str, Any]]:
    """Return a history as torch's trace of one device."""
    frames = _frames(history)
    return [
        {
            "action": action,
            "device_free" if action == "oom" else "addr": event.address,
            "size": event.nbytes if action.startswith("segment") else event.requested,
            "stream": event.stream,
            "time_us": event.time_ns // 1000,
            "frames": frames[event.stack],
            "reserved": event.reserved,
        }
        for event in history.events
        for action in _ACTIONS.get(event.action, ())
    ]


def _frames(history: History) -> list[list[dict[str, Any]]]:
    return [[frame._asdict() for frame in stack] for stack in history.stacks] or [[]]


def _annotated(history: History) -> list[dict[str, Any]]:
    """Return the segments at the end; the blocks that were allocated in the history have their stacks."""
    frames = _frames(history)
    born: dict[int, Event] = {event.address: event for event in history.events if event.action == "alloc"}
    result = segments(history.snapshot)
    for segment in result:
        for block in segment["blocks"]:
            event = born.get(block["address"])
            if event is not None and block["state"] != "inactive":
                block["frames"] = frames[event.stack]
    return result


def segments(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the segments as torch's memory snapshots have them."""
    return [_segment(snapshot.device, segment) for segment in snapshot.segments]


def _segment(device: int, segment: Segment) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [
        {
            "address": block.addr,
            "size": block.bytes,
            "requested_size": block.requested,
            "state": block.state,
            "frames": [],
        }
        for block in segment.blocks
    ]
    live = [block for block in segment.blocks if block.state == "active_allocated"]
    return {
        "device": device,
        "address": segment.addr,
        "total_size": segment.bytes,
        "allocated_size": sum(block.bytes for block in live),
        "active_size": sum(block.bytes for block in segment.blocks if block.state != "inactive"),
        "requested_size": sum(block.requested for block in live),
        "stream": segment.stream,
        "segment_type": "large" if segment.kind == "large" else "small",
        "segment_pool_id": segment.pool_id,
        "is_expandable": True,
        "frames": [],
        "blocks": blocks,
    }
