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
    use crate::sync::model;
    use loom::sync::Arc;

    /// The table comes last: it is dropped before what it names.
    struct Shared {
        caches: Vec<Cache>,
        own: OwnCaches,
    }

    #[test]
    fn each_thread_finds_its_own_cache_or_none() {
        model(|| {
            let caches = Vec::new();
            let mut shared = Shared {
                caches,
                own: OwnCaches::new(),
            };
            shared.caches.extend((1..=2).map(|index| Cache::new(index, 1, 0, 0)));
            let shared = Arc::new(shared);
            let other = shared.clone();
            let own = |shared: &Shared, index: usize| {
                shared.caches[index].acquire();
                // SAFETY: the caches live as long as the table.
                unsafe { shared.own.remember(&shared.caches[index]) };
                // Both may have taken the same entry: then one of them finds nothing, and never the other's.
                let found = shared.own.find(0).map(|cache| cache.index);
                assert!(found.is_none_or(|found| found as usize == index + 1));
                assert_eq!(shared.own.find(2).map(|cache| cache.index), None, "another stream");
                found.is_some()
            };
            let thread = loom::thread::spawn(move || own(&other, 1));
            let mine = own(&shared, 0);
            let theirs = thread.join().unwrap();
            assert!(mine || theirs, "an entry is somebody's");
        });
    }

    #[test]
    fn a_cache_is_seen_whole() {
        model(|| {
            let own = Arc::new(OwnCaches::new());
            let other = own.clone();
            let thread = loom::thread::spawn(move || {
                let cache = Box::new(Cache::new(1, 1, 0, 0));
                cache.acquire();
                // SAFETY: the cache is dropped after the table was looked at last.
                unsafe { other.remember(&cache) };
                cache
            });
            // Another thread's: what is asked of it, loom reports if the cache was not made before.
            assert!(own.find(0).is_none());
            drop(thread.join().unwrap());
        });
    }
}
