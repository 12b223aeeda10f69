//! Which cache a hit uses: a table from thread tokens to caches, beside thread-local storage.
//!
//! An entry is a hint: a cache that names its own thread. A wrong or missing one costs the slow way through thread-local storage,
//! which sets it right.

use super::cache::Cache;
use super::token::token;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A power of two. With 64 threads about two pairs meet in an entry, and then use its neighbour.
const ENTRIES: usize = 1024;

/// For each thread the cache of the default stream that it used last.
pub(crate) struct OwnCaches {
    entries: Box<[AtomicPtr<Cache>; ENTRIES]>,
}

#[inline(always)]
const fn place(token: u64) -> usize {
    // Fibonacci hashing of an address whose low bits are the same for all threads.
    (token.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize
}

impl OwnCaches {
    pub(crate) fn new() -> Self {
        Self {
            entries: Box::new([const { AtomicPtr::new(ptr::null_mut()) }; ENTRIES]),
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
