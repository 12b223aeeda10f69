//! What a thread has allocated and freed, counted without an atomic read-modify-write on a hit.
//!
//! Each owner adds to its own numbers with plain loads and stores. Live bytes are kept as a delta against the pool's
//! totals and folded in when they pass 1 MiB either way, so the totals are at most that far off for each thread. Between
//! folds the highest delta is kept too: with one thread the peak is exact, with several it is at most one fold a thread
//! above the true one.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};

/// How far a thread's delta may be from the pool's totals, in bytes.
pub(crate) const FOLD: i64 = 1 << 20;

/// A delta since the last fold and the highest value it had.
#[derive(Debug, Default)]
struct Delta {
    now: AtomicI64,
    high: AtomicI64,
}

/// One owner's counters. Written by the owner alone; read by anyone, a moment late.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allocs: AtomicU64,
    pub(crate) frees: AtomicU64,
    allocated: Delta,
    requested: Delta,
}

/// A level that every owner folds into.
#[derive(Debug, Default)]
pub(crate) struct Level {
    now: AtomicI64,
    peak: AtomicI64,
}

/// The pool's totals.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Bytes given out, rounded.
    pub(crate) allocated: Level,
    /// Bytes given out, as asked for.
    pub(crate) requested: Level,
    /// Bytes freed that wait for other streams.
    pub(crate) pending: AtomicU64,
    /// Peak of allocated and pending together.
    active_peak: AtomicI64,
}

impl Level {
    /// Folds a delta; returns the level before.
    fn fold(&self, delta: &Delta) -> (i64, i64) {
        // Relaxed, all of these: numbers only, nothing is read through them.
        let (by, high) = (delta.now.load(Relaxed), delta.high.load(Relaxed));
        let before = self.now.fetch_add(by, Relaxed);
        if before + high > self.peak.load(Relaxed) {
            self.peak.fetch_max(before + high, Relaxed);
        }
        delta.now.store(0, Relaxed);
        delta.high.store(0, Relaxed);
        (before, high)
    }

    fn reset_peak(&self, now: i64) {
        self.peak.store(now, Relaxed);
    }
}

impl Counters {
    /// One block given out. Whether the owner should fold.
    #[inline(always)]
    #[must_use]
    pub(crate) fn alloc(&self, allocated: u64, requested: u64) -> bool {
        // Relaxed loads and stores: only the owner writes.
        self.allocs.store(self.allocs.load(Relaxed) + 1, Relaxed);
        let now = self.requested.now.load(Relaxed) + requested as i64;
        self.requested.now.store(now, Relaxed);
        if now > self.requested.high.load(Relaxed) {
            self.requested.high.store(now, Relaxed);
        }
        let now = self.allocated.now.load(Relaxed) + allocated as i64;
        self.allocated.now.store(now, Relaxed);
        if now > self.allocated.high.load(Relaxed) {
            self.allocated.high.store(now, Relaxed);
        }
        now >= FOLD
    }

    /// One block given back. Whether the owner should fold.
    #[inline(always)]
    #[must_use]
    pub(crate) fn free(&self, allocated: u64, requested: u64) -> bool {
        // Relaxed loads and stores: only the owner writes.
        self.frees.store(self.frees.load(Relaxed) + 1, Relaxed);
        self.requested
            .now
            .store(self.requested.now.load(Relaxed) - requested as i64, Relaxed);
        let now = self.allocated.now.load(Relaxed) - allocated as i64;
        self.allocated.now.store(now, Relaxed);
        now <= -FOLD
    }

    /// Folds if the delta has become large.
    pub(crate) fn fold_if_far(&self, totals: &Totals) {
        if self.allocated.now.load(Relaxed).abs() >= FOLD {
            self.fold(totals);
        }
    }

    /// Adds the deltas to the totals.
    pub(crate) fn fold(&self, totals: &Totals) {
        totals.requested.fold(&self.requested);
        let (before, high) = totals.allocated.fold(&self.allocated);
        totals.raise_active_peak(before + high);
    }
}

impl Totals {
    /// Bytes freed that wait, by this much more.
    pub(crate) fn add_pending(&self, bytes: u64) {
        self.pending.fetch_add(bytes, Relaxed);
        self.raise_active_peak(self.allocated.now.load(Relaxed));
    }

    /// Bytes freed that wait, by this much less.
    pub(crate) fn sub_pending(&self, bytes: u64) {
        self.pending.fetch_sub(bytes, Relaxed);
    }

    fn raise_active_peak(&self, allocated: i64) {
        let active = allocated + self.pending.load(Relaxed) as i64;
        if active > self.active_peak.load(Relaxed) {
            self.active_peak.fetch_max(active, Relaxed);
        }
    }

    /// The present values and peaks over all owners; exact when no thread is allocating or freeing.
    pub(crate) fn sum<'a>(&self, owners: impl Iterator<Item = &'a Counters>) -> Sum {
        let mut sum = Sum {
            allocated: self.allocated.now.load(Relaxed),
            requested: self.requested.now.load(Relaxed),
            peak_allocated: self.allocated.peak.load(Relaxed),
            peak_requested: self.requested.peak.load(Relaxed),
            peak_active: self.active_peak.load(Relaxed),
            ..Sum::default()
        };
        let (mut high_allocated, mut high_requested) = (sum.allocated, sum.requested);
        for owner in owners {
            sum.allocs += owner.allocs.load(Relaxed);
            sum.frees += owner.frees.load(Relaxed);
            sum.allocated += owner.allocated.now.load(Relaxed);
            sum.requested += owner.requested.now.load(Relaxed);
            high_allocated += owner.allocated.high.load(Relaxed);
            high_requested += owner.requested.high.load(Relaxed);
        }
        sum.pending = self.pending.load(Relaxed);
        sum.peak_allocated = sum.peak_allocated.max(high_allocated);
        sum.peak_requested = sum.peak_requested.max(high_requested);
        sum.peak_active = sum
            .peak_active
            .max(high_allocated)
            .max(sum.allocated + sum.pending as i64);
        sum
    }

    /// Lets peaks begin again at what is live now. Owners' highest deltas since their last fold still count.
    pub(crate) fn reset_peaks<'a>(&self, owners: impl Iterator<Item = &'a Counters>) {
        for owner in owners {
            // Relaxed: an owner that allocates meanwhile raises it again.
            owner
                .allocated
                .high
                .store(owner.allocated.now.load(Relaxed).max(0), Relaxed);
            owner
                .requested
                .high
                .store(owner.requested.now.load(Relaxed).max(0), Relaxed);
        }
        let allocated = self.allocated.now.load(Relaxed);
        self.allocated.reset_peak(allocated);
        self.requested.reset_peak(self.requested.now.load(Relaxed));
        self.active_peak
            .store(allocated + self.pending.load(Relaxed) as i64, Relaxed);
    }
}

/// Counters added up over all owners.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sum {
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
    pub(crate) allocated: i64,
    pub(crate) requested: i64,
    pub(crate) pending: u64,
    pub(crate) peak_allocated: i64,
    pub(crate) peak_requested: i64,
    pub(crate) peak_active: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(totals: &Totals, counters: &Counters, bytes: u64) {
        if counters.alloc(bytes, bytes - 1) {
            counters.fold(totals);
        }
    }

    fn free(totals: &Totals, counters: &Counters, bytes: u64) {
        if counters.free(bytes, bytes - 1) {
            counters.fold(totals);
        }
    }

    #[test]
    fn one_owner_has_exact_values_and_peaks() {
        let (totals, counters) = (Totals::default(), Counters::default());
        let mut live = Vec::new();
        let (mut now, mut peak) = (0i64, 0i64);
        for step in 0..1000u64 {
            if step % 3 == 2 {
                let bytes: u64 = live.swap_remove(live.len() / 2);
                free(&totals, &counters, bytes);
                now -= bytes as i64;
            } else {
                let bytes = 512 * (1 + step * 7919 % 3000);
                alloc(&totals, &counters, bytes);
                live.push(bytes);
                now += bytes as i64;
                peak = peak.max(now);
            }
            let sum = totals.sum(std::iter::once(&counters));
            assert_eq!((sum.allocated, sum.peak_allocated), (now, peak), "step {step}");
            assert_eq!(sum.requested, now - live.len() as i64);
        }
    }

    #[test]
    fn peaks_begin_again_at_what_is_live() {
        let (totals, counters) = (Totals::default(), Counters::default());
        alloc(&totals, &counters, 4 << 20);
        free(&totals, &counters, 4 << 20);
        alloc(&totals, &counters, 1024);
        totals.reset_peaks(std::iter::once(&counters));
        let sum = totals.sum(std::iter::once(&counters));
        assert_eq!(
            (sum.peak_allocated, sum.peak_requested, sum.peak_active),
            (1024, 1023, 1024)
        );
    }
}
