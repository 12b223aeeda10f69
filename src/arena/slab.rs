//! Slabs: ranges cut into equal slots for the sizes up to 16 KiB.
//!
//! Invariants, under the arena's lock:
//! - `free` = length of the list at `first_free` = slots that are in no magazine, on no list and not live;
//! - a slab is on its class's list exactly while `0 < free < slots`: full ones have nothing to give, and one whose last
//!   slot comes back is given back to the ranges at once.

use crate::metadata::{Block, Blocks, Store, Zeroed};
use crate::size_class::UNIT;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The record of one slab. What the address lookup reads is set before the table names the slab.
#[repr(C, align(64))]
pub(crate) struct Slab {
    /// First address.
    pub(crate) base: AtomicU64,
    /// The block of slot 0; the others follow.
    pub(crate) first_block: AtomicU32,
    /// How many slots.
    pub(crate) slots: AtomicU32,
    /// Units of a slot.
    pub(crate) units: AtomicU32,
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
unsafe impl Zeroed for Slab {}

/// All slab records of a pool.
pub(crate) type Slabs = Store<Slab, 10, { 1 << 14 }>;

impl Slab {
    /// The block that begins at `addr`, an address within the slab's granules; `None` between slots' beginnings.
    #[inline(always)]
    pub(crate) fn block_at(&self, addr: u64) -> Option<u32> {
        // Relaxed, all of these: set before the table's entry was published.
        let offset = addr.wrapping_sub(self.base.load(Relaxed));
        let units = u64::from(self.units.load(Relaxed)).max(1);
        // Offsets are below 128 KiB: 32-bit division is cheap.
        let slot = (offset / UNIT) as u32 / units as u32;
        if offset % UNIT != 0 || u64::from(slot) * units * UNIT != offset || slot >= self.slots.load(Relaxed) {
            return None;
        }
        Some(self.first_block.load(Relaxed) + slot)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_slot_is_a_block() {
        let slabs = Slabs::new();
        let slab = slabs.get(slabs.take(1));
        slab.base.store(0x10_0000, Relaxed);
        slab.units.store(3, Relaxed);
        slab.slots.store(10, Relaxed);
        slab.first_block.store(100, Relaxed);
        assert_eq!(slab.block_at(0x10_0000), Some(100));
        assert_eq!(slab.block_at(0x10_0000 + 3 * 512 * 9), Some(109));
        for miss in [1, 512, 1024, 3 * 512 - 1, 3 * 512 * 10] {
            assert_eq!(slab.block_at(0x10_0000 + miss), None, "{miss}");
        }
    }
}
