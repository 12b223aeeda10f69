//! What meets in a pool, under every order of its threads' steps: owners, threads that free what others allocated, takers.
//!
//! Threads of a model share one of the system's, so they have no thread-local storage: a cache is lent here by name, and given
//! back by the function that a thread's exit calls.

use super::*;
use crate::arena::{Kind, Span};
use crate::pool::free::put_away;
use crate::sync::model;
use loom::thread;

const KEY: ArenaKey = ArenaKey {
    stream: StreamKey::Legacy,
    private: None,
};
/// Slabs of two slots, and of one.
const HALF: u32 = 16;
const WHOLE: u32 = 32;
/// Memory for three slabs.
const SEGMENT: Span = Span {
    addr: 1 << 21,
    bytes: 3 * size_class::bytes(WHOLE),
};

/// A pool whose legacy stream has some memory.
fn pool() -> Arc<Core> {
    let core = Core::new(1 << 20);
    let added = core
        .arena(KEY, Stream::LEGACY, |_| false)
        .expect("a first arena")
        .arena()
        .lock(&core.metadata)
        .region(Kind::Slabs)
        .add_segment(&core.metadata.blocks, SEGMENT, false);
    assert!(added);
    core
}

/// The calling thread, with a cache of its own.
pub(crate) struct Owner {
    core: Arc<Core>,
    cache: u32,
}

impl Owner {
    fn of(core: &Arc<Core>) -> Self {
        let cache = core.vacant_cache(core.arenas.get(1)).expect("a first cache");
        cache.acquire();
        // SAFETY: caches and the table are both the pool's.
        unsafe { core.own.remember(cache) };
        Self {
            core: core.clone(),
            cache: cache.index,
        }
    }

    /// A pool, and the calling thread in it.
    pub(crate) fn alone() -> (Arc<Core>, Self) {
        let core = pool();
        let owner = Self::of(&core);
        (core, owner)
    }

    fn cache(&self) -> &Cache {
        self.core.caches.get(self.cache)
    }

    /// A block from the arena, as a miss takes one.
    pub(crate) fn miss(&self, units: u32) -> DevicePtr {
        let core = &self.core;
        let index = core.arenas.get(1).lock(&core.metadata).take(&core.metadata, units);
        assert_ne!(index, 0, "the segment is used up");
        core.give_out(Some(self.cache()), index, size_class::bytes(units))
    }

    /// A block from the magazine.
    fn hit(&self, units: u32) -> Option<DevicePtr> {
        self.core.alloc_hit(size_class::bytes(units), Stream::LEGACY).addr()
    }

    /// Frees a block of this thread's.
    fn free(&self, addr: DevicePtr) {
        assert!(self.core.free_hit(addr, None), "it is its own, and live");
    }

    /// The thread ends.
    fn end(self) {
        self.core.give_back(self.cache);
    }
}

/// Frees what another thread allocated.
fn free_from_elsewhere(core: &Core, addr: DevicePtr) {
    assert!(!core.free_hit(addr, None), "it is not this thread's");
    let block = core.metadata.find(addr).expect("live");
    assert!(block.change(State::Live, State::Cached));
    put_away(core, block);
}

/// Once all threads are quiet: everything comes back to the arena, which is one free range again. What was lost would be
/// missing from it, and what was put into two places would be there twice.
fn assert_whole(core: &Core) {
    core.take_magazines(None);
    let arena = core.arenas.get(1);
    let mut inner = arena.lock(&core.metadata);
    arena.drain_shared(&core.metadata, &mut inner);
    let free = inner.region(Kind::Slabs).ranges.all(&core.metadata.blocks);
    let bytes: Vec<u64> = free
        .iter()
        .map(|&index| core.metadata.blocks.get(index).bytes())
        .collect();
    assert_eq!(bytes, [SEGMENT.bytes]);
}

#[test]
fn a_hit_and_a_drain_under_pressure_share_no_block() {
    model(|| {
        let (core, owner) = Owner::alone();
        let first = owner.miss(HALF);
        owner.free(first);
        let taker = core.clone();
        let taker = thread::spawn(move || taker.take_magazines(None));
        if let Some(block) = owner.hit(HALF) {
            assert_eq!(block, first);
            owner.free(block);
        }
        taker.join().unwrap();
        assert_whole(&core);
    });
}

#[test]
fn a_thread_that_ends_and_a_drain_take_each_block_once() {
    model(|| {
        let (core, owner) = Owner::alone();
        let [first, second] = [owner.miss(HALF), owner.miss(HALF)];
        owner.free(first);
        let taker = core.clone();
        let taker = thread::spawn(move || taker.take_magazines(None));
        owner.free(second);
        owner.end();
        taker.join().unwrap();
        assert_whole(&core);
    });
}

#[test]
fn takers_take_turns() {
    model(|| {
        let (core, owner) = Owner::alone();
        let [first, second] = [owner.miss(HALF), owner.miss(HALF)];
        owner.free(first);
        owner.free(second);
        let taker = core.clone();
        let taker = thread::spawn(move || taker.take_magazines(None));
        core.take_magazines(None);
        taker.join().unwrap();
        assert_whole(&core);
    });
}

#[test]
fn a_free_from_elsewhere_beside_a_drain_is_not_lost() {
    model(|| {
        let (core, owner) = Owner::alone();
        let block = owner.miss(HALF);
        let freer = core.clone();
        let freer = thread::spawn(move || free_from_elsewhere(&freer, block));
        core.take_magazines(None);
        freer.join().unwrap();
        assert_whole(&core);
    });
}

#[test]
fn a_free_from_elsewhere_beside_the_end_of_its_owner_is_not_lost() {
    model(|| {
        let (core, owner) = Owner::alone();
        let block = owner.miss(WHOLE);
        let freer = core.clone();
        let freer = thread::spawn(move || free_from_elsewhere(&freer, block));
        owner.end();
        freer.join().unwrap();
        assert_whole(&core);
    });
}

#[test]
fn what_came_from_elsewhere_before_its_owner_ended_is_back() {
    model(|| {
        let (core, owner) = Owner::alone();
        let block = owner.miss(WHOLE);
        let freer = core.clone();
        thread::spawn(move || free_from_elsewhere(&freer, block))
            .join()
            .unwrap();
        let cache = owner.cache;
        owner.end();
        assert!(!core.caches.get(cache).has_remote(), "nobody would look there");
        assert_whole(&core);
    });
}

#[test]
fn a_block_goes_to_its_owner_and_never_into_another_ones_magazine() {
    model(|| {
        let (core, owner) = Owner::alone();
        let [first, second] = [owner.miss(HALF), owner.miss(HALF)];
        let freer = core.clone();
        let freer = thread::spawn(move || free_from_elsewhere(&freer, second));
        owner.free(first);
        assert_eq!(owner.hit(HALF), Some(first), "the magazine is the owner's alone");
        owner.free(first);
        freer.join().unwrap();
        assert_whole(&core);
    });
}

#[test]
fn of_an_owner_and_another_thread_that_free_one_block_one_wins() {
    model(|| {
        let (core, owner) = Owner::alone();
        let block = owner.miss(HALF);
        let other = core.clone();
        let thread = thread::spawn(move || {
            let record = other.metadata.find(block).expect("given out");
            let won = record.change(State::Live, State::Cached);
            if won {
                put_away(&other, record);
            }
            won
        });
        let won = core.free_hit(block, None);
        assert_ne!(thread.join().unwrap(), won);
        assert_whole(&core);
        drop(owner);
    });
}

#[test]
fn a_free_finds_its_block_beside_growth() {
    model(|| {
        let (core, owner) = Owner::alone();
        let block = owner.miss(HALF);
        let other = core.clone();
        // New slabs enter the table and leave it, beside the one that is looked up.
        let thread = thread::spawn(move || {
            let mut inner = other.arenas.get(1).lock(&other.metadata);
            let [more, whole] = [HALF, WHOLE].map(|units| inner.take(&other.metadata, units));
            inner.give(&other.metadata, whole);
            inner.give(&other.metadata, more);
        });
        owner.free(block);
        thread.join().unwrap();
        assert_whole(&core);
    });
}

#[test]
fn a_list_that_all_share_gives_each_block_once() {
    model(|| {
        let (core, owner) = Owner::alone();
        let [first, second] = [owner.miss(HALF), owner.miss(HALF)];
        let pop = |core: &Core| {
            let list = core.arenas.get(1).shared(HALF).expect("a class");
            list.pop(&core.metadata.blocks)
        };
        owner.free(first);
        let other = core.clone();
        let thread = thread::spawn(move || {
            let index = pop(&other);
            if index != 0 {
                other.put_back(other.metadata.blocks.get(index));
            }
        });
        // Full magazines are emptied into the shared lists.
        core.share(core.arenas.get(1), owner.cache().take_own(&core.metadata.blocks));
        let index = pop(&core);
        if index != 0 {
            assert_eq!(core.metadata.blocks.get(index).addr(), first);
            core.put_back(core.metadata.blocks.get(index));
        }
        owner.free(second);
        thread.join().unwrap();
        assert_whole(&core);
    });
}
