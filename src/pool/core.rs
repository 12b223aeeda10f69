//! The part of a pool that knows no driver: records, arenas and caches.

use super::hits::hand_out;
use super::ledger::Ledger;
use super::owners::Owned;
use crate::arena::{Arena, ArenaKey, Metadata, Owner, StreamKey, Visit};
use crate::driver::{DevicePtr, Stream};
use crate::histogram;
use crate::history::Recorder;
use crate::metadata::{Append, Block};
use crate::size_class::CLASS_MAX;
use crate::sync::atomic::{AtomicI32, AtomicU64};
use crate::sync::{Mutex, lock};
use crate::thread::{
    Cache, Counters, Current, Lender, NO_STREAM, OwnCaches, Sum, Totals, Whose, allocated, count_frees,
    magazines_available,
};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Once, Weak};

/// Set in a forked child, where the driver does not work.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process was forked after a pool was made.
pub(crate) fn forked() -> bool {
    // Relaxed: set before the child runs anything else.
    FORKED.load(Relaxed)
}

extern "C" fn in_child() {
    FORKED.store(true, Relaxed);
    Current::abandon();
}

fn watch_fork() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded while a pool lives, and does
        // nothing but store a flag and a thread-local pointer. Failure (no memory) leaves forks unnoticed.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Counters of rare things.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) misses: AtomicU64,
    /// How long hits took, one in some of each thread's.
    pub(crate) hit_times: histogram::Recorder,
    /// How long those took that no list of ready blocks could meet.
    pub(crate) miss_times: histogram::Recorder,
    pub(crate) growths: AtomicU64,
    pub(crate) out_of_memory: AtomicU64,
    pub(crate) pressure: AtomicU64,
    pub(crate) invalid_frees: AtomicU64,
    pub(crate) double_frees: AtomicU64,
    pub(crate) wrong_size_frees: AtomicU64,
    pub(crate) invalid_records: AtomicU64,
    pub(crate) driver_errors: AtomicU64,
    pub(crate) recorded: AtomicU64,
    pub(crate) synchronizations: AtomicU64,
    pub(crate) stream_waits: AtomicU64,
}

/// Adds one to a counter that nothing else is read through.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// A pool without its driver.
pub(crate) struct Core {
    /// Never used again by another pool.
    pub(crate) number: u64,
    /// Not 0 while requests have to be looked at one by one: a private pool is being filled, or a history recorded. Below 0 where
    /// an end came before its beginning.
    watched: AtomicI32,
    watching: Mutex<()>,
    pub(crate) metadata: Metadata,
    pub(crate) caches: Append<Cache>,
    pub(crate) arenas: Append<Arena>,
    pub(crate) totals: Totals,
    pub(crate) events: Events,
    pub(crate) history: Recorder,
    owned: Mutex<Owned>,
    /// Caches whose threads have ended, by arena.
    vacant: Mutex<HashMap<u32, Vec<u32>>>,
    /// Which cache a hit uses.
    pub(super) own: OwnCaches,
    pub(super) ledger: Ledger,
    /// Held by whoever takes other threads' magazines.
    takers: Mutex<()>,
    magazine: u64,
    /// Whether blocks of all sizes but the smallest share a region in each arena.
    one_region: bool,
    me: Weak<Self>,
}

impl Core {
    pub(crate) fn new(magazine: u64, one_region: bool) -> Arc<Self> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        watch_fork();
        Arc::new_cyclic(|me| Self {
            number: NEXT.fetch_add(1, Relaxed),
            watched: AtomicI32::new(0),
            watching: Mutex::default(),
            metadata: Metadata::new(),
            caches: Append::new(Cache::new(0, 0, NO_STREAM, 0)),
            arenas: Append::new(Arena::new(
                0,
                ArenaKey {
                    stream: StreamKey::Legacy,
                    private: None,
                },
                Stream::LEGACY,
                one_region,
            )),
            totals: Totals::default(),
            events: Events::default(),
            history: Recorder::default(),
            owned: Mutex::default(),
            vacant: Mutex::default(),
            own: OwnCaches::new(),
            ledger: Ledger::default(),
            takers: Mutex::default(),
            magazine: if magazines_available() { magazine } else { 0 },
            one_region,
            me: me.clone(),
        })
    }

    /// From now on no request is a hit, until [`Self::unwatch`]. One that runs beside this may be.
    pub(crate) fn watch(&self) {
        self.watch_by(1);
    }

    /// Ends what one [`Self::watch`] began, or is about to begin.
    pub(crate) fn unwatch(&self) {
        self.watch_by(-1);
    }

    fn watch_by(&self, change: i32) {
        let _one_at_a_time = lock(&self.watching);
        // Relaxed, both: changed under the lock, and the caller orders its requests after this by itself.
        let watched = self.watched.load(Relaxed) + change;
        self.watched.store(watched, Relaxed);
        if watched == 0 {
            self.own.show();
        } else {
            self.own.hide();
        }
    }

    /// Whether requests are looked at one by one.
    pub(crate) fn is_watched(&self) -> bool {
        // Relaxed: as above.
        self.watched.load(Relaxed) != 0
    }

    /// The counters of all threads.
    pub(super) fn owners(&self) -> impl Iterator<Item = (&Counters, Whose)> + Clone {
        let caches = self.caches.iter().map(|cache| (cache.counters(), cache.whose()));
        caches.chain(std::iter::once((&self.ledger.orphans, Whose::Nobodys)))
    }

    fn counters(&self) -> impl Iterator<Item = &Counters> {
        self.owners().map(|(owner, _)| owner)
    }

    /// Bytes given out, or freed and waiting.
    pub(crate) fn active_now(&self) -> u64 {
        self.totals.active_now(self.counters())
    }

    /// Bytes freed that wait for other streams.
    pub(crate) fn pending(&self) -> u64 {
        // Relaxed: a number that is read a moment late.
        self.totals.pending.load(Relaxed)
    }

    /// Counts a free by the calling thread, whose block goes elsewhere than into a magazine of its own.
    pub(crate) fn count_free(&self, block: &Block) {
        match Current::with(|current| current.any(self.number)).flatten() {
            Some(cache) => cache.count_free(&self.totals, block.units(), block.requested()),
            None => self.ledger.free(block, &self.totals),
        }
    }

    /// As [`Self::count_free`], of a block that waits for other streams from now on.
    pub(crate) fn count_waiting(&self, block: &Block) {
        let (totals, counted) = (&self.totals, (block.units(), block.requested()));
        match Current::with(|current| current.any(self.number)).flatten() {
            Some(cache) => cache.count_waiting(totals, counted, self.owners()),
            None => self.ledger.free_waiting(counted, totals, self.owners()),
        }
    }

    /// Gives a held block to the user, counted by the calling thread's cache, or by the pool for a thread without one.
    pub(crate) fn give_out(&self, cache: Option<&Cache>, index: u32, requested: u64) -> DevicePtr {
        let block = self.metadata.blocks.get(index);
        // Relaxed: we hold the block.
        block.cache.store(cache.map_or(0, |cache| cache.index), Relaxed);
        hand_out(block, requested);
        match cache {
            Some(cache) => {
                cache.count_alloc(block.units(), requested);
                self.settle(cache);
            }
            None => {
                let arena = self.arena_of(block).index;
                self.ledger.alloc(arena, block, &self.totals, self.owners());
            }
        }
        block.addr()
    }

    /// The arena with this key, made if there is none; `None` when there are too many. `may_end` says of which streams the handles
    /// may be dead: their arenas serve others once they are empty.
    pub(crate) fn arena(
        &self,
        key: ArenaKey,
        stream: Stream,
        may_end: impl Fn(StreamKey) -> bool,
    ) -> Option<Visit<'_>> {
        let mut owned = lock(&self.owned);
        if let Some(&index) = owned.arena_of.get(&key) {
            return Some(self.arenas.get(index).visit());
        }
        let arena = match owned.vacant(&self.arenas, key, may_end) {
            Some(index) => {
                let arena = self.arenas.get(index);
                self.ledger.close(arena, self.caches.iter());
                arena.change_owner(Owner { key, stream });
                arena
            }
            None => self
                .arenas
                .push(|index| Arena::new(index, key, stream, self.one_region))?,
        };
        owned.arena_of.insert(key, arena.index);
        Some(arena.visit())
    }

    /// Looks for arenas that are nobody's any more, whether or not it is time for that.
    pub(crate) fn look_for_vacant_arenas(&self, may_end: impl Fn(StreamKey) -> bool) {
        lock(&self.owned).look(&self.arenas, may_end);
    }

    /// Calls `with` for each arena that somebody owns; none changes its owner meanwhile.
    pub(crate) fn each_owned(&self, mut with: impl FnMut(&ArenaKey, &Arena)) {
        for (key, &index) in &lock(&self.owned).arena_of {
            with(key, self.arenas.get(index));
        }
    }

    /// The calling thread's cache for an arena that is not private, made or taken over if it has none; `None` for a thread
    /// that is ending, or when there are too many.
    pub(crate) fn cache(&self, arena: &Arena) -> Option<&'static Cache> {
        let key = arena.key();
        if self.magazine == 0 || key.private.is_some() {
            return None;
        }
        let key = key.stream;
        let find = |current: &Current| {
            // One for an arena that has changed its owner since is of no use: it is empty, as that arena was.
            let found = current.find(self.number, key);
            if let Some(cache) = found.filter(|cache| cache.arena == arena.index) {
                return Some(cache);
            }
            let stale = |key, cache: &Cache| self.arenas.get(cache.arena).key().stream != key;
            current
                .disown(self.number, stale)
                .into_iter()
                .for_each(|cache| self.give_back(cache));
            let cache = self.vacant_cache(arena)?;
            cache.acquire();
            current.own(self.number, key, cache, self.me.clone());
            current.find(self.number, key)
        };
        let cache = Current::with(find)??;
        if cache.is_default() {
            // SAFETY: caches and the table are both ours.
            unsafe { self.own.remember(cache) };
        }
        Some(cache)
    }

    fn vacant_cache(&self, arena: &Arena) -> Option<&Cache> {
        let vacant = lock(&self.vacant).get_mut(&arena.index).and_then(Vec::pop);
        match vacant {
            Some(index) => Some(self.caches.get(index)),
            None => {
                let Owner { key, stream } = arena.owner();
                let stream = if key.stream.is_default() { stream.0 } else { NO_STREAM };
                self.caches
                    .push(|index| Cache::new(index, arena.index, stream, self.magazine))
            }
        }
    }

    /// Puts a chain of cached blocks where any thread finds them, without the arena's lock.
    pub(crate) fn share(&self, arena: &Arena, first: u32) {
        let blocks = &self.metadata.blocks;
        let mut index = first;
        while index != 0 {
            let block = blocks.get(index);
            // Relaxed: we hold the chain.
            let next = block.link.load(Relaxed);
            block.cache.store(0, Relaxed);
            match arena.shared(block.units()) {
                Some(list) if block.units() <= CLASS_MAX => list.push_chain(blocks, index, index),
                _ => {
                    arena.settle();
                    arena.returned.push(blocks, index);
                }
            }
            index = next;
        }
    }

    /// The arenas that have memory or addresses.
    pub(crate) fn arenas_in_use(&self) -> impl Iterator<Item = &Arena> {
        self.arenas.iter().filter(|arena| arena.is_in_use())
    }

    /// Those of them whose memory may go elsewhere: no capture holds it.
    pub(crate) fn arenas_not_held(&self) -> impl Iterator<Item = &Arena> {
        // Relaxed: a capture that begins now gets its memory from elsewhere.
        self.arenas_in_use().filter(|arena| arena.holders.load(Relaxed) == 0)
    }

    /// The arena whose memory a block is.
    pub(crate) fn arena_of(&self, block: &Block) -> &Arena {
        // Relaxed: set before the block could be reached.
        self.arenas.get(block.arena.load(Relaxed))
    }

    /// A cached block back to its arena, without the arena's lock.
    pub(crate) fn put_back(&self, block: &Block) {
        // Relaxed: we hold the block.
        block.link.store(0, Relaxed);
        self.share(self.arena_of(block), block.index());
    }

    /// Takes the magazines of all threads, of one arena or of all, back into the arenas. Returns the bytes.
    pub(crate) fn take_magazines(&self, arena: Option<u32>) -> u64 {
        let _taker = lock(&self.takers);
        let mut bytes = 0;
        for cache in self.caches.iter() {
            let held = cache.bytes();
            if arena.is_some_and(|arena| arena != cache.arena) || held == 0 {
                continue;
            }
            bytes += held;
            let chain = cache.take_anyone();
            let arena = self.arenas.get(cache.arena);
            arena.lock(&self.metadata).give_chain(&self.metadata, chain);
        }
        bytes
    }

    /// Bytes that are given out: of [`Self::sum`] what costs little.
    pub(crate) fn allocated(&self) -> i64 {
        allocated(self.counters())
    }

    /// How many blocks came back so far: as [`Self::allocated`].
    pub(crate) fn count_frees(&self) -> u64 {
        count_frees(self.counters())
    }

    /// Counters over all threads, with a look at each size of each.
    pub(crate) fn sum(&self) -> Sum {
        self.totals.sum(self.owners())
    }

    /// The same as the peaks begin again.
    pub(crate) fn reset_peaks(&self) -> Sum {
        self.totals.reset_peaks(self.owners())
    }
}

impl Lender for Core {
    fn give_back(&self, cache: u32) {
        let cache = self.caches.get(cache);
        let arena = self.arenas.get(cache.arena);
        {
            let mut inner = arena.lock(&self.metadata);
            inner.give_chain(&self.metadata, cache.take_own());
            inner.give_chain(&self.metadata, cache.take_remote());
        }
        cache.rest(&self.totals);
        cache.release();
        arena.end_thread();
        lock(&self.vacant).entry(cache.arena).or_default().push(cache.index);
    }
}

#[cfg(all(test, loom))]
pub(super) mod models;
