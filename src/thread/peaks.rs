//! The most bytes that were given out at once, over all owners.
//!
//! What owners have announced adds up to the level, which is never below what is given out. While it is not above the peak
//! there cannot be a new one, and owners use what they announced without a word. When it rises above:
//!
//! - Large blocks (above 1 MiB) are added up as they are, one thread at a time. Before that all owners are stopped: their next
//!   allocation of one ends only after the sums do. If there is no new peak, somebody has announced more than it has: what is idle
//!   is taken back, and has to be announced again.
//! - Small ones count as announced: at most 1 MiB a thread more than there are. An owner announces more than it has only as
//!   far as the level may rise, or, beside other threads, as far as it has been before. So with one thread the peak is exact.

use super::barrier;
use super::counters::Counters;
use super::sums::Live;
use crate::sync::atomic::{AtomicI64, AtomicU64, fence};
use crate::sync::{Mutex, MutexGuard, lock};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Below every level, and far from where differences overflow.
const NOTHING: i64 = i64::MIN / 4;

/// Whose counters they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The calling thread's.
    Mine,
    /// Another thread's.
    Anothers,
    /// No thread's, and quiet.
    Nobodys,
}

/// The pool's totals.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Totals {
    /// What owners have announced of small and of large blocks.
    pub(super) small: AtomicI64,
    pub(super) large: AtomicI64,
    /// The most bytes given out, with what was live then.
    pub(super) peak: AtomicI64,
    peak_live: [AtomicI64; 5],
    /// Bytes freed that wait for other streams. Rises while nobody looks, and falls at any time.
    pub(crate) pending: AtomicU64,
    /// The most bytes given out and pending together.
    pub(super) active_peak: AtomicI64,
    /// How often peaks began again.
    resets: AtomicU64,
    /// Held from where owners are stopped until their large blocks are added up, and where one that was stopped goes on.
    looking: Mutex<()>,
}

/// The bytes of large blocks that owners have given out and not got back, and how many of the owners are not this thread's.
fn large<'a>(owners: impl Iterator<Item = (&'a Counters, Whose)>) -> (i64, usize) {
    owners.fold((0, 0), |(bytes, others), (owner, whose)| {
        (bytes + owner.big.live(), others + usize::from(whose != Whose::Mine))
    })
}

/// From now on each large block that owners allocate is one to settle.
fn stop_large<'a>(owners: impl Iterator<Item = (&'a Counters, Whose)>) {
    owners.for_each(|(owner, _)| owner.big.stop());
    // SeqCst: an owner that allocates one meanwhile sees it, or we see what it has; and see `Stock::tune`.
    fence(SeqCst);
}

impl Totals {
    /// How much the level may rise before it is above a peak; below 0 where it is.
    pub(super) fn room(&self) -> i64 {
        // SeqCst, all: of two that change the level or what is pending at once, at least one sees what the other did.
        let level = self.small.load(SeqCst) + self.large.load(SeqCst);
        let active = level + self.pending.load(SeqCst) as i64;
        let room = self.peak.load(SeqCst) - level;
        room.min(self.active_peak.load(SeqCst) - active)
    }

    /// Whether the level is not above the peaks.
    pub(super) fn fits(&self) -> bool {
        self.room() >= 0
    }

    /// Waits while another thread adds up what is given out, and keeps others from it.
    pub(crate) fn no_look(&self) -> MutexGuard<'_, ()> {
        lock(&self.looking)
    }

    /// How often peaks began again.
    pub(super) fn resets(&self) -> u64 {
        // Relaxed: an owner that sees it late announces a little more than it need.
        self.resets.load(Relaxed)
    }

    /// The level is above a peak: there is a new one, or else somebody's idle bytes are taken back. `me` has announced exactly its
    /// small blocks, or what it means to. Whether it was for nothing, and another thread's.
    pub(super) fn look<'a>(
        &self,
        me: Option<&Counters>,
        owners: impl Iterator<Item = (&'a Counters, Whose)> + Clone,
        mut patience: bool,
    ) -> bool {
        let mut in_vain = false;
        // What this thread announced for others of its streams is known exactly.
        let is_me = |owner: &Counters| me.is_some_and(|me| std::ptr::eq(me, owner));
        let mine = owners
            .clone()
            .filter(|&(owner, whose)| whose == Whose::Mine && !is_me(owner));
        mine.for_each(|(owner, _)| owner.tell_small(self));
        loop {
            {
                let _looking = self.no_look();
                self.raise(owners.clone());
            }
            if self.fits() {
                return in_vain;
            }
            let mut idle = owners.clone().filter(|(owner, _)| owner.big.idle() > 0);
            in_vain |= idle.any(|(_, whose)| whose == Whose::Anothers);
            if in_vain && patience {
                // It may be between a free and its next allocation at every look, as each look takes its cache line.
                wait_a_moment();
                patience = false;
                continue;
            }
            // Once more where an owner used idle bytes meanwhile: it may not have seen that they were told anew.
            let told_anew = |owner: &Counters| owner.big.reclaim(&self.large);
            if owners.clone().filter(|(owner, _)| told_anew(owner)).count() == 0 {
                return in_vain;
            }
        }
    }

    /// As [`Self::look`], for whoever did not allocate.
    pub(super) fn look_now<'a>(&self, owners: impl Iterator<Item = (&'a Counters, Whose)> + Clone) {
        self.look(None, owners, false);
    }

    /// Raises the peaks to what is given out at a moment of this call, if that is more than before. Nobody else looks.
    ///
    /// A large block that moves from one owner to another while they are added up counts twice. But until `looking` is free each
    /// owner can allocate one at most, one that is new as well, if its thread is another one. So of one sum more than such owners
    /// were added up in the last, at least one is of a time in which nobody did: it is not above what was given out, and waited,
    /// at its beginning.
    fn raise<'a>(&self, owners: impl Iterator<Item = (&'a Counters, Whose)> + Clone) {
        // While the level is above a peak, whoever allocates a large block has to look.
        stop_large(owners.clone());
        let (mut allocated, mut active) = (i64::MAX, i64::MAX);
        for sums in 1.. {
            // SeqCst, all: as in `room`. In this order: what ends to wait may be announced as small blocks next. Nothing begins to.
            let small = self.small.load(SeqCst);
            let pending = self.pending.load(SeqCst) as i64;
            let (large, others) = large(owners.clone());
            allocated = allocated.min(small + large);
            active = active.min(small + pending + large);
            if sums > others || (allocated <= self.peak.load(SeqCst) && active <= self.active_peak.load(SeqCst)) {
                break;
            }
        }
        // One thread at a time raises them.
        if active > self.active_peak.load(SeqCst) {
            self.active_peak.store(active, SeqCst);
        }
        if allocated > self.peak.load(SeqCst) {
            self.peak.store(allocated, SeqCst);
            self.note(Live::sum(owners.map(|(owner, _)| owner)));
        }
        barrier::both();
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
            // Relaxed: what goes with a peak is read a moment late.
            kept.store(live, Relaxed);
        }
    }

    /// The most bytes given out.
    pub(super) fn peak(&self) -> i64 {
        // Relaxed, here and in the next two: read a moment late.
        self.peak.load(Relaxed)
    }

    /// The most bytes given out, and freed and waiting.
    pub(super) fn active_peak(&self) -> i64 {
        self.active_peak.load(Relaxed)
    }

    /// What was live when [`Self::peak`] was.
    pub(super) fn peak_live(&self) -> Live {
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

    /// More bytes wait: as [`Counters::free_waiting`] says, and then [`Self::look_now`] where they do not fit.
    pub(super) fn add_pending(&self, bytes: u64, _no_look: &MutexGuard<'_, ()>) {
        // SeqCst: as in `room`. Beside `sub_pending`.
        self.pending.fetch_add(bytes, SeqCst);
        barrier::both();
    }

    /// Bytes freed that wait, by this much less.
    pub(crate) fn sub_pending(&self, bytes: u64) {
        self.pending.fetch_sub(bytes, SeqCst);
    }

    /// The peaks: of bytes given out, with what was live then, and of these and what waits. Where `again` has owners they begin again
    /// then, and [`Self::look_now`] is next: no peak is in none of the two.
    pub(super) fn peaks<'a>(
        &self,
        again: Option<impl Iterator<Item = (&'a Counters, Whose)> + Clone>,
    ) -> (i64, Live, i64) {
        // Another thread's sums from before would be peaks of what follows. And while peaks begin again they are below all else.
        let _no_other = self.no_look();
        let peaks = (self.peak(), self.peak_live(), self.active_peak());
        if let Some(owners) = again {
            self.begin_again(owners);
        }
        peaks
    }

    /// Lets peaks begin again at what is live now; of other threads' small blocks, at what they have announced. Nobody looks.
    fn begin_again<'a>(&self, owners: impl Iterator<Item = (&'a Counters, Whose)> + Clone) {
        // Relaxed: see `resets`.
        self.resets.fetch_add(1, Relaxed);
        let mine = owners.clone().filter(|(_, whose)| *whose == Whose::Mine);
        mine.for_each(|(owner, _)| owner.tell_small(self));
        // SeqCst, all: as in `room`. First down, then up again: an allocation that runs beside this is seen here, or raises them.
        self.peak.store(NOTHING, SeqCst);
        self.active_peak.store(NOTHING, SeqCst);
        barrier::both();
        self.raise(owners);
    }
}

/// Lets others get on, about a microsecond, without a look at what they write.
fn wait_a_moment() {
    #[cfg(all(test, not(loom)))]
    super::counters::tests::others_get_on();
    #[cfg(not(loom))]
    (0..MOMENT).for_each(|_| std::hint::spin_loop());
}

/// Turns of [`wait_a_moment`]: each takes tens of cycles.
#[cfg(not(loom))]
const MOMENT: u32 = 64;

#[cfg(all(test, not(loom)))]
mod tests;
