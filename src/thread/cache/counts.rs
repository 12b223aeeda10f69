//! What an owner counts beside its hits.

use super::Cache;
use crate::thread::counters::Counters;
use crate::thread::peaks::{Totals, Whose};
use crate::thread::slots::Given;

impl Cache {
    /// Counts a block that was given out and is from no magazine of this cache. [`Self::settle`] is next. The owner only.
    pub(crate) fn count_alloc(&self, units: u32, requested: u64) {
        self.own.counters.alloc(units, requested);
    }

    /// Counts a block that was given back and is in no magazine of this cache. The owner only.
    pub(crate) fn count_free(&self, totals: &Totals, units: u32, requested: u64) {
        self.own.counters.free(totals, units, requested);
        self.open();
    }

    /// As [`Self::count_free`], of a block that waits for other streams from now on. The owner only.
    pub(crate) fn count_waiting<'a>(
        &self,
        totals: &Totals,
        block: (u32, u64),
        owners: impl Iterator<Item = (&'a Counters, Whose)> + Clone,
    ) {
        self.own.counters.free_waiting(totals, block, owners);
        self.open();
    }

    /// Does what [`Counters::settle`] does, and says what that says. The owner only.
    pub(crate) fn settle<'a>(
        &self,
        totals: &Totals,
        owners: impl Iterator<Item = (&'a Counters, Whose)> + Clone,
    ) -> bool {
        let lowered = self.own.counters.settle(totals, owners);
        self.open();
        lowered
    }

    /// Announces no more than there is, as the owner rests from now on. The owner only.
    pub(crate) fn rest(&self, totals: &Totals) {
        self.own.counters.rest(totals);
        self.open();
    }

    /// Whether the last hit was one after which the next is timed; then they are counted anew. The owner only.
    pub(crate) fn samples_next(&self) -> bool {
        // SAFETY: this is the owner.
        unsafe { self.own.sample.begin_again() }
    }

    /// What was given out by size, which begins at nothing again if `take` says so: only where the owner is quiet.
    pub(crate) fn each_size(&self, take: bool, mut with: impl FnMut(u64, Given)) {
        self.own.counters.classes.each(take, &mut with);
        self.own.counters.slots.each(take, with);
    }
}
