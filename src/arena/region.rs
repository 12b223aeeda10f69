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

use super::range::Ranges;
use crate::driver::Handle;
use crate::metadata::{Block, Blocks, State};
use crate::size_class::{self, GRANULE, UNIT};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Physical memory at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) handle: Handle,
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
    /// What is mapped, by address.
    pub(crate) mappings: BTreeMap<u64, Mapping>,
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

/// Where a region is about to grow: a busy block whose `bytes` at `addr` have to be mapped. Its free neighbours (or 0) are
/// busy too, and become one with it only then, so that going back needs no records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Growth {
    before: u32,
    hole: u32,
    behind: u32,
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
}

/// Idle memory that was taken out of the free ranges, to be unmapped (or freed) by the caller.
#[derive(Debug)]
pub(crate) struct Idle {
    pub(crate) block: u32,
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    /// Empty for a slab from the driver.
    pub(crate) mappings: Vec<Mapping>,
    /// Whether it can be used if it cannot be given back.
    accessible: bool,
}

/// The segments of one kind.
pub(crate) struct Region {
    arena: u32,
    pub(crate) ranges: Ranges,
    pub(crate) segments: Vec<Segment>,
    holes: Vec<u32>,
    /// Mapped without access after two driver calls had failed, and to be unmapped with the next idle memory.
    pub(crate) stuck: Vec<Idle>,
    /// Bytes of memory behind the segments.
    pub(crate) held: u64,
}

impl Region {
    pub(crate) fn new(arena: u32) -> Self {
        Self {
            arena,
            ranges: Ranges::new(),
            segments: Vec::new(),
            holes: Vec::new(),
            stuck: Vec::new(),
            held: 0,
        }
    }

    /// A record for a part of a segment, held by the caller; 0 when there are no records left.
    fn block(&self, blocks: &Blocks, segment: u32, addr: u64, units: u32) -> u32 {
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
    fn cut(&self, blocks: &Blocks, index: u32, units: u32) -> u32 {
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
    fn join(blocks: &Blocks, low: u32, high: u32) {
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
    fn neighbour(blocks: &Blocks, index: u32, state: State) -> u32 {
        if index != 0 && blocks.get(index).state() == state {
            index
        } else {
            0
        }
    }

    /// Exactly `units` of free memory, held by the caller, or 0.
    pub(crate) fn take(&mut self, blocks: &Blocks, units: u32) -> u32 {
        let index = self.ranges.find(blocks, units);
        if index != 0 {
            self.ranges.remove(blocks, index);
            self.shorten(blocks, index, units);
        }
        index
    }

    /// Frees what a held block has beyond `units`.
    fn shorten(&mut self, blocks: &Blocks, index: u32, units: u32) {
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

    /// Makes a held block free, and one with its free neighbours.
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
    fn give_hole(&mut self, blocks: &Blocks, index: u32) {
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
        };
        match vacant {
            Some(number) => self.segments[number] = segment,
            None => self.segments.push(segment),
        }
        if reserved {
            self.give_hole(blocks, first);
        } else {
            self.held += origin.bytes;
            self.give(blocks, first);
        }
        true
    }

    /// Chooses where to map memory so that `units` fit: the place that needs the least. `step` bytes are mapped at least
    /// where the hole has them. `None` when no hole is large enough: then the region needs another reservation.
    pub(crate) fn plan(&mut self, blocks: &Blocks, units: u32, granularity: u64, step: u64) -> Option<Growth> {
        let page = (granularity / UNIT) as u32;
        let mut best: Option<(u32, u32)> = None;
        for &hole in &self.holes {
            let block = blocks.get(hole);
            let free = |index: u32| match Self::neighbour(blocks, index, State::Free) {
                0 => 0,
                index => blocks.get(index).units(),
            };
            let (before, behind) = (free(block.before.load(Relaxed)), free(block.behind.load(Relaxed)));
            let need = units.saturating_sub(before).max(1).checked_next_multiple_of(page);
            let map = match need {
                Some(need) if need <= block.units() => need,
                _ if u64::from(before) + u64::from(block.units()) + u64::from(behind) >= u64::from(units) => {
                    block.units()
                }
                _ => continue,
            };
            if best.is_none_or(|(_, least)| map < least) {
                best = Some((hole, map));
            }
        }
        let (hole, need) = best?;
        let have = blocks.get(hole).units();
        let step = u32::try_from(step / UNIT)
            .unwrap_or(u32::MAX)
            .checked_next_multiple_of(page)
            .unwrap_or(need);
        let map = need.max(step.min(have));
        self.start_growth(blocks, hole, map)
    }

    /// Takes the first `map` units of a hole, with the free neighbours, as a busy block.
    fn start_growth(&mut self, blocks: &Blocks, hole: u32, map: u32) -> Option<Growth> {
        let block = blocks.get(hole);
        let addr = block.addr();
        self.holes.retain(|&other| other != hole);
        if block.units() > map {
            let rest = self.cut(blocks, hole, map);
            if rest == 0 {
                self.holes.push(hole);
                return None;
            }
            block.set_state(State::Busy);
            self.give_hole(blocks, rest);
        }
        block.set_state(State::Busy);
        let mut occupy = |neighbour: &AtomicU32| {
            let index = Self::neighbour(blocks, neighbour.load(Relaxed), State::Free);
            if index != 0 {
                self.ranges.remove(blocks, index);
                blocks.get(index).set_state(State::Busy);
            }
            index
        };
        Some(Growth {
            before: occupy(&block.before),
            hole,
            behind: occupy(&block.behind),
            addr,
            bytes: size_class::bytes(map),
        })
    }

    /// The growth's memory is mapped: returns `units` of it, held by the caller; the rest is free.
    pub(crate) fn commit(&mut self, blocks: &Blocks, growth: Growth, mappings: &[Mapping], units: u32) -> u32 {
        let segment = blocks.get(growth.hole).home.load(Relaxed) as usize;
        for mapping in mappings {
            self.segments[segment].mappings.insert(mapping.addr, *mapping);
        }
        self.held += growth.bytes;
        let mut index = growth.hole;
        if growth.behind != 0 {
            Self::join(blocks, index, growth.behind);
        }
        if growth.before != 0 {
            Self::join(blocks, growth.before, index);
            index = growth.before;
        }
        self.shorten(blocks, index, units);
        index
    }

    /// The growth's memory could not be had: everything is as before, but for mappings that are `stuck`.
    pub(crate) fn roll_back(&mut self, blocks: &Blocks, growth: Growth, stuck: &[Mapping]) {
        for neighbour in [growth.before, growth.behind] {
            if neighbour != 0 {
                self.give(blocks, neighbour);
            }
        }
        let mut hole = growth.hole;
        for mapping in stuck {
            hole = self.set_stuck(blocks, hole, *mapping);
        }
        if hole != 0 {
            self.give_hole(blocks, hole);
        }
    }

    /// Cuts a mapping that cannot be unmapped out of a busy block, to be tried again; what is behind it, or 0.
    fn set_stuck(&mut self, blocks: &Blocks, block: u32, mapping: Mapping) -> u32 {
        let mut part = block;
        let before_units = ((mapping.addr - blocks.get(block).addr()) / UNIT) as u32;
        if before_units > 0 {
            part = self.cut(blocks, block, before_units);
            self.give_hole(blocks, block);
        }
        let units = (mapping.bytes / UNIT) as u32;
        let rest = if blocks.get(part).units() > units {
            self.cut(blocks, part, units)
        } else {
            0
        };
        let segment = blocks.get(part).home.load(Relaxed) as usize;
        self.segments[segment].mappings.insert(mapping.addr, mapping);
        self.held += mapping.bytes;
        self.stuck.push(Idle {
            block: part,
            addr: mapping.addr,
            bytes: mapping.bytes,
            mappings: vec![mapping],
            accessible: false,
        });
        rest
    }

    /// Takes idle memory out of the free ranges: whole mappings (or slabs) up to about `most` bytes, largest ranges
    /// first. The caller unmaps them, outside the lock, and calls [`Self::gone`] or [`Self::keep`] for each.
    pub(crate) fn idle(&mut self, blocks: &Blocks, most: u64) -> Vec<Idle> {
        let mut free = self.ranges.all(blocks);
        free.sort_by_key(|&index| std::cmp::Reverse(blocks.get(index).units()));
        let mut left = most;
        let mut idle = std::mem::take(&mut self.stuck);
        for index in free {
            if left == 0 {
                break;
            }
            if let Some(part) = self.idle_part(blocks, index, left) {
                left = left.saturating_sub(part.bytes);
                idle.push(part);
            }
        }
        idle
    }

    /// The mappings that lie wholly within a free range, at its end, as a busy block.
    fn idle_part(&mut self, blocks: &Blocks, index: u32, most: u64) -> Option<Idle> {
        let block = blocks.get(index);
        let (addr, end) = (block.addr(), block.end());
        let segment = &self.segments[block.home.load(Relaxed) as usize];
        if !segment.reserved {
            if (addr, end - addr) != (segment.base, segment.bytes) {
                return None;
            }
            self.ranges.remove(blocks, index);
            block.set_state(State::Busy);
            let Span { addr, bytes } = segment.origin;
            return Some(Idle {
                block: index,
                addr,
                bytes,
                mappings: Vec::new(),
                accessible: true,
            });
        }
        let mut mappings = Vec::new();
        let mut bytes = 0;
        for mapping in segment.mappings.range(addr..end).rev().map(|(_, mapping)| *mapping) {
            if mapping.addr + mapping.bytes > end {
                continue;
            }
            if bytes >= most {
                break;
            }
            bytes += mapping.bytes;
            mappings.push(mapping);
        }
        let from = mappings.last()?.addr;
        self.ranges.remove(blocks, index);
        block.set_state(State::Busy);
        let mut busy = index;
        if from > addr {
            busy = self.cut(blocks, index, ((from - addr) / UNIT) as u32);
            self.give(blocks, index);
            if busy == 0 {
                return None;
            }
        }
        if from + bytes < end {
            let rest = self.cut(blocks, busy, (bytes / UNIT) as u32);
            if rest == 0 {
                self.give(blocks, busy);
                return None;
            }
            self.give(blocks, rest);
        }
        Some(Idle {
            block: busy,
            addr: from,
            bytes,
            mappings,
            accessible: true,
        })
    }

    /// The memory of an idle part was given back: a hole is left, or nothing of a slab's segment.
    pub(crate) fn gone(&mut self, blocks: &Blocks, idle: &Idle) {
        let block: &Block = blocks.get(idle.block);
        let segment = &mut self.segments[block.home.load(Relaxed) as usize];
        self.held -= idle.bytes;
        if segment.reserved {
            for mapping in &idle.mappings {
                segment.mappings.remove(&mapping.addr);
            }
            self.give_hole(blocks, idle.block);
        } else {
            segment.first = 0;
            block.set_state(State::Vacant);
            blocks.give(idle.block, 1);
        }
    }

    /// The memory of an idle part stays after all.
    pub(crate) fn keep(&mut self, blocks: &Blocks, idle: Idle) {
        if idle.accessible {
            self.give(blocks, idle.block);
        } else {
            self.stuck.push(idle);
        }
    }

    /// Divides an idle part into one for each mapping, each a busy block of its own. What cannot be divided (there are no
    /// records left) stays free instead.
    pub(crate) fn divide(&mut self, blocks: &Blocks, idle: Idle) -> Vec<Idle> {
        if idle.mappings.len() == 1 {
            return vec![idle];
        }
        let mut mappings = idle.mappings;
        mappings.sort_unstable_by_key(|mapping| mapping.addr);
        let mut parts = Vec::with_capacity(mappings.len());
        let mut block = idle.block;
        let last = mappings.len().saturating_sub(1);
        for (place, mapping) in mappings.into_iter().enumerate() {
            let rest = if place == last {
                0
            } else {
                self.cut(blocks, block, (mapping.bytes / UNIT) as u32)
            };
            if rest == 0 && place != last {
                self.give(blocks, block);
                break;
            }
            if rest != 0 {
                blocks.get(rest).set_state(State::Busy);
            }
            parts.push(Idle {
                block,
                addr: mapping.addr,
                bytes: mapping.bytes,
                mappings: vec![mapping],
                accessible: true,
            });
            block = rest;
        }
        parts
    }

    /// Takes out the reservations in which nothing is mapped.
    pub(crate) fn empty_reservations(&mut self, blocks: &Blocks) -> Vec<Span> {
        let mut empty = Vec::new();
        for segment in &mut self.segments {
            let first = segment.first;
            if !segment.reserved || first == 0 {
                continue;
            }
            let block = blocks.get(first);
            if block.state() == State::Unmapped && block.bytes() == segment.bytes {
                self.holes.retain(|&hole| hole != first);
                segment.first = 0;
                block.set_state(State::Vacant);
                blocks.give(first, 1);
                empty.push(segment.origin);
            }
        }
        empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;
    const PAGE_UNITS: u32 = (PAGE / UNIT) as u32;

    #[test]
    fn going_back_from_a_growth_needs_no_records() {
        let (blocks, mut region) = (Blocks::new(), Region::new(1));
        let span = Span {
            addr: 1 << 40,
            bytes: 8 * PAGE,
        };
        assert!(region.add_segment(&blocks, span, true));
        let growth = region.plan(&blocks, 100, PAGE, 0).expect("a hole");
        let mapping = Mapping {
            addr: growth.addr,
            bytes: growth.bytes,
            handle: Handle(1),
        };
        region.commit(&blocks, growth, &[mapping], 100);
        // It begins in what is free of the first page.
        let growth = region.plan(&blocks, PAGE_UNITS, PAGE, 0).expect("a hole");
        assert_eq!(region.ranges.largest(&blocks), 0);
        // Others may have taken all records that were given back by now: a new one would have the next number.
        let last = (0..8).map(|_| blocks.take(1)).max();
        region.roll_back(&blocks, growth, &[]);
        assert_eq!(region.ranges.largest(&blocks), PAGE_UNITS - 100);
        assert_ne!(region.take(&blocks, PAGE_UNITS - 100), 0);
        assert_eq!(region.held, PAGE);
        let new = (0..8).map(|_| blocks.take(1)).find(|&index| Some(index) > last);
        assert_eq!(new, last.map(|last| last + 1));
    }
}
