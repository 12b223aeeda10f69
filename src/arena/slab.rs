//! Slabs: ranges cut into equal slots for the sizes up to 16 KiB.
//!
//! Invariants, under the arena's lock:
//! - `free` = length of the list at `first_free` = slots that are in no magazine, on no list and not live;
//! - a slab is on its class's list exactly while `0 < free < slots`: full ones have nothing to give, and one whose last
//!   slot comes back is given back to the ranges at once;
//! - a record keeps its class, and the block records of its slots, also while it is not in use.

use crate::metadata::{Block, Blocks, Store, Zeroed};
use crate::size_class::{self, UNIT};
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};
use crate::sync::length;
use std::sync::atomic::Ordering::Relaxed;

/// The record of one slab. What the address lookup reads is set before the table names the slab.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct Slab {
    /// First address.
    pub(crate) base: AtomicU64,
    /// The record of slot 0; the others follow it.
    first_record: AtomicPtr<Block>,
    /// Its index.
    pub(crate) first_block: AtomicU32,
    /// How many slots.
    pub(crate) slots: AtomicU32,
    /// Units of a slot.
    pub(crate) units: AtomicU32,
    /// 65,536 / units, rounded up: to divide by units with a multiplication.
    reciprocal: AtomicU32,
    /// The range that was cut.
    pub(crate) range: AtomicU32,
    /// Vacant slots, as a list of blocks through `link`.
    pub(crate) first_free: AtomicU32,
    /// How many.
    pub(crate) free: AtomicU32,
    /// Neighbours on the class's list.
    pub(crate) prev: AtomicU32,
    pub(crate) next: AtomicU32,
}

// SAFETY: only atomics, valid when zero, no drop.
unsafe impl Zeroed for Slab {
    #[cfg(loom)]
    fn zeroed() -> Self {
        Self::default()
    }
}

/// All slab records of a pool.
pub(crate) type Slabs = Store<Slab, { length(10, 2) as u32 }, { length(1 << 14, 2) }>;

impl Slab {
    /// The block of the slot around `addr`, an address within the slab's granules; `None` behind the last slot.
    #[inline(always)]
    pub(crate) fn block_at(&self, addr: u64) -> Option<&Block> {
        // Relaxed, all of these: set before the table's entry was published. A record that is being used anew gives
        // another slab's block, whose address then is not the one that was asked for.
        let offset = addr.wrapping_sub(self.base.load(Relaxed));
        // Within the slab this is below 512, for which the product is exact: see the test.
        let unit = (offset / UNIT) as u32;
        let slot = unit.wrapping_mul(self.reciprocal.load(Relaxed)) >> 16;
        if slot >= self.slots.load(Relaxed) {
            return None;
        }
        let first = self.first_record.load(Relaxed);
        // SAFETY: set before any table named this record, and never to null.
        unsafe { std::hint::assert_unchecked(!first.is_null()) };
        // SAFETY: a slab record keeps its class and its run of block records for ever: the pointer is to the first of as
        // many records as there are slots, which live as long as the pool.
        Some(unsafe { &*first.add(slot as usize) })
    }

    /// Gives a new record its class and its block records, once and for all. Before any table names it.
    pub(crate) fn set_class(&self, blocks: &Blocks, units: u32, first_block: u32) {
        let first: *const Block = blocks.get(first_block);
        // Relaxed, all of these: the table's entry publishes them.
        self.units.store(units, Relaxed);
        self.reciprocal.store((1u32 << 16).div_ceil(units), Relaxed);
        self.first_block.store(first_block, Relaxed);
        self.first_record.store(first.cast_mut(), Relaxed);
        self.slots.store(size_class::slots(units).count, Relaxed);
    }

    /// Puts a slot that the caller holds among the vacant ones.
    pub(crate) fn push(&self, block: &Block, index: u32) {
        block.link.store(self.first_free.load(Relaxed), Relaxed);
        self.first_free.store(index, Relaxed);
        self.free.store(self.free.load(Relaxed) + 1, Relaxed);
    }

    /// Takes a vacant slot, which the caller holds then. There must be one.
    pub(crate) fn pop(&self, blocks: &Blocks) -> u32 {
        let index = self.first_free.load(Relaxed);
        self.first_free.store(blocks.get(index).link.load(Relaxed), Relaxed);
        self.free.store(self.free.load(Relaxed) - 1, Relaxed);
        index
    }

    /// Whether no slot is in use anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.load(Relaxed) == self.slots.load(Relaxed)
    }
}

/// The slabs of one class that have vacant slots and used ones: a doubly linked list.
#[derive(Default, Clone, Copy)]
pub(crate) struct Partial {
    head: u32,
}

impl Partial {
    /// The slab to take from next, or 0.
    pub(crate) fn first(self) -> u32 {
        self.head
    }

    pub(crate) fn insert(&mut self, slabs: &Slabs, index: u32) {
        let slab = slabs.get(index);
        slab.prev.store(0, Relaxed);
        slab.next.store(self.head, Relaxed);
        if self.head != 0 {
            slabs.get(self.head).prev.store(index, Relaxed);
        }
        self.head = index;
    }

    pub(crate) fn remove(&mut self, slabs: &Slabs, index: u32) {
        let slab = slabs.get(index);
        let (prev, next) = (slab.prev.load(Relaxed), slab.next.load(Relaxed));
        if next != 0 {
            slabs.get(next).prev.store(prev, Relaxed);
        }
        if prev == 0 {
            self.head = next;
        } else {
            slabs.get(prev).next.store(next, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::size_class;

    fn slab(blocks: &Blocks, slabs: &Slabs, units: u32) -> u32 {
        let first = blocks.take(size_class::slots(units).count);
        let index = slabs.take(1);
        let slab = slabs.get(index);
        slab.set_class(blocks, units, first);
        slab.base.store(0x10_0000, Relaxed);
        for slot in 0..size_class::slots(units).count {
            blocks.get(first + slot).set_index(first + slot);
        }
        index
    }

    #[test]
    fn every_address_of_a_slot_finds_its_block() {
        let (blocks, slabs) = (Blocks::new(), Slabs::new());
        for units in 1..=size_class::SLOT_MAX {
            let shape = size_class::slots(units);
            let slab = slabs.get(slab(&blocks, &slabs, units));
            let first = slab.first_block.load(Relaxed);
            for offset in (0..u64::from(shape.granules) * 16 * 1024).step_by(256) {
                let slot = offset / (u64::from(units) * UNIT);
                let expected = (slot < u64::from(shape.count)).then_some(first + slot as u32);
                let found = slab.block_at(0x10_0000 + offset).map(Block::index);
                assert_eq!(found, expected, "{units} units, offset {offset}");
            }
        }
    }

    #[test]
    fn no_address_gives_a_block_of_another_slab() {
        let (blocks, slabs) = (Blocks::new(), Slabs::new());
        let slab = slabs.get(slab(&blocks, &slabs, 3));
        let first = slab.first_block.load(Relaxed);
        let run = first..first + size_class::slots(3).count;
        for addr in [0, 0x10_0000 - 512, 1 << 45, u64::MAX, 0x10_0000 + (1 << 41)] {
            let found = slab.block_at(addr).map(Block::index);
            assert!(found.is_none_or(|index| run.contains(&index)), "{addr:#x}");
        }
    }
}
