//! What a thread has allocated and freed, counted without an atomic read-modify-write of what other threads use.
//!
//! Each owner adds to its own numbers, of small blocks (up to 1 MiB) and of larger ones apart. The pool knows of it what owners
//! have announced, at least as much as is given out (see [`Stock`]); what that is for, `peaks.rs` says. A hit asks by one
//! comparison whether there is something to do about it: `most` is how many bytes it may have given out before.

use super::peaks::{Totals, Whose};
use super::slots::{Classes, Number, Slots};
use super::stock::{FOLD, Stock};
use super::sums::Flows;
use crate::size_class::{self, CLASS_MAX};
use crate::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::atomic::Ordering::Relaxed;

/// The most idle bytes of an owner's large blocks, beside those of blocks that are in its magazines.
const IDLE: i64 = 64 << 20;
/// In how many looks for a peak an owner waits for the others, before it does so at every power of two of them.
const PATIENCE: u64 = 64;
/// Whether hits are counted. Without it (for `benches/instructions.rs`, to see what that costs) the statistics are wrong.
pub(crate) const COUNTED: bool = !cfg!(feature = "uncounted");

/// What was given out and given back so far.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Flow {
    allocs: Number,
    /// Bytes as asked for, given out and given back.
    requested: Number,
    frees: Number,
    returned: Number,
}

/// One owner's counters. Written by the owner alone but for what [`Stock`] says; read by anyone, a moment late.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Counters {
    pub(super) small: Stock,
    pub(super) flow: Flow,
    pub(super) big: Stock,
    /// How many bytes more than it has the owner may announce of small blocks: a part of its thread's [`FOLD`].
    fold: AtomicI64,
    /// The largest small block that came back and was more than that.
    wish: AtomicI64,
    /// The most bytes of small blocks that the owner is known to have given out, since peaks began again.
    high: AtomicI64,
    /// How often they had, as far as the owner knows.
    resets: AtomicU64,
    /// How often it looked for a peak in vain, as another thread had less than it had announced.
    in_vain: AtomicU64,
    pub(super) slots: Slots,
    pub(super) classes: Classes,
}

impl Flow {
    #[inline(always)]
    fn alloc(&self, requested: u64) {
        self.allocs.add(1);
        self.requested.add(requested);
    }

    #[inline(always)]
    fn free(&self, requested: u64) {
        self.frees.add(1);
        self.returned.add(requested);
    }
}

impl Counters {
    /// For magazines of small blocks that hold at most so many bytes.
    pub(super) fn new(bound: u64) -> Self {
        let new = Self {
            small: Stock::new(bound),
            ..Self::default()
        };
        // Somebody may be looking for a peak.
        new.big.stop();
        new
    }

    /// Keeps blocks out of the magazines.
    pub(super) fn shut(&self) {
        self.small.shut();
        self.big.shut();
    }

    /// Whether [`Self::shut`] was the last to say.
    pub(super) fn is_shut(&self) -> bool {
        self.small.is_shut() && self.big.is_shut()
    }

    /// Lets blocks into the magazines as far as there is room, and until too much is announced. Within the owner's section.
    pub(super) fn open(&self) {
        // Relaxed: the owner's number.
        self.small.open(self.fold.load(Relaxed));
        self.big.open_all();
    }

    /// The same by a taker that ends.
    pub(super) fn open_again(&self) {
        self.small.open_again();
        self.big.open_all();
    }

    /// A small block of so many units from a magazine was given out.
    #[inline(always)]
    pub(super) fn alloc_small(&self, units: u64, requested: u64) {
        if COUNTED {
            self.flow.alloc(requested);
            self.classes.alloc(units, requested);
        }
    }

    /// A small block came back into a magazine.
    #[inline(always)]
    pub(super) fn free_small(&self, requested: u64) {
        if COUNTED {
            self.flow.free(requested);
        }
    }

    /// A block was given out that is from no magazine of the owner's. [`Self::settle`] is next.
    pub(crate) fn alloc(&self, units: u32, requested: u64) {
        let allocated = size_class::bytes(units);
        if units > CLASS_MAX {
            self.slots.alloc(allocated, requested);
            self.big.change(allocated as i64);
        } else {
            self.flow.alloc(requested);
            self.classes.alloc(units.into(), requested);
            self.small.change(allocated as i64);
        }
    }

    /// A block was given back that is in no magazine of the owner's. [`Self::open`] is next: the magazines have room for less.
    pub(crate) fn free(&self, totals: &Totals, units: u32, requested: u64) {
        self.give_back(units, requested);
        self.tell_idle(totals, units);
    }

    /// As [`Self::free`], of a block that waits for other streams from now on.
    pub(crate) fn free_waiting<'a>(
        &self,
        totals: &Totals,
        (units, requested): (u32, u64),
        owners: impl Iterator<Item = (&'a Self, Whose)> + Clone,
    ) {
        {
            // Whoever looks for a peak finds the block given out or waiting, not both and not neither.
            let no_look = totals.no_look();
            self.give_back(units, requested);
            totals.add_pending(size_class::bytes(units), &no_look);
        }
        self.tell_idle(totals, units);
        if !totals.fits() {
            totals.look_now(owners);
        }
    }

    fn give_back(&self, units: u32, requested: u64) {
        let bytes = size_class::bytes(units) as i64;
        if units > CLASS_MAX {
            self.slots.free(requested);
            self.big.change(-bytes);
        } else {
            self.flow.free(requested);
            // Relaxed, both: the owner's numbers.
            if bytes > self.fold.load(Relaxed) {
                self.wish.store(bytes, Relaxed);
            }
            self.small.change(-bytes);
        }
    }

    /// Announces less after a block of so many units came back, where it is too much.
    fn tell_idle(&self, totals: &Totals, units: u32) {
        // What stays announced of small blocks is enough for this one again, and for some more that come back.
        let (stock, level, most, idle) = if units > CLASS_MAX {
            (&self.big, &totals.large, IDLE, 0)
        } else {
            let (bytes, fold) = (size_class::bytes(units) as i64, self.fold.load(Relaxed));
            (&self.small, &totals.small, fold, bytes.max(fold / 2).min(fold))
        };
        if stock.idle() > most {
            stock.tell(level, idle);
            self.tune(totals);
        }
    }

    /// Does what an allocation may ask for: announces it, looks for a new peak, and lets hits go on. Whether the other owners of
    /// the thread may announce less than before, and have to [`Self::open`] their magazines anew.
    pub(crate) fn settle<'a>(&self, totals: &Totals, owners: impl Iterator<Item = (&'a Self, Whose)> + Clone) -> bool {
        let lowered = self.take_part(totals, owners.clone());
        if self.settle_exactly(totals, owners.clone()) {
            self.announce(totals, owners);
        }
        self.tune(totals);
        lowered
    }

    /// Takes a part of the thread's [`FOLD`], where the owner has none or wishes for more: as much as each of the thread's owners,
    /// or what its blocks need, if need be from the others. Whether one of them has less now.
    fn take_part<'a>(&self, totals: &Totals, owners: impl Iterator<Item = (&'a Self, Whose)> + Clone) -> bool {
        // Relaxed, all: numbers of owners of this thread.
        let (fold, wish) = (self.fold.load(Relaxed), self.wish.load(Relaxed));
        if fold > 0 && fold >= wish {
            return false;
        }
        let others = owners.filter(|&(owner, whose)| whose == Whose::Mine && !std::ptr::eq(owner, self));
        let others = others.map(|(owner, _)| owner);
        let (count, theirs) = others.clone().fold((0, 0), |(count, theirs), owner| {
            (count + 1, theirs + owner.fold.load(Relaxed))
        });
        let equal = FOLD / (count + 1);
        let part = wish.max(equal);
        self.fold.store(part, Relaxed);
        self.wish.store(0, Relaxed);
        if theirs + part <= FOLD {
            return false;
        }
        // Each keeps as much as is fair; where this one needs more, nothing, until it allocates again.
        let most = if part > equal { 0 } else { equal };
        for owner in others.filter(|owner| owner.fold.load(Relaxed) > most) {
            owner.fold.store(most, Relaxed);
            owner.tell_small(totals);
        }
        true
    }

    /// As [`Self::settle`], for an owner that has no hits. Whether it announced small blocks.
    pub(crate) fn settle_exactly<'a>(
        &self,
        totals: &Totals,
        owners: impl Iterator<Item = (&'a Self, Whose)> + Clone,
    ) -> bool {
        let more = self.small.idle() < 0;
        if more {
            self.tell_small(totals);
        }
        if self.big.idle() < 0 {
            self.big.tell(&totals.large, 0);
        }
        if !totals.fits() {
            self.tell_small(totals);
            // Relaxed: the owner's number.
            let in_vain = self.in_vain.load(Relaxed);
            let patience = in_vain < PATIENCE || in_vain.is_power_of_two();
            if !totals.fits() && totals.look(Some(self), owners, patience) {
                self.in_vain.store(in_vain + 1, Relaxed);
            }
        }
        more
    }

    /// Announces small blocks to come, so that not each of them has to be: as many as there is room for below the peak, or
    /// beside other threads as many as the owner has had before.
    fn announce<'a>(&self, totals: &Totals, owners: impl Iterator<Item = (&'a Self, Whose)> + Clone) {
        let (live, resets) = (self.small.live(), totals.resets());
        let before = if self.resets.load(Relaxed) == resets {
            self.high.load(Relaxed)
        } else {
            i64::MIN
        };
        self.resets.store(resets, Relaxed);
        let high = before.max(live);
        self.high.store(high, Relaxed);
        let beside = |(owner, whose): (&Self, Whose)| {
            whose == Whose::Anothers && (owner.small.told() != 0 || owner.big.told() != 0)
        };
        let room = totals.room();
        let more = if room < FOLD && high - live > room && owners.clone().any(beside) {
            high - live
        } else {
            room
        };
        if more > 0 {
            // Relaxed: the owner's number.
            self.small.tell(&totals.small, more.min(self.fold.load(Relaxed) / 2));
            if !totals.fits() {
                totals.look(Some(self), owners, false);
            }
        }
    }

    /// Announces exactly the small blocks that there are. The owner's thread only.
    pub(super) fn tell_small(&self, totals: &Totals) {
        if self.small.idle() != 0 {
            self.small.tell(&totals.small, 0);
            self.small.tune_small();
        }
    }

    /// Announces no more than there is, for an owner that rests from now on.
    pub(crate) fn rest(&self, totals: &Totals) {
        // Relaxed: the owner's number.
        self.fold.store(0, Relaxed);
        for (stock, level) in [(&self.small, &totals.small), (&self.big, &totals.large)] {
            if stock.idle() > 0 {
                stock.tell(level, 0);
            }
        }
        self.tune(totals);
    }

    /// Sets how many bytes hits may give out before there is something to do.
    fn tune(&self, totals: &Totals) {
        self.small.tune_small();
        self.big.tune(totals);
    }
}

impl Flow {
    pub(super) fn flows(&self) -> Flows {
        Flows {
            allocs: self.allocs.get(),
            frees: self.frees.get(),
            requested: self.requested.get(),
            returned: self.returned.get(),
            given: 0,
            freed: 0,
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests;

#[cfg(all(test, loom))]
mod models;
