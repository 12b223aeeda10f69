//! From an address to its block, without a lock: a radix table over the 48-bit address space.
//!
//! ```text
//!   addr  47..30          29..14
//!        root[262144] -> leaf[65536]: one entry for each 16 KiB of address space
//! ```
//!
//! The root (2 MiB) and the leaves (512 KiB, for each GiB in which a block begins) are zeroed memory from the system, of which only
//! touched pages take memory: 4 KiB for each 8 MiB in which a block begins, 0.05 % of the memory held. One entry is enough: blocks
//! above 16 KiB begin in different granules, and smaller ones are slots of a slab that has its granules to itself.

use super::zeroed::{drop_array, make_array};
use crate::sync::atomic::{AtomicPtr, Ordering};
use crate::sync::{Mutex, length, lock};
use std::marker::PhantomData;
use std::ptr;

/// What an entry of the root and one of a leaf are for, as powers of two in bytes.
const LEAF_SHIFT: u32 = 30;
const ENTRY_SHIFT: u32 = 14;
const ROOT: usize = length(1 << (48 - LEAF_SHIFT), 2);
const LEAF: usize = length(1 << (LEAF_SHIFT - ENTRY_SHIFT), 8);
/// The lowest bit of an entry tells slabs from blocks: records are aligned to 64 bytes.
const SLAB: usize = 1;

type Leaf = [AtomicPtr<()>; LEAF];
type Root = [AtomicPtr<Leaf>; ROOT];

const fn root_place(addr: u64) -> usize {
    (addr >> LEAF_SHIFT) as usize % ROOT
}

const fn leaf_place(addr: u64) -> usize {
    (addr >> ENTRY_SHIFT) as usize % LEAF
}

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
    /// An array of one, as the leaves are.
    root: *mut Root,
    /// Those that were made.
    leaves: Mutex<Vec<*mut Leaf>>,
    records: PhantomData<(*const B, *const S)>,
}

// SAFETY: the table gives out shared references to records, as a slice of references would.
unsafe impl<B: Sync, S: Sync> Send for Table<B, S> {}
// SAFETY: as above.
unsafe impl<B: Sync, S: Sync> Sync for Table<B, S> {}

impl<B, S> Table<B, S> {
    pub(crate) fn new() -> Self {
        Self {
            root: make_array(1),
            leaves: Mutex::default(),
            records: PhantomData,
        }
    }

    /// What begins in the granule of `addr`. For addresses from 2^48 on it answers for another one: the caller compares.
    #[inline(always)]
    pub(crate) fn get(&self, addr: u64) -> Entry<'_, B, S> {
        // Acquire: the leaf's contents are read through the pointer.
        let leaf = self.root()[root_place(addr)].load(Ordering::Acquire);
        if leaf.is_null() {
            return Entry::None;
        }
        // SAFETY: leaves are made whole before they are published and live as long as the table.
        let leaf = unsafe { &*leaf };
        // Acquire: the record that the entry names is read next.
        let entry = leaf[leaf_place(addr)].load(Ordering::Acquire);
        if entry.addr() & SLAB != 0 {
            // SAFETY: `set` was given a record that lives as long as the table, and the mark is taken off again.
            Entry::Slab(unsafe { &*entry.wrapping_byte_sub(SLAB).cast::<S>() })
        } else if entry.is_null() {
            Entry::None
        } else {
            // SAFETY: as above.
            Entry::Block(unsafe { &*entry.cast::<B>() })
        }
    }

    /// Sets the entry of the granule of `addr`, which must be below 2^48. Called by whoever owns the range, once its
    /// record is filled in.
    ///
    /// # Safety
    /// The record must live as long as the table, at an address that is even.
    pub(crate) unsafe fn set(&self, addr: u64, entry: Entry<'_, B, S>) {
        let entry: *const () = match entry {
            Entry::None => ptr::null(),
            Entry::Block(block) => ptr::from_ref(block).cast(),
            Entry::Slab(slab) => ptr::from_ref(slab).cast::<()>().wrapping_byte_add(SLAB),
        };
        // Release: the record is visible to whoever reads the entry.
        self.leaf(addr)[leaf_place(addr)].store(entry.cast_mut(), Ordering::Release);
    }

    #[inline(always)]
    fn root(&self) -> &Root {
        // SAFETY: made by `new`, valid when zero, and freed by `drop`.
        unsafe { &*self.root }
    }

    /// The leaf for `addr`, made if there is none.
    fn leaf(&self, addr: u64) -> &Leaf {
        let slot = &self.root()[root_place(addr)];
        // Acquire: its contents are read through the pointer.
        let mut leaf = slot.load(Ordering::Acquire);
        if leaf.is_null() {
            let mut leaves = lock(&self.leaves);
            // Relaxed: only changed under this lock.
            leaf = slot.load(Ordering::Relaxed);
            if leaf.is_null() {
                leaf = make_array(1);
                leaves.push(leaf);
                // Release: the zeroed contents go with the pointer.
                slot.store(leaf, Ordering::Release);
            }
        }
        // SAFETY: leaves live as long as the table.
        unsafe { &*leaf }
    }
}

impl<B, S> Drop for Table<B, S> {
    fn drop(&mut self) {
        for leaf in lock(&self.leaves).drain(..) {
            // SAFETY: made by `leaf`, and nobody else has the table any more.
            unsafe { drop_array(leaf, 1) };
        }
        // SAFETY: made by `new`, as above.
        unsafe { drop_array(self.root, 1) };
    }
}

/// Whether a table can hold the addresses below `end`.
pub(crate) const fn covers(end: u64) -> bool {
    end <= 1 << 48
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

    /// Addresses in the leaf of the first one, and in another.
    const NEW: [u64; 2] = [2 << 14, 1 << 30];
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
