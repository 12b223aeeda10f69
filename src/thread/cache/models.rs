//! What meets in a cache, under every order of its threads' steps: its owner, takers, and threads that free to it.
//!
//! The owner's fence is a real one here, as the taker's: what `membarrier` does to the owner's side is a fence there at
//! some moment, and a model can say no more of it.

use super::*;
use crate::freelist::Links;
use crate::metadata::State;
use crate::sync::{meet, model};
use crate::thread::peaks::Totals;
use loom::sync::Arc;
use loom::thread;

/// Sizes in units: one with magazines of its own, and one that shares them.
const SMALL: u32 = 1;
const LARGE: u32 = CLASS_MAX + 1;

/// The cache is dropped before the records.
struct Shared {
    cache: Cache,
    blocks: Blocks,
}

impl Shared {
    /// A cache, and blocks of so many units, 1 and 2 and so on, in nobody's hands.
    fn new(count: u32, units: u32) -> Self {
        let (cache, blocks) = (Cache::new(1, 1, 0, 1 << 20), Blocks::new());
        assert_eq!(blocks.take(count), 1);
        for index in 1..=count {
            let block = blocks.get(index);
            block.set_index(index);
            block.units.store(units, Relaxed);
            block.set_state(State::Cached);
        }
        cache.acquire();
        cache.keep_large(true);
        // Blocks that come back find room from the first allocation on.
        cache.settle(&Totals::default(), std::iter::empty());
        Self { cache, blocks }
    }

    /// As [`Self::new`], with block 1 in a magazine.
    fn with_one(count: u32, units: u32) -> Self {
        let shared = Self::new(count, units);
        assert!(shared.push(1));
        shared
    }

    fn push(&self, index: u32) -> bool {
        let block = self.blocks.get(index);
        // SAFETY: the cache is dropped before the records.
        unsafe { self.cache.push(block, block.units()) }
    }

    fn pop(&self) -> Option<u32> {
        self.cache
            .enter()?
            .pop_small(SMALL.into(), 1)
            .map(|(block, _)| block.index())
    }

    /// A hit: it asks for whom the magazines are, not whether they are revoked.
    fn hit(&self, units: u32) -> Option<u32> {
        let busy = self.cache.enter_for(token(), 0)?;
        let block = if units == SMALL {
            busy.pop_small(units.into(), 1)
        } else {
            busy.pop_large(units.into(), 1)
        };
        block.map(|(block, _)| block.index())
    }

    /// A free that is a hit: it asks for room, not whether the magazines are revoked.
    fn give_back(&self, index: u32) -> bool {
        let block = self.blocks.get(index);
        let units = block.units();
        // SAFETY: the cache is dropped before the records.
        unsafe {
            if units == SMALL {
                self.cache.take_small(block, units, 1)
            } else {
                self.cache.take_large(block, units, 1)
            }
        }
    }

    /// A free by another thread, which notes something in the record before.
    fn push_remote(&self, index: u32) -> bool {
        let block = self.blocks.get(index);
        block.addr.store(index.into(), Relaxed);
        self.cache.push_remote(&self.blocks, block)
    }

    fn take_remote(&self) -> Vec<u32> {
        let taken = self.chain(self.cache.take_remote());
        let noted = |&index: &u32| self.blocks.get(index).addr() == u64::from(index);
        assert!(taken.iter().all(noted), "a block came before what was written to it");
        taken
    }

    /// The indices of a chain.
    fn chain(&self, first: u32) -> Vec<u32> {
        let mut all = Vec::new();
        let mut index = first;
        while index != 0 {
            all.push(index);
            index = self.blocks.link(index).load(Relaxed);
        }
        all
    }

    fn take_anyone(&self) -> Vec<u32> {
        self.chain(self.cache.take_anyone())
    }

    /// Each of the blocks 1 to `count` is in one of these hands or still in the cache, now that all are quiet.
    fn assert_once(&self, count: u32, hands: [Vec<u32>; 2]) {
        let mut bytes = 0;
        let held = self.cache.walk(|index| bytes += self.blocks.get(index).bytes());
        assert_eq!(held, bytes, "what is counted is not what the magazines have");
        let mut all = hands.concat();
        all.extend(self.take_anyone());
        all.sort_unstable();
        assert!(all.iter().copied().eq(1..=count), "{all:?}");
        assert_eq!(self.cache.held(), 0);
    }
}

#[test]
fn the_owner_and_a_taker_have_the_magazines_in_turn() {
    let owner = |shared: &Shared| {
        let mut held: Vec<u32> = shared.pop().into_iter().chain([2]).collect();
        held.retain(|&index| !shared.push(index));
        held.extend(shared.pop());
        held
    };
    meet(
        || Shared::with_one(2, SMALL),
        owner,
        Shared::take_anyone,
        |shared, held, taken| {
            shared.assert_once(2, [held, taken]);
        },
    );
}

#[test]
fn the_owner_works_on_with_what_a_taker_left() {
    let owner = |shared: &Shared| -> Vec<u32> {
        if shared.push(1) {
            shared.pop().into_iter().collect()
        } else {
            vec![1]
        }
    };
    let taker = |shared: &Shared| [shared.take_anyone(), shared.take_anyone()].concat();
    meet(
        || Shared::new(1, SMALL),
        owner,
        taker,
        |shared, held, taken| shared.assert_once(1, [held, taken]),
    );
}

/// The owner takes and gives blocks of a size by hits, beside somebody who takes all.
fn hits_beside_a_taker<const UNITS: u32>() {
    let owner = |shared: &Shared| {
        let mut held: Vec<u32> = shared.hit(UNITS).into_iter().chain([2]).collect();
        held.retain(|&index| !shared.give_back(index));
        held.extend(shared.hit(UNITS));
        held
    };
    meet(
        || Shared::with_one(2, UNITS),
        owner,
        Shared::take_anyone,
        |shared, held, taken| shared.assert_once(2, [held, taken]),
    );
}

#[test]
fn hits_and_a_taker_have_the_magazines_in_turn() {
    hits_beside_a_taker::<SMALL>();
}

#[test]
fn hits_and_a_taker_have_the_large_magazines_in_turn() {
    hits_beside_a_taker::<LARGE>();
}

#[test]
fn magazines_that_their_owner_opens_are_shut_again_for_a_taker() {
    let owner = |shared: &Shared| {
        let mut held = Vec::new();
        if !shared.push(1) {
            held.push(1);
        }
        if !shared.give_back(2) {
            held.push(2);
        }
        held
    };
    meet(
        || Shared::new(2, SMALL),
        owner,
        Shared::take_anyone,
        |shared, held, taken| shared.assert_once(2, [held, taken]),
    );
}

#[test]
fn large_blocks_may_be_kept_from_now_on_beside_a_taker() {
    let small = || {
        let shared = Shared::new(1, LARGE);
        shared.cache.keep_large(false);
        shared
    };
    let owner = |shared: &Shared| {
        shared.cache.keep_large(true);
        if shared.push(1) { Vec::new() } else { vec![1] }
    };
    meet(small, owner, Shared::take_anyone, |shared, held, taken| {
        shared.assert_once(1, [held, taken]);
    });
}

#[test]
fn a_magazine_and_the_remote_list_meet_in_the_owner() {
    let owner = |shared: &Shared| shared.pop().into_iter().chain(shared.take_remote()).collect();
    let other = |shared: &Shared| assert!(shared.push_remote(2));
    meet(
        || Shared::with_one(2, SMALL),
        owner,
        other,
        |shared, held, ()| shared.assert_once(2, [held, Vec::new()]),
    );
}

#[test]
fn what_others_free_is_taken_once_by_the_owner_or_a_taker() {
    model(|| {
        let shared = Arc::new(Shared::with_one(2, SMALL));
        let (freer, taker) = (shared.clone(), shared.clone());
        let freer = thread::spawn(move || assert!(freer.push_remote(2)));
        let taker = thread::spawn(move || taker.take_anyone());
        let held = shared.take_remote().into_iter().chain(shared.pop()).collect();
        freer.join().unwrap();
        shared.assert_once(2, [held, taker.join().unwrap()]);
    });
}
