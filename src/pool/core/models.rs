//! What meets in a pool, under every order of its threads' steps: an owner, threads that free what it allocated, takers.
//!
//! Threads of a model have no thread-local storage: a cache is lent here by name, and given back by the function that a
//! thread's exit calls.

use super::*;
use crate::arena::{Kind, Span};
use crate::metadata::State;
use crate::pool::free::put_away;
use crate::size_class;
use crate::sync::meet;
use crate::thread::become_thread;

/// Sizes, in units, of which a slab has two and one.
const HALF: u32 = 16;
const WHOLE: u32 = 32;
/// Memory for three slabs.
const SEGMENT: Span = Span {
    addr: 1 << 21,
    bytes: 3 * size_class::bytes(WHOLE),
};
/// Which thread is the owner.
const OWNER: u64 = 1;

/// A pool whose legacy stream has some memory, with a thread that has a cache for it and some blocks.
pub(crate) struct Setting {
    pub(crate) core: Arc<Core>,
    pub(crate) blocks: [DevicePtr; 2],
}

impl Setting {
    /// The owner has two blocks of a size.
    pub(crate) fn live(units: u32) -> Self {
        let core = Core::new(1 << 20, false);
        let key = ArenaKey {
            stream: StreamKey::Legacy,
            private: None,
        };
        let visit = core.arena(key, Stream::LEGACY, |_| false).expect("a first arena");
        let added =
            visit
                .arena()
                .lock(&core.metadata)
                .region(Kind::Slabs)
                .add_segment(&core.metadata.blocks, SEGMENT, false);
        assert!(added);
        become_thread(OWNER);
        let cache = core.vacant_cache(visit.arena()).expect("a first cache");
        cache.acquire();
        // SAFETY: caches and the table are both the pool's.
        unsafe { core.own.remember(cache) };
        let blocks = std::array::from_fn(|_| {
            let index = visit.arena().lock(&core.metadata).take(&core.metadata, units);
            assert_ne!(index, 0, "the segment is used up");
            core.give_out(Some(cache), index, size_class::bytes(units))
        });
        drop(visit);
        become_thread(OWNER + 1);
        Self { core, blocks }
    }

    /// The owner has one block, and its magazine the other.
    pub(crate) fn one_ready(units: u32) -> Self {
        let setting = Self::live(units);
        setting.as_owner(|| setting.free(1));
        setting
    }

    /// What the owner does.
    pub(crate) fn as_owner<T>(&self, act: impl FnOnce() -> T) -> T {
        become_thread(OWNER);
        let result = act();
        become_thread(OWNER + 1);
        result
    }

    fn cache(&self) -> &Cache {
        self.core.caches.get(1)
    }

    fn arena(&self) -> &Arena {
        self.core.arenas.get(1)
    }

    /// A block from the owner's magazine.
    fn hit(&self, units: u32) -> Option<DevicePtr> {
        self.core.alloc_hit(size_class::bytes(units), Stream::LEGACY).addr()
    }

    /// The owner frees one of its blocks.
    fn free(&self, which: usize) {
        assert!(self.core.free_hit(self.blocks[which], None), "its own, and live");
    }

    /// Another thread frees a block of the owner's, if it is still live. Whether it was.
    fn free_from_elsewhere(&self, which: usize) -> bool {
        if self.core.free_hit(self.blocks[which], None) {
            panic!("a hit of a thread that has no magazines");
        }
        let block = self.core.metadata.find(self.blocks[which]).expect("it was given out");
        let won = block.change(State::Live, State::Cached);
        if won {
            put_away(&self.core, block);
        }
        won
    }

    fn take_magazines(&self) {
        self.core.take_magazines(None);
    }

    /// The owner's thread ends.
    fn end(&self) {
        self.as_owner(|| self.core.give_back(1));
    }

    /// Once all threads are quiet: everything comes back to the arena and is one free range again. What was lost would be
    /// missing there, and what is in two places would come twice.
    fn assert_whole(&self) {
        self.take_magazines();
        let metadata = &self.core.metadata;
        let mut inner = self.arena().lock(metadata);
        self.arena().drain_shared(metadata, &mut inner);
        let free = inner.region(Kind::Slabs).ranges.all(&metadata.blocks);
        let bytes: Vec<u64> = free.iter().map(|&index| metadata.blocks.get(index).bytes()).collect();
        assert_eq!(bytes, [SEGMENT.bytes]);
    }
}

#[test]
fn a_hit_and_a_drain_share_no_block() {
    let owner = |setting: &Setting| {
        setting.as_owner(|| {
            setting.free(0);
            let hit = setting.hit(HALF);
            if let Some(block) = hit {
                assert!(setting.blocks.contains(&block));
                assert!(setting.core.free_hit(block, None));
            }
        });
    };
    meet(
        || Setting::live(HALF),
        owner,
        Setting::take_magazines,
        |setting, (), ()| {
            setting.as_owner(|| setting.free(1));
            setting.assert_whole();
        },
    );
}

#[test]
fn a_thread_that_ends_and_a_drain_take_each_block_once() {
    meet(
        || Setting::one_ready(HALF),
        Setting::end,
        Setting::take_magazines,
        |setting, (), ()| {
            assert!(setting.free_from_elsewhere(0), "it outlived its thread");
            assert!(!setting.cache().has_remote(), "nobody would look there");
            setting.assert_whole();
        },
    );
}

#[test]
fn takers_take_turns() {
    let ready = || {
        let setting = Setting::one_ready(HALF);
        setting.as_owner(|| setting.free(0));
        setting
    };
    meet(
        ready,
        Setting::take_magazines,
        Setting::take_magazines,
        |setting, (), ()| {
            setting.assert_whole();
        },
    );
}

#[test]
fn a_free_from_elsewhere_beside_a_drain_is_not_lost() {
    let free = |setting: &Setting| assert!(setting.free_from_elsewhere(0));
    meet(
        || Setting::one_ready(WHOLE),
        free,
        Setting::take_magazines,
        |setting, (), ()| {
            setting.assert_whole();
        },
    );
}

#[test]
fn a_free_from_elsewhere_beside_the_end_of_its_owner_is_not_lost() {
    let free = |setting: &Setting| assert!(setting.free_from_elsewhere(0));
    meet(
        || Setting::one_ready(WHOLE),
        free,
        Setting::end,
        |setting, (), ()| {
            setting.assert_whole();
        },
    );
}

#[test]
fn what_came_from_elsewhere_before_its_owner_ended_is_back() {
    let nothing = |_: &Setting| {};
    let free = |setting: &Setting| assert!(setting.free_from_elsewhere(0));
    meet(
        || Setting::one_ready(WHOLE),
        free,
        nothing,
        |setting, (), ()| {
            setting.end();
            assert!(!setting.cache().has_remote(), "nobody would look there");
            setting.assert_whole();
        },
    );
}

#[test]
fn a_magazine_is_its_owners_while_others_free_to_it() {
    let owner = |setting: &Setting| {
        setting.as_owner(|| {
            let block = setting.hit(HALF);
            assert_eq!(block, Some(setting.blocks[1]), "nobody else takes or puts");
            setting.free(1);
        });
    };
    let free = |setting: &Setting| assert!(setting.free_from_elsewhere(0));
    meet(
        || Setting::one_ready(HALF),
        owner,
        free,
        |setting, (), ()| setting.assert_whole(),
    );
}

#[test]
fn of_an_owner_and_another_thread_that_free_one_block_one_wins() {
    let owner = |setting: &Setting| setting.as_owner(|| setting.core.free_hit(setting.blocks[0], None));
    let elsewhere = |setting: &Setting| setting.free_from_elsewhere(0);
    meet(
        || Setting::one_ready(HALF),
        owner,
        elsewhere,
        |setting, mine, theirs| {
            assert_ne!(mine, theirs);
            setting.assert_whole();
        },
    );
}

#[test]
fn a_free_finds_its_block_beside_growth() {
    // New slabs enter the table and leave it, beside the one that is looked up.
    let grow = |setting: &Setting| {
        let metadata = &setting.core.metadata;
        let mut inner = setting.arena().lock(metadata);
        let [more, whole] = [HALF, WHOLE].map(|units| inner.take(metadata, units));
        inner.give(metadata, whole);
        inner.give(metadata, more);
    };
    let free = |setting: &Setting| setting.as_owner(|| setting.free(0));
    meet(
        || Setting::one_ready(HALF),
        free,
        grow,
        |setting, (), ()| setting.assert_whole(),
    );
}

#[test]
fn a_list_that_all_share_gives_each_block_once() {
    fn pop(setting: &Setting) {
        let blocks = &setting.core.metadata.blocks;
        let index = setting.arena().shared(HALF).expect("a class").pop(blocks);
        if index != 0 {
            assert_eq!(blocks.get(index).addr(), setting.blocks[1]);
            setting.core.put_back(blocks.get(index));
        }
    }
    // Full magazines are emptied into the shared lists.
    let share = |setting: &Setting| {
        setting.as_owner(|| {
            let chain = setting.cache().take_own();
            setting.core.share(setting.arena(), chain);
        });
        pop(setting);
    };
    meet(
        || Setting::one_ready(HALF),
        share,
        pop,
        |setting, (), ()| {
            setting.as_owner(|| setting.free(0));
            setting.assert_whole();
        },
    );
}

#[test]
fn requests_are_hits_again_when_nobody_watches() {
    fn watch(setting: &Setting) {
        setting.core.watch();
        let hit = setting.as_owner(|| setting.hit(HALF));
        assert_eq!(hit, None, "a hit beside somebody who watches");
        setting.core.unwatch();
    }
    meet(
        || Setting::one_ready(HALF),
        watch,
        watch,
        |setting, (), ()| {
            assert!(!setting.core.is_watched());
            assert_eq!(setting.as_owner(|| setting.hit(HALF)), Some(setting.blocks[1]));
        },
    );
}

#[test]
fn an_end_before_its_beginning_leaves_nobody_watching() {
    meet(
        || Setting::one_ready(HALF),
        |setting| setting.core.watch(),
        |setting| setting.core.unwatch(),
        |setting, (), ()| {
            assert!(!setting.core.is_watched());
            assert_eq!(setting.as_owner(|| setting.hit(HALF)), Some(setting.blocks[1]));
        },
    );
}

#[test]
fn a_forked_child_knows_that_it_is_one_and_owns_no_caches() {
    watch_fork();
    assert!(Current::with(|_| ()).is_some());
    // SAFETY: the child reads what is its own, and ends without a destructor.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = forked() && Current::with(|_| ()).is_none();
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!told)) };
    }
    let mut status = -1;
    // SAFETY: the status is a variable of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(!forked(), "the parent is none");
}
