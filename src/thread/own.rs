//! Which cache a hit uses: a table from thread tokens to caches, beside thread-local storage.
//!
//! An entry is a hint: a cache that names its own thread. A wrong or missing one costs the slow way through thread-local storage,
//! which sets it right.

use super::cache::{Busy, Cache};
use super::token::token;
use crate::sync::atomic::AtomicPtr;
use crate::sync::length;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A power of two. With 64 threads about two pairs meet in an entry, and then use its neighbour.
const ENTRIES: usize = length(1024, 2);

type Entries = [AtomicPtr<Cache>; ENTRIES];

/// For each thread the cache of the default stream that it used last.
pub(crate) struct OwnCaches {
    /// `entries`, or `none`.
    shown: AtomicPtr<Entries>,
    entries: Arc<Entries>,
    /// What is looked at while nothing is to be found.
    none: Arc<Entries>,
}

#[inline(always)]
const fn place(token: u64) -> usize {
    // Fibonacci hashing of the lower half of an address, whose low bits are the same for all threads. The product is one of
    // 64 bits with a factor that an instruction can hold.
    (token.wrapping_mul(0x61c8_8647) as u32 >> (u32::BITS - ENTRIES.ilog2())) as usize
}

impl OwnCaches {
    pub(crate) fn new() -> Self {
        let [entries, none] = [(); 2].map(|()| Arc::new(std::array::from_fn(|_| AtomicPtr::default())));
        let own = Self {
            shown: AtomicPtr::default(),
            entries,
            none,
        };
        own.show();
        own
    }

    /// Lets [`Self::enter`] find nothing, until [`Self::show`].
    pub(crate) fn hide(&self) {
        // Relaxed, here and below: both arrays were there before the table was.
        self.shown.store(Arc::as_ptr(&self.none).cast_mut(), Relaxed);
    }

    /// Lets [`Self::enter`] find what it remembers.
    pub(crate) fn show(&self) {
        self.shown.store(Arc::as_ptr(&self.entries).cast_mut(), Relaxed);
    }

    /// The section of the calling thread's cache for a default stream's handle, if it is the one that it used last.
    #[inline(always)]
    pub(crate) fn enter(&self, stream: usize) -> Option<Busy<'_>> {
        // SAFETY: entries of our own, which stay where they are.
        let shown = unsafe { &*self.shown.load(Relaxed) };
        let (token, place) = (token(), place(token()));
        let first = cache(&shown[place])?;
        if let Some(busy) = first.enter_for(token, stream) {
            return Some(busy);
        }
        cache(&shown[place ^ 1])?.enter_for(token, stream)
    }

    /// Makes [`Self::enter`] find a cache of the calling thread.
    ///
    /// # Safety
    /// The cache must live as long as the table.
    pub(crate) unsafe fn remember(&self, own: &Cache) {
        let place = place(token());
        // An entry in use by another thread is left to it, if the neighbour is not.
        let taken = |place: usize| cache(&self.entries[place]).is_some_and(Cache::is_anothers);
        let place = if taken(place) && !taken(place ^ 1) {
            place ^ 1
        } else {
            place
        };
        let own: *const Cache = own;
        if self.entries[place].load(Relaxed) != own.cast_mut() {
            // Release: whoever reads the pointer sees the cache.
            self.entries[place].store(own.cast_mut(), Release);
        }
    }

    /// Makes [`Self::enter`] not find a cache of the calling thread, until it is remembered again.
    pub(crate) fn forget(&self, own: &Cache) {
        let own: *const Cache = own;
        for place in [place(token()), place(token()) ^ 1] {
            // Another thread may set its own meanwhile and lose it: an entry is a hint.
            if self.entries[place].load(Relaxed) == own.cast_mut() {
                self.entries[place].store(ptr::null_mut(), Relaxed);
            }
        }
    }
}

#[inline(always)]
fn cache(entry: &AtomicPtr<Cache>) -> Option<&Cache> {
    // Acquire: the cache is read through the pointer.
    let cache = entry.load(Acquire);
    // SAFETY: only `remember` sets entries, to caches that live as long as the pool, and so as the table.
    unsafe { cache.as_ref() }
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
        // Numbers with one place in the table.
        become_thread(u64::from(2 * cache.index - 1));
        cache.acquire();
        // SAFETY: the caches live as long as the table.
        unsafe { shared.own.remember(cache) };
        assert!(shared.own.enter(2).is_none(), "another stream");
        let found = shared.own.enter(0).map(|busy| busy.cache().index);
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
                assert_eq!(place(1) % ENTRIES, place(3) % ENTRIES);
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
            let found = [0, 1].map(|place| cache(&own.entries[place]).is_some_and(Cache::is_mine));
            assert_eq!(found, [false; 2]);
        };
        let empty = || (OwnCaches::new(), AtomicPtr::default());
        meet(empty, make, look, |(_, made), (), ()| {
            // SAFETY: leaked above, and nobody looks any more.
            drop(unsafe { Box::from_raw(made.load(Relaxed)) });
        });
    }
}
