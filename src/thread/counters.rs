//! What a thread has allocated and freed, counted without an atomic read-modify-write on a hit.
//!
//! Each owner adds to its own numbers with plain loads and stores. Allocated bytes are kept as a delta against the pool's
//! level and folded in when they pass 1 MiB either way, so the level is at most that far off for each thread. Between
//! folds the highest delta is kept too: with one thread the peak is exact, with several it is at most one fold a thread
//! above the true one. Blocks above 1 MiB, large ones, would fold every time: they change the level at once.
//!
//! Of everything else that is live, the peak is what there was when most bytes were allocated.

use crate::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::atomic::Ordering::Relaxed;

/// How far a thread's delta may be from the pool's totals, in bytes; blocks above are large.
pub(crate) const FOLD: i64 = 1 << 20;

/// What was given out and given back so far.
#[derive(Debug, Default)]
struct Flow {
    allocs: AtomicU64,
    frees: AtomicU64,
    /// Bytes as asked for, given out and given back.
    requested: AtomicU64,
    returned: AtomicU64,
    /// Bytes given back, rounded.
    freed: AtomicU64,
}

/// One owner's counters. Written by the owner alone; read by anyone, a moment late.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Of all blocks.
    all: Flow,
    /// Of those the large ones.
    large: Flow,
    /// Bytes of large blocks given out, rounded.
    large_allocated: AtomicU64,
    /// Allocated bytes since the last fold.
    delta: AtomicI64,
    /// The highest delta since then, at least 0.
    high: AtomicI64,
    /// Bytes as asked for, and blocks, that were live at the highest delta.
    requested_at_high: AtomicI64,
    blocks_at_high: AtomicI64,
    /// The large block that was freed last, after the highest delta, rounded and as asked for; 0 once it is folded.
    late: AtomicI64,
    late_requested: AtomicI64,
}

/// The pool's totals.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Bytes given out, rounded, less what owners have not folded.
    level: AtomicI64,
    /// The highest level, with what was live then.
    peak: AtomicI64,
    peak_live: [AtomicI64; 5],
    /// Bytes freed that wait for other streams.
    pub(crate) pending: AtomicU64,
    /// Highest level and pending bytes together.
    active_peak: AtomicI64,
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
    pub(crate) fn sum(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self::default(), |sum, live| Self {
            requested: sum.requested + live.requested,
            blocks: sum.blocks + live.blocks,
            large_allocated: sum.large_allocated + live.large_allocated,
            large_requested: sum.large_requested + live.large_requested,
            large_blocks: sum.large_blocks + live.large_blocks,
        })
    }
}

impl Flow {
    #[inline(always)]
    fn alloc(&self, requested: u64) {
        // Relaxed, here and below: numbers that only the owner writes, or that nothing else is read through.
        self.allocs.store(self.allocs.load(Relaxed) + 1, Relaxed);
        self.requested.store(self.requested.load(Relaxed) + requested, Relaxed);
    }

    #[inline(always)]
    fn free(&self, allocated: u64, requested: u64) {
        self.frees.store(self.frees.load(Relaxed) + 1, Relaxed);
        self.returned.store(self.returned.load(Relaxed) + requested, Relaxed);
        self.freed.store(self.freed.load(Relaxed) + allocated, Relaxed);
    }

    #[inline(always)]
    fn blocks(&self) -> i64 {
        self.allocs.load(Relaxed).wrapping_sub(self.frees.load(Relaxed)) as i64
    }

    /// Live bytes as asked for. Below 0 where the owner frees what others allocated.
    #[inline(always)]
    fn live(&self) -> i64 {
        self.requested.load(Relaxed).wrapping_sub(self.returned.load(Relaxed)) as i64
    }
}

impl Counters {
    /// One block given out. Whether the owner has to fold now.
    #[inline(always)]
    #[must_use]
    pub(crate) fn alloc(&self, totals: &Totals, allocated: u64, requested: u64) -> bool {
        self.all.alloc(requested);
        let large = allocated > FOLD as u64;
        if large {
            self.large.alloc(requested);
            let sum = self.large_allocated.load(Relaxed) + allocated;
            self.large_allocated.store(sum, Relaxed);
        }
        let delta = self.delta.load(Relaxed);
        // A delta belongs to the level of its time: it is folded before the level jumps.
        if !large || delta != 0 || self.high.load(Relaxed) != 0 {
            let delta = delta + allocated as i64;
            self.delta.store(delta, Relaxed);
            if delta > self.high.load(Relaxed) {
                self.high.store(delta, Relaxed);
                self.mark();
            }
            return delta > FOLD;
        }
        let level = totals.level.fetch_add(allocated as i64, Relaxed) + allocated as i64;
        if level <= totals.peak.load(Relaxed) && totals.active(level) <= totals.active_peak.load(Relaxed) {
            return false;
        }
        self.mark();
        true
    }

    /// Remembers what is live, for the peak.
    #[inline(always)]
    fn mark(&self) {
        self.requested_at_high.store(self.all.live(), Relaxed);
        self.blocks_at_high.store(self.all.blocks(), Relaxed);
    }

    /// One block given back. Whether the owner has to fold now.
    #[inline(always)]
    #[must_use]
    pub(crate) fn free(&self, totals: &Totals, allocated: u64, requested: u64) -> bool {
        self.all.free(allocated, requested);
        let large = allocated > FOLD as u64;
        if large {
            self.large.free(allocated, requested);
        }
        if !large || self.high.load(Relaxed) != 0 {
            let delta = self.delta.load(Relaxed) - allocated as i64;
            self.delta.store(delta, Relaxed);
            if large {
                self.late.store(allocated as i64, Relaxed);
                self.late_requested.store(requested as i64, Relaxed);
                return true;
            }
            return delta < -FOLD;
        }
        totals.level.fetch_sub(allocated as i64, Relaxed);
        false
    }

    /// Adds the delta to the level. `live` is what is live of all owners.
    pub(crate) fn fold(&self, totals: &Totals, live: impl FnOnce() -> Live) {
        let before = totals.level.fetch_add(self.delta.load(Relaxed), Relaxed);
        let top = before + self.high.load(Relaxed);
        if top > totals.peak.load(Relaxed) {
            totals.peak.fetch_max(top, Relaxed);
            let (all, own) = (live(), self.live());
            totals.note(Live {
                requested: all.requested - own.requested + self.requested_at_high.load(Relaxed),
                blocks: all.blocks - own.blocks + self.blocks_at_high.load(Relaxed),
                large_allocated: all.large_allocated + self.late.load(Relaxed),
                large_requested: all.large_requested + self.late_requested.load(Relaxed),
                large_blocks: all.large_blocks + i64::from(self.late.load(Relaxed) > 0),
            });
        }
        totals.raise_active_peak(top);
        self.delta.store(0, Relaxed);
        self.high.store(0, Relaxed);
        self.late.store(0, Relaxed);
        self.late_requested.store(0, Relaxed);
    }

    /// What is live by all allocations and frees of this owner.
    pub(crate) fn live(&self) -> Live {
        let large_freed = self.large.freed.load(Relaxed);
        Live {
            requested: self.all.live(),
            blocks: self.all.blocks(),
            large_allocated: self.large_allocated.load(Relaxed).wrapping_sub(large_freed) as i64,
            large_requested: self.large.live(),
            large_blocks: self.large.blocks(),
        }
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

    /// Keeps what was live at a new peak.
    fn note(&self, live: Live) {
        let live = [
            live.requested,
            live.blocks,
            live.large_allocated,
            live.large_requested,
            live.large_blocks,
        ];
        for (kept, live) in self.peak_live.iter().zip(live) {
            kept.store(live, Relaxed);
        }
    }

    fn peak_live(&self) -> Live {
        let [requested, blocks, large_allocated, large_requested, large_blocks] =
            std::array::from_fn(|place| self.peak_live[place].load(Relaxed));
        Live {
            requested,
            blocks,
            large_allocated,
            large_requested,
            large_blocks,
        }
    }

    /// The present values and peaks over all owners; exact when no thread is allocating or freeing.
    pub(crate) fn sum<'a>(&self, owners: impl Iterator<Item = &'a Counters>) -> Sum {
        let mut sum = Sum {
            allocated: self.level.load(Relaxed),
            ..Sum::default()
        };
        let (mut high, mut at_high) = (sum.allocated, Live::default());
        for owner in owners {
            let live = owner.live();
            sum.live = Live::sum([sum.live, live].into_iter());
            sum.all.add(&owner.all);
            sum.large.add(&owner.large);
            sum.allocated += owner.delta.load(Relaxed);
            let owner_high = owner.high.load(Relaxed);
            high += owner_high;
            let (requested, blocks) = match owner_high {
                0 => (live.requested, live.blocks),
                _ => (
                    owner.requested_at_high.load(Relaxed),
                    owner.blocks_at_high.load(Relaxed),
                ),
            };
            at_high = Live::sum(
                [
                    at_high,
                    Live {
                        requested,
                        blocks,
                        ..live
                    },
                ]
                .into_iter(),
            );
        }
        sum.pending = self.pending.load(Relaxed);
        (sum.peak_allocated, sum.peak) = (self.peak.load(Relaxed), self.peak_live());
        if high > sum.peak_allocated {
            (sum.peak_allocated, sum.peak) = (high, at_high);
        }
        let active = high.max(self.active(sum.allocated));
        sum.peak_active = self.active_peak.load(Relaxed).max(active);
        sum
    }

    /// Lets peaks begin again at what is live now.
    pub(crate) fn reset_peaks<'a>(&self, owners: impl Iterator<Item = &'a Counters>) {
        let (mut allocated, mut all) = (self.level.load(Relaxed), Live::default());
        for owner in owners {
            // An owner that allocates meanwhile raises it again.
            let (delta, live) = (owner.delta.load(Relaxed), owner.live());
            owner.high.store(delta.max(0), Relaxed);
            owner.requested_at_high.store(live.requested, Relaxed);
            owner.blocks_at_high.store(live.blocks, Relaxed);
            allocated += delta;
            all = Live::sum([all, live].into_iter());
        }
        self.peak.store(allocated, Relaxed);
        self.note(all);
        self.active_peak.store(self.active(allocated), Relaxed);
    }
}

/// Counters added up over all owners.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sum {
    pub(crate) allocated: i64,
    pub(crate) live: Live,
    pub(crate) pending: u64,
    pub(crate) peak_allocated: i64,
    /// What was live when `allocated` was `peak_allocated`.
    pub(crate) peak: Live,
    pub(crate) peak_active: i64,
    /// What was given out and given back so far, of all blocks and of the large ones.
    pub(crate) all: Flows,
    pub(crate) large: Flows,
}

/// What was given out and given back so far.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Flows {
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
    /// Bytes given back, as asked for and rounded.
    pub(crate) returned: u64,
    pub(crate) freed: u64,
}

impl Flows {
    fn add(&mut self, flow: &Flow) {
        self.allocs += flow.allocs.load(Relaxed);
        self.frees += flow.frees.load(Relaxed);
        self.returned += flow.returned.load(Relaxed);
        self.freed += flow.freed.load(Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn alloc(totals: &Totals, counters: &Counters, bytes: u64) {
        if counters.alloc(totals, bytes, bytes - 1) {
            counters.fold(totals, || counters.live());
        }
    }

    fn free(totals: &Totals, counters: &Counters, bytes: u64) {
        if counters.free(totals, bytes, bytes - 1) {
            counters.fold(totals, || counters.live());
        }
    }

    #[test]
    fn one_owner_has_exact_values_and_peaks() {
        // Small blocks, large ones, and both together.
        for (seed, most) in [(1u64, 3000u64), (2, 20_000), (3, 200)] {
            let (totals, counters) = (Totals::default(), Counters::default());
            let mut live = Vec::new();
            let (mut now, mut given, mut peak, mut at_peak) = (0i64, 0i64, 0i64, Live::default());
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
                    given += bytes as i64;
                    if now > peak {
                        (peak, at_peak) = (now, live_of(&live));
                    }
                }
                let sum = totals.sum(std::iter::once(&counters));
                assert_eq!((sum.allocated, sum.peak_allocated), (now, peak), "step {step}");
                assert_eq!(sum.live, live_of(&live), "step {step}");
                assert_eq!(sum.peak, at_peak, "step {step}");
                assert_eq!(sum.peak_active, peak);
                let freed = sum.all.freed as i64;
                assert_eq!(
                    (sum.all.allocs - sum.all.frees, freed),
                    (live.len() as u64, given - now)
                );
                assert_eq!(sum.all.returned as i64, freed - sum.all.frees as i64);
            }
        }
    }

    fn live_of(live: &[u64]) -> Live {
        let large = || live.iter().filter(|&&bytes| bytes > FOLD as u64);
        Live {
            requested: live.iter().map(|&bytes| bytes as i64 - 1).sum(),
            blocks: live.len() as i64,
            large_allocated: large().sum::<u64>() as i64,
            large_requested: large().map(|&bytes| bytes as i64 - 1).sum(),
            large_blocks: large().count() as i64,
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
            (sum.peak_allocated, sum.peak.requested, sum.peak_active),
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
