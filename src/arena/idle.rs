//! Idle memory of a region: taken out of the free ranges, to be unmapped and used elsewhere, or given back to the driver.

use super::alias::Alias;
use super::region::{Mapping, Region, Span};
use crate::metadata::{Block, Blocks, State};
use crate::size_class::UNIT;
use std::sync::atomic::Ordering::Relaxed;

/// Idle memory that was taken out of the free ranges, to be unmapped (or freed) by the caller.
#[derive(Debug)]
pub(crate) struct Idle {
    pub(crate) block: u32,
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    /// Empty for a slab from the driver.
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) what: What,
}

/// What an idle part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Free memory, which can be used if it cannot be given back.
    Free,
    /// Mapped without access after two driver calls had failed.
    Stuck,
    /// Addresses of memory that is mapped, and used, elsewhere by now.
    Alias,
}

impl Region {
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

    /// The mappings that lie wholly within a free range, at its end, or the whole of a slab: as a busy block.
    fn idle_part(&mut self, blocks: &Blocks, index: u32, most: u64) -> Option<Idle> {
        let block = blocks.get(index);
        let (addr, end) = (block.addr(), block.end());
        let segment = &self.segments[block.home.load(Relaxed) as usize];
        if !segment.reserved {
            if (addr, end - addr) != (segment.base, segment.bytes) {
                return None;
            }
            let Span { addr, bytes } = segment.origin;
            self.ranges.remove(blocks, index);
            block.set_state(State::Busy);
            return Some(Idle {
                block: index,
                addr,
                bytes,
                mappings: Vec::new(),
                what: What::Free,
            });
        }
        let within = |mapping: &Mapping| mapping.addr + mapping.bytes <= end;
        let mut left = most;
        let mappings = segment
            .mappings
            .range(addr..end)
            .rev()
            .map(|(_, mapping)| *mapping)
            .filter(within);
        let mappings = mappings.take_while(|mapping| {
            let wanted = left > 0;
            left = left.saturating_sub(mapping.bytes);
            wanted
        });
        let mappings = mappings.collect();
        self.carve(blocks, index, mappings)
    }

    /// Takes all idle memory that was freed in the epoch `last` or before it out of the free ranges, each mapping or slab a part of
    /// its own. The caller gives back or [keeps](Self::keep) each.
    pub(crate) fn idle_since(&mut self, blocks: &Blocks, granularity: u64, last: u64) -> Vec<Idle> {
        let parts = self.finished(blocks, granularity, u64::MAX, last);
        let mut idle: Vec<Idle> = parts.into_iter().flat_map(|part| self.divide(blocks, part)).collect();
        for index in self.ranges.all(blocks) {
            let segment = &self.segments[blocks.get(index).home.load(Relaxed) as usize];
            if !segment.reserved && segment.touched <= last {
                idle.extend(self.idle_part(blocks, index, u64::MAX));
            }
        }
        idle
    }

    /// Takes the smallest slab that is idle as a whole and has at least `bytes` out of the region: what the driver knows it by.
    pub(crate) fn give_up_slab(&mut self, blocks: &Blocks, bytes: u64) -> Option<Span> {
        let whole = |&index: &u32| {
            let block = blocks.get(index);
            let segment = &self.segments[block.home.load(Relaxed) as usize];
            !segment.reserved && block.bytes() == segment.bytes && segment.bytes >= bytes
        };
        let free = self.ranges.all(blocks).into_iter().filter(whole);
        let index = free.min_by_key(|&index| blocks.get(index).units())?;
        let part = self.idle_part(blocks, index, u64::MAX)?;
        self.gone(blocks, &part);
        Some(Span {
            addr: part.addr,
            bytes: part.bytes,
        })
    }

    /// Takes mappings that the device is done with out of the free ranges, about `most` bytes but none that is larger than
    /// what is left to find. From small ranges first: what they lose would have served little else.
    pub(crate) fn finished(&mut self, blocks: &Blocks, granularity: u64, most: u64, done: u64) -> Vec<Idle> {
        // Growth asks every region, also when what is spare is enough.
        if most == 0 {
            return Vec::new();
        }
        let mut free = self.ranges.all(blocks);
        free.retain(|&index| blocks.get(index).bytes() >= granularity);
        free.sort_by_key(|&index| blocks.get(index).units());
        let mut left = most;
        let mut idle = Vec::new();
        for index in free {
            if left == 0 {
                break;
            }
            let block = blocks.get(index);
            let (addr, end) = (block.addr(), block.end());
            let segment = &self.segments[block.home.load(Relaxed) as usize];
            let mut run: Vec<Mapping> = Vec::new();
            let mut bytes = 0;
            for mapping in segment.mappings.range(addr..end).map(|(_, mapping)| *mapping) {
                let fits = mapping.addr + mapping.bytes <= end && bytes + mapping.bytes <= left;
                if fits && mapping.touched <= done {
                    bytes += mapping.bytes;
                    run.push(mapping);
                } else if !run.is_empty() {
                    break;
                }
            }
            run.reverse();
            if let Some(part) = self.carve(blocks, index, run) {
                left -= part.bytes;
                idle.push(part);
            }
        }
        idle
    }

    /// Free mappings to be mapped elsewhere, about `most` bytes, each a part of its own, that were last used in an epoch up to
    /// `until`. The device may not be done with them: whoever uses them next comes after it, in stream order or by an event.
    pub(crate) fn lend(&mut self, blocks: &Blocks, granularity: u64, most: u64, until: u64) -> Vec<Idle> {
        let parts = self.finished(blocks, granularity, most, until);
        parts.into_iter().flat_map(|part| self.divide(blocks, part)).collect()
    }

    /// The smallest free mapping of at least `bytes` that was last used in an epoch up to `until`, in bytes, if there is one.
    pub(crate) fn smallest_free(&self, blocks: &Blocks, bytes: u64, until: u64) -> Option<u64> {
        let free = self.ranges.all(blocks).into_iter().map(|index| blocks.get(index));
        let sizes = free.filter(|block| block.bytes() >= bytes).flat_map(|block| {
            let segment = &self.segments[block.home.load(Relaxed) as usize];
            let (addr, end) = (block.addr(), block.end());
            let within = move |mapping: &Mapping| {
                mapping.addr + mapping.bytes <= end && mapping.bytes >= bytes && mapping.touched <= until
            };
            segment
                .mappings
                .range(addr..end)
                .map(|(_, mapping)| *mapping)
                .filter(within)
                .map(|mapping| mapping.bytes)
        });
        sizes.min()
    }

    /// Takes mappings that lie side by side within a free range, last one first, out of it as a busy block.
    pub(super) fn carve(&mut self, blocks: &Blocks, index: u32, mappings: Vec<Mapping>) -> Option<Idle> {
        let block = blocks.get(index);
        let (addr, end) = (block.addr(), block.end());
        let from = mappings.last()?.addr;
        let bytes: u64 = mappings.iter().map(|mapping| mapping.bytes).sum();
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
            what: What::Free,
        })
    }

    /// The memory of an idle part was given back: a hole is left, or nothing of a slab's segment.
    pub(crate) fn gone(&mut self, blocks: &Blocks, idle: &Idle) {
        let block: &Block = blocks.get(idle.block);
        let number = block.home.load(Relaxed) as usize;
        if idle.what == What::Alias {
            self.give_hole(blocks, idle.block);
            return;
        }
        self.held -= idle.bytes;
        if self.segments[number].reserved {
            for mapping in &idle.mappings {
                self.remove_mapping(number, mapping.addr);
            }
            self.give_hole(blocks, idle.block);
        } else {
            self.segments[number].first = 0;
            self.live_segments -= 1;
            block.set_state(State::Vacant);
            blocks.give(idle.block, 1);
        }
    }

    /// The memory of an idle part stays after all.
    pub(crate) fn keep(&mut self, blocks: &Blocks, idle: Idle) {
        match idle.what {
            What::Free => self.give(blocks, idle.block),
            What::Stuck => self.stuck.push(idle),
            What::Alias => {
                self.aliases.insert(idle.addr, Alias::of(&idle));
            }
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
                what: What::Free,
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
                self.live_segments -= 1;
                block.set_state(State::Vacant);
                blocks.give(first, 1);
                empty.push(segment.origin);
            }
        }
        empty
    }
}
