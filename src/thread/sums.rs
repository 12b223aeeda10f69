//! What all owners have counted, added up.
//!
//! Owners are read one after the other, so a sum is exact while no thread allocates or frees: a block that moves from one to
//! another meanwhile may count twice, or not at all.

use super::counters::Counters;
use super::peaks::{Totals, Whose};
use std::sync::atomic::Ordering::Relaxed;

/// What was given out and given back so far.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Flows {
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
    /// Bytes as asked for, given out and given back.
    pub(crate) requested: u64,
    pub(crate) returned: u64,
    /// Bytes given out, rounded.
    pub(super) given: u64,
    /// Bytes given back, rounded.
    pub(crate) freed: u64,
}

impl Flows {
    fn add(&mut self, flows: &Self) {
        self.allocs += flows.allocs;
        self.frees += flows.frees;
        self.requested += flows.requested;
        self.returned += flows.returned;
        self.given += flows.given;
        self.freed += flows.freed;
    }

    /// Bytes as asked for that are live. Below 0 where an owner frees what others allocated, as the next.
    fn live_requested(&self) -> i64 {
        self.requested.wrapping_sub(self.returned) as i64
    }

    fn live_blocks(&self) -> i64 {
        self.allocs.wrapping_sub(self.frees) as i64
    }
}

/// What is live at a moment, beside the allocated bytes of all blocks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) requested: i64,
    pub(crate) blocks: i64,
    /// Of large blocks.
    pub(crate) large_allocated: i64,
    pub(crate) large_requested: i64,
    pub(crate) large_blocks: i64,
}

impl Live {
    /// Of one owner, by all its allocations and frees.
    fn of(owner: &Counters) -> Self {
        let (small, large) = (owner.flow.flows(), owner.slots.flows());
        Self {
            requested: small.live_requested() + large.live_requested(),
            blocks: small.live_blocks() + large.live_blocks(),
            large_allocated: owner.big.live(),
            large_requested: large.live_requested(),
            large_blocks: large.live_blocks(),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            requested: self.requested + other.requested,
            blocks: self.blocks + other.blocks,
            large_allocated: self.large_allocated + other.large_allocated,
            large_requested: self.large_requested + other.large_requested,
            large_blocks: self.large_blocks + other.large_blocks,
        }
    }

    /// What all owners have.
    pub(super) fn sum<'a>(owners: impl Iterator<Item = &'a Counters>) -> Self {
        owners.fold(Self::default(), |sum, owner| sum.plus(Self::of(owner)))
    }
}

/// The bytes that all owners have given out and not got back.
pub(crate) fn allocated<'a>(owners: impl Iterator<Item = &'a Counters>) -> i64 {
    owners.map(|owner| owner.small.live() + owner.big.live()).sum()
}

/// How many blocks owners got back.
pub(crate) fn count_frees<'a>(owners: impl Iterator<Item = &'a Counters>) -> u64 {
    owners
        .map(|owner| owner.flow.flows().frees + owner.slots.count_frees())
        .sum()
}

/// Counters added up over all owners.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sum {
    pub(crate) allocated: i64,
    pub(crate) live: Live,
    pub(crate) pending: i64,
    pub(crate) peak_allocated: i64,
    /// What was live when `allocated` was `peak_allocated`.
    pub(crate) peak: Live,
    pub(crate) peak_active: i64,
    /// What was given out and given back so far, of all blocks and of the large ones.
    pub(crate) all: Flows,
    pub(crate) large: Flows,
}

impl Totals {
    /// Bytes given out, or freed and waiting, now.
    pub(crate) fn active_now<'a>(&self, owners: impl Iterator<Item = &'a Counters>) -> u64 {
        let active = allocated(owners) + self.pending.load(Relaxed) as i64;
        u64::try_from(active).unwrap_or(0)
    }

    /// The present values and peaks over all owners; exact when no thread is allocating or freeing. Values are at most the peaks.
    pub(crate) fn sum<'a>(&self, owners: impl Iterator<Item = (&'a Counters, Whose)> + Clone) -> Sum {
        self.sum_up(owners, false)
    }

    /// The same as the peaks begin again.
    pub(crate) fn reset_peaks<'a>(&self, owners: impl Iterator<Item = (&'a Counters, Whose)> + Clone) -> Sum {
        let sum = self.sum_up(owners.clone(), true);
        self.look_now(owners);
        sum
    }

    fn sum_up<'a>(&self, owners: impl Iterator<Item = (&'a Counters, Whose)> + Clone, again: bool) -> Sum {
        let mut sum = Sum::default();
        for (owner, _) in owners.clone() {
            let large = owner.slots.flows();
            sum.all.add(&owner.flow.flows());
            sum.all.add(&large);
            sum.large.add(&large);
            sum.all.given += owner.classes.given();
            sum.allocated += owner.small.live() + owner.big.live();
        }
        sum.live = Live::sum(owners.clone().map(|(owner, _)| owner));
        sum.pending = self.pending.load(Relaxed) as i64;
        // More than a peak: a block that is being given out was not looked at yet, or one that moved meanwhile counts twice.
        if sum.allocated > self.peak() || sum.allocated + sum.pending > self.active_peak() {
            self.look_now(owners.clone());
        }
        (sum.peak_allocated, sum.peak, sum.peak_active) = self.peaks(again.then_some(owners));
        sum.peak_active = sum.peak_active.max(sum.peak_allocated);
        // What came back is what was given out and is not live. Of owners that changed meanwhile more can seem to be live, or less
        // than nothing: the two add up to what was given out all the same, which never falls.
        let parts = |given: u64, live: i64| {
            let live = live.clamp(0, given as i64);
            (live, given - live as u64)
        };
        (sum.allocated, sum.all.freed) = parts(sum.all.given, sum.allocated.min(sum.peak_allocated));
        (sum.live.large_allocated, sum.large.freed) = parts(sum.large.given, sum.live.large_allocated);
        sum.pending = sum.pending.min(sum.peak_active - sum.allocated);
        sum
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::counters::tests::Setting;
    use std::cell::Cell;

    /// Above 1 MiB.
    const BYTES: u64 = 2 << 20;

    #[test]
    fn what_was_given_out_is_live_or_came_back_also_while_it_moves() {
        // Steps happen when an owner is gone by for so many times.
        for (give, take) in (0..6).flat_map(|give| (0..6).map(move |take| (give, take))) {
            let setting = Setting::new(2, 1);
            setting.alloc(1, BYTES);
            let gone_by = Cell::new(0);
            let owners = setting.owners(0).inspect(|_| {
                if gone_by.get() == give {
                    setting.alloc(0, BYTES);
                }
                if gone_by.get() == take {
                    setting.free(1, BYTES);
                }
                gone_by.set(gone_by.get() + 1);
            });
            let sum = setting.totals.sum(owners);
            for (flows, live) in [(sum.all, sum.allocated), (sum.large, sum.live.large_allocated)] {
                assert!([BYTES, 2 * BYTES].contains(&flows.given));
                assert_eq!(live as u64 + flows.freed, flows.given, "{give}, {take}: {sum:?}");
                assert!(live >= 0 && flows.freed <= flows.given, "{give}, {take}: {sum:?}");
            }
        }
    }
}
