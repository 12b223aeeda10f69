//! Growth of a region: which addresses get memory next, and what becomes of them.
//!
//! The arena's lock is not held while the driver maps memory. The place is busy meanwhile: a block that nobody touches, together with
//! the free ranges beside it, so that the request fits for certain once the memory is there.

use super::idle::{Idle, What};
use super::region::{Mapping, Region};
use crate::metadata::{Blocks, State};
use crate::size_class::{self, UNIT};
use crate::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

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

impl Growth {
    /// The block that the whole will be.
    pub(crate) fn first(&self) -> u32 {
        if self.before == 0 { self.hole } else { self.before }
    }
}

impl Region {
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

    /// Occupies the first `map` units of a hole, and its free neighbours.
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
            self.insert_mapping(segment, *mapping);
        }
        self.held += growth.bytes;
        if self.held > self.most_held {
            self.most_held = self.held;
            self.places.note_growth();
        }
        if growth.behind != 0 {
            Self::join(blocks, growth.hole, growth.behind);
        }
        if growth.before != 0 {
            Self::join(blocks, growth.before, growth.hole);
        }
        let index = growth.first();
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
        self.insert_mapping(segment, mapping);
        self.held += mapping.bytes;
        self.stuck.push(Idle {
            block: part,
            addr: mapping.addr,
            bytes: mapping.bytes,
            mappings: vec![mapping],
            what: What::Stuck,
        });
        rest
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::region::Span;
    use super::*;
    use crate::driver::Handle;

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
            touched: 0,
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
