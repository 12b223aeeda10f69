//! What a pool says of itself.

use super::Pool;
use crate::arena::{Inner, Kind};
use crate::driver::{DevicePtr, Driver};
use crate::metadata::{Block, State};
use crate::stats::{BlockInfo, BlockState, LargeStats, Snapshot, SnapshotBlock, SnapshotSegment, Stats};
use crate::sync::atomic::AtomicU64;
use crate::sync::lock;
use crate::thread::Sum;
use std::sync::atomic::Ordering::Relaxed;

/// What snapshots call each [`Kind`].
const KIND_NAMES: [&str; 3] = ["slabs", "small", "large"];

impl<D: Driver> Pool<D> {
    /// The pool's numbers now. Looks at every segment's header and at one bin of free ranges for each stream.
    pub fn stats(&self) -> Stats {
        self.numbers(false)
    }

    /// Lets all peaks begin again at the present values. The numbers at that moment, with the peaks so far: none is lost between.
    pub fn reset_peak(&self) -> Stats {
        self.numbers(true)
    }

    fn numbers(&self, again: bool) -> Stats {
        let (core, pages) = (&self.core, &self.pages);
        let metadata = &core.metadata;
        let sum = if again { core.reset_peaks() } else { core.sum() };
        // The peaks last: no value is above its own.
        let (allocated, reserved, taken) = (positive(sum.allocated), pages.reserved(), pages.taken());
        let (peak_reserved_bytes, peak_held_count) = if again { pages.reset_peaks() } else { pages.peaks() };
        let active = allocated + positive(sum.pending);
        let (mut segments, mut largest, mut reserved_large) = (0, 0, self.pages.spare_bytes());
        for arena in self.core.arenas_in_use() {
            let inner = arena.lock(metadata);
            largest = largest.max(inner.largest(metadata));
            reserved_large += inner.regions[Kind::Large as usize].held;
            let regions = inner.regions.iter().flat_map(|region| &region.segments);
            segments += regions
                .filter(|segment| segment.first != 0)
                .map(|segment| segment.runs())
                .sum::<u64>();
        }
        for (block, held) in self.guarded_blocks() {
            segments += 1;
            if Kind::of(block.units()) == Kind::Large {
                reserved_large += held;
            }
        }
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        let events = &self.core.events;
        Stats {
            device: self.device(),
            requested_bytes: positive(sum.live.requested),
            allocated_bytes: allocated,
            active_bytes: active,
            reserved_bytes: reserved,
            cached_bytes: reserved.saturating_sub(active),
            magazine_bytes: self.core.caches.iter().map(|cache| cache.bytes()).sum(),
            peak_requested_bytes: positive(sum.peak.requested),
            peak_allocated_bytes: positive(sum.peak_allocated),
            peak_active_bytes: positive(sum.peak_active),
            peak_reserved_bytes,
            live_blocks: positive(sum.live.blocks),
            peak_live_blocks: positive(sum.peak.blocks),
            alloc_count: sum.all.allocs,
            free_count: sum.all.frees,
            freed_bytes: sum.all.freed,
            freed_requested_bytes: sum.all.returned,
            miss_count: read(&events.misses),
            hit_times: events.hit_times.get(),
            miss_times: events.miss_times.get(),
            growth_count: read(&events.growths),
            taken_bytes: taken.bytes,
            given_bytes: taken.given_bytes,
            take_count: taken.takes,
            give_count: taken.gives,
            peak_held_count,
            synchronize_count: read(&events.synchronizations),
            pending_blocks: self.waiting.load(Relaxed) as u64,
            event_count: read(&events.recorded),
            stream_wait_count: read(&events.stream_waits),
            segments,
            largest_free_bytes: largest,
            out_of_memory_count: read(&events.out_of_memory),
            pressure_count: read(&events.pressure),
            invalid_free_count: read(&events.invalid_frees),
            double_free_count: read(&events.double_frees),
            wrong_size_free_count: read(&events.wrong_size_frees),
            invalid_record_count: read(&events.invalid_records),
            driver_error_count: read(&events.driver_errors),
            limit: self.pages.limit(),
            host_bytes: metadata.host_bytes(),
            large: self.large(&sum, reserved_large),
            steps: self.steps.totals(),
        }
    }

    /// The numbers of large blocks.
    fn large(&self, sum: &Sum, reserved: u64) -> LargeStats {
        let blocks = &self.core.metadata.blocks;
        let (mut pending_blocks, mut pending) = (0, 0);
        for block in lock(&self.pending).blocks().map(|index| blocks.get(index)) {
            if Kind::of(block.units()) == Kind::Large {
                pending_blocks += 1;
                pending += block.bytes();
            }
        }
        let allocated_bytes = positive(sum.live.large_allocated);
        LargeStats {
            live_blocks: positive(sum.live.large_blocks),
            peak_live_blocks: positive(sum.peak.large_blocks),
            pending_blocks,
            alloc_count: sum.large.allocs,
            free_count: sum.large.frees,
            requested_bytes: positive(sum.live.large_requested),
            peak_requested_bytes: positive(sum.peak.large_requested),
            freed_requested_bytes: sum.large.returned,
            allocated_bytes,
            peak_allocated_bytes: positive(sum.peak.large_allocated),
            freed_bytes: sum.large.freed,
            active_bytes: allocated_bytes + pending,
            reserved_bytes: reserved,
        }
    }

    /// The live block that begins at `addr`, or `None`.
    pub fn block(&self, addr: DevicePtr) -> Option<BlockInfo> {
        let block = self.core.metadata.find(addr)?;
        block.state().is_given_out().then(|| BlockInfo {
            addr,
            bytes: block.bytes(),
            requested: requested(block),
            stream: self.core.arenas.get(block.arena.load(Relaxed)).stream(),
        })
    }

    /// Where everything is: a walk over all blocks, each stream's under its lock.
    pub fn snapshot(&self) -> Snapshot {
        let mut segments = Vec::new();
        for arena in self.core.arenas_in_use() {
            let mut inner = arena.lock(&self.core.metadata);
            for kind in Kind::ALL {
                for blocks in self.runs(&mut inner, kind) {
                    let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
                        continue;
                    };
                    let (addr, end) = (first.addr, last.addr + last.bytes);
                    let bytes = end - addr;
                    segments.push(SnapshotSegment {
                        addr,
                        bytes,
                        stream: arena.stream(),
                        private: arena.key().private,
                        kind: KIND_NAMES[kind as usize],
                        blocks,
                    });
                }
            }
        }
        segments.extend(self.guarded_blocks().into_iter().map(|(block, bytes)| {
            let addr = block.end() - bytes;
            let before = SnapshotBlock {
                addr,
                bytes: block.addr() - addr,
                requested: 0,
                state: BlockState::Inactive,
            };
            let blocks = [before, describe(block)].into_iter().filter(|part| part.bytes > 0);
            SnapshotSegment {
                addr,
                bytes,
                stream: self.core.arena_of(block).stream(),
                private: None,
                kind: KIND_NAMES[Kind::of(block.units()) as usize],
                blocks: blocks.collect(),
            }
        }));
        segments.sort_by_key(|segment| segment.addr);
        Snapshot {
            device: self.device(),
            segments,
        }
    }

    /// The blocks of each run of mapped memory.
    fn runs(&self, inner: &mut Inner, kind: Kind) -> Vec<Vec<SnapshotBlock>> {
        let blocks = &self.core.metadata.blocks;
        let mut runs = Vec::new();
        for segment in inner.region(kind).segments.iter().filter(|segment| segment.first != 0) {
            let mut run = Vec::new();
            let mut index = segment.first;
            while index != 0 {
                let block = blocks.get(index);
                match block.state() {
                    State::Unmapped | State::Busy => runs.push(std::mem::take(&mut run)),
                    State::Slab => self.slots(index, &mut run),
                    _ => run.push(describe(block)),
                }
                index = block.behind.load(Relaxed);
            }
            runs.push(run);
        }
        runs
    }

    /// The slots of a slab, and what is left behind the last.
    fn slots(&self, range: u32, run: &mut Vec<SnapshotBlock>) {
        let metadata = &self.core.metadata;
        let (mut addr, end) = (metadata.blocks.get(range).addr(), metadata.blocks.get(range).end());
        let Some(slab) = metadata.slab(addr) else { return };
        while addr < end
            && let Some(block) = slab.block_at(addr)
        {
            run.push(describe(block));
            addr = block.end();
        }
        if addr < end {
            run.push(SnapshotBlock {
                addr,
                bytes: end - addr,
                requested: 0,
                state: BlockState::Inactive,
            });
        }
    }
}

/// A sum over owners that are read one after the other may be below 0.
fn positive(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// What a live block's user asked for, also where it is being freed at this moment.
fn requested(block: &Block) -> u64 {
    block.requested().min(block.bytes())
}

fn describe(block: &Block) -> SnapshotBlock {
    let state = match block.state() {
        state if state.is_given_out() => BlockState::ActiveAllocated,
        State::Pending => BlockState::ActivePendingFree,
        _ => BlockState::Inactive,
    };
    let requested = if state == BlockState::Inactive {
        0
    } else {
        requested(block)
    };
    SnapshotBlock {
        addr: block.addr(),
        bytes: block.bytes(),
        requested,
        state,
    }
}
