//! The bytes of one owner's small or large blocks: given out, announced to the pool, and kept in magazines.

use super::barrier;
use super::counters::COUNTED;
use super::peaks::Totals;
use crate::size_class::{self, CLASS_MAX};
use crate::sync::atomic::{AtomicI64, fence};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// How many bytes more than it has a thread may announce of small blocks: as many as the largest one has, 1 MiB.
pub(crate) const FOLD: i64 = size_class::bytes(CLASS_MAX) as i64;
/// `least` of a stock whose magazines take no block.
const SHUT: i64 = i64::MAX;
/// `most` of one whose every allocation is one to settle.
const STOPPED: i64 = i64::MIN;

/// The bytes of an owner's small or large blocks.
///
/// `hits` changes in the owner's section alone, `stocked` there or by the one taker, `told` by whoever swaps it, `most` by the
/// owner and by those who stop it; the rest is the owner's. All is read by anyone, a moment late.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Stock {
    /// Of blocks that users got from magazines, less those that came back there.
    hits: AtomicI64,
    /// How high `hits` may be before there is something to announce, or a peak to look for.
    most: AtomicI64,
    /// How low: below, magazines have no room, or too much is announced.
    least: AtomicI64,
    /// Of blocks that users got or gave back otherwise.
    others: AtomicI64,
    /// What the level has of them: no less than is given out, but while the owner is about to say so.
    told: AtomicI64,
    /// What was put into magazines otherwise than by hits, less what was taken out: they hold `stocked - hits`.
    stocked: AtomicI64,
    /// The most that magazines may hold.
    bound: AtomicI64,
}

impl Stock {
    /// Magazines that hold at most so many bytes.
    pub(super) fn new(bound: u64) -> Self {
        let stock = Self::default();
        stock.bound.store(bound as i64, Relaxed);
        stock
    }

    /// A magazine gave a block to a user. Whether there is something to do about it, [`Counters::settle`](super::Counters::settle).
    #[inline(always)]
    pub(super) fn give(&self, bytes: u64) -> bool {
        // Relaxed, here and below unless said: within the owner's section or a taker's, or numbers that only the owner writes.
        let hits = self.hits.load(Relaxed) + bytes as i64;
        self.hits.store(hits, Relaxed);
        COUNTED && hits > self.most.load(Relaxed)
    }

    /// As [`Self::give`], of a large block.
    #[inline(always)]
    pub(super) fn give_large(&self, bytes: u64) -> bool {
        if !COUNTED {
            return self.give(bytes);
        }
        let hits = self.hits.load(Relaxed) + bytes as i64;
        // SeqCst, with the accesses to `most`: of two owners that allocate at once, where one uses idle bytes and the other
        // one raises the level and sets `most`, at least one sees what the other did, and with it the peak. The swap is a full
        // barrier, on a cache line of our own.
        self.hits.swap(hits, SeqCst);
        barrier::both();
        hits > self.most.load(SeqCst)
    }

    /// A magazine has room for a block that comes back from a user: then [`Self::take`] this.
    #[inline(always)]
    pub(super) fn room(&self, bytes: u64) -> Option<i64> {
        // Acquire: what a taker that has finished did to the magazines happened before.
        let least = self.least.load(Acquire);
        let hits = self.hits.load(Relaxed) - bytes as i64;
        (hits >= least).then_some(hits)
    }

    /// What [`Self::room`] gave: the block is in a magazine.
    #[inline(always)]
    pub(super) fn take(&self, hits: i64) {
        self.hits.store(hits, Relaxed);
    }

    /// Puts bytes into magazines that do not come from a user; `false` where there is no room. Within the owner's section.
    pub(super) fn stock(&self, bytes: u64) -> bool {
        let stocked = self.stocked.load(Relaxed) + bytes as i64;
        let fits = stocked - self.hits.load(Relaxed) <= self.bound.load(Relaxed);
        if fits {
            self.stocked.store(stocked, Relaxed);
        }
        fits
    }

    /// All magazines are empty. Within the owner's section or a taker's.
    pub(super) fn unload(&self) {
        self.stocked.store(self.hits.load(Relaxed), Relaxed);
    }

    /// Bytes in the magazines.
    pub(super) fn held(&self) -> u64 {
        (self.stocked.load(Relaxed) - self.hits.load(Relaxed)).max(0) as u64
    }

    /// Lets magazines hold at most so many bytes. Whether that is new.
    pub(super) fn set_bound(&self, bound: u64) -> bool {
        let new = self.bound.load(Relaxed) != bound as i64;
        self.bound.store(bound as i64, Relaxed);
        new
    }

    /// Keeps blocks out of the magazines.
    pub(super) fn shut(&self) {
        // Relaxed: the taker's barrier is next.
        self.least.store(SHUT, Relaxed);
    }

    /// Whether [`Self::shut`] was the last to say.
    pub(super) fn is_shut(&self) -> bool {
        self.least.load(Relaxed) == SHUT
    }

    /// Lets blocks into the magazines as far as there is room, and until more than `idle` bytes too much are announced. Within the
    /// owner's section.
    pub(super) fn open(&self, idle: i64) {
        let least = self.told.load(Relaxed) - self.others.load(Relaxed) - idle;
        self.open_from(least);
    }

    /// As far as there is room.
    pub(super) fn open_all(&self) {
        self.open_from(i64::MIN);
    }

    /// For none yet, by a taker that ends: it does not know what the owner is announcing. The owner's next free opens the rest.
    pub(super) fn open_again(&self) {
        self.open_from(self.hits.load(Relaxed));
    }

    fn open_from(&self, least: i64) {
        let least = least.max(self.stocked.load(Relaxed) - self.bound.load(Relaxed));
        // Release: the owner sees the magazines as a taker left them.
        self.least.store(least, Release);
    }

    /// Bytes of blocks that were given out here, less those given back: below 0 where the owner frees what others allocated.
    pub(super) fn live(&self) -> i64 {
        // SeqCst: see `give_large`.
        self.hits.load(SeqCst) + self.others.load(SeqCst)
    }

    /// A block was given out or given back that is from no magazine.
    pub(super) fn change(&self, bytes: i64) {
        // SeqCst: as in `give_large`.
        self.others.swap(self.others.load(Relaxed) + bytes, SeqCst);
        barrier::both();
    }

    /// What the level has.
    pub(super) fn told(&self) -> i64 {
        // SeqCst: see `reclaim`.
        self.told.load(SeqCst)
    }

    /// What the level has beyond what is given out; below 0 where it has too little.
    pub(super) fn idle(&self) -> i64 {
        self.told() - self.live()
    }

    /// Lets the level have what is given out and `idle` bytes more: by the owner, or by whoever looked for a peak in vain.
    pub(super) fn tell(&self, level: &AtomicI64, idle: i64) {
        let mut told = self.told();
        loop {
            let new = self.live() + idle;
            // SeqCst: see `give_large`, and `reclaim`. Of two who tell at once one does.
            match self.told.compare_exchange(told, new, SeqCst, SeqCst) {
                Ok(_) => {
                    level.fetch_add(new - told, SeqCst);
                    break;
                }
                Err(now) => told = now,
            }
        }
        barrier::both();
    }

    /// Takes the idle bytes of whatever owner back from the level: its next block that would use them has to be announced again.
    /// Whether that was at once.
    pub(super) fn reclaim(&self, level: &AtomicI64) -> bool {
        if self.idle() > 0 {
            self.tell(level, 0);
            // In this order: an owner that sets `most` meanwhile sees the change, or its `most` is set back here; see `tune`.
            self.most.store(STOPPED, SeqCst);
            // SeqCst: an owner that used the idle bytes meanwhile sees `most`, or we see what it has: see `give_large`.
            fence(SeqCst);
            if self.idle() < 0 {
                self.tell(level, 0);
                return true;
            }
        }
        false
    }

    /// The bytes of large blocks that hits may give out: the idle ones, with the level as it is. One that was stopped goes on only
    /// while nobody looks for a peak.
    pub(super) fn tune(&self, totals: &Totals) {
        let before = self.most.load(Relaxed);
        let _no_look = (before == STOPPED).then(|| totals.no_look());
        let told = self.told();
        let most = told - self.others.load(Relaxed);
        // Relaxed: the fence is next. Where it was stopped meanwhile it stays so.
        if self.most.compare_exchange(before, most, Relaxed, Relaxed).is_err() {
            return;
        }
        // SeqCst, as in `reclaim` and in `stop_large`: either this sees that idle bytes are gone or that the level is above a
        // peak, or what it set is set back.
        fence(SeqCst);
        if self.told() != told || !totals.fits() {
            self.stop();
        }
    }

    /// The same of small blocks, whose idle bytes only their owner's thread takes back.
    pub(super) fn tune_small(&self) {
        self.most.store(self.told() - self.others.load(Relaxed), Relaxed);
    }

    /// Lets every allocation be one to settle.
    pub(super) fn stop(&self) {
        self.most.store(STOPPED, Relaxed);
    }
}
