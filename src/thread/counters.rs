//! What a thread has allocated and freed, counted without an atomic read-modify-write of what other threads use.
//!
//! Each owner adds to its own numbers. The pool's level is what owners have told it:
//!
//! - Bytes of blocks up to 1 MiB, small ones, are a delta to the level, folded in when it passes 1 MiB either way. Between
//!   folds the highest delta is kept too: with one thread the peak is exact, with several it is within a fold for each of the
//!   true one.
//! - Bytes of larger blocks stay in the level when they are freed into a magazine, as idle bytes of the owner. Its next large
//!   blocks use them, and only what these need beyond changes the level. While the level is not above the peak there is no
//!   new one; when it is, the idle bytes of all owners are taken off.
//!
//! Of everything else that is live, the peak is what there was when most bytes were allocated.

use crate::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How far a thread's delta may be from the pool's level, in bytes; blocks above are large.
pub(crate) const FOLD: i64 = 1 << 20;
/// The most idle bytes of an owner, beside those of blocks that are in its magazines.
const IDLE: i64 = 64 << 20;

/// No delta.
const HIGHER: i64 = i64::MAX;

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
    small: Flow,
    /// Bytes of small blocks, given out less given back, since the last fold.
    delta: AtomicI64,
    /// The highest delta since high ones were noted last.
    high: AtomicI64,
    /// The delta then, if there was no higher one since; otherwise [`HIGHER`].
    noted: AtomicI64,
    /// Of small blocks, what was live at the highest delta: bytes as asked for, and how many.
    requested_at_high: AtomicI64,
    blocks_at_high: AtomicI64,
    large: Flow,
    /// Bytes of large blocks that the level has from this owner.
    told: AtomicI64,
    /// Those of them whose blocks were given back.
    idle: AtomicI64,
}

/// The pool's totals.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Totals {
    /// Bytes given out, rounded, as far as owners have told.
    level: AtomicI64,
    /// The most bytes given out, with what was live then.
    peak: AtomicI64,
    peak_live: [AtomicI64; 5],
    /// Bytes freed that wait for other streams.
    pub(crate) pending: AtomicU64,
    /// The most bytes given out and pending together.
    active_peak: AtomicI64,
}

/// What has become of a block that was given out and is to be counted.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// It is counted.
    Done,
    /// It is counted, and there may be a new peak: [`Counters::look_for_peak`].
    Peak,
    /// It is not: [`Counters::alloc_slowly`].
    Not,
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
    fn plus(self, other: Self) -> Self {
        Self {
            requested: self.requested + other.requested,
            blocks: self.blocks + other.blocks,
            large_allocated: self.large_allocated + other.large_allocated,
            large_requested: self.large_requested + other.large_requested,
            large_blocks: self.large_blocks + other.large_blocks,
        }
    }
}

/// What all owners have, added up.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Owners {
    live: Live,
    delta: i64,
    idle: i64,
}

impl Owners {
    /// Reads one owner after the other.
    pub(crate) fn read<'a>(owners: impl Iterator<Item = &'a Counters>) -> Self {
        owners.fold(Self::default(), |sum, owner| Self {
            live: sum.live.plus(owner.live()),
            delta: sum.delta + owner.delta.load(Relaxed),
            // SeqCst: see `Counters::idle_is`.
            idle: sum.idle + owner.idle.load(SeqCst),
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
    /// One block given out.
    #[inline(always)]
    pub(crate) fn alloc(&self, totals: &Totals, allocated: u64, requested: u64) -> Count {
        if allocated > FOLD as u64 {
            self.alloc_large(totals, allocated, requested)
        } else {
            self.alloc_small(allocated, requested)
        }
    }

    /// [`Self::alloc`] of a block up to [`FOLD`].
    #[inline(always)]
    pub(crate) fn alloc_small(&self, allocated: u64, requested: u64) -> Count {
        let delta = self.delta.load(Relaxed) + allocated as i64;
        if delta > self.high.load(Relaxed) {
            if delta > FOLD {
                return Count::Not;
            }
            self.small.alloc(requested);
            self.delta.store(delta, Relaxed);
            self.mark(delta);
        } else {
            self.small.alloc(requested);
            self.delta.store(delta, Relaxed);
        }
        Count::Done
    }

    /// [`Self::alloc`] of a block above [`FOLD`].
    #[inline(always)]
    pub(crate) fn alloc_large(&self, totals: &Totals, allocated: u64, requested: u64) -> Count {
        let (delta, idle) = (self.delta.load(Relaxed), self.idle.load(Relaxed));
        // The highest delta is one to the idle bytes of its time, and has to be noted before they change.
        if self.noted.load(Relaxed) != delta || idle < allocated as i64 {
            return Count::Not;
        }
        self.large.alloc(requested);
        self.idle_is(idle - allocated as i64);
        if totals.may_peak(delta) {
            Count::Peak
        } else {
            Count::Done
        }
    }

    /// One block given back. Whether it is counted: if not, [`Self::free_slowly`].
    #[inline(always)]
    #[must_use]
    pub(crate) fn free(&self, allocated: u64, requested: u64) -> bool {
        if allocated > FOLD as u64 {
            self.free_large(allocated, requested)
        } else {
            self.free_small(allocated, requested)
        }
    }

    /// [`Self::free`] of a block up to [`FOLD`].
    #[inline(always)]
    #[must_use]
    pub(crate) fn free_small(&self, allocated: u64, requested: u64) -> bool {
        let delta = self.delta.load(Relaxed) - allocated as i64;
        let near = delta >= -FOLD;
        if near {
            self.small.free(allocated, requested);
            self.delta.store(delta, Relaxed);
        }
        near
    }

    /// [`Self::free`] of a block above [`FOLD`].
    #[inline(always)]
    #[must_use]
    pub(crate) fn free_large(&self, allocated: u64, requested: u64) -> bool {
        if self.noted.load(Relaxed) != self.delta.load(Relaxed) {
            return false;
        }
        self.large.free(allocated, requested);
        // Relaxed: whoever misses it sees the block as live still.
        self.idle.store(self.idle.load(Relaxed) + allocated as i64, Relaxed);
        true
    }

    /// [`Self::alloc`] of a block that it did not count. `owners` reads what all owners have.
    pub(crate) fn alloc_slowly(&self, totals: &Totals, allocated: u64, requested: u64, owners: impl Fn() -> Owners) {
        let bytes = allocated as i64;
        self.note_high(totals, &owners);
        if bytes > FOLD {
            self.large.alloc(requested);
            let idle = self.idle.load(Relaxed);
            let known = idle.min(bytes);
            self.idle_is(idle - known);
            self.tell(totals, bytes - known);
            self.look_for_peak(totals, owners);
        } else {
            self.fold(totals);
            self.small.alloc(requested);
            self.delta.store(bytes, Relaxed);
            self.mark(bytes);
        }
    }

    /// [`Self::free`] of a block that it did not count.
    pub(crate) fn free_slowly(&self, totals: &Totals, allocated: u64, requested: u64, owners: impl Fn() -> Owners) {
        let bytes = allocated as i64;
        self.note_high(totals, &owners);
        if bytes > FOLD {
            self.large.free(allocated, requested);
            self.idle.store(self.idle.load(Relaxed) + bytes, Relaxed);
            self.bound_idle(totals);
        } else {
            self.fold(totals);
            self.small.free(allocated, requested);
            self.delta.store(-bytes, Relaxed);
        }
    }

    /// Tells the level of idle bytes, where there are many: after large blocks went elsewhere than into a magazine.
    pub(crate) fn bound_idle(&self, totals: &Totals) {
        if self.idle.load(Relaxed) > IDLE {
            self.tell_idle(totals);
        }
    }

    fn tell_idle(&self, totals: &Totals) {
        // The level first: meanwhile the bytes are missing rather than there twice.
        self.tell(totals, -self.idle.load(Relaxed));
        self.idle.store(0, Relaxed);
    }

    /// Tells the level everything, for an owner that rests from now on.
    pub(crate) fn rest(&self, totals: &Totals, owners: impl Fn() -> Owners) {
        self.note_high(totals, owners);
        self.fold(totals);
        self.tell_idle(totals);
    }

    /// Looks for a new peak at this moment.
    pub(crate) fn look_for_peak(&self, totals: &Totals, owners: impl Fn() -> Owners) {
        if totals.may_peak(self.delta.load(Relaxed)) {
            let all = owners();
            totals.raise(all.delta - all.idle, || all.live);
        }
    }

    /// Adds bytes of large blocks to the level.
    fn tell(&self, totals: &Totals, bytes: i64) {
        self.told.store(self.told.load(Relaxed) + bytes, Relaxed);
        // SeqCst: see `idle_is`.
        totals.level.fetch_add(bytes, SeqCst);
    }

    /// Takes from the idle bytes, before the owner looks at the level.
    #[inline(always)]
    fn idle_is(&self, idle: i64) {
        // SeqCst, with the accesses to the level: of two owners that allocate at once, where one takes idle bytes and the other
        // one raises the level, at least one sees what the other did, and with it the peak. The swap is a full barrier, on a
        // cache line of our own.
        self.idle.swap(idle, SeqCst);
    }

    /// Remembers what is live at the highest delta.
    #[inline(always)]
    fn mark(&self, delta: i64) {
        self.high.store(delta, Relaxed);
        self.noted.store(HIGHER, Relaxed);
        self.requested_at_high.store(self.small.live(), Relaxed);
        self.blocks_at_high.store(self.small.blocks(), Relaxed);
    }

    /// The highest delta becomes part of the peaks, and begins again at the present one.
    fn note_high(&self, totals: &Totals, owners: impl Fn() -> Owners) {
        let high = self.high.load(Relaxed);
        if totals.may_peak(high) {
            let all = owners();
            totals.raise(high - all.idle, || Live {
                requested: all.live.requested - self.small.live() + self.requested_at_high.load(Relaxed),
                blocks: all.live.blocks - self.small.blocks() + self.blocks_at_high.load(Relaxed),
                ..all.live
            });
        }
        let delta = self.delta.load(Relaxed);
        self.mark(delta);
        self.noted.store(delta, Relaxed);
    }

    /// Adds the delta, which is noted, to the level.
    fn fold(&self, totals: &Totals) {
        totals.level.fetch_add(self.delta.load(Relaxed), Relaxed);
        self.delta.store(0, Relaxed);
        self.high.store(0, Relaxed);
        self.noted.store(0, Relaxed);
    }

    /// What is live by all allocations and frees of this owner.
    fn live(&self) -> Live {
        let (large_requested, large_blocks) = (self.large.live(), self.large.blocks());
        Live {
            requested: self.small.live() + large_requested,
            blocks: self.small.blocks() + large_blocks,
            large_allocated: self.told.load(Relaxed) - self.idle.load(Relaxed),
            large_requested,
            large_blocks,
        }
    }

    /// What was live at the highest delta.
    fn live_at_high(&self) -> Live {
        // Large blocks are what they were then: a change of them is the end of that delta.
        let live = self.live();
        Live {
            requested: live.large_requested + self.requested_at_high.load(Relaxed),
            blocks: live.large_blocks + self.blocks_at_high.load(Relaxed),
            ..live
        }
    }
}

impl Totals {
    /// Allocated and pending bytes together.
    #[inline(always)]
    fn active(&self, allocated: i64) -> i64 {
        allocated + self.pending.load(Relaxed) as i64
    }

    /// Whether there may be a new peak with so many bytes beside the level, idle ones included.
    #[inline(always)]
    fn may_peak(&self, beside: i64) -> bool {
        // SeqCst: see `Counters::idle_is`. The peak of active bytes is not below this one.
        self.active(self.level.load(SeqCst) + beside) > self.peak.load(Relaxed)
    }

    /// Bytes given out now.
    fn allocated(&self, owners: &Owners) -> i64 {
        self.level.load(SeqCst) + owners.delta - owners.idle
    }

    /// Bytes given out or waiting now.
    pub(crate) fn active_now(&self, owners: &Owners) -> u64 {
        u64::try_from(self.active(self.allocated(owners))).unwrap_or(0)
    }

    /// Bytes freed that wait, by this much more.
    pub(crate) fn add_pending(&self, bytes: u64, owners: impl Fn() -> Owners) {
        self.pending.fetch_add(bytes, Relaxed);
        // What only deltas add is missing here, as it always was within a fold.
        if self.active(self.level.load(Relaxed)) > self.active_peak.load(Relaxed) {
            self.raise_active_peak(self.allocated(&owners()));
        }
    }

    /// Bytes freed that wait, by this much less.
    pub(crate) fn sub_pending(&self, bytes: u64) {
        self.pending.fetch_sub(bytes, Relaxed);
    }

    /// Raises the peaks to the level and so many bytes beside it, if they are higher than before.
    fn raise(&self, beside: i64, live: impl FnOnce() -> Live) {
        let allocated = self.level.load(SeqCst) + beside;
        if allocated > self.peak.load(Relaxed) {
            self.peak.fetch_max(allocated, Relaxed);
            self.note(live());
        }
        self.raise_active_peak(allocated);
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
    pub(crate) fn sum<'a>(&self, owners: impl Iterator<Item = &'a Counters> + Clone) -> Sum {
        let all = Owners::read(owners.clone());
        let mut sum = Sum::default();
        let (mut high, mut at_high) = (0, Live::default());
        for owner in owners {
            sum.all.add(&owner.small);
            sum.all.add(&owner.large);
            sum.large.add(&owner.large);
            high += owner.high.load(Relaxed);
            at_high = at_high.plus(owner.live_at_high());
        }
        sum.live = all.live;
        sum.allocated = self.allocated(&all);
        high += self.level.load(Relaxed) - all.idle;
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
    pub(crate) fn reset_peaks<'a>(&self, owners: impl Iterator<Item = &'a Counters> + Clone) {
        // An owner that allocates meanwhile raises it again.
        owners.clone().for_each(|owner| owner.mark(owner.delta.load(Relaxed)));
        let all = Owners::read(owners);
        let allocated = self.allocated(&all);
        self.peak.store(allocated, Relaxed);
        self.note(all.live);
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

    /// The owner with this number allocates.
    fn alloc(totals: &Totals, owners: &[Counters], owner: usize, bytes: u64) {
        let (own, all) = (&owners[owner], || Owners::read(owners.iter()));
        match own.alloc(totals, bytes, bytes - 1) {
            Count::Done => {}
            Count::Peak => own.look_for_peak(totals, all),
            Count::Not => own.alloc_slowly(totals, bytes, bytes - 1, all),
        }
    }

    fn free(totals: &Totals, owners: &[Counters], owner: usize, bytes: u64) {
        if !owners[owner].free(bytes, bytes - 1) {
            let all = || Owners::read(owners.iter());
            owners[owner].free_slowly(totals, bytes, bytes - 1, all);
        }
    }

    #[test]
    fn one_owner_has_exact_values_and_peaks() {
        // Small blocks, large ones, and both together.
        for (seed, most) in [(1u64, 3000u64), (2, 20_000), (3, 200)] {
            let (totals, owner) = (Totals::default(), [Counters::default()]);
            let mut live = Vec::new();
            let (mut now, mut given, mut peak, mut at_peak) = (0i64, 0i64, 0i64, Live::default());
            for step in 0..3000u64 {
                let random = (step + seed).wrapping_mul(6_364_136_223_846_793_005) >> 33;
                if random % 5 < 2 && !live.is_empty() {
                    let bytes: u64 = live.swap_remove(random as usize % live.len());
                    free(&totals, &owner, 0, bytes);
                    now -= bytes as i64;
                } else {
                    let bytes = 512 * (1 + random % most);
                    alloc(&totals, &owner, 0, bytes);
                    live.push(bytes);
                    now += bytes as i64;
                    given += bytes as i64;
                    if now > peak {
                        (peak, at_peak) = (now, live_of(&live));
                    }
                }
                let sum = totals.sum(owner.iter());
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
        let (totals, owner) = (Totals::default(), [Counters::default()]);
        alloc(&totals, &owner, 0, 4 << 20);
        free(&totals, &owner, 0, 4 << 20);
        alloc(&totals, &owner, 0, 1024);
        totals.reset_peaks(owner.iter());
        let sum = totals.sum(owner.iter());
        let peaks = (sum.peak_allocated, sum.peak.requested, sum.peak_active);
        assert_eq!(peaks, (1024, 1023, 1024));
        // The idle bytes of before are no reason not to see this.
        alloc(&totals, &owner, 0, 3 << 20);
        assert_eq!(totals.sum(owner.iter()).peak_allocated, (3 << 20) + 1024);
    }

    #[test]
    fn with_several_owners_the_peak_is_within_a_fold_each() {
        let (totals, owners) = (
            Totals::default(),
            std::array::from_fn::<_, 4, _>(|_| Counters::default()),
        );
        let (mut now, mut peak) = (0i64, 0i64);
        for step in 0..4000usize {
            let owner = step % 4;
            alloc(&totals, &owners, owner, 300 << 10);
            now += 300 << 10;
            peak = peak.max(now);
            if step % 8 >= 4 {
                free(&totals, &owners, owner, 600 << 10);
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

    #[test]
    fn of_large_blocks_the_peak_is_exact_with_several_owners() {
        let (totals, owners) = (
            Totals::default(),
            std::array::from_fn::<_, 3, _>(|_| Counters::default()),
        );
        let mut live: Vec<(usize, u64)> = Vec::new();
        let (mut now, mut peak) = (0i64, 0i64);
        for step in 0..20_000u64 {
            let random = step.wrapping_mul(6_364_136_223_846_793_005) >> 33;
            if random % 16 < 7 && !live.is_empty() {
                let (owner, bytes) = live.swap_remove(random as usize / 16 % live.len());
                free(&totals, &owners, owner, bytes);
                now -= bytes as i64;
            } else if live.len() < 12 {
                let (owner, bytes) = (random as usize / 16 % 3, (2 + random / 64 % 40) << 20);
                alloc(&totals, &owners, owner, bytes);
                live.push((owner, bytes));
                now += bytes as i64;
                peak = peak.max(now);
            }
            if random % 1024 == 0 {
                owners[0].rest(&totals, || Owners::read(owners.iter()));
            }
            if random % 2048 == 1 {
                totals.reset_peaks(owners.iter());
                peak = now;
            }
            let sum = totals.sum(owners.iter());
            assert_eq!((sum.allocated, sum.peak_allocated), (now, peak), "step {step}");
            assert_eq!(sum.peak_active, peak, "step {step}");
        }
    }
}

#[cfg(all(test, loom))]
mod models;
