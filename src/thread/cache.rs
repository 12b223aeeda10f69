//! One thread's ready blocks of one arena: magazines, and the list of what other threads freed.
//!
//! A magazine is a last-in-first-out list of blocks of one size, used by its owner without an atomic read-modify-write.
//! Anyone else may take everything under pressure, also from a thread that sleeps:
//!
//! ```text
//!   owner: busy = 1; light barrier;  revoked?  -> use the magazines; busy = 0
//!   taker: revoke;   heavy barrier;  busy?     -> wait, bounded; take the magazines; restore
//! ```
//!
//! A hit asks nothing more for that than it asks anyway: what is revoked serves no stream, and has no room for any block.
//!
//! Invariants:
//! - `held` = bytes of the blocks in magazines, small and large apart, each at most its bound (see [`Counters`]);
//! - every block in a magazine is `CACHED` and has this cache as its `cache`;
//! - magazines change only between `busy = 1` and `busy = 0` of the owner, or while `revoked` by the one taker.

mod counts;
mod taker;

use super::barrier;
use super::counters::{COUNTED, Counters};
use super::magazine::Magazine;
use super::peaks::Whose;
use super::slots::{Countdown, LARGE_SLOTS, large_slot};
use super::token::token;
use crate::freelist::TakeAll;
use crate::metadata::{Block, Blocks};
use crate::size_class::{self, CLASS_MAX};
use crate::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A handle that no stream has.
pub(crate) const NO_STREAM: usize = usize::MAX;

/// What other threads write: on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Remote {
    /// Blocks freed by other threads; each weighs its units.
    list: TakeAll,
}

/// The part of a cache's bound that small blocks get: they are many sizes, and what waits for its size serves no other.
const SMALL_PART: u64 = 8;
/// The part that blocks above [`CLASS_MAX`] get, while they are kept.
const LARGE_PART: u64 = 2;

/// A thread's magazines for one arena. Never freed while the pool lives; handed from a thread that ends to a new one.
///
/// What other threads read comes first, and is hardly ever written; what the owner writes at each hit and what other threads
/// write are on cache lines of their own.
#[repr(C, align(128))]
pub(crate) struct Cache {
    /// The token of the thread that owns it; 0 for none.
    thread: AtomicU64,
    /// The default stream's handle that it serves; [`NO_STREAM`] for others, which can come back as other streams, and while
    /// the magazines are revoked.
    stream: AtomicUsize,
    revoked: AtomicU32,
    pub(crate) index: u32,
    pub(crate) arena: u32,
    /// Whether it is one of a default stream, and of which.
    serves: usize,
    /// The most bytes on the remote list.
    remote_bound: u64,
    own: Own,
    remote: Remote,
}

/// What the owner alone writes, and a taker while the owner's magazines are revoked.
#[repr(C, align(128))]
struct Own {
    busy: AtomicU32,
    sample: Countdown,
    counters: Counters,
    magazines: [Magazine; CLASS_MAX as usize + 1],
    /// Of blocks above [`CLASS_MAX`].
    large: [Magazine; LARGE_SLOTS],
}

/// What a hit got, and whether there is something to do about it.
pub(crate) type Popped<'a> = (&'a Block, bool);

/// The owner's section: it is using its magazines.
pub(crate) struct Busy<'a>(&'a Cache);

impl Drop for Busy<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: a taker that sees 0 sees the magazines as we left them.
        self.0.own.busy.store(0, Release);
    }
}

impl<'a> Busy<'a> {
    /// Lets hits put blocks into the magazines, which are not revoked.
    fn open(&self) {
        self.0.own.counters.open();
    }

    /// Whose magazines they are.
    #[inline(always)]
    pub(crate) fn cache(&self) -> &'a Cache {
        self.0
    }

    /// A block of exactly so many units, at most [`CLASS_MAX`], now the caller's, for a user who asked for `requested` bytes.
    #[inline(always)]
    pub(crate) fn pop_small(self, units: u64, requested: u64) -> Option<Popped<'a>> {
        let own = &self.0.own;
        let magazine = own.magazines.get(units as usize)?;
        let block = magazine.first()?;
        magazine.get(block);
        let beyond = own.counters.small.give(units * size_class::UNIT);
        own.counters.alloc_small(units, requested);
        Some((block, beyond || self.is_sampled()))
    }

    /// As [`Self::pop_small`], above [`CLASS_MAX`].
    #[inline(always)]
    pub(crate) fn pop_large(self, units: u64, requested: u64) -> Option<Popped<'a>> {
        let own = &self.0.own;
        let (slot, counters) = (large_slot(units), &own.counters);
        if !counters.slots.is_for(slot, units) {
            return None;
        }
        let magazine = &own.large[slot];
        let block = magazine.first()?;
        magazine.get(block);
        let beyond = counters.big.give_large(units * size_class::UNIT);
        counters.slots.alloc_hit(slot, requested);
        Some((block, beyond || self.is_sampled()))
    }

    #[inline(always)]
    fn is_sampled(&self) -> bool {
        // SAFETY: this is the owner.
        COUNTED && unsafe { self.0.own.sample.tick() }
    }
}

impl Cache {
    pub(crate) fn new(index: u32, arena: u32, stream: usize, bound: u64) -> Self {
        Self {
            thread: AtomicU64::new(0),
            stream: AtomicUsize::new(stream),
            revoked: AtomicU32::new(0),
            index,
            arena,
            serves: stream,
            remote_bound: bound,
            own: Own {
                busy: AtomicU32::new(0),
                sample: Countdown::new(),
                counters: Counters::new(bound / SMALL_PART),
                magazines: std::array::from_fn(|_| Magazine::default()),
                large: std::array::from_fn(|_| Magazine::default()),
            },
            remote: Remote::default(),
        }
    }

    /// What its owner has counted.
    #[inline(always)]
    pub(crate) fn counters(&self) -> &Counters {
        &self.own.counters
    }

    /// Enters the owner's section if the thread with this token, the calling one, owns it for this default stream. `None` also
    /// while a taker has the magazines.
    #[inline(always)]
    pub(crate) fn enter_for(&self, token: u64, stream: usize) -> Option<Busy<'_>> {
        // Relaxed: only a thread itself sets a cache to its own token.
        if self.thread.load(Relaxed) != token {
            return None;
        }
        let busy = self.begin();
        // Acquire: what a taker that has finished did to the magazines happened before.
        (self.stream.load(Acquire) == stream).then_some(busy)
    }

    /// Whether the calling thread owns it.
    #[inline(always)]
    pub(crate) fn is_mine(&self) -> bool {
        // Relaxed: as in `enter_for`.
        self.thread.load(Relaxed) == token()
    }

    /// Whether another thread owns it.
    pub(crate) fn is_anothers(&self) -> bool {
        // Relaxed: as in `enter_for`.
        !matches!(self.thread.load(Relaxed), 0) && !self.is_mine()
    }

    /// Whose it is, as far as the calling thread knows.
    pub(crate) fn whose(&self) -> Whose {
        if self.is_mine() {
            Whose::Mine
        } else if self.is_anothers() {
            Whose::Anothers
        } else {
            Whose::Nobodys
        }
    }

    /// Whether it serves a default stream.
    pub(crate) fn is_default(&self) -> bool {
        self.serves != NO_STREAM
    }

    /// Makes it the calling thread's.
    pub(crate) fn acquire(&self) {
        // Relaxed: only this thread compares it with its own token.
        self.thread.store(token(), Relaxed);
    }

    /// Makes it nobody's.
    pub(crate) fn release(&self) {
        // Relaxed: what hands the cache to its next owner orders what we did before what that one does.
        self.thread.store(0, Relaxed);
    }

    /// Begins the owner's section, before it looks whether the magazines are revoked.
    #[inline(always)]
    fn begin(&self) -> Busy<'_> {
        // Relaxed: the barrier orders it before the load that follows.
        self.own.busy.store(1, Relaxed);
        barrier::light();
        Busy(self)
    }

    /// Enters the owner's section, or `None` while a taker has the magazines. The owner only.
    pub(crate) fn enter(&self) -> Option<Busy<'_>> {
        let busy = self.begin();
        // Acquire: as in `enter_for`.
        (self.revoked.load(Acquire) == 0).then_some(busy)
    }

    /// Puts a cached block of so many units in that does not come from a user; `false` when there is no room, and the block is
    /// still the caller's. The owner only.
    ///
    /// # Safety
    /// The block's record must live as long as the cache.
    pub(crate) unsafe fn push(&self, block: &Block, units: u32) -> bool {
        let Some(busy) = self.enter() else {
            return false;
        };
        let own = &self.own;
        let (magazine, stock) = match own.magazines.get(units as usize) {
            Some(magazine) if units <= CLASS_MAX => (magazine, &own.counters.small),
            _ => {
                let slot = large_slot(units.into());
                let magazine = &own.large[slot];
                if !own.counters.slots.is_for(slot, units.into()) {
                    if magazine.first().is_some() {
                        return false;
                    }
                    own.counters.slots.aim(slot, units);
                }
                (magazine, &own.counters.big)
            }
        };
        let fits = stock.stock(size_class::bytes(units));
        if fits {
            magazine.put(block);
            busy.open();
        }
        fits
    }

    /// Takes a block up to [`CLASS_MAX`] back from a user; `false` where that is no hit, and nothing was done. The owner only.
    ///
    /// # Safety
    /// As [`Self::push`].
    #[inline(always)]
    pub(crate) unsafe fn take_small(&self, block: &Block, units: u32, requested: u64) -> bool {
        let _busy = self.begin();
        let (counters, bytes) = (&self.own.counters, size_class::bytes(units));
        let Some(magazine) = self.own.magazines.get(units as usize) else {
            return false;
        };
        let Some(hits) = counters.small.room(bytes) else {
            return false;
        };
        magazine.put(block);
        counters.small.take(hits);
        counters.free_small(requested);
        true
    }

    /// [`Self::take_small`] of a block above [`CLASS_MAX`].
    ///
    /// # Safety
    /// As [`Self::push`].
    #[inline(always)]
    pub(crate) unsafe fn take_large(&self, block: &Block, units: u32, requested: u64) -> bool {
        let _busy = self.begin();
        let (counters, slot) = (&self.own.counters, large_slot(units.into()));
        if !counters.slots.is_for(slot, units.into()) {
            return false;
        }
        let Some(hits) = counters.big.room(size_class::bytes(units)) else {
            return false;
        };
        self.own.large[slot].put(block);
        counters.big.take(hits);
        counters.slots.free_hit(slot, requested);
        true
    }

    /// Whether blocks above [`CLASS_MAX`] are kept. The owner only.
    pub(crate) fn keep_large(&self, keep: bool) {
        let bound = if keep { self.remote_bound / LARGE_PART } else { 0 };
        if self.own.counters.big.set_bound(bound) {
            self.open();
        }
    }

    /// Lets hits put blocks into the magazines as far as there is room now. The owner only.
    pub(crate) fn open(&self) {
        if let Some(busy) = self.enter() {
            busy.open();
        }
    }

    /// A block freed by another thread; `false` when the list is full, and the block is still the caller's.
    pub(crate) fn push_remote(&self, blocks: &Blocks, block: &Block) -> bool {
        let most = u32::try_from(self.remote_bound / size_class::UNIT).unwrap_or(u32::MAX);
        self.remote.list.push_within(blocks, block.index(), block.units(), most)
    }

    /// Whether other threads freed something.
    #[inline]
    pub(crate) fn has_remote(&self) -> bool {
        !self.remote.list.is_empty()
    }

    /// Takes what other threads freed: the first block of a chain, or 0.
    pub(crate) fn take_remote(&self) -> u32 {
        self.remote.list.take()
    }

    /// Bytes in the magazines.
    fn held(&self) -> u64 {
        self.own.counters.small.held() + self.own.counters.big.held()
    }

    /// Bytes in the magazines and on the remote list.
    pub(crate) fn bytes(&self) -> u64 {
        self.held() + size_class::bytes(self.remote.list.weight())
    }

    /// The blocks that other threads freed, until `each` has seen enough. Only while all threads are quiet.
    #[cfg(feature = "check")]
    pub(crate) fn walk_remote(&self, blocks: &Blocks, each: impl FnMut(u32) -> bool) {
        self.remote.list.walk(blocks, each);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;
