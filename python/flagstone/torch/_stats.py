"""A pool's numbers in the form of `torch.cuda.memory_stats`.

flagstone has no small and large pool: everything counts as `large_pool`, and `small_pool` is 0. It does not add up the
bytes of all allocations ever: the totals `allocated` and `freed` of the figures in bytes are 0. Of figures that count
blocks or segments no peak is kept: `peak` is the present value.
"""

from typing import Any

from flagstone.stats import Stats


def nested(stats: Stats, since: Stats) -> dict[str, Any]:
    """Return the dictionary of `memory_stats_as_nested_dict`; totals count from `since` on."""

    def figure(current: int = 0, peak: int | None = None, allocated: int = 0, freed: int = 0) -> dict[str, int]:
        top = current if peak is None else max(peak, current)
        return {"current": current, "peak": top, "allocated": allocated, "freed": freed}

    def pools(current: int, peak: int | None = None, allocated: int = 0, freed: int = 0) -> dict[str, dict[str, int]]:
        everything = figure(current, peak, allocated, freed)
        return {"all": everything, "small_pool": figure(), "large_pool": dict(everything)}

    allocations = stats.alloc_count - since.alloc_count
    frees = stats.free_count - since.free_count
    growths = stats.growth_count - since.growth_count
    return {
        "allocation": pools(stats.live_blocks, None, allocations, frees),
        "segment": pools(stats.segments, None, growths, max(0, growths - stats.segments)),
        "active": pools(
            stats.live_blocks + stats.pending_blocks, None, allocations, max(0, frees - stats.pending_blocks)
        ),
        "inactive_split": pools(0),
        "allocated_bytes": pools(stats.allocated_bytes, stats.peak_allocated_bytes),
        "reserved_bytes": pools(stats.reserved_bytes, stats.peak_reserved_bytes),
        "active_bytes": pools(stats.active_bytes, stats.peak_active_bytes),
        "inactive_split_bytes": pools(stats.cached_bytes),
        "requested_bytes": pools(stats.requested_bytes, stats.peak_requested_bytes),
        "reserved_bytes_by_private_pools": {},
        "oversize_allocations": figure(),
        "oversize_segments": figure(),
        "max_split_size": -1,
        "num_alloc_retries": stats.pressure_count - since.pressure_count,
        "num_ooms": stats.out_of_memory_count - since.out_of_memory_count,
        "num_oom_rejections": 0,
        "num_sync_all_streams": 0,
        "num_device_alloc": growths,
        "num_device_free": max(0, growths - stats.segments),
    }
