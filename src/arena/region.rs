//! A region: segments of one kind of one arena, as blocks in address order.
//!
//! ```text
//!   segment   | live | free | live |   unmapped   | live | free |      unmapped ...      |
//!                     ^ in a bin     ^ a hole: addresses only     ^ the last hole is where a segment grows
//! ```
//!
//! With virtual memory a segment is a reservation, and begins as one hole. Growing maps memory at the beginning of the
//! hole that needs the least of it, next to what is free already. Without virtual memory a segment is a slab from the driver and
//! has no holes.
//!
//! Invariants, under the arena's lock:
//! - a segment's blocks lie side by side from its base to its end, linked by `before` and `behind`;
//! - no two neighbours are both free, or both unmapped;
//! - the mappings of a segment are disjoint and cover exactly what is not unmapped.

use super::alias::Alias;
use super::idle::Idle;
use super::places::Places;
use super::range::Ranges;
use crate::driver::Handle;
use crate::metadata::{Blocks, State};
use crate::size_class::{self, GRANULE, UNIT};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// Physical memory at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) handle: Handle,
    /// The arena's epoch when a block on it was freed last; 0 if none ever was.
    pub(crate) touched: u64,
}

/// A piece of address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
}

/// A reservation of addresses, or a slab from the driver.
pub(crate) struct Segment {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// What the driver knows it by: for a slab that was not aligned to a granule, a little more.
    pub(crate) origin: Span,
    /// Whether memory is mapped into it piece by piece.
    pub(crate) reserved: bool,
    /// Its first block; 0 once it was given back.
    pub(crate) first: u32,
    /// What is mapped, by address. Changed by [`Region::insert_mapping`] and [`Region::remove_mapping`] alone.
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    /// Of a slab: the arena's epoch when a block of it was freed last; 0 if none ever was.
    pub(crate) touched: u64,
}

impl Segment {
    /// How many runs of contiguous memory it has.
    pub(crate) fn runs(&self) -> u64 {
        if !self.reserved {
            return 1;
        }
        let mut end = None;
        let mut runs = 0;
        for mapping in self.mappings.values() {
            runs += u64::from(end != Some(mapping.addr));
            end = Some(mapping.addr + mapping.bytes);
        }
        runs
    }
}

/// The segments of one kind.
pub(crate) struct Region {
    pub(super) arena: u32,
    pub(crate) ranges: Ranges,
    pub(crate) segments: Vec<Segment>,
    pub(super) holes: Vec<u32>,
    /// Mapped without access after two driver calls had failed, and to be unmapped with the next idle memory.
    pub(crate) stuck: Vec<Idle>,
    /// Addresses of memory that was mapped elsewhere, by address.
    pub(crate) aliases: BTreeMap<u64, Alias>,
    /// Where each handle is mapped, but for aliases.
    pub(super) mapped: FxHashMap<Handle, u64>,
    /// Where its blocks were.
    pub(crate) places: Places,
    /// Bytes of memory behind the segments.
    pub(crate) held: u64,
    /// The most that this ever was.
    pub(super) most_held: u64,
    /// How many segments there are that were not given back.
    pub(crate) live_segments: usize,
}

impl Region {
    pub(crate) fn new(arena: u32) -> Self {
        Self {
            arena,
            ranges: Ranges::new(),
            segments: Vec::new(),
            holes: Vec::new(),
            stuck: Vec::new(),
            aliases: BTreeMap::new(),
            mapped: FxHashMap::default(),
            places: Places::default(),
            held: 0,
            most_held: 0,
            live_segments: 0,
        }
    }

    /// Memory is used at a mapping's address, in the segment of that number.
    pub(super) fn insert_mapping(&mut self, segment: usize, mapping: Mapping) {
        self.mapped.insert(mapping.handle, mapping.addr);
        self.segments[segment].mappings.insert(mapping.addr, mapping);
    }

    /// Memory is not used at the mapping's address any more.
    pub(super) fn remove_mapping(&mut self, segment: usize, addr: u64) {
        let mapping = self.segments[segment].mappings.remove(&addr);
        if let Some(mapping) = mapping.filter(|mapping| self.mapped.get(&mapping.handle) == Some(&addr)) {
            self.mapped.remove(&mapping.handle);
        }
    }

    /// A record for a part of a segment, held by the caller; 0 when there are no records left.
    pub(super) fn block(&self, blocks: &Blocks, segment: u32, addr: u64, units: u32) -> u32 {
        let index = blocks.take(1);
        if index != 0 {
            let block = blocks.get(index);
            block.set_index(index);
            block.addr.store(addr, Relaxed);
            block.units.store(units, Relaxed);
            block.arena.store(self.arena, Relaxed);
            block.home.store(segment, Relaxed);
            block.is_slot.store(0, Relaxed);
            block.cache.store(0, Relaxed);
            block.before.store(0, Relaxed);
            block.behind.store(0, Relaxed);
            block.set_state(State::Busy);
        }
        index
    }

    /// Cuts a block that the caller holds to its first `units`; the rest (which must not be empty) is a new block that
    /// the caller holds too. 0 when there are no records left, and nothing was changed.
    pub(super) fn cut(&self, blocks: &Blocks, index: u32, units: u32) -> u32 {
        let block = blocks.get(index);
        let rest_units = block.units() - units;
        let addr = block.addr() + size_class::bytes(units);
        let rest_index = self.block(blocks, block.home.load(Relaxed), addr, rest_units);
        if rest_index == 0 {
            return 0;
        }
        let rest = blocks.get(rest_index);
        let behind = block.behind.load(Relaxed);
        rest.before.store(index, Relaxed);
        rest.behind.store(behind, Relaxed);
        if behind != 0 {
            blocks.get(behind).before.store(rest_index, Relaxed);
        }
        block.behind.store(rest_index, Relaxed);
        block.units.store(units, Relaxed);
        rest_index
    }

    /// Makes `low` one block with `high`, its neighbour behind; the caller holds both.
    pub(super) fn join(blocks: &Blocks, low: u32, high: u32) {
        let (block, other) = (blocks.get(low), blocks.get(high));
        let behind = other.behind.load(Relaxed);
        block.units.store(block.units() + other.units(), Relaxed);
        block.behind.store(behind, Relaxed);
        if behind != 0 {
            blocks.get(behind).before.store(low, Relaxed);
        }
        other.set_state(State::Vacant);
        blocks.give(high, 1);
    }

    /// A neighbour of `block` when it is in `state`, otherwise 0.
    pub(super) fn neighbour(blocks: &Blocks, index: u32, state: State) -> u32 {
        if index != 0 && blocks.get(index).state() == state {
            index
        } else {
            0
        }
    }

    /// Bytes that are free, in whatever places.
    pub(crate) fn free_bytes(&self, blocks: &Blocks) -> u64 {
        let free = self.ranges.all(blocks).into_iter();
        free.map(|index| blocks.get(index).bytes()).sum()
    }

    /// Exactly `units` of free memory, held by the caller, or 0: where the same request had its place the last time, if that is free.
    pub(crate) fn take(&mut self, blocks: &Blocks, units: u32) -> u32 {
        let mut index = match self.places.expect(units) {
            Some(addr) => self.take_at(blocks, addr, units),
            None => 0,
        };
        if index == 0 {
            index = self.take_fit(blocks, units);
        }
        if index != 0 {
            self.places.note(units, blocks.get(index).addr());
        }
        index
    }

    /// As [`Self::take`], by good fit.
    fn take_fit(&mut self, blocks: &Blocks, units: u32) -> u32 {
        let index = self.ranges.find(blocks, units);
        if index == 0 {
            return 0;
        }
        self.ranges.remove(blocks, index);
        if self.breaks_less_at_end(blocks, index, units) {
            let end = self.cut(blocks, index, blocks.get(index).units() - units);
            if end != 0 {
                self.give(blocks, index);
                blocks.get(end).set_state(State::Cached);
                return end;
            }
        }
        self.shorten(blocks, index, units);
        index
    }

    /// Whether a block of `units` at the end of a range breaks less of a mapping that is free as a whole than one at its beginning:
    /// what is left over of that mapping cannot be mapped elsewhere as long as the block lives.
    fn breaks_less_at_end(&self, blocks: &Blocks, range: u32, units: u32) -> bool {
        let block = blocks.get(range);
        let (addr, end) = (block.addr(), block.end());
        let mappings = &self.segments[block.home.load(Relaxed) as usize].mappings;
        // The mapping that has bytes on both sides of an address, if it is free as a whole.
        let broken_at = |at: u64| {
            let mapping = mappings.range(..at).next_back().map(|(_, mapping)| mapping)?;
            let mapped_to = mapping.addr + mapping.bytes;
            (mapping.addr >= addr && mapped_to > at && mapped_to <= end).then_some((mapping.addr, mapped_to))
        };
        let (behind, before) = (addr + size_class::bytes(units), end - size_class::bytes(units));
        let left_behind = broken_at(behind).map_or(0, |(_, mapped_to)| mapped_to - behind);
        let left_before = broken_at(before).map_or(0, |(mapped_from, _)| before - mapped_from);
        left_before < left_behind
    }

    /// As [`Self::take`], at an address, where that is free.
    pub(crate) fn take_at(&mut self, blocks: &Blocks, addr: u64, units: u32) -> u32 {
        let index = self.ranges.around(blocks, addr);
        if index == 0 || blocks.get(index).end() - addr < size_class::bytes(units) {
            return 0;
        }
        self.ranges.remove(blocks, index);
        let ahead = ((addr - blocks.get(index).addr()) / UNIT) as u32;
        if ahead == 0 {
            self.shorten(blocks, index, units);
            return index;
        }
        let rest = self.cut(blocks, index, ahead);
        self.ranges.insert(blocks, index);
        if rest != 0 {
            self.shorten(blocks, rest, units);
        }
        rest
    }

    /// Frees what a held block has beyond `units`.
    pub(super) fn shorten(&mut self, blocks: &Blocks, index: u32, units: u32) {
        let block = blocks.get(index);
        block.set_state(State::Cached);
        if block.units() > units {
            // With no record left for the rest, the block keeps it: that wastes memory but loses none.
            let rest = self.cut(blocks, index, units);
            if rest != 0 {
                self.give(blocks, rest);
            }
        }
    }

    /// Makes a block that a user had free: its mappings are in use until the work of this epoch is done.
    pub(crate) fn release(&mut self, blocks: &Blocks, index: u32, epoch: u64) {
        let block = blocks.get(index);
        let (addr, end) = (block.addr(), block.end());
        let segment = &mut self.segments[block.home.load(Relaxed) as usize];
        segment.touched = epoch;
        let mappings = &mut segment.mappings;
        // The one that begins at or before the block, and those that begin within it.
        let first = mappings.range(..=addr).next_back().map_or(addr, |(&first, _)| first);
        for (_, mapping) in mappings.range_mut(first..end) {
            mapping.touched = epoch;
        }
        self.places.note_free();
        self.give(blocks, index);
    }

    /// Makes a held block that no user had free, and one with its free neighbours.
    pub(crate) fn give(&mut self, blocks: &Blocks, index: u32) {
        let mut index = index;
        let behind = Self::neighbour(blocks, blocks.get(index).behind.load(Relaxed), State::Free);
        if behind != 0 {
            self.ranges.remove(blocks, behind);
            Self::join(blocks, index, behind);
        }
        let before = Self::neighbour(blocks, blocks.get(index).before.load(Relaxed), State::Free);
        if before != 0 {
            self.ranges.remove(blocks, before);
            Self::join(blocks, before, index);
            index = before;
        }
        self.ranges.insert(blocks, index);
    }

    /// Makes a held block a hole, and one with the holes beside it.
    pub(super) fn give_hole(&mut self, blocks: &Blocks, index: u32) {
        let mut index = index;
        let behind = Self::neighbour(blocks, blocks.get(index).behind.load(Relaxed), State::Unmapped);
        if behind != 0 {
            self.holes.retain(|&hole| hole != behind);
            Self::join(blocks, index, behind);
        }
        let before = Self::neighbour(blocks, blocks.get(index).before.load(Relaxed), State::Unmapped);
        if before != 0 {
            self.holes.retain(|&hole| hole != before);
            Self::join(blocks, before, index);
            index = before;
        }
        blocks.get(index).set_state(State::Unmapped);
        self.holes.push(index);
    }

    /// Adds a segment: a reservation without memory, or a slab from the driver. `false` when there are no records left.
    /// Its blocks begin at a granule.
    pub(crate) fn add_segment(&mut self, blocks: &Blocks, origin: Span, reserved: bool) -> bool {
        let granule = size_class::bytes(GRANULE);
        let base = origin.addr.next_multiple_of(granule);
        let bytes = (origin.bytes - (base - origin.addr)) / granule * granule;
        let vacant = self.segments.iter().position(|segment| segment.first == 0);
        let number = vacant.unwrap_or(self.segments.len());
        let first = self.block(blocks, number as u32, base, (bytes / UNIT) as u32);
        if first == 0 {
            return false;
        }
        let segment = Segment {
            base,
            bytes,
            origin,
            reserved,
            first,
            mappings: BTreeMap::new(),
            touched: 0,
        };
        match vacant {
            Some(number) => self.segments[number] = segment,
            None => self.segments.push(segment),
        }
        self.live_segments += 1;
        if reserved {
            self.give_hole(blocks, first);
        } else {
            self.held += origin.bytes;
            self.give(blocks, first);
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;
    const BASE: u64 = 1 << 40;

    /// A region with mappings of so many pages, side by side, all free but for the first of `taken` units, if there are any.
    fn region(blocks: &Blocks, mappings: &[u64], taken: u32) -> Region {
        let mut region = Region::new(1);
        let pages: u64 = mappings.iter().sum();
        let span = Span {
            addr: BASE,
            bytes: 2 * pages * PAGE,
        };
        assert!(region.add_segment(blocks, span, true));
        let growth = region.plan(blocks, 1, PAGE, pages * PAGE).expect("a hole");
        let mut addr = growth.addr;
        let mappings: Vec<Mapping> = mappings
            .iter()
            .map(|&pages| {
                let mapping = Mapping {
                    addr,
                    bytes: pages * PAGE,
                    handle: Handle(addr),
                    touched: 0,
                };
                addr += mapping.bytes;
                mapping
            })
            .collect();
        let index = region.commit(blocks, growth, &mappings, taken.max(1));
        if taken == 0 {
            region.give(blocks, index);
        }
        region
    }

    #[test]
    fn a_block_lies_at_the_end_where_it_breaks_less_of_a_mapping() {
        let page = (PAGE / UNIT) as u32;
        // Pages of each mapping, units taken before, units wanted, and where the block lies, in units from the base.
        for (mappings, taken, units, at) in [
            (&[10][..], 0, page, 0),
            (&[10, 1], 0, page, 10 * page),
            (&[1, 10], 0, page, 0),
            (&[10, 2], 0, page, 11 * page),
            (&[10, 2], 0, 10 * page, 0),
            (&[2, 10], 0, 10 * page, 2 * page),
            // What is broken already is used first, at whichever end it is.
            (&[10, 1], 2 * page, page, 2 * page),
            (&[10, 1], 2 * page, 9 * page, 2 * page),
            (&[10, 4], 9 * page, page, 9 * page),
        ] {
            let blocks = Blocks::new();
            let mut region = region(&blocks, mappings, taken);
            let index = region.take(&blocks, units);
            let lies_at = ((blocks.get(index).addr() - BASE) / UNIT) as u32;
            assert_eq!(lies_at, at, "{mappings:?}, {taken} taken, {units} wanted");
            assert_eq!(blocks.get(index).units(), units);
            region.give(&blocks, index);
        }
    }
}
