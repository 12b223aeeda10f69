"""A pool's numbers as the tables that people paste into bug reports."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import fill
from typing import TYPE_CHECKING

from flagstone._core import __version__
from flagstone._text import duration, size, table

if TYPE_CHECKING:
    from flagstone.stats import Stats

WIDTH = 100
"""Columns of a line, about the most there are."""

Part = tuple[int, int]
"""A number of all blocks, and the same of those above 1 MiB."""
Row = list[str]


def text(stats: Stats) -> str:
    """Return everything: who it is of, bytes and blocks, and what happened."""
    whose = f"flagstone {__version__}, device {stats.device}, backend {stats.backend}"
    settings = fill(f"settings: {stats.settings or 'the defaults'}", WIDTH, subsequent_indent="  ")
    memory = table(["memory", "now", "peak", "in all", "given back"], _memory(stats))
    events = table(["events", ""], _events(stats))
    return f"{whose}\n{settings}\n\n{memory}\n\n{events}"


def _number(count: int) -> str:
    return f"{count:,}"


def _row(name: str, show: Callable[[int], str], *values: int | None) -> Row:
    cells = ["" if value is None else show(value) for value in values]
    return [name, *cells, *[""] * (4 - len(cells))]


def _parts(name: str, show: Callable[[int], str], *values: Part | None) -> list[Row]:
    return [
        _row(name, show, *(value and value[0] for value in values)),
        _row("  up to 1 MiB", show, *(value and max(0, value[0] - value[1]) for value in values)),
        _row("  above 1 MiB", show, *(value and value[1] for value in values)),
    ]


def _memory(stats: Stats) -> list[Row]:
    large = stats.large
    freed, freed_requested = (
        (stats.freed_bytes, large.freed_bytes),
        (stats.freed_requested_bytes, large.freed_requested_bytes),
    )
    requested, allocated = (
        (stats.requested_bytes, large.requested_bytes),
        (stats.allocated_bytes, large.allocated_bytes),
    )
    return [
        *_parts(
            "requested",
            size,
            requested,
            (stats.peak_requested_bytes, large.peak_requested_bytes),
            _sum(requested, freed_requested),
            freed_requested,
        ),
        *_parts(
            "allocated",
            size,
            allocated,
            (stats.peak_allocated_bytes, large.peak_allocated_bytes),
            _sum(allocated, freed),
            freed,
        ),
        _row("active", size, stats.active_bytes, stats.peak_active_bytes),
        _row("  up to 1 MiB", size, max(0, stats.active_bytes - large.active_bytes)),
        _row("  above 1 MiB", size, large.active_bytes),
        _row("reserved", size, stats.reserved_bytes, stats.peak_reserved_bytes, stats.taken_bytes, stats.given_bytes),
        _row("  up to 1 MiB", size, max(0, stats.reserved_bytes - large.reserved_bytes)),
        _row("  above 1 MiB, or for none yet", size, large.reserved_bytes),
        _row("cached", size, stats.cached_bytes),
        _row("  in magazines", size, stats.magazine_bytes),
        _row("  largest free range", size, stats.largest_free_bytes),
        ["fragmentation", f"{100 * stats.fragmentation:.1f} %", "", "", ""],
        ["utilisation", "", f"{100 * stats.utilisation:.1f} %", "", ""],
        ["limit", "none" if stats.limit is None else size(stats.limit), "", "", ""],
        *_parts(
            "live blocks",
            _number,
            (stats.live_blocks, large.live_blocks),
            (stats.peak_live_blocks, large.peak_live_blocks),
            (stats.alloc_count, large.alloc_count),
            (stats.free_count, large.free_count),
        ),
        *_parts("blocks that wait for streams", _number, (stats.pending_blocks, large.pending_blocks)),
        _row("segments", _number, stats.segments),
        _row(
            "pieces from the driver",
            _number,
            stats.take_count - stats.give_count,
            stats.peak_held_count,
            stats.take_count,
            stats.give_count,
        ),
        _row("host memory for records", size, stats.host_bytes),
    ]


def _sum(one: Part, other: Part) -> Part:
    return one[0] + other[0], one[1] + other[1]


def _events(stats: Stats) -> list[Row]:
    mistakes = (
        ("frees of foreign pointers", stats.invalid_free_count),
        ("double frees", stats.double_free_count),
        ("frees with a wrong size", stats.wrong_size_free_count),
        ("uses recorded for foreign pointers", stats.invalid_record_count),
        ("failed driver calls", stats.driver_error_count),
    )
    return [
        ["hits", _number(stats.hit_count)],
        *_times(stats.hit_times, stats.hit_time_below),
        ["misses", _number(stats.miss_count)],
        *_times(stats.miss_times, stats.miss_time_below),
        ["growths", _number(stats.growth_count)],
        ["waits for the whole device", _number(stats.synchronize_count)],
        ["events recorded", _number(stats.event_count)],
        ["streams made to wait", _number(stats.stream_wait_count)],
        ["short of memory", _number(stats.pressure_count)],
        *([f"  {step.name}", step.summary()] for step in stats.steps if step.count),
        ["out of memory", _number(stats.out_of_memory_count)],
        *([name, _number(count)] for name, count in mistakes if count),
    ]


def _times(times: tuple[int, ...], below: Callable[[float], int]) -> list[Row]:
    if not any(times):
        return []
    return [[f"  {100 * part:g} % of the timed below", duration(below(part) / 1000)] for part in (0.5, 0.99)]
