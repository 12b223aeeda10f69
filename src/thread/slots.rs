//! What an owner has given out, by size: in each class, and of blocks above 1 MiB.
//!
//! These are numbers that only the owner writes and that nothing else is read through, so models (loom) look past them.

use super::counters::COUNTED;
use super::sums::Flows;
use crate::size_class::{self, CLASS_MAX};
use crate::sync::length;
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Places for sizes above [`CLASS_MAX`]: each holds blocks of one size at a time.
pub(crate) const LARGE_SLOTS: usize = length(64, 2);
/// Powers of two from 2 MiB to 2 TiB, the largest size.
const POWERS: usize = 21;
/// One hit in so many is timed.
const SAMPLE: u32 = 1024;

/// The place of a size above [`CLASS_MAX`].
#[inline(always)]
pub(super) const fn large_slot(units: u64) -> usize {
    // Fibonacci hashing: the top bits of the product are spread well for sizes that are multiples of large powers of two.
    ((units as u32).wrapping_mul(0x9e37_79b9) >> (u32::BITS - LARGE_SLOTS.ilog2())) as usize
}

/// A number that one thread writes and any reads, a moment late.
#[derive(Debug, Default)]
pub(super) struct Number(AtomicU64);

impl Number {
    #[inline(always)]
    pub(super) fn add(&self, more: u64) {
        // Relaxed, here and below: as said above.
        self.0.store(self.get().wrapping_add(more), Relaxed);
    }

    #[inline(always)]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn take(&self) -> u64 {
        let number = self.get();
        self.0.store(0, Relaxed);
        number
    }
}

/// Blocks given out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) allocs: u64,
    /// Their bytes, rounded.
    pub(crate) allocated: u64,
    /// Their bytes, as asked for.
    pub(crate) requested: u64,
}

impl Given {
    pub(crate) fn one(allocated: u64, requested: u64) -> Self {
        Self {
            allocs: 1,
            allocated,
            requested,
        }
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.allocs += more.allocs;
        self.allocated += more.allocated;
        self.requested += more.requested;
    }
}

/// The size by which blocks of so many bytes are counted: their own up to 1 MiB, or else the next power of two.
pub(crate) const fn size_of_count(allocated: u64) -> u64 {
    if allocated > size_class::bytes(CLASS_MAX) {
        allocated.next_power_of_two()
    } else {
        allocated
    }
}

/// Counts hits down to the next that is timed.
#[derive(Debug)]
pub(super) struct Countdown(UnsafeCell<u32>);

// SAFETY: by the contract of its functions one thread at a time uses it.
unsafe impl Sync for Countdown {}

impl Countdown {
    pub(super) fn new() -> Self {
        Self(UnsafeCell::new(SAMPLE))
    }

    /// A hit; whether it is the last until a sample.
    ///
    /// # Safety
    /// The owner only.
    #[inline(always)]
    pub(super) unsafe fn tick(&self) -> bool {
        // SAFETY: by the contract.
        let left = unsafe { &mut *self.0.get() };
        *left = left.wrapping_sub(1);
        *left == 0
    }

    /// Begins again where the last [`Self::tick`] was one to sample after. Whether it was.
    ///
    /// # Safety
    /// As [`Self::tick`].
    pub(super) unsafe fn begin_again(&self) -> bool {
        // SAFETY: by the contract.
        let left = unsafe { &mut *self.0.get() };
        let over = *left == 0;
        if over {
            *left = SAMPLE;
        }
        over
    }
}

/// What was given out of each class.
#[derive(Debug)]
pub(super) struct Classes {
    allocs: [Number; CLASS_MAX as usize + 1],
    requested: [Number; CLASS_MAX as usize + 1],
    /// Bytes, rounded, of what was given out and taken by [`Self::each`].
    taken: Number,
}

impl Default for Classes {
    fn default() -> Self {
        Self {
            allocs: std::array::from_fn(|_| Number::default()),
            requested: std::array::from_fn(|_| Number::default()),
            taken: Number::default(),
        }
    }
}

impl Classes {
    /// A block of so many units was given out, at most [`CLASS_MAX`].
    #[inline(always)]
    pub(super) fn alloc(&self, units: u64, requested: u64) {
        if let (Some(allocs), Some(sum)) = (self.allocs.get(units as usize), self.requested.get(units as usize)) {
            allocs.add(1);
            sum.add(requested);
        }
    }

    /// All bytes that were ever given out, rounded.
    pub(super) fn given(&self) -> u64 {
        let allocs = (0..).zip(&self.allocs);
        allocs.fold(self.taken.get(), |sum, (units, allocs)| {
            sum.wrapping_add(allocs.get().wrapping_mul(size_class::bytes(units)))
        })
    }

    /// What was given out of each class, which begins at nothing again if `take` says so.
    pub(super) fn each(&self, take: bool, mut with: impl FnMut(u64, Given)) {
        let read = |number: &Number| if take { number.take() } else { number.get() };
        for (units, (allocs, requested)) in (0..).zip(self.allocs.iter().zip(&self.requested)) {
            let (allocs, requested) = (read(allocs), read(requested));
            if allocs > 0 {
                let size = size_class::bytes(units);
                let allocated = allocs * size;
                if take {
                    self.taken.add(allocated);
                }
                with(
                    size,
                    Given {
                        allocs,
                        allocated,
                        requested,
                    },
                );
            }
        }
    }
}

/// A sum of [`Given`].
#[derive(Debug, Default)]
struct Sum {
    allocs: Number,
    allocated: Number,
    requested: Number,
}

impl Sum {
    fn add(&self, given: Given) {
        self.allocs.add(given.allocs);
        self.allocated.add(given.allocated);
        self.requested.add(given.requested);
    }

    fn get(&self) -> Given {
        Given {
            allocs: self.allocs.get(),
            allocated: self.allocated.get(),
            requested: self.requested.get(),
        }
    }

    fn take(&self) -> Given {
        Given {
            allocs: self.allocs.take(),
            allocated: self.allocated.take(),
            requested: self.requested.take(),
        }
    }
}

/// What was given out and given back of large blocks: by hits for each place of the magazines, and the rest.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slots {
    /// The size that each place is for.
    units: [AtomicU32; LARGE_SLOTS],
    allocs: [Number; LARGE_SLOTS],
    requested: [Number; LARGE_SLOTS],
    frees: [Number; LARGE_SLOTS],
    returned: [Number; LARGE_SLOTS],
    /// All that is in no place, given out.
    others: Sum,
    other_frees: Number,
    other_returned: Number,
    /// The same as `others`, by powers of two, of which parts are counted elsewhere when the owner serves somebody else.
    sizes: [Sum; POWERS],
}

impl Default for Slots {
    fn default() -> Self {
        let numbers = || std::array::from_fn(|_| Number::default());
        Self {
            units: std::array::from_fn(|_| AtomicU32::default()),
            allocs: numbers(),
            requested: numbers(),
            frees: numbers(),
            returned: numbers(),
            others: Sum::default(),
            other_frees: Number::default(),
            other_returned: Number::default(),
            sizes: std::array::from_fn(|_| Sum::default()),
        }
    }
}

impl Slots {
    /// Whether the place is for blocks of so many units.
    #[inline(always)]
    pub(super) fn is_for(&self, slot: usize, units: u64) -> bool {
        u64::from(self.units[slot].load(Relaxed)) == units
    }

    /// A block from this place's magazine was given out.
    #[inline(always)]
    pub(super) fn alloc_hit(&self, slot: usize, requested: u64) {
        if COUNTED {
            self.allocs[slot].add(1);
            self.requested[slot].add(requested);
        }
    }

    /// A block came back into this place's magazine.
    #[inline(always)]
    pub(super) fn free_hit(&self, slot: usize, requested: u64) {
        if COUNTED {
            self.frees[slot].add(1);
            self.returned[slot].add(requested);
        }
    }

    /// A block was given out that is from no magazine.
    pub(super) fn alloc(&self, allocated: u64, requested: u64) {
        self.count(Given::one(allocated, requested));
    }

    /// A block was given back that goes into no magazine.
    pub(super) fn free(&self, requested: u64) {
        self.other_frees.add(1);
        self.other_returned.add(requested);
    }

    /// Blocks of one size.
    fn count(&self, given: Given) {
        self.others.add(given);
        let size = given.allocated.checked_div(given.allocs).unwrap_or(0);
        if let Some(sum) = self.sizes.get(power(size)) {
            sum.add(given);
        }
    }

    /// What the hits of a place gave out.
    fn of_slot(&self, slot: usize, read: impl Fn(&Number) -> u64) -> Given {
        let allocs = read(&self.allocs[slot]);
        Given {
            allocs,
            allocated: allocs * size_class::bytes(self.units[slot].load(Relaxed)),
            requested: read(&self.requested[slot]),
        }
    }

    /// From now on the place, whose magazine is empty, is for blocks of so many units.
    pub(super) fn aim(&self, slot: usize, units: u32) {
        self.sum_up(slot);
        self.other_frees.add(self.frees[slot].take());
        self.other_returned.add(self.returned[slot].take());
        self.units[slot].store(units, Relaxed);
    }

    /// What the hits of a place gave out goes to the others.
    fn sum_up(&self, slot: usize) {
        let given = self.of_slot(slot, Number::take);
        if given.allocs > 0 {
            self.count(given);
        }
    }

    /// What was given out by size, which begins at nothing again if `take` says so.
    pub(super) fn each(&self, take: bool, mut with: impl FnMut(u64, Given)) {
        if take {
            // Frees stay: the owner may count others meanwhile, of blocks of anyone.
            (0..LARGE_SLOTS).for_each(|slot| self.sum_up(slot));
        }
        for slot in 0..LARGE_SLOTS {
            let given = self.of_slot(slot, Number::get);
            if let Some(size) = given.allocated.checked_div(given.allocs) {
                with(size_of_count(size), given);
            }
        }
        for (place, sum) in (0..).zip(&self.sizes) {
            let given = if take { sum.take() } else { sum.get() };
            if given.allocs > 0 {
                with(size_class::bytes(CLASS_MAX) << (place + 1), given);
            }
        }
    }

    /// How many blocks came back.
    pub(super) fn count_frees(&self) -> u64 {
        self.other_frees.get() + self.frees.iter().map(Number::get).sum::<u64>()
    }

    /// All of it.
    pub(super) fn flows(&self) -> Flows {
        let mut given = self.others.get();
        (0..LARGE_SLOTS).for_each(|slot| given.add(self.of_slot(slot, Number::get)));
        let sum = |numbers: &[Number]| numbers.iter().map(Number::get).sum::<u64>();
        Flows {
            allocs: given.allocs,
            requested: given.requested,
            given: given.allocated,
            frees: self.count_frees(),
            returned: self.other_returned.get() + sum(&self.returned),
            freed: 0,
        }
    }
}

/// The place of a size among the powers of two: 0 for what is at most 2 MiB.
fn power(allocated: u64) -> usize {
    let powers = size_of_count(allocated) / size_class::bytes(CLASS_MAX);
    (powers.max(2).ilog2() - 1) as usize
}
