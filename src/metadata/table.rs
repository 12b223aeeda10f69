//! From an address to its block, without a lock: a radix table over the 48-bit address space.
//!
//! ```text
//!   addr  47..36        35..21         20..14
//!        root[4096] -> mid[32768] -> leaf[128]: one entry for each 16 KiB of address space
//! ```
//!
//! A leaf (1 KiB) exists for each 2 MiB in which a block begins, which is 0.05 % of the memory held; mids are made
//! for each 64 GiB and only their touched pages take memory. One entry is enough: blocks above 16 KiB begin in
//! different granules, and smaller ones are slots of a slab that has its granules to itself.

use super::zeroed::{Zeroed, drop_array, make_array};
use crate::sync::atomic::{AtomicPtr, Ordering};
use crate::sync::length;
use std::marker::PhantomData;
use std::ptr;

const ROOT: usize = length(1 << 12, 2);
const MID: usize = length(1 << 15, 2);
const LEAF: usize = length(1 << 7, 8);
/// The lowest bit of an entry tells slabs from blocks: records are aligned to 64 bytes.
const SLAB: usize = 1;

type Leaf = [AtomicPtr<()>; LEAF];
type Mid = [AtomicPtr<Leaf>; MID];

/// What begins in a granule.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Entry<'a, B, S> {
    /// Nothing that was given out.
    None,
    /// A block.
    Block(&'a B),
    /// Slots of this slab.
    Slab(&'a S),
}

/// The table, to records of blocks `B` and slabs `S`, which live at least as long. Readers are wait-free; writers of one
/// entry are ordered by whoever owns that address range.
pub(crate) struct Table<B, S> {
    root: Box<[AtomicPtr<Mid>; ROOT]>,
    records: PhantomData<(*const B, *const S)>,
}

// SAFETY: the table gives out shared references to records, as a slice of references would.
unsafe impl<B: Sync, S: Sync> Send for Table<B, S> {}
// SAFETY: as above.
unsafe impl<B: Sync, S: Sync> Sync for Table<B, S> {}

impl<B, S> Table<B, S> {
    pub(crate) fn new() -> Self {
        Self {
            root: Box::new(std::array::from_fn(|_| AtomicPtr::default())),
            records: PhantomData,
        }
    }

    /// What begins in the granule of `addr`. For addresses from 2^48 on it answers for another one: the caller compares.
    #[inline(always)]
    pub(crate) fn get(&self, addr: u64) -> Entry<'_, B, S> {
        // Acquire: the mid's contents are read through the pointer.
        let mid = self.root[(addr >> 36) as usize % ROOT].load(Ordering::Acquire);
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
        let entry = leaf[(addr >> 14) as usize % LEAF].load(Ordering::Acquire);
        if entry.is_null() {
            Entry::None
        } else if entry.addr() & SLAB == 0 {
            // SAFETY: `set` was given a record that lives as long as the table.
            Entry::Block(unsafe { &*entry.cast::<B>() })
        } else {
            // SAFETY: as above, and the mark is taken off again.
            Entry::Slab(unsafe { &*entry.wrapping_byte_sub(SLAB).cast::<S>() })
        }
    }

    /// Sets the entry of the granule of `addr`, which must be below 2^48. Called by whoever owns the range, once its
    /// record is filled in.
    ///
    /// # Safety
    /// The record must live as long as the table, at an address that is even.
    pub(crate) unsafe fn set(&self, addr: u64, entry: Entry<'_, B, S>) {
        let mid = reach(&self.root[(addr >> 36) as usize % ROOT]);
        let leaf = reach(&mid[(addr >> 21) as usize % MID]);
        let entry: *const () = match entry {
            Entry::None => ptr::null(),
            Entry::Block(block) => ptr::from_ref(block).cast(),
            Entry::Slab(slab) => ptr::from_ref(slab).cast::<()>().wrapping_byte_add(SLAB),
        };
        // Release: the record is visible to whoever reads the entry.
        leaf[(addr >> 14) as usize % LEAF].store(entry.cast_mut(), Ordering::Release);
    }
}

/// Whether a table can hold the addresses below `end`.
pub(crate) const fn covers(end: u64) -> bool {
    end <= 1 << 48
}

/// The array behind `slot`, made (zeroed) if there is none.
fn reach<T: Zeroed>(slot: &AtomicPtr<T>) -> &T {
    // Acquire: its contents are read through the pointer.
    let mut found = slot.load(Ordering::Acquire);
    if found.is_null() {
        let made = make_array::<T>(1);
        // Release: the zeroed contents go with the pointer. Acquire on failure: as above.
        match slot.compare_exchange(found, made, Ordering::Release, Ordering::Acquire) {
            Ok(_) => found = made,
            Err(other) => {
                // SAFETY: made above and published nowhere.
                unsafe { drop_array(made, 1) };
                found = other;
            }
        }
    }
    // SAFETY: arrays of atomic pointers and numbers are valid when zero; they live until the table is dropped, which
    // borrows of the slot prevent.
    unsafe { &*found }
}

impl<B, S> Drop for Table<B, S> {
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
                    // SAFETY: made by `reach`; nobody else has the table.
                    unsafe { drop_array(leaf, 1) };
                }
            }
            // SAFETY: as above.
            unsafe { drop_array(mid, 1) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    static RECORDS: [u64; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

    fn set(table: &Table<u64, u64>, addr: u64, entry: Entry<'static, u64, u64>) {
        // SAFETY: the records are static.
        unsafe { table.set(addr, entry) };
    }

    fn get(table: &Table<u64, u64>, addr: u64) -> (u64, u64) {
        match table.get(addr) {
            Entry::None => (0, 0),
            Entry::Block(block) => (*block, 0),
            Entry::Slab(slab) => (0, *slab),
        }
    }

    #[test]
    fn finds_what_was_set_and_nothing_else() {
        let table = Table::new();
        let base = 0x7f12_3460_0000;
        set(&table, base, Entry::Block(&RECORDS[7]));
        set(&table, base + (16 << 10), Entry::Slab(&RECORDS[9]));
        assert_eq!(get(&table, base + 511), (7, 0));
        assert_eq!(get(&table, base + (17 << 10)), (0, 9));
        for miss in [
            0,
            base - 1,
            base + (32 << 10),
            base + (2 << 20),
            base ^ (1 << 40),
            u64::MAX,
        ] {
            assert_eq!(get(&table, miss), (0, 0), "{miss:#x}");
        }
        set(&table, base, Entry::None);
        assert_eq!(get(&table, base), (0, 0));
    }

    #[test]
    fn threads_that_reach_a_new_place_together_agree() {
        let table = Table::new();
        std::thread::scope(|scope| {
            for (i, record) in RECORDS.iter().enumerate().skip(1).take(4) {
                let table = &table;
                scope.spawn(move || set(table, (i as u64) << 14, Entry::Block(record)));
            }
        });
        for i in 1..=4u64 {
            assert_eq!(get(&table, i << 14), (i, 0));
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::atomic::AtomicU64;
    use crate::sync::meet;

    /// Loom reports a record that is read before it was made.
    #[repr(align(64))]
    struct Record(AtomicU64);

    /// The table is dropped before the records, which are leaked.
    type Records = Table<Record, Record>;

    /// Addresses in a new leaf of the first one's kind: beside it, far from it, and farther.
    const NEW: [u64; 3] = [2 << 14, 1 << 21, 1 << 36];
    const OLD: u64 = 1 << 14;

    fn set(table: &Records, addr: u64) {
        // A model runs thousands of times: what it leaks is small.
        let record = Box::leak(Box::new(Record(AtomicU64::new(addr))));
        // SAFETY: the record is leaked.
        unsafe { table.set(addr, Entry::Block(record)) };
    }

    fn get(table: &Records, addr: u64) -> Option<u64> {
        match table.get(addr) {
            Entry::Block(record) | Entry::Slab(record) => Some(record.0.load(Ordering::Relaxed)),
            Entry::None => None,
        }
    }

    #[test]
    fn threads_that_make_the_same_arrays_lose_no_entry() {
        meet(
            Records::new,
            |table| set(table, OLD),
            |table| set(table, NEW[0]),
            |table, (), ()| {
                assert_eq!([get(table, OLD), get(table, NEW[0])], [Some(OLD), Some(NEW[0])]);
            },
        );
    }

    #[test]
    fn a_lookup_beside_growth_finds_whole_records_only() {
        let grown = || {
            let table = Records::new();
            set(&table, OLD);
            table
        };
        let grow = |table: &Records| NEW.map(|addr| set(table, addr));
        let look = |table: &Records| {
            assert!(
                NEW.iter()
                    .all(|&addr| get(table, addr).is_none_or(|found| found == addr))
            );
            assert_eq!(get(table, OLD), Some(OLD), "growth moves nothing");
        };
        meet(grown, grow, look, |table, _, ()| {
            assert_eq!(NEW.map(|addr| get(table, addr)), NEW.map(Some));
        });
    }

    #[test]
    fn an_entry_that_is_taken_away_is_there_or_not() {
        let grown = || {
            let table = Records::new();
            set(&table, OLD);
            table
        };
        // SAFETY: nothing is entered.
        let clear = |table: &Records| unsafe { table.set(OLD, Entry::None) };
        let look = |table: &Records| get(table, OLD).is_none_or(|found| found == OLD);
        meet(grown, clear, look, |table, (), whole| {
            assert!(whole && get(table, OLD).is_none())
        });
    }
}
