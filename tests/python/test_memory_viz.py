"""Snapshots as the page of PyTorch's memory_viz reads them: from what there is at the end it undoes each event.

The page fails where memory that was mapped is not there as part of one segment, or where a block is in no segment.
"""

import random

import pytest

import flagstone
from flagstone import history
from flagstone.history._torch import snapshot
from flagstone.testing import SimulatedDevice

MIB = 1 << 20


def undone(data):
    """Yield the segments (start, end, stream) and the blocks after each event, the last one first."""
    segments = sorted(
        (segment["address"], segment["address"] + segment["total_size"], segment["stream"])
        for segment in data["segments"]
    )
    blocks = {block["address"] for segment in data["segments"] for block in segment["blocks"] if is_active(block)}
    yield segments, blocks
    for entry in reversed(data["device_traces"][0]):
        action, start = entry["action"], entry.get("addr")
        end = start + entry["size"] if start is not None else None
        if action == "alloc":
            blocks.remove(start)
        elif action == "free_requested":
            assert start in blocks
        elif action == "free_completed":
            assert start not in blocks
            blocks.add(start)
        elif action == "segment_unmap":
            segments = joined(sorted([*segments, (start, end, entry["stream"])]))
        elif action == "segment_map":
            (whole,) = [one for one in segments if one[0] <= start and end <= one[1]]
            parts = (whole[0], start, whole[2]), (end, whole[1], whole[2])
            segments = sorted({*segments, *parts} - {whole} - {part for part in parts if part[0] == part[1]})
        yield segments, blocks


def is_active(block):
    return block["state"] in ("active_allocated", "active_pending_free")


def joined(segments):
    """Return segments with neighbours of one stream as one."""
    result = segments[:1]
    for start, end, stream in segments[1:]:
        if result[-1][1:] == (start, stream):
            result[-1] = (result[-1][0], end, stream)
        else:
            result.append((start, end, stream))
    return result


@pytest.mark.parametrize("seed", range(8))
def test_every_event_can_be_undone(seed):
    random_ = random.Random(seed)
    device = SimulatedDevice(capacity=2 << 30, backed=False)
    pool = flagstone.Pool(device)
    streams = [0, device.create_stream(), device.create_stream()][: 1 + 2 * (seed % 2)]
    for stream in streams[1:]:
        pool.keep_stream(stream)
    live = []

    def work(steps):
        for _ in range(steps):
            if live and random_.random() < 0.5:
                pool.free_raw(live.pop(random_.randrange(len(live))))
                continue
            size = random_.choice((700, random_.randrange(1, MIB), random_.randrange(1, 40 * MIB)))
            live.append(pool.alloc_raw(size, random_.choice(streams)))
            if random_.random() < 0.1:
                pool.record_stream(live[-1], random_.choice(streams))
            if random_.random() < 0.02:
                pool.trim()

    work(50)
    with history.record(pool):
        work(300)
    moments = 0
    for segments, blocks in undone(snapshot(pool.history())):
        assert all(any(start <= block < end for start, end, _ in segments) for block in blocks)
        moments += 1
    assert moments > 300
