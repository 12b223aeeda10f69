"""A pool's numbers in the form of `torch.cuda.memory_stats`.

torch's small pool is of requests up to 1 MiB, and so are flagstone's small blocks. What they are cut from may change
sides: what was taken from the driver and given back counts as the large pool's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flagstone.stats import LargeStats, Stats

Figure = dict[str, int]
Pools = dict[str, Figure]


@dataclass(frozen=True)
class _Count:
    """What there is, the most that there was, and what is gone; all that there ever was is the first and the last."""

    current: int
    peak: int
    freed: int

    @property
    def allocated(self) -> int:
        return self.current + self.freed


def _blocks(stats: Stats | LargeStats) -> _Count:
    return _Count(stats.live_blocks, stats.peak_live_blocks, stats.free_count)


def _active(stats: Stats | LargeStats) -> _Count:
    return _Count(
        stats.live_blocks + stats.pending_blocks, stats.peak_live_blocks, stats.free_count - stats.pending_blocks
    )


def _allocated(stats: Stats | LargeStats) -> _Count:
    return _Count(stats.allocated_bytes, stats.peak_allocated_bytes, stats.freed_bytes)


def _active_bytes(stats: Stats | LargeStats) -> _Count:
    peak = stats.peak_active_bytes if isinstance(stats, Stats) else stats.peak_allocated_bytes
    return _Count(stats.active_bytes, peak, stats.freed_bytes - (stats.active_bytes - stats.allocated_bytes))


def _requested(stats: Stats | LargeStats) -> _Count:
    return _Count(stats.requested_bytes, stats.peak_requested_bytes, stats.freed_requested_bytes)


_OF_BLOCKS: dict[str, Callable[[Stats | LargeStats], _Count]] = {
    "allocation": _blocks,
    "active": _active,
    "allocated_bytes": _allocated,
    "active_bytes": _active_bytes,
    "requested_bytes": _requested,
}


def _figure(count: _Count, since: _Count) -> Figure:
    return {
        "current": count.current,
        "peak": max(count.peak, count.current),
        "allocated": count.allocated - since.allocated,
        "freed": count.freed - since.freed,
    }


def _minus(whole: _Count, part: _Count) -> _Count:
    return _Count(whole.current - part.current, max(0, whole.peak - part.peak), whole.freed - part.freed)


def _pools(whole: _Count, large: _Count, since: _Count, large_since: _Count) -> Pools:
    small, small_since = _minus(whole, large), _minus(since, large_since)
    return {
        "all": _figure(whole, since),
        "small_pool": _figure(small, small_since),
        "large_pool": _figure(large, large_since),
    }


def _from_driver(reserved: int, peak: int, freed: int, since: _Count, large: int) -> Pools:
    """Of what comes from the driver only the present value is known for the pools apart."""
    nothing = _Count(0, 0, 0)
    whole, small = _figure(_Count(reserved, peak, freed), since), _figure(_Count(reserved - large, 0, 0), nothing)
    rest = {"allocated": whole["allocated"] - small["allocated"], "freed": whole["freed"]}
    return {"all": whole, "small_pool": small, "large_pool": {"current": large, "peak": large, **rest}}


def nested(now: Stats, since: Stats, private: dict[tuple[int, int], int]) -> dict[str, Any]:
    """Return the dictionary of `memory_stats_as_nested_dict`; totals count from `since` on.

    `private` has the bytes that private pools hold, by their ids.
    """
    nothing = _Count(0, 0, 0)
    figures: dict[str, Any] = {
        name: _pools(count(now), count(now.large), count(since), count(since.large))
        for name, count in _OF_BLOCKS.items()
    }
    held = now.take_count - now.give_count
    cached = now.cached_bytes
    large_cached = min(cached, max(0, now.large.reserved_bytes - now.large.active_bytes))
    since_bytes = _Count(since.reserved_bytes, 0, since.given_bytes)
    since_held = _Count(since.take_count - since.give_count, 0, since.give_count)
    return {
        **figures,
        "reserved_bytes": _from_driver(
            now.reserved_bytes,
            now.peak_reserved_bytes,
            now.given_bytes,
            since_bytes,
            now.large.reserved_bytes,
        ),
        "segment": _from_driver(held, now.peak_held_count, now.give_count, since_held, held),
        "inactive_split": _pools(nothing, nothing, nothing, nothing),
        "inactive_split_bytes": _from_driver(cached, cached, 0, nothing, large_cached),
        "reserved_bytes_by_private_pools": {
            name: _from_driver(held, held, 0, nothing, held) for name, held in private.items()
        },
        "oversize_allocations": _figure(nothing, nothing),
        "oversize_segments": _figure(nothing, nothing),
        "max_split_size": -1,
        "num_alloc_retries": now.pressure_count - since.pressure_count,
        "num_ooms": now.out_of_memory_count - since.out_of_memory_count,
        "num_oom_rejections": 0,
        "num_sync_all_streams": now.synchronize_count - since.synchronize_count,
        "num_device_alloc": now.take_count - since.take_count,
        "num_device_free": now.give_count - since.give_count,
    }
