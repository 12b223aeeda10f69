//! The calling thread: its number, and which caches it owns in which pools.
//!
//! The pointer in thread-local storage needs no destructor of its own, so it can be read at any time, also late in a thread's
//! exit; a second thread-local, which has one, gives the caches back. After that the thread has none: it allocates from
//! and frees to the shared lists.

use super::cache::Cache;
use crate::arena::StreamKey;
use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who lent a cache to a thread and takes it back when the thread ends.
pub(crate) trait Lender: Send + Sync {
    /// The thread that owned this cache has ended.
    fn give_back(&self, cache: u32);
}

/// A cache that this thread owns.
struct Owned {
    pool: u64,
    key: StreamKey,
    cache: *const Cache,
    lender: Weak<dyn Lender>,
}

/// One thread of the process.
pub(crate) struct Current {
    /// Never used again by another thread; not 0.
    pub(crate) number: u64,
    owned: RefCell<Vec<Owned>>,
    /// The pool whose next request is timed, and the cache that said so.
    sample: Cell<Option<(u64, u32)>>,
}

/// What the pointer is once the thread has given its caches back.
const ENDED: *const Current = ptr::without_provenance(1);

thread_local! {
    static CURRENT: Cell<*const Current> = const { Cell::new(ptr::null()) };
    static AT_EXIT: AtExit = const { AtExit };
}

struct AtExit;

impl Drop for AtExit {
    fn drop(&mut self) {
        let current = CURRENT.replace(ENDED);
        if current.is_null() || current == ENDED {
            return;
        }
        // SAFETY: made by `Box::into_raw` in `start`; the pointer was just taken out of the only place that had it.
        let current = unsafe { Box::from_raw(current.cast_mut()) };
        for owned in current.owned.into_inner() {
            if let Some(lender) = owned.lender.upgrade() {
                // SAFETY: caches live as long as their pool, which the lender keeps alive.
                let cache = unsafe { &*owned.cache };
                lender.give_back(cache.index);
            }
        }
    }
}

impl Current {
    /// In a forked child: the thread that lives on has nothing of its own any more.
    pub(crate) fn abandon() {
        CURRENT.set(ENDED);
    }

    /// Runs `with` on the calling thread, or returns `None` once it has given its caches back.
    pub(crate) fn with<T>(with: impl FnOnce(&Self) -> T) -> Option<T> {
        let mut current = CURRENT.get();
        if current.is_null() {
            current = Self::start()?;
        }
        if current == ENDED {
            return None;
        }
        // SAFETY: set by `start`, freed only by this thread's exit, which replaces the pointer first.
        Some(with(unsafe { &*current }))
    }

    fn start() -> Option<*const Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Registers the destructor; fails when thread-local storage is being torn down.
        if AT_EXIT.try_with(|_| ()).is_err() {
            CURRENT.set(ENDED);
            return None;
        }
        let current = Box::into_raw(Box::new(Self {
            // Relaxed: a number of its own is all that matters.
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            owned: RefCell::new(Vec::new()),
            sample: Cell::new(None),
        }));
        CURRENT.set(current);
        Some(current)
    }

    /// Lets the thread's next request be timed, if it is one of this pool, as this cache says.
    pub(crate) fn sample_next(pool: u64, cache: u32) {
        Self::with(|current| current.sample.set(Some((pool, cache))));
    }

    /// Whether this request is to be timed, and which cache says so.
    pub(crate) fn take_sample(pool: u64) -> Option<u32> {
        let (of, cache) = Self::with(|current| current.sample.take()).flatten()?;
        (of == pool).then_some(cache)
    }

    /// The cache that this thread owns in `pool` for the stream `key`.
    pub(crate) fn find(&self, pool: u64, key: StreamKey) -> Option<&'static Cache> {
        let owned = self.owned.borrow();
        // The newest first: streams that are gone leave theirs.
        let found = owned.iter().rfind(|owned| owned.pool == pool && owned.key == key)?;
        // SAFETY: pool numbers are not used again, so the caller, who has this pool, keeps its caches alive. The
        // lifetime is longer than the truth and ends within the pool's own methods.
        Some(unsafe { &*found.cache })
    }

    /// Remembers that this thread owns a cache now, and forgets those of pools that are gone.
    pub(crate) fn own(&self, pool: u64, key: StreamKey, cache: &Cache, lender: Weak<dyn Lender>) {
        let mut owned = self.owned.borrow_mut();
        owned.retain(|owned| owned.lender.strong_count() > 0);
        owned.push(Owned {
            pool,
            key,
            cache,
            lender,
        });
    }

    /// Forgets the caches of this thread in `pool` that are stale; their indices, for the caller to give them back.
    pub(crate) fn disown(&self, pool: u64, stale: impl Fn(StreamKey, &Cache) -> bool) -> Vec<u32> {
        let mut indices = Vec::new();
        self.owned.borrow_mut().retain(|owned| {
            if owned.pool != pool {
                return true;
            }
            // SAFETY: as in `find`.
            let cache = unsafe { &*owned.cache };
            let stale = stale(owned.key, cache);
            if stale {
                indices.push(cache.index);
            }
            !stale
        });
        indices
    }

    /// Any cache that this thread owns in `pool`: where a free that goes elsewhere is counted.
    pub(crate) fn any(&self, pool: u64) -> Option<&'static Cache> {
        let owned = self.owned.borrow();
        let found = owned.iter().find(|owned| owned.pool == pool)?;
        // SAFETY: as in `find`.
        Some(unsafe { &*found.cache })
    }
}
