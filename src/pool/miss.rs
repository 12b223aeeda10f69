//! A request that the calling thread's magazine cannot meet.
//!
//! In this order, each step only when the one before gave nothing: what other threads freed into our list; the arena's shared
//! lists; the arena's slabs and ranges; blocks whose events are complete; our own magazines, put together again; growth
//! from the driver. Then [`pressure`](super::pressure).

use super::core::{count, forked};
use super::dependencies::Waits;
use super::free::Last;
use super::{Error, Pool, Result};
use crate::arena::{Arena, ArenaKey, Kind};
use crate::driver::{DevicePtr, Driver, Stream};
use crate::history::Action;
use crate::metadata::State;
use crate::pages::Refusal;
use crate::size_class::{self, BYTES_MAX, SLOT_MAX};
use crate::sync::lock;
use crate::thread::{Cache, Current, token};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// How many bytes of one class are taken from an arena at once for a magazine.
const REFILL: u64 = 32 << 10;
/// How many blocks at most.
const REFILL_BLOCKS: u64 = 15;

impl<D: Driver> Pool<D> {
    /// [`Pool::alloc`] for what is not a hit.
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_miss(&self, bytes: u64, stream: Stream) -> Result<DevicePtr> {
        if forked() {
            return Err(Error::Forked);
        }
        let sample = Current::take_sample(self.core.number);
        if let Some(addr) = sample.and_then(|cache| self.core.timed_hit(cache, bytes, stream)) {
            return Ok(addr);
        }
        let began = sample.map(|_| Instant::now());
        let units = size_class::units(bytes);
        if units == 0 {
            return Err(Error::TooLarge {
                requested: bytes,
                most: BYTES_MAX,
            });
        }
        let known = self.known(stream)?;
        let visit = self.arena_for(
            ArenaKey {
                stream: known.key,
                private: self.route(&known, stream)?,
            },
            stream,
        )?;
        let arena = visit.arena();
        let cache = if self.is_guarded(arena) {
            None
        } else {
            self.core.cache(arena)
        };
        // Streams that are not default ones, and size 0, come here every time; while a history is recorded all do.
        let popped = || {
            let busy = cache.and_then(Cache::enter)?;
            let addr = self.core.pop(busy, u64::from(units), bytes).addr()?;
            began.inspect(|began| self.core.events.hit_times.add(began.elapsed()));
            Some(addr)
        };
        let addr = match popped() {
            Some(addr) => addr,
            None => {
                count(&self.core.events.misses);
                let growths = self.core.events.growths.load(Relaxed);
                let index = match self.take_ready(arena, cache, units) {
                    0 => self.take_slowly(arena, cache, units, bytes)?,
                    index => index,
                };
                let addr = self.core.give_out(cache, index, bytes);
                if self.sheds {
                    self.shed(self.core.events.growths.load(Relaxed) != growths);
                }
                addr
            }
        };
        self.note_alloc(known.key, addr);
        if let Err(error) = self.poison_fresh(addr, &known, stream) {
            self.free_slow(addr, None, Last::Known)?;
            return Err(error.into());
        }
        Ok(addr)
    }

    /// A held block from a list of ready ones, or 0.
    fn take_ready(&self, arena: &Arena, cache: Option<&Cache>, units: u32) -> u32 {
        if let (Some(cache), Kind::Large) = (cache, Kind::of(units)) {
            cache.keep_large(arena.is_settled());
        }
        if let Some(cache) = cache.filter(|cache| cache.has_remote()) {
            let index = self.take_remote(arena, cache, units);
            if index != 0 {
                return index;
            }
        }
        arena
            .shared(units)
            .map_or(0, |list| list.pop(&self.core.metadata.blocks))
    }

    /// A held block from whatever has one, and how long that took.
    fn take_slowly(&self, arena: &Arena, cache: Option<&Cache>, units: u32, bytes: u64) -> Result<u32> {
        let began = Instant::now();
        let index = match self.refill(arena, cache, units) {
            0 => self.grow_or_press(arena, cache, units, bytes)?,
            index => index,
        };
        self.core.events.miss_times.add(began.elapsed());
        Ok(index)
    }

    /// A held block from what the arena has, or 0. No driver call but queries of events.
    fn refill(&self, arena: &Arena, cache: Option<&Cache>, units: u32) -> u32 {
        // Pinned memory cannot be mapped elsewhere: what copies are done with is one with its neighbours before another range is cut.
        if self.driver.is_host(arena.stream()) {
            if units > SLOT_MAX {
                arena.patience.note_request(token(), units);
            }
            self.poll_pending();
        }
        let index = self.take_from(arena, cache, units);
        if index != 0 || !self.poll_pending() {
            return index;
        }
        self.take_from(arena, cache, units)
    }

    /// Sorts what other threads freed into the magazines; keeps one of `units` out, or 0.
    fn take_remote(&self, arena: &Arena, cache: &Cache, units: u32) -> u32 {
        let blocks = &self.core.metadata.blocks;
        let (mut found, mut rest) = (0, 0);
        let mut index = cache.take_remote();
        while index != 0 {
            let block = blocks.get(index);
            // Relaxed: we hold the chain.
            let next = block.link.load(Relaxed);
            if found == 0 && block.units() == units {
                found = index;
            } else {
                // SAFETY: records and caches are both the pool's.
                let pushed = unsafe { cache.push(block, block.units()) };
                if !pushed {
                    block.link.store(rest, Relaxed);
                    rest = index;
                }
            }
            index = next;
        }
        self.core.share(arena, rest);
        found
    }

    /// A held block from the arena's slabs and ranges, or 0. For small sizes the magazine gets some more.
    fn take_from(&self, arena: &Arena, cache: Option<&Cache>, units: u32) -> u32 {
        let metadata = &self.core.metadata;
        self.wake_again(arena, units);
        let mut inner = arena.lock(metadata);
        let index = inner.take(metadata, units);
        if let (true, true, Some(cache)) = (index != 0, units <= SLOT_MAX, cache) {
            for _ in 0..(REFILL / size_class::bytes(units)).min(REFILL_BLOCKS) {
                let more = inner.take(metadata, units);
                if more == 0 {
                    break;
                }
                let block = metadata.blocks.get(more);
                block.cache.store(cache.index, Relaxed);
                // SAFETY: records and caches are both the pool's.
                if !unsafe { cache.push(block, units) } {
                    inner.give(metadata, more);
                    break;
                }
            }
        }
        index
    }

    /// Gives blocks whose events are complete back to their arenas. Whether there were any.
    pub(super) fn poll_pending(&self) -> bool {
        // Relaxed: a block that begins to wait just now is found the next time.
        if self.waiting.load(Relaxed) == 0 {
            return false;
        }
        let mut done = Vec::new();
        let result = lock(&self.pending).poll(&self.driver, |block| done.push(block));
        if result.is_err() {
            count(&self.core.events.driver_errors);
        }
        self.finish_pending(&done);
        !done.is_empty()
    }

    /// Blocks that waited are ready: back to their arenas.
    pub(super) fn finish_pending(&self, done: &[u32]) {
        for &index in done {
            let block = self.core.metadata.blocks.get(index);
            self.note(Action::FreeDone, block);
            self.core.totals.sub_pending(block.bytes());
            let arena = self.core.arena_of(block);
            if self.is_guarded(arena) {
                self.retire(arena, block);
                continue;
            }
            self.poison_freed(block);
            block.set_state(State::Cached);
            arena.returned.push(&self.core.metadata.blocks, index);
        }
        self.waiting.fetch_sub(done.len(), Relaxed);
    }

    fn grow_or_press(&self, arena: &Arena, cache: Option<&Cache>, units: u32, bytes: u64) -> Result<u32> {
        // Blocks in our own magazines, and those that all share, may fit when they are one with their neighbours.
        {
            let metadata = &self.core.metadata;
            let mut inner = arena.lock(metadata);
            inner.give_chain(metadata, cache.map_or(0, Cache::take_own));
            arena.drain_shared(metadata, &mut inner);
            let index = inner.take(metadata, units);
            if index != 0 {
                return Ok(index);
            }
        }
        let waits = self.waits_for_growth();
        // Relaxed: a block that begins to wait just now is found the next time.
        let may_claim = waits != Waits::Never && self.waiting.load(Relaxed) > 0;
        if may_claim && self.may_wait(arena) {
            let metadata = &self.core.metadata;
            let index = match self.claim(arena, size_class::bytes(Kind::range_units(units)), waits) {
                0 => 0,
                _ => arena.lock(metadata).take(metadata, units),
            };
            if index != 0 {
                return Ok(index);
            }
        }
        let grown = if units > SLOT_MAX && self.driver.is_host(arena.stream()) {
            self.grow_pinned(arena, units)
        } else {
            self.grow(arena, units)
        };
        match grown {
            Ok(index) => Ok(index),
            Err(Refusal::Full) => self.press(arena, units, bytes),
            Err(Refusal::Failed(error)) => Err(error.into()),
        }
    }
}
