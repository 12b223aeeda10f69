"""What a pool says about itself: `Pool.stats()`, which is cheap, `Pool.totals()`, which looks at every size of every
thread, and `Pool.snapshot()`, which looks at every block.

Sizes are bytes. Requested is what callers asked for; allocated is that rounded to size classes; active adds blocks that
are freed and still in use on a stream; reserved is what the pool holds from the driver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class StepTotal:
    """A step that is taken before an allocation fails, over all allocations of a pool so far."""

    name: str
    """What is done."""
    count: int
    """How often it was taken."""
    sufficed: int
    """How often the allocation had its memory then."""
    timed_out: int
    """How often the device was not done in the time that the step may wait."""
    nanoseconds: int
    """Time that it took together, with the attempt after it."""

    def summary(self) -> str:
        """Say it in a few words: "enough in 2 of 3, 1.5 ms"."""
        from flagstone._text import duration

        late = f", {self.timed_out:,} too late" if self.timed_out else ""
        return f"enough in {self.sufficed:,} of {self.count:,}{late}, {duration(self.nanoseconds / 1000)}"


@dataclass(frozen=True)
class LargeStats:
    """The part of a pool's numbers that is of blocks above 1 MiB; each as in `Stats`."""

    live_blocks: int
    peak_live_blocks: int
    """`live_blocks` when the `allocated_bytes` of all blocks were highest, as the other peaks here."""
    pending_blocks: int
    alloc_count: int
    free_count: int
    requested_bytes: int
    peak_requested_bytes: int
    freed_requested_bytes: int
    allocated_bytes: int
    peak_allocated_bytes: int
    freed_bytes: int
    active_bytes: int
    reserved_bytes: int
    """Held from the driver for such blocks, or for none yet."""


@dataclass(frozen=True)
class Stats:
    """The numbers of one pool at one moment: exact when no thread allocates or frees meanwhile."""

    device: int
    """The device's ordinal."""
    backend: str
    """`"cuda"`, or `"sim"` for the simulated device."""
    settings: str
    """What the pool was made with, where not the default, as `FLAGSTONE_CONF` takes it: "limit:2GiB, remap:off"."""
    requested_bytes: int
    """Live bytes, as asked for."""
    allocated_bytes: int
    """The same, rounded to multiples of 512."""
    active_bytes: int
    """`allocated_bytes`, and blocks that are freed but wait for other streams."""
    reserved_bytes: int
    """Held from the driver."""
    cached_bytes: int
    """Held and ready for use: `reserved_bytes - active_bytes`."""
    magazine_bytes: int
    """Of those, in the threads' magazines (about)."""
    peak_requested_bytes: int
    """`requested_bytes` when `allocated_bytes` was highest since `reset_peak`."""
    peak_allocated_bytes: int
    """The most that `allocated_bytes` was since `reset_peak`: exact while one thread uses the pool, and never too low.
    With several, at most 1 MiB a thread too high: blocks up to 1 MiB count as each has announced them, ahead of use."""
    peak_active_bytes: int
    """The most that `active_bytes` was since `reset_peak`, as exact as `peak_allocated_bytes`."""
    peak_reserved_bytes: int
    """The most that `reserved_bytes` was since `reset_peak`, exact."""
    live_blocks: int
    """Blocks that are allocated."""
    peak_live_blocks: int
    """`live_blocks` when `allocated_bytes` was highest."""
    alloc_count: int
    """Allocations that succeeded, ever."""
    free_count: int
    """Frees that succeeded, ever."""
    freed_bytes: int
    """Bytes freed, ever, rounded; with `allocated_bytes` all that was ever allocated."""
    freed_requested_bytes: int
    """The same, as asked for."""
    miss_count: int
    """Allocations that no magazine could meet."""
    hit_times: tuple[int, ...]
    """How long allocations took that the thread's own magazine met, of each thread's one in 1,024: the n-th number
    counts times from 2**n to below 2**(n + 1) nanoseconds, the last one all longer ones. Reading the clock is part of
    each time."""
    hit_nanoseconds: int
    """All times of `hit_times` together."""
    miss_times: tuple[int, ...]
    """How long those took, all of them, that no list of ready blocks could meet, and that got their memory; counted as
    `hit_times`."""
    miss_nanoseconds: int
    """All times of `miss_times` together."""
    growth_count: int
    """Times that the pool grew: by idle memory, by memory from the driver, or by both."""
    taken_bytes: int
    """Bytes taken from the driver, ever."""
    given_bytes: int
    """Bytes given back to it, ever. What is left is `reserved_bytes`."""
    take_count: int
    """Pieces of memory taken from the driver, ever: handles, or slabs."""
    give_count: int
    """Pieces given back."""
    peak_held_count: int
    """The most pieces that were held since `reset_peak`."""
    synchronize_count: int
    """Times that the whole device was waited for."""
    pending_blocks: int
    """Blocks that are freed and wait for other streams."""
    event_count: int
    """Events recorded for uses on other streams."""
    stream_wait_count: int
    """How often a stream was made to wait, on the device, for another one's memory."""
    segments: int
    """Contiguous ranges held from the driver."""
    largest_free_bytes: int
    """The largest free range of any stream."""
    out_of_memory_count: int
    """Allocations that failed for want of memory."""
    pressure_count: int
    """Allocations that needed more than growth, whether they failed or not."""
    invalid_free_count: int
    """Frees of a pointer that the pool did not give out."""
    double_free_count: int
    """Frees of a block that was freed already."""
    wrong_size_free_count: int
    """Frees through the C functions that named another size than the block has."""
    invalid_record_count: int
    """Uses recorded for pointers that are not live blocks."""
    driver_error_count: int
    """Driver calls that failed while memory was given back."""
    limit: int | None
    """The most that the pool may hold; None for no limit but the device."""
    host_bytes: int
    """Host memory for the records of blocks and slabs."""
    steps: tuple[StepTotal, ...]
    """The steps that are taken before an allocation fails, in order."""
    large: LargeStats
    """Of all this, the part of blocks above 1 MiB."""

    @property
    def hit_count(self) -> int:
        """Allocations that the thread's own magazine met."""
        return max(0, self.alloc_count - self.miss_count)

    @property
    def utilisation(self) -> float:
        """Peak active bytes over peak reserved bytes: 1 is a pool that never held more than was in use."""
        return self.peak_active_bytes / self.peak_reserved_bytes if self.peak_reserved_bytes else 1.0

    @property
    def fragmentation(self) -> float:
        """The part of `cached_bytes` that is not in the largest free range: 0 when all of it could be one block.

        Memory in several pieces is still memory: with virtual memory the pool maps it where it is wanted.
        """
        return max(0.0, 1 - self.largest_free_bytes / self.cached_bytes) if self.cached_bytes else 0.0

    def hit_time_below(self, part: float) -> int:
        """Return nanoseconds that `part` (0 to 1) of the timed hits took less than; at most twice the least such.

        0 where none was timed. `ValueError` for a part that is none.
        """
        return _time_below(self.hit_times, part)

    def miss_time_below(self, part: float) -> int:
        """Return nanoseconds that `part` (0 to 1) of the timed misses took less than; at most twice the least such.

        0 where there was none. `ValueError` for a part that is none.
        """
        return _time_below(self.miss_times, part)

    def __str__(self) -> str:
        """Lay all of it out as tables, about 100 columns wide at most, for people and bug reports.

        Bytes and blocks now, at the peak, all that there ever were, and what of it was given back, also by blocks up
        to 1 MiB and larger ones; and what happened: hits, misses, waits, and each step taken for want of memory.
        """
        from flagstone._stats_table import text

        return text(self)


def _time_below(times: tuple[int, ...], part: float) -> int:
    if not 0 <= part <= 1:
        raise ValueError(f"a part is from 0 to 1, as 0.99 for all but the slowest hundredth, not {part}")
    wanted = sum(times) * part
    seen = 0
    for place, count in enumerate(times):
        seen += count
        if count and seen >= wanted:
            return 2 << place
    return 0


@dataclass(frozen=True)
class GivenOut:
    """What one stream got of one size so far, whether it came back or not."""

    stream: int | None
    """The stream's handle; None for all streams and private pools together that are gone."""
    pool_id: tuple[int, int] | None
    """The private pool that it was for, as torch's graphs and memory pools have them; (0, 0) for none."""
    size: int
    """Bytes of each block, a multiple of 512; above 1 MiB the next power of two."""
    alloc_count: int
    requested_bytes: int
    """As asked for."""
    allocated_bytes: int
    """Rounded to multiples of 512."""


@dataclass(frozen=True)
class Total:
    """What one stream, size or private pool got of a pool so far."""

    alloc_count: int
    requested_bytes: int
    """As asked for."""
    allocated_bytes: int
    """Rounded to multiples of 512."""


@dataclass(frozen=True)
class Totals:
    """What a pool has given out so far; exact when no thread allocates meanwhile."""

    device: int
    given_out: tuple[GivenOut, ...]
    """By stream, private pool and size."""

    def by_stream(self) -> dict[int | None, Total]:
        """Return what each stream got, by its handle; None has what those got that are gone."""
        return self._sums(lambda row: row.stream)

    def by_size(self) -> dict[int, Total]:
        """Return what was given out of each size; above 1 MiB by the next power of two."""
        return self._sums(lambda row: row.size)

    def by_private_pool(self) -> dict[tuple[int, int] | None, Total]:
        """Return what each private pool got, by its name: (0, 0) for what was for none, None for all that are gone."""
        return self._sums(lambda row: row.pool_id)

    def _sums(self, key: Callable[[GivenOut], Key]) -> dict[Key, Total]:
        sums: defaultdict[Key, list[int]] = defaultdict(lambda: [0] * 3)
        for row in self.given_out:
            total = sums[key(row)]
            for place, more in enumerate((row.alloc_count, row.requested_bytes, row.allocated_bytes)):
                total[place] += more
        return {name: Total(*total) for name, total in sums.items()}


@dataclass(frozen=True)
class Block:
    """A part of a segment."""

    addr: int
    bytes: int
    """Rounded to the size class."""
    requested: int
    """As asked for; 0 where the block is not allocated."""
    state: Literal["active_allocated", "active_pending_free", "inactive"]


@dataclass(frozen=True)
class Segment:
    """A contiguous range held from the driver."""

    addr: int
    bytes: int
    stream: int
    """The handle of the stream whose memory it is."""
    pool_id: tuple[int, int]
    """The private pool that it belongs to, as torch's graphs and memory pools have them; (0, 0) for none."""
    kind: Literal["slabs", "small", "large"]
    """Blocks up to 16 KiB, up to 1 MiB, or above."""
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Snapshot:
    """Every segment of a pool, by stream, kind and address."""

    device: int
    segments: tuple[Segment, ...]

    def by_stream(self) -> dict[int, Share]:
        """Return what each stream's memory holds, by the stream's handle."""
        return self._shares(lambda segment, _: segment.stream)

    def by_size(self) -> dict[int, Share]:
        """Return what blocks of each size hold, by their rounded size in bytes; a free range counts as one block."""
        return self._shares(lambda _, block: block.bytes)

    def by_private_pool(self) -> dict[tuple[int, int], Share]:
        """Return what each private pool holds, by its name; (0, 0) has what belongs to none."""
        return self._shares(lambda segment, _: segment.pool_id)

    def _shares(self, key: Callable[[Segment, Block], Key]) -> dict[Key, Share]:
        sums: defaultdict[Key, list[int]] = defaultdict(lambda: [0] * 5)
        for segment in self.segments:
            for block in segment.blocks:
                share = sums[key(segment, block)]
                if block.state == "active_allocated":
                    share[0] += 1
                    share[1] += block.requested
                    share[2] += block.bytes
                else:
                    share[3 if block.state == "active_pending_free" else 4] += block.bytes
        return {name: Share(*share) for name, share in sums.items()}


@dataclass(frozen=True)
class Share:
    """What one stream, size or private pool has of a pool."""

    live_blocks: int
    requested_bytes: int
    """Live, as asked for."""
    allocated_bytes: int
    """Live, rounded."""
    pending_bytes: int
    """Freed, and waiting for other streams."""
    cached_bytes: int
    """Ready for use."""
