//! What meets in the counters, under every order of its threads' steps: owners that announce at once, that use idle bytes while
//! others look for a peak, and peaks that begin again meanwhile.
//!
//! Loom takes a `SeqCst` read-modify-write for a weaker one: there is a fence beside each, [`barrier::both`](super::super::barrier::both).

use super::super::sums::allocated;
use super::*;
use crate::sync::atomic::fence;
use crate::sync::meet;
use std::cell::RefCell;
use std::sync::atomic::Ordering::SeqCst;

/// A large block, and a small one.
const LARGE: u64 = size_class::bytes(CLASS_MAX + 1);
const SMALL: u64 = size_class::UNIT;

struct Shared {
    totals: Totals,
    owners: Vec<Counters>,
    /// How many of them each thread has.
    streams: usize,
}

impl Shared {
    fn new() -> Self {
        Self::of(2)
    }

    fn of(owners: usize) -> Self {
        Self::of_streams(owners, 1)
    }

    /// Owners of which each thread has so many.
    fn of_streams(owners: usize, streams: usize) -> Self {
        Self {
            totals: Totals::default(),
            owners: (0..owners).map(|_| Counters::new(1 << 40)).collect(),
            streams,
        }
    }

    /// The first owner had a large block, and has its bytes.
    fn one_idle() -> Self {
        Self::idle(1)
    }

    /// As [`Self::one_idle`], of so many blocks.
    fn idle(blocks: u64) -> Self {
        let shared = Self::new();
        for _ in 0..blocks {
            shared.alloc(0, LARGE);
        }
        let big = &shared.owners[0].big;
        assert!(big.set_bound(1 << 40));
        shared.owners[0].open();
        for _ in 0..blocks {
            shared.free(0);
        }
        let bytes = (blocks * LARGE) as i64;
        assert_eq!((big.idle(), shared.peak()), (bytes, bytes));
        shared
    }

    fn owners(&self, me: usize) -> impl Iterator<Item = (&Counters, Whose)> + Clone {
        let streams = self.streams;
        let whose = move |owner: usize| {
            if owner / streams == me / streams {
                Whose::Mine
            } else {
                Whose::Anothers
            }
        };
        self.owners
            .iter()
            .enumerate()
            .map(move |(owner, counters)| (counters, whose(owner)))
    }

    /// An allocation that is no hit.
    fn alloc(&self, owner: usize, bytes: u64) {
        self.owners[owner].alloc(size_class::units(bytes), bytes);
        self.settle(owner);
    }

    /// A hit.
    fn hit(&self, owner: usize) {
        if self.owners[owner].big.give_large(LARGE) {
            self.settle(owner);
        }
    }

    /// A large block comes back into the magazines.
    fn free(&self, owner: usize) {
        let big = &self.owners[owner].big;
        big.take(big.room(LARGE).expect("there is room"));
    }

    /// A block comes back that finds no room in the magazines.
    fn give_back(&self, owner: usize, bytes: u64) {
        self.owners[owner].free(&self.totals, size_class::units(bytes), bytes);
    }

    /// A small block as large as a thread's fold is given out and comes back, with what its thread announces within bounds.
    fn rise_and_fall(&self, owner: usize) {
        self.alloc(owner, FOLD as u64);
        self.assert_fold();
        self.give_back(owner, FOLD as u64);
        self.assert_fold();
    }

    /// What the first thread has announced of small blocks beyond those that there are.
    fn idle_small(&self) -> i64 {
        self.owners[..self.streams].iter().map(|owner| owner.small.idle()).sum()
    }

    fn assert_fold(&self) {
        assert!(self.idle_small() <= FOLD, "{} bytes are too much", self.idle_small());
    }

    /// A hit of a small block.
    fn small_hit(&self, owner: usize) {
        if self.owners[owner].small.give(SMALL) {
            self.settle(owner);
        }
    }

    fn settle(&self, owner: usize) {
        self.owners[owner].settle(&self.totals, self.owners(owner));
    }

    /// A large block comes back, and waits.
    fn wait(&self, owner: usize) {
        let block = (size_class::units(LARGE), LARGE);
        self.owners[owner].free_waiting(&self.totals, block, self.owners(owner));
        self.owners[owner].open();
    }

    fn peak(&self) -> i64 {
        self.totals.peak()
    }

    fn active_peak(&self) -> i64 {
        self.totals.active_peak()
    }

    fn allocated(&self) -> i64 {
        allocated(self.owners.iter())
    }

    /// The peak is not below what is live, and above it by at most what so many owners may announce too much.
    fn assert_within(&self, owners: i64) {
        let above = self.peak() - self.allocated();
        assert!((0..=owners * FOLD).contains(&above), "{above}");
        self.assert_balanced();
    }

    /// The level is what was announced, and no less than there is.
    fn assert_balanced(&self) {
        let told = |stock: fn(&Counters) -> &Stock| self.owners.iter().map(|owner| stock(owner).told()).sum::<i64>();
        assert_eq!(self.totals.small.load(Relaxed), told(|owner| &owner.small));
        assert_eq!(self.totals.large.load(Relaxed), told(|owner| &owner.big));
        for owner in &self.owners {
            assert!(
                owner.small.idle() >= 0 && owner.big.idle() >= 0,
                "less is announced than there is"
            );
        }
    }
}

#[test]
fn owners_that_tell_at_once_lose_nothing() {
    let one = |shared: &Shared| shared.alloc(0, LARGE);
    let other = |shared: &Shared| shared.alloc(1, LARGE);
    meet(Shared::new, one, other, |shared, (), ()| {
        let sum = shared.totals.sum(shared.owners(0));
        assert_eq!((sum.allocated, sum.live.blocks), (2 * LARGE as i64, 2));
        assert_eq!(shared.peak(), sum.allocated);
        shared.assert_balanced();
    });
}

#[test]
fn of_two_large_blocks_at_once_one_sees_the_peak() {
    let hit = |shared: &Shared| shared.hit(0);
    let alloc = |shared: &Shared| shared.alloc(1, LARGE);
    meet(Shared::one_idle, hit, alloc, |shared, (), ()| {
        assert_eq!(shared.peak(), 2 * LARGE as i64);
        shared.assert_balanced();
    });
}

#[test]
fn a_block_that_moves_between_owners_counts_once() {
    let one_live = || {
        let shared = Shared::of(4);
        shared.alloc(0, LARGE);
        for owner in &shared.owners {
            assert!(owner.big.set_bound(1 << 40));
            owner.open();
        }
        shared
    };
    let from_one_to_another = |shared: &Shared| {
        for owner in [0, 1] {
            shared.free(owner);
            shared.hit(owner + 1);
        }
    };
    let alloc = |shared: &Shared| shared.alloc(3, LARGE);
    meet(one_live, from_one_to_another, alloc, |shared, (), ()| {
        assert_eq!(shared.peak(), 2 * LARGE as i64);
        shared.assert_balanced();
    });
}

#[test]
fn others_allocate_one_block_at_most_while_all_are_added_up() {
    let two_blocks = |(shared, done): &(Shared, AtomicU64)| {
        for _ in 0..2 {
            shared.hit(0);
            done.fetch_add(1, Relaxed);
            shared.free(0);
        }
    };
    let make = || (Shared::one_idle(), AtomicU64::new(0));
    // There is room for all: only the lock keeps those that were stopped.
    let keep = |(shared, done): &(Shared, AtomicU64)| {
        let _no_look = shared.totals.no_look();
        shared.owners[0].big.stop();
        fence(SeqCst);
        let kept = done.load(Relaxed);
        (kept, done.load(Relaxed))
    };
    meet(make, two_blocks, keep, |_, (), (kept, later)| {
        assert!(later <= kept + 1, "{kept}, {later}");
    });
    // How many were done whenever owners had been gone through, and what the peak was: twice for those of this thread, to stop them,
    // and to add them up. That is done again where the sum is a new peak.
    let look = |(shared, done): &(Shared, AtomicU64)| {
        let seen = RefCell::new(Vec::new());
        let owners = shared.owners(1).enumerate().inspect(|&(owner, _)| {
            if owner == 1 {
                seen.borrow_mut().push((done.load(Relaxed), shared.peak()));
            }
        });
        shared.owners[1].alloc(size_class::units(2 * LARGE), 2 * LARGE);
        shared.owners[1].settle(&shared.totals, owners.map(|(_, owner)| owner));
        seen.into_inner()
    };
    meet(make, two_blocks, look, |_, (), seen| {
        if let [_, _, _, (first, peak), (second, _), ..] = seen[..]
            && peak < 2 * LARGE as i64
        {
            assert!(second <= first + 1, "{seen:?}");
        }
    });
}

#[test]
fn small_blocks_at_once_are_within_the_peak() {
    let one = |shared: &Shared| {
        shared.small_hit(0);
        shared.small_hit(0);
    };
    let other = |shared: &Shared| shared.small_hit(1);
    meet(Shared::new, one, other, |shared, (), ()| {
        shared.assert_within(2);
    });
}

#[test]
fn the_owners_of_a_thread_announce_a_fold_together() {
    // The first two are one thread's. There is room below the peak, and the first one has announced all that it may.
    let one_full = || {
        let shared = Shared::of_streams(4, 2);
        shared.alloc(2, 64 * LARGE);
        shared.give_back(2, 64 * LARGE);
        (0..2).for_each(|_| shared.rise_and_fall(0));
        assert_eq!(shared.owners[0].small.idle(), FOLD);
        shared
    };
    let other_stream = |shared: &Shared| shared.alloc(1, SMALL);
    let other_thread = |shared: &Shared| shared.alloc(2, SMALL);
    meet(one_full, other_stream, other_thread, |shared, (), ()| {
        assert!(shared.idle_small() > 0, "nothing is announced to come");
        // Each uses all that it has now.
        (0..2).for_each(|owner| shared.rise_and_fall(owner));
        // Now the second one asks for all of it, and the first one for its part again.
        (0..2).for_each(|owner| shared.rise_and_fall(1 - owner));
        shared.assert_balanced();
    });
}

#[test]
fn a_small_and_a_large_block_at_once_are_within_the_peak() {
    let small = |shared: &Shared| shared.alloc(1, SMALL);
    let hit = |shared: &Shared| shared.hit(0);
    meet(Shared::one_idle, small, hit, |shared, (), ()| {
        shared.assert_within(2);
    });
}

#[test]
fn an_owner_does_not_use_idle_bytes_that_it_has_no_more() {
    // Nothing of its own is new: only what the other one takes away tells it to look.
    let settle_and_hit = |shared: &Shared| {
        shared.settle(0);
        shared.hit(0);
    };
    let reclaim = |shared: &Shared| shared.owners[0].big.reclaim(&shared.totals.large);
    // Of two blocks, so that a hit alone may use those of one.
    let idle = || Shared::idle(2);
    meet(idle, settle_and_hit, reclaim, |shared, (), _| {
        assert!(shared.owners[0].big.idle() >= 0, "the level is not below what is live");
        shared.assert_balanced();
    });
}

#[test]
fn a_new_peak_is_seen_after_peaks_began_again() {
    let hit = |shared: &Shared| shared.hit(0);
    let reset = |shared: &Shared| shared.totals.reset_peaks(shared.owners(1));
    meet(Shared::one_idle, hit, reset, |shared, (), before| {
        assert_eq!(
            (before.peak_allocated, shared.peak()),
            (LARGE as i64, shared.allocated())
        );
        shared.assert_balanced();
    });
}

#[test]
fn peaks_that_begin_again_forget_what_was_before() {
    let one_live = || {
        let shared = Shared::new();
        shared.alloc(1, LARGE);
        assert!(shared.owners[1].big.set_bound(1 << 40));
        shared.owners[1].open();
        shared
    };
    let alloc = |shared: &Shared| shared.alloc(0, LARGE);
    let free_and_reset = |shared: &Shared| {
        shared.free(1);
        shared.totals.reset_peaks(shared.owners(1)).peak_allocated
    };
    meet(one_live, alloc, free_and_reset, |shared, (), before| {
        let bytes = LARGE as i64;
        assert!([bytes, 2 * bytes].contains(&before));
        assert_eq!((shared.peak(), shared.active_peak()), (bytes, bytes));
        shared.assert_balanced();
    });
}

#[test]
fn a_block_that_begins_to_wait_is_active_all_the_time() {
    let one_live = || {
        let shared = Shared::new();
        shared.alloc(0, LARGE);
        assert!(shared.owners[1].big.set_bound(1 << 40));
        shared.owners[1].open();
        shared
    };
    let wait = |shared: &Shared| shared.wait(0);
    let pair = |shared: &Shared| {
        shared.alloc(1, LARGE);
        shared.free(1);
    };
    meet(one_live, wait, pair, |shared, (), ()| {
        assert_eq!(shared.active_peak(), 2 * LARGE as i64);
        shared.assert_balanced();
    });
}

#[test]
fn a_block_that_waits_and_is_given_out_again_counts_once() {
    let one_live = || {
        let shared = Shared::new();
        shared.alloc(0, LARGE);
        shared
    };
    let again = |shared: &Shared| {
        shared.wait(0);
        shared.totals.sub_pending(LARGE);
        shared.alloc(0, LARGE);
    };
    let alloc = |shared: &Shared| shared.alloc(1, LARGE);
    meet(one_live, again, alloc, |shared, (), ()| {
        assert_eq!(
            (shared.peak(), shared.active_peak()),
            (2 * LARGE as i64, 2 * LARGE as i64)
        );
        shared.assert_balanced();
    });
}

#[test]
fn what_waits_is_counted_by_all() {
    let both_live = || {
        let shared = Shared::new();
        shared.alloc(0, LARGE);
        shared.alloc(1, LARGE);
        shared
    };
    let stay = |shared: &Shared| shared.wait(0);
    let come_and_go = |shared: &Shared| {
        shared.wait(1);
        shared.totals.sub_pending(LARGE);
    };
    meet(both_live, stay, come_and_go, |shared, (), ()| {
        let active = shared.totals.active_now(shared.owners.iter());
        assert_eq!((active, shared.active_peak()), (LARGE, 2 * LARGE as i64));
        shared.assert_balanced();
    });
}
