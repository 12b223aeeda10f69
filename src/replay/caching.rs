//! A model of PyTorch's caching allocator, with segments of fixed size or with expandable ones.
//!
//! The rules are those of torch 2.14 without options: sizes in multiples of 512 bytes; a small pool (up to 1 MiB) and a
//! large pool for each stream; best fit by size, then address; neighbours merge at once. A block that was used on
//! other streams is free when an event on each, recorded at the free, has completed; events of a stream are looked at in
//! order, at each allocation. The device never runs out of memory, so nothing is given back.

use std::collections::VecDeque;

use crate::driver::sim::Call;

use super::bill::Bill;
use super::blocks::{Block, Blocks, Pool};

const MIB: u64 = 1 << 20;
const MIN_BLOCK: u64 = 512;
/// The largest block of the small pool, and the least rest that is split off a block of the large pool.
const SMALL: u64 = MIB;
const SMALL_SEGMENT: u64 = 2 * MIB;
const LARGE_SEGMENT: u64 = 20 * MIB;
/// From this size on a segment is as large as its block, in multiples of [`SMALL_SEGMENT`].
const OWN_SEGMENT: u64 = 10 * MIB;

/// How the allocator takes memory from the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// A new segment by `cudaMalloc` whenever no free block fits.
    Segments,
    /// One range of addresses for each stream and pool, whose end grows by pages: `expandable_segments:True`.
    Expandable,
}

pub(super) struct Caching {
    growth: Growth,
    blocks: Blocks,
    /// Events of each stream in the order of recording: when they complete, and the block that waits.
    events: Vec<VecDeque<(u64, u32)>>,
    next_addr: u64,
    pub reserved: u64,
}

impl Caching {
    pub fn new(growth: Growth, streams: usize) -> Self {
        Self {
            growth,
            blocks: Blocks::default(),
            events: vec![VecDeque::new(); streams],
            next_addr: 0,
            reserved: 0,
        }
    }

    /// Allocates a block and returns its index.
    pub fn alloc(&mut self, bytes: u64, stream: u32, now: u64, bill: &mut Bill<'_>) -> u32 {
        self.process_events(now, bill);
        let size = bytes.max(1).next_multiple_of(MIN_BLOCK);
        let pool = (stream, size <= SMALL);
        let found = self.blocks.best_fit(pool, size);
        let block = match (found, self.growth) {
            (Some(block), _) => {
                self.blocks.take_free(block);
                block
            }
            (None, Growth::Segments) => self.new_segment(pool, size, bill),
            (None, Growth::Expandable) => self.expand(pool, size, bill),
        };
        let rest = self.blocks[block].size - size;
        let split = if pool.1 || self.growth == Growth::Expandable {
            rest >= MIN_BLOCK
        } else {
            rest > SMALL
        };
        if split {
            self.blocks.split(block, size);
        }
        block
    }

    /// The block is also used on another stream.
    pub fn use_on(&mut self, block: u32, stream: u32) {
        let block = &mut self.blocks[block];
        if stream != block.pool.0 && !block.used_on.contains(&stream) {
            block.used_on.push(stream);
        }
    }

    /// Frees a block. `event` gives the moment at which an event completes that is recorded now on a stream.
    pub fn free(&mut self, block: u32, event: impl Fn(u32) -> u64, bill: &mut Bill<'_>) {
        let used_on = std::mem::take(&mut self.blocks[block].used_on);
        if used_on.is_empty() {
            self.blocks.put_free(block);
            return;
        }
        self.blocks[block].events = used_on.len() as u32;
        for stream in used_on {
            bill.charge(Call::EventRecord, 0);
            self.events[stream as usize].push_back((event(stream), block));
        }
    }

    fn process_events(&mut self, now: u64, bill: &mut Bill<'_>) {
        for stream in 0..self.events.len() {
            while let Some(&(done, block)) = self.events[stream].front() {
                bill.charge(Call::EventQuery, 0);
                if done > now {
                    break;
                }
                self.events[stream].pop_front();
                let waiting = &mut self.blocks[block].events;
                *waiting -= 1;
                if *waiting == 0 {
                    self.blocks.put_free(block);
                }
            }
        }
    }

    fn new_segment(&mut self, pool: Pool, size: u64, bill: &mut Bill<'_>) -> u32 {
        let bytes = match size {
            _ if pool.1 => SMALL_SEGMENT,
            _ if size < OWN_SEGMENT => LARGE_SEGMENT,
            _ => size.next_multiple_of(SMALL_SEGMENT),
        };
        bill.charge(Call::MemAlloc, bytes);
        self.reserved = self.reserved.saturating_add(bytes);
        let addr = self.next_addr;
        self.next_addr = addr.saturating_add(bytes);
        self.blocks.insert(Block::new(pool, addr, bytes, None))
    }

    /// Maps pages at the end of the pool's segment until a block of `size` bytes fits there.
    fn expand(&mut self, pool: Pool, size: u64, bill: &mut Bill<'_>) -> u32 {
        let page = if pool.1 { SMALL_SEGMENT } else { LARGE_SEGMENT };
        let tail = self.blocks.tail(pool);
        let block = match tail {
            Some(tail) if self.blocks[tail].free => {
                self.blocks.take_free(tail);
                tail
            }
            _ => self.blocks.insert_tail(pool),
        };
        if tail.is_none() {
            bill.charge(Call::MemAddressReserve, 0);
        }
        let grown = (size - self.blocks[block].size).next_multiple_of(page);
        bill.charge_each(Call::MemCreate, page, grown / page);
        bill.charge_each(Call::MemMap, page, grown / page);
        bill.charge(Call::MemSetAccess, grown);
        self.blocks[block].size += grown;
        self.reserved = self.reserved.saturating_add(grown);
        block
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::driver::sim::Prices;

    const NONE_BUSY: fn(u32) -> u64 = |_| 0;

    /// An allocator and the reserved MiB after each allocation of these bytes on stream 0.
    fn reserved(growth: Growth, sizes: &[u64]) -> Vec<u64> {
        let (mut caching, prices) = (Caching::new(growth, 1), Prices::free());
        let mut bill = Bill::new(&prices);
        sizes
            .iter()
            .map(|size| {
                caching.alloc(*size, 0, 0, &mut bill);
                caching.reserved / MIB
            })
            .collect()
    }

    #[test]
    fn segments_have_the_sizes_of_torch() {
        // 10 MiB fits into the rest of the segment of 2 MiB; one byte more gets a segment of its own.
        assert_eq!(
            reserved(Growth::Segments, &[10, 2 * MIB, 10 * MIB, 10 * MIB + 1]),
            [2, 22, 22, 34]
        );
        assert_eq!(reserved(Growth::Segments, &[MIB, MIB, MIB + 1]), [2, 2, 22]);
    }

    #[test]
    fn expandable_segments_grow_by_pages() {
        assert_eq!(
            reserved(Growth::Expandable, &[10, 15 * MIB, 15 * MIB, 15 * MIB]),
            [2, 22, 42, 62]
        );
    }

    #[test]
    fn the_end_of_an_expandable_segment_is_used_last() {
        let (mut caching, prices) = (Caching::new(Growth::Expandable, 1), Prices::free());
        let mut bill = Bill::new(&prices);
        let blocks: Vec<u32> = [10, 1, 9]
            .map(|mib| caching.alloc(mib * MIB + MIB, 0, 0, &mut bill))
            .to_vec();
        caching.free(blocks[0], NONE_BUSY, &mut bill);
        // 7 MiB are left at the end and fit best; the hole of 11 MiB before them is taken.
        let block = caching.alloc(7 * MIB, 0, 0, &mut bill);
        assert_eq!(caching.blocks[block].addr, 0);
    }

    #[test]
    fn blocks_used_on_other_streams_wait_for_events_in_order() {
        let (mut caching, prices) = (Caching::new(Growth::Segments, 3), Prices::free());
        let mut bill = Bill::new(&prices);
        let [first, second] = [0, 0].map(|now| caching.alloc(20 * MIB, 0, now, &mut bill));
        caching.use_on(first, 1);
        caching.use_on(second, 1);
        caching.free(first, |_| 100, &mut bill);
        caching.free(second, |_| 50, &mut bill);
        let mut allocate_at = |now| {
            caching.alloc(20 * MIB, 0, now, &mut bill);
            caching.reserved / MIB
        };
        // The second's event is done at 50, but stands behind the first's.
        assert_eq!([allocate_at(60), allocate_at(100), allocate_at(101)], [60, 60, 60]);
        assert_eq!(bill.calls["cuEventRecord"], 2);
    }

    #[test]
    fn streams_share_nothing() {
        let (mut caching, prices) = (Caching::new(Growth::Segments, 2), Prices::free());
        let mut bill = Bill::new(&prices);
        let block = caching.alloc(20 * MIB, 0, 0, &mut bill);
        caching.free(block, NONE_BUSY, &mut bill);
        caching.alloc(20 * MIB, 1, 0, &mut bill);
        assert_eq!(caching.reserved, 40 * MIB);
    }

    proptest! {
        /// Blocks never overlap, and once all are freed each segment is one free block again.
        #[test]
        fn blocks_are_disjoint_and_merge(
            growth in prop::sample::select(vec![Growth::Segments, Growth::Expandable]),
            calls in prop::collection::vec((any::<bool>(), 1..30 * MIB, 0..2_u32), 1..60),
        ) {
            let (mut caching, prices) = (Caching::new(growth, 2), Prices::free());
            let mut bill = Bill::new(&prices);
            let mut live: Vec<(u32, u64)> = Vec::new();
            for (alloc, size, stream) in calls {
                if alloc || live.is_empty() {
                    live.push((caching.alloc(size >> (size % 16), stream, 0, &mut bill), size >> (size % 16)));
                } else {
                    let (block, _) = live.swap_remove(size as usize % live.len());
                    caching.free(block, NONE_BUSY, &mut bill);
                }
                let mut ranges: Vec<(Pool, u64, u64)> = Vec::new();
                for (block, size) in &live {
                    let block = &caching.blocks[*block];
                    prop_assert!(block.size >= *size && !block.free);
                    ranges.push((block.pool, block.addr, block.addr + block.size));
                }
                ranges.sort_unstable();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1));
            }
            for (block, _) in live {
                caching.free(block, NONE_BUSY, &mut bill);
            }
            prop_assert_eq!(caching.blocks.free.iter().map(|(_, size, ..)| size).sum::<u64>(), caching.reserved);
            let alone = |block: &Block| block.prev.is_none() && block.next.is_none();
            prop_assert!(caching.blocks.free.iter().all(|(.., index)| alone(&caching.blocks[*index])));
        }
    }
}
