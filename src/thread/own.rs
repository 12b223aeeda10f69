//! Which cache a hit uses: a table from thread tokens to caches, beside thread-local storage.
//!
//! An entry is a hint: a cache that names its own thread. A wrong or missing one costs the slow way through thread-local storage,
//! which sets it right.

use super::cache::{Busy, Cache};
use super::token::token;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A power of two. With 64 threads about two pairs meet in an entry, and then use its neighbour.
const ENTRIES: usize = 1024;

type Entries = [AtomicPtr<Cache>; ENTRIES];

/// What is looked at while nothing is to be found.
static NONE: Entries = [const { AtomicPtr::new(ptr::null_mut()) }; ENTRIES];

/// For each thread the cache of the default stream that it used last.
pub(crate) struct OwnCaches {
    /// `entries`, or [`NONE`].
    shown: AtomicPtr<Entries>,
    entries: Arc<Entries>,
}

#[inline(always)]
const fn place(token: u64) -> usize {
    // Fibonacci hashing of the lower half of an address, whose low bits are the same for all threads. The product is one of
    // 64 bits with a factor that an instruction can hold.
    (token.wrapping_mul(0x61c8_8647) as u32 >> 22) as usize
}

impl OwnCaches {
    pub(crate) fn new() -> Self {
        let own = Self {
            shown: AtomicPtr::default(),
            entries: Arc::new([const { AtomicPtr::new(ptr::null_mut()) }; ENTRIES]),
        };
        own.show();
        own
    }

    /// Lets [`Self::enter`] find nothing, until [`Self::show`].
    pub(crate) fn hide(&self) {
        // Relaxed: there is nothing to be seen through it.
        self.shown.store(ptr::from_ref(&NONE).cast_mut(), Relaxed);
    }

    /// Lets [`Self::enter`] find what it remembers.
    pub(crate) fn show(&self) {
        // Release: the entries are read through it.
        self.shown.store(Arc::as_ptr(&self.entries).cast_mut(), Release);
    }

    /// The section of the calling thread's cache for a default stream's handle, if it is the one that it used last.
    #[inline(always)]
    pub(crate) fn enter(&self, stream: usize) -> Option<Busy<'_>> {
        // Acquire: see `show`.
        // SAFETY: a static, or our own entries, which stay where they are.
        let shown = unsafe { &*self.shown.load(Acquire) };
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
}

#[inline(always)]
fn cache(entry: &AtomicPtr<Cache>) -> Option<&Cache> {
    // Acquire: the cache is read through the pointer.
    let cache = entry.load(Acquire);
    // SAFETY: only `remember` sets entries, to caches that live as long as the pool, and so as the table.
    unsafe { cache.as_ref() }
}
