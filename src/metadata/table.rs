//! From an address to its block, without a lock: a radix table over the 48-bit address space.
//!
//! ```text
//!   addr  47..36        35..21         20..14
//!        root[4096] -> mid[32768] -> leaf[128]: one entry for each 16 KiB of address space
//! ```
//!
//! A leaf (512 bytes) exists for each 2 MiB in which a block begins, which is 0.024 % of the memory held; mids are made
//! for each 64 GiB and only their touched pages take memory. One entry is enough: blocks above 16 KiB begin in
//! different granules, and smaller ones are slots of a slab that has its granules to itself.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const ROOT: usize = 1 << 12;
const MID: usize = 1 << 15;
const LEAF: usize = 1 << 7;
const SLAB: u32 = 1 << 31;

type Leaf = [AtomicU32; LEAF];
type Mid = [AtomicPtr<Leaf>; MID];

/// What begins in a granule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing that was given out.
    None,
    /// A block: its index.
    Block(u32),
    /// Slots of this slab.
    Slab(u32),
}

impl Entry {
    fn to_raw(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Block(index) => index,
            Self::Slab(index) => index | SLAB,
        }
    }
}

/// The table. Readers are wait-free; writers of one entry are ordered by whoever owns that address range.
pub(crate) struct Table {
    root: Box<[AtomicPtr<Mid>; ROOT]>,
}

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            root: Box::new([const { AtomicPtr::new(ptr::null_mut()) }; ROOT]),
        }
    }

    /// What begins in the granule of `addr`.
    #[inline(always)]
    pub(crate) fn get(&self, addr: u64) -> Entry {
        let Some(slot) = self.root.get((addr >> 36) as usize) else {
            return Entry::None;
        };
        // Acquire: the mid's contents are read through the pointer.
        let mid = slot.load(Ordering::Acquire);
        if mid.is_null() {
            return Entry::None;
        }
        // SAFETY: mids are made whole before they are published and live as long as the table.
        let mid = unsafe { &*mid };
        // Acquire: the leaf's contents are read through the pointer.
        let leaf = mid[(addr >> 21) as usize % MID].load(Ordering::Acquire);
        if leaf.is_null() {
            return Entry::None;
        }
        // SAFETY: as for mids.
        let leaf = unsafe { &*leaf };
        // Acquire: the record that the entry names is read next.
        let raw = leaf[(addr >> 14) as usize % LEAF].load(Ordering::Acquire);
        if raw == 0 {
            Entry::None
        } else if raw & SLAB == 0 {
            Entry::Block(raw)
        } else {
            Entry::Slab(raw & !SLAB)
        }
    }

    /// Sets the entry of the granule of `addr`, which must be below 2^48. Called by whoever owns the range, once its
    /// record is filled in.
    pub(crate) fn set(&self, addr: u64, entry: Entry) {
        let mid = reach(&self.root[(addr >> 36) as usize]);
        let leaf = reach(&mid[(addr >> 21) as usize % MID]);
        // Release: the record is visible to whoever reads the entry.
        leaf[(addr >> 14) as usize % LEAF].store(entry.to_raw(), Ordering::Release);
    }

    /// Whether the table can hold the addresses below `end`.
    pub(crate) const fn covers(end: u64) -> bool {
        end <= 1 << 48
    }
}

/// The array behind `slot`, made (zeroed) if there is none.
fn reach<T>(slot: &AtomicPtr<T>) -> &T {
    // Acquire: its contents are read through the pointer.
    let mut found = slot.load(Ordering::Acquire);
    if found.is_null() {
        let layout = Layout::new::<T>();
        // SAFETY: mids and leaves are not zero-sized.
        let made = unsafe { alloc_zeroed(layout) }.cast::<T>();
        if made.is_null() {
            handle_alloc_error(layout);
        }
        // Release: the zeroed contents go with the pointer. Acquire on failure: as above.
        match slot.compare_exchange(found, made, Ordering::Release, Ordering::Acquire) {
            Ok(_) => found = made,
            Err(other) => {
                // SAFETY: made above with this layout and published nowhere.
                unsafe { dealloc(made.cast(), layout) };
                found = other;
            }
        }
    }
    // SAFETY: arrays of atomic pointers and numbers are valid when zero; they live until the table is dropped, which
    // borrows of the slot prevent.
    unsafe { &*found }
}

impl Drop for Table {
    fn drop(&mut self) {
        for mid in self.root.iter() {
            // Relaxed, here and below: we have the table to ourselves.
            let mid = mid.load(Ordering::Relaxed);
            if mid.is_null() {
                continue;
            }
            // SAFETY: made by `reach`; nobody else has the table.
            for leaf in unsafe { &*mid } {
                let leaf = leaf.load(Ordering::Relaxed);
                if !leaf.is_null() {
                    // SAFETY: made by `reach` with this layout.
                    unsafe { dealloc(leaf.cast(), Layout::new::<Leaf>()) };
                }
            }
            // SAFETY: made by `reach` with this layout.
            unsafe { dealloc(mid.cast(), Layout::new::<Mid>()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_set_and_nothing_else() {
        let table = Table::new();
        let base = 0x7f12_3460_0000;
        table.set(base, Entry::Block(7));
        table.set(base + (16 << 10), Entry::Slab(9));
        assert_eq!(table.get(base + 511), Entry::Block(7));
        assert_eq!(table.get(base + (17 << 10)), Entry::Slab(9));
        for miss in [
            0,
            base - 1,
            base + (32 << 10),
            base + (2 << 20),
            base ^ (1 << 40),
            u64::MAX,
            1 << 48,
        ] {
            assert_eq!(table.get(miss), Entry::None, "{miss:#x}");
        }
        table.set(base, Entry::None);
        assert_eq!(table.get(base), Entry::None);
    }

    #[test]
    fn threads_that_reach_a_new_place_together_agree() {
        let table = Table::new();
        std::thread::scope(|scope| {
            for i in 1..=4u32 {
                let table = &table;
                scope.spawn(move || table.set(u64::from(i) << 14, Entry::Block(i)));
            }
        });
        for i in 1..=4u32 {
            assert_eq!(table.get(u64::from(i) << 14), Entry::Block(i));
        }
    }
}
