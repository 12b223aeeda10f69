//! Which cache a hit uses: a table from thread tokens to caches, beside thread-local storage.
//!
//! An entry is a hint: a cache that names its own thread. A wrong or missing one costs the slow way through thread-local storage,
//! which sets it right.

use super::cache::Cache;
use super::token::token;
use crate::sync::atomic::AtomicPtr;
use crate::sync::length;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A power of two. With 64 threads about two pairs meet in an entry, and then use its neighbour.
const ENTRIES: usize = length(1024, 2);

/// For each thread the cache of the default stream that it used last.
pub(crate) struct OwnCaches {
    entries: Box<[AtomicPtr<Cache>; ENTRIES]>,
}

#[inline(always)]
const fn place(token: u64) -> usize {
    // Fibonacci hashing of an address whose low bits are the same for all threads.
    (token.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - ENTRIES.ilog2())) as usize
}

impl OwnCaches {
    pub(crate) fn new() -> Self {
        Self {
            entries: Box::new(std::array::from_fn(|_| AtomicPtr::default())),
        }
    }

    /// The calling thread's cache for a default stream's handle, if it is the one that it used last.
    #[inline(always)]
    pub(crate) fn find(&self, stream: usize) -> Option<&Cache> {
        let token = token();
        let place = place(token);
        let first = self.entry(place)?;
        if first.is_own(token, stream) {
            return Some(first);
        }
        self.entry(place ^ 1).filter(|second| second.is_own(token, stream))
    }

    #[inline(always)]
    fn entry(&self, place: usize) -> Option<&Cache> {
        // Acquire: the cache is read through the pointer.
        let cache = self.entries[place % ENTRIES].load(Acquire);
        // SAFETY: only `remember` sets entries, to caches that live as long as the pool, and so as the table.
        unsafe { cache.as_ref() }
    }

    /// Makes [`Self::find`] find a cache of the calling thread.
    ///
    /// # Safety
    /// The cache must live as long as the table.
    pub(crate) unsafe fn remember(&self, cache: &Cache) {
        let place = place(token());
        // An entry in use by another thread is left to it, if the neighbour is not.
        let taken = |place: usize| self.entry(place).is_some_and(|other| other.is_anothers());
        let place = if taken(place) && !taken(place ^ 1) {
            place ^ 1
        } else {
            place
        };
        let cache: *const Cache = cache;
        if self.entries[place].load(Relaxed) != cache.cast_mut() {
            // Release: whoever reads the pointer sees the cache.
            self.entries[place].store(cache.cast_mut(), Release);
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::atomic::AtomicPtr;
    use crate::sync::meet;
    use crate::thread::become_thread;

    struct Shared {
        own: OwnCaches,
        caches: [Cache; 2],
    }

    fn two() -> Shared {
        Shared {
            own: OwnCaches::new(),
            caches: [1, 2].map(|index| Cache::new(index, 1, 0, 0)),
        }
    }

    /// The calling thread's cache is found by it, or none is, where both took one entry; never the other's.
    fn find(shared: &Shared, index: usize) -> bool {
        let cache = &shared.caches[index];
        become_thread(cache.index.into());
        cache.acquire();
        // SAFETY: the caches live as long as the table.
        unsafe { shared.own.remember(cache) };
        assert!(shared.own.find(2).is_none(), "another stream");
        let found = shared.own.find(0).map(|cache| cache.index);
        assert!(found.is_none_or(|found| found == cache.index));
        found.is_some()
    }

    #[test]
    fn each_thread_finds_its_own_cache_or_none() {
        meet(
            two,
            |shared| find(shared, 0),
            |shared| find(shared, 1),
            |_, mine, theirs| {
                assert!(mine || theirs, "an entry is somebody's");
            },
        );
    }

    #[test]
    fn a_cache_is_seen_whole() {
        // The cache is dropped after the table was looked at last.
        type Shared = (OwnCaches, AtomicPtr<Cache>);
        let make = |(own, made): &Shared| {
            let cache = Box::leak(Box::new(Cache::new(1, 1, 0, 0)));
            // SAFETY: the cache outlives the table's last use.
            unsafe { own.remember(cache) };
            made.store(cache, Relaxed);
        };
        // What is asked of it, loom reports if it was not made before.
        let look = |(own, _): &Shared| {
            let found = [0, 1].map(|place| own.entry(place).is_some_and(Cache::is_mine));
            assert_eq!(found, [false; 2]);
        };
        let empty = || (OwnCaches::new(), AtomicPtr::default());
        meet(empty, make, look, |(_, made), (), ()| {
            // SAFETY: leaked above, and nobody looks any more.
            drop(unsafe { Box::from_raw(made.load(Relaxed)) });
        });
    }
}
