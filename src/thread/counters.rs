//! What a thread has allocated and freed, counted without an atomic read-modify-write on a hit.
//!
//! Each owner adds to its own numbers with plain loads and stores. Allocated bytes are kept as a delta against the pool's
//! level and folded in when they pass 1 MiB either way, so the level is at most that far off for each thread. Between
//! folds the highest delta is kept too: with one thread the peak is exact, with several it is at most one fold a thread
//! above the true one. Blocks above 1 MiB would fold every time: they change the level at once.
//!
//! Requested bytes are summed when somebody asks. Their peak is what was requested when most was allocated.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};

/// How far a thread's delta may be from the pool's totals, in bytes.
pub(crate) const FOLD: i64 = 1 << 20;

/// One owner's counters. Written by the owner alone; read by anyone, a moment late.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allocs: AtomicU64,
    pub(crate) frees: AtomicU64,
    /// Allocated bytes since the last fold.
    delta: AtomicI64,
    /// The highest delta since then, at least 0.
    high: AtomicI64,
    /// Requested bytes, by all allocations and frees so far.
    requested: AtomicI64,
    /// What they were at the highest delta.
    requested_at_high: AtomicI64,
}

/// The pool's totals.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Bytes given out, rounded, less what owners have not folded.
    level: AtomicI64,
    /// The highest level, with what was requested then.
    peak: AtomicI64,
    peak_requested: AtomicI64,
    /// Bytes freed that wait for other streams.
    pub(crate) pending: AtomicU64,
    /// Highest level and pending bytes together.
    active_peak: AtomicI64,
}

impl Counters {
    /// One block given out. Whether the owner has to fold now.
    #[inline(always)]
    #[must_use]
    pub(crate) fn alloc(&self, totals: &Totals, allocated: u64, requested: u64) -> bool {
        // Relaxed, here and below: numbers that only the owner writes, or that nothing else is read through.
        self.allocs.store(self.allocs.load(Relaxed) + 1, Relaxed);
        let requested = self.requested.load(Relaxed) + requested as i64;
        self.requested.store(requested, Relaxed);
        let delta = self.delta.load(Relaxed);
        // A delta belongs to the level of its time: it is folded before the level jumps.
        if allocated <= FOLD as u64 || delta != 0 || self.high.load(Relaxed) != 0 {
            let delta = delta + allocated as i64;
            self.delta.store(delta, Relaxed);
            if delta > self.high.load(Relaxed) {
                self.high.store(delta, Relaxed);
                self.requested_at_high.store(requested, Relaxed);
            }
            return delta > FOLD;
        }
        let level = totals.level.fetch_add(allocated as i64, Relaxed) + allocated as i64;
        if level <= totals.peak.load(Relaxed) && totals.active(level) <= totals.active_peak.load(Relaxed) {
            return false;
        }
        self.requested_at_high.store(requested, Relaxed);
        true
    }

    /// One block given back. Whether the owner has to fold now.
    #[inline(always)]
    #[must_use]
    pub(crate) fn free(&self, totals: &Totals, allocated: u64, requested: u64) -> bool {
        self.frees.store(self.frees.load(Relaxed) + 1, Relaxed);
        self.requested
            .store(self.requested.load(Relaxed) - requested as i64, Relaxed);
        if allocated <= FOLD as u64 || self.high.load(Relaxed) != 0 {
            let delta = self.delta.load(Relaxed) - allocated as i64;
            self.delta.store(delta, Relaxed);
            return delta < -FOLD;
        }
        totals.level.fetch_sub(allocated as i64, Relaxed);
        false
    }

    /// Adds the delta to the level. `others` is what all other owners have requested.
    pub(crate) fn fold(&self, totals: &Totals, others: impl FnOnce() -> i64) {
        let before = totals.level.fetch_add(self.delta.load(Relaxed), Relaxed);
        let top = before + self.high.load(Relaxed);
        if top > totals.peak.load(Relaxed) {
            totals.peak.fetch_max(top, Relaxed);
            totals
                .peak_requested
                .store(self.requested_at_high.load(Relaxed) + others(), Relaxed);
        }
        totals.raise_active_peak(top);
        self.delta.store(0, Relaxed);
        self.high.store(0, Relaxed);
    }

    /// Requested bytes, by all allocations and frees of this owner.
    pub(crate) fn requested(&self) -> i64 {
        self.requested.load(Relaxed)
    }
}

impl Totals {
    /// Allocated and pending bytes together.
    #[inline(always)]
    fn active(&self, allocated: i64) -> i64 {
        allocated + self.pending.load(Relaxed) as i64
    }

    /// Bytes given out or waiting now; what owners have not folded is missing.
    pub(crate) fn active_now(&self) -> u64 {
        u64::try_from(self.active(self.level.load(Relaxed))).unwrap_or(0)
    }

    /// Bytes freed that wait, by this much more.
    pub(crate) fn add_pending(&self, bytes: u64) {
        self.pending.fetch_add(bytes, Relaxed);
        self.raise_active_peak(self.level.load(Relaxed));
    }

    /// Bytes freed that wait, by this much less.
    pub(crate) fn sub_pending(&self, bytes: u64) {
        self.pending.fetch_sub(bytes, Relaxed);
    }

    fn raise_active_peak(&self, allocated: i64) {
        let active = self.active(allocated);
        if active > self.active_peak.load(Relaxed) {
            self.active_peak.fetch_max(active, Relaxed);
        }
    }

    /// The present values and peaks over all owners; exact when no thread is allocating or freeing.
    pub(crate) fn sum<'a>(&self, owners: impl Iterator<Item = &'a Counters>) -> Sum {
        let mut sum = Sum {
            allocated: self.level.load(Relaxed),
            ..Sum::default()
        };
        let (mut high, mut requested_at_high) = (sum.allocated, 0);
        for owner in owners {
            sum.allocs += owner.allocs.load(Relaxed);
            sum.frees += owner.frees.load(Relaxed);
            sum.allocated += owner.delta.load(Relaxed);
            sum.requested += owner.requested();
            let owner_high = owner.high.load(Relaxed);
            high += owner_high;
            requested_at_high += match owner_high {
                0 => owner.requested(),
                _ => owner.requested_at_high.load(Relaxed),
            };
        }
        sum.pending = self.pending.load(Relaxed);
        (sum.peak_allocated, sum.peak_requested) = (self.peak.load(Relaxed), self.peak_requested.load(Relaxed));
        if high > sum.peak_allocated {
            (sum.peak_allocated, sum.peak_requested) = (high, requested_at_high);
        }
        let active = high.max(self.active(sum.allocated));
        sum.peak_active = self.active_peak.load(Relaxed).max(active);
        sum
    }

    /// Lets peaks begin again at what is live now.
    pub(crate) fn reset_peaks<'a>(&self, owners: impl Iterator<Item = &'a Counters>) {
        let (mut allocated, mut requested) = (self.level.load(Relaxed), 0);
        for owner in owners {
            // An owner that allocates meanwhile raises it again.
            let delta = owner.delta.load(Relaxed);
            owner.high.store(delta.max(0), Relaxed);
            owner.requested_at_high.store(owner.requested(), Relaxed);
            allocated += delta;
            requested += owner.requested();
        }
        self.peak.store(allocated, Relaxed);
        self.peak_requested.store(requested, Relaxed);
        self.active_peak.store(self.active(allocated), Relaxed);
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
        if counters.alloc(totals, bytes, bytes - 1) {
            counters.fold(totals, || 0);
        }
    }

    fn free(totals: &Totals, counters: &Counters, bytes: u64) {
        if counters.free(totals, bytes, bytes - 1) {
            counters.fold(totals, || 0);
        }
    }

    #[test]
    fn one_owner_has_exact_values_and_peaks() {
        // Small blocks, large ones, and both together.
        for (seed, most) in [(1u64, 3000u64), (2, 20_000), (3, 200)] {
            let (totals, counters) = (Totals::default(), Counters::default());
            let mut live = Vec::new();
            let (mut now, mut peak, mut requested_at_peak) = (0i64, 0i64, 0i64);
            for step in 0..3000u64 {
                let random = (step + seed).wrapping_mul(6_364_136_223_846_793_005) >> 33;
                if random % 5 < 2 && !live.is_empty() {
                    let bytes: u64 = live.swap_remove(random as usize % live.len());
                    free(&totals, &counters, bytes);
                    now -= bytes as i64;
                } else {
                    let bytes = 512 * (1 + random % most);
                    alloc(&totals, &counters, bytes);
                    live.push(bytes);
                    now += bytes as i64;
                    if now > peak {
                        (peak, requested_at_peak) = (now, now - live.len() as i64);
                    }
                }
                let sum = totals.sum(std::iter::once(&counters));
                assert_eq!((sum.allocated, sum.peak_allocated), (now, peak), "step {step}");
                assert_eq!(
                    (sum.requested, sum.peak_requested),
                    (now - live.len() as i64, requested_at_peak)
                );
                assert_eq!(sum.peak_active, peak);
            }
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

    #[test]
    fn with_several_owners_the_peak_is_at_most_a_fold_each_too_high() {
        let (totals, owners) = (
            Totals::default(),
            std::array::from_fn::<_, 4, _>(|_| Counters::default()),
        );
        let (mut now, mut peak) = (0i64, 0i64);
        for step in 0..4000usize {
            let owner = &owners[step % 4];
            alloc(&totals, owner, 300 << 10);
            now += 300 << 10;
            peak = peak.max(now);
            if step % 8 >= 4 {
                free(&totals, owner, 600 << 10);
                now -= 600 << 10;
            }
        }
        let sum = totals.sum(owners.iter());
        assert_eq!(sum.allocated, now);
        assert!(
            sum.peak_allocated >= peak && sum.peak_allocated <= peak + 4 * 2 * FOLD,
            "{} {peak}",
            sum.peak_allocated
        );
    }
}
