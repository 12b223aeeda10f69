//! What meets in the counters, under every order of its threads' steps: owners that tell the totals at once, that use idle bytes
//! while others look for a peak, and peaks that begin again meanwhile.
//!
//! Loom takes a `SeqCst` read-modify-write for a weaker one: there is a fence beside each, [`barrier::both`].

use super::*;
use crate::sync::meet;

/// A large block.
const LARGE: u64 = 2 << 20;

struct Shared {
    totals: Totals,
    owners: [Counters; 2],
}

impl Shared {
    fn new() -> Self {
        Self {
            totals: Totals::default(),
            owners: [(); 2].map(|()| Counters::new(1 << 40)),
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
            big.take(big.room(LARGE).expect("there is room"));
        }
        let bytes = (blocks * LARGE) as i64;
        assert_eq!((big.untold(), shared.peak()), (-bytes, bytes));
        shared
    }

    /// An allocation that is no hit.
    fn alloc(&self, owner: usize, bytes: u64) {
        self.owners[owner].alloc(bytes, bytes);
        self.settle(owner, is_large(bytes));
    }

    /// A hit.
    fn hit(&self, owner: usize) {
        if self.owners[owner].big.give_large(LARGE) {
            self.settle(owner, true);
        }
    }

    fn settle(&self, owner: usize, large: bool) {
        self.owners[owner].settle(&self.totals, large, self.owners.iter());
    }

    fn peak(&self) -> i64 {
        self.totals.peak.load(Relaxed)
    }

    fn allocated(&self) -> i64 {
        allocated(self.owners.iter())
    }

    /// The slack is what it is said to be.
    fn assert_balanced(&self) {
        let told: i64 = self
            .owners
            .iter()
            .map(|owner| owner.small.told.load(Relaxed) + owner.big.told.load(Relaxed))
            .sum();
        let pending = self.totals.pending.load(Relaxed) as i64;
        assert_eq!(self.totals.slack.load(Relaxed), self.peak() - told - pending);
    }
}

#[test]
fn owners_that_tell_at_once_lose_nothing() {
    let one = |shared: &Shared| shared.alloc(0, LARGE);
    let other = |shared: &Shared| shared.alloc(1, LARGE);
    meet(Shared::new, one, other, |shared, (), ()| {
        let sum = shared.totals.sum(shared.owners.iter());
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
fn an_owner_does_not_use_idle_bytes_that_it_has_no_more() {
    // Nothing of its own is new: only what the other one takes away tells it to look.
    let settle_and_hit = |shared: &Shared| {
        shared.settle(0, false);
        shared.hit(0);
    };
    let reclaim = |shared: &Shared| shared.owners[0].big.reclaim(&shared.totals);
    // Of two blocks, so that a hit alone may use those of one.
    let idle = || Shared::idle(2);
    meet(idle, settle_and_hit, reclaim, |shared, (), _| {
        assert!(
            shared.owners[0].big.untold() <= 0,
            "the level is not below what is live"
        );
        shared.assert_balanced();
    });
}

#[test]
fn a_new_peak_is_seen_after_peaks_began_again() {
    let alloc = |shared: &Shared| shared.alloc(0, 512);
    let reset = |shared: &Shared| shared.totals.reset_peaks(shared.owners.iter());
    meet(Shared::one_idle, alloc, reset, |shared, (), ()| {
        if shared.owners[0].small.give(1024) {
            shared.settle(0, false);
        }
        assert_eq!(shared.peak(), shared.allocated());
        shared.assert_balanced();
    });
}

#[test]
fn what_waits_is_counted_by_all() {
    let stay = |shared: &Shared| shared.totals.add_pending(1024, shared.owners.iter());
    let come_and_go = |shared: &Shared| {
        shared.totals.add_pending(512, shared.owners.iter());
        shared.totals.sub_pending(512);
    };
    meet(Shared::new, stay, come_and_go, |shared, (), ()| {
        assert_eq!(shared.totals.active_now(shared.owners.iter()), 1024);
        assert!(shared.totals.active_peak.load(Relaxed) >= 1024);
        shared.assert_balanced();
    });
}
