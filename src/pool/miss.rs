//! A request that the calling thread's magazine cannot meet.
//!
//! In this order, each step only when the one before gave nothing: what other threads freed into our list; the arena's shared
//! lists; the arena's slabs and ranges; blocks whose events are complete; our own magazines, put together again; growth
//! from the driver. Then [`pressure`](super::pressure).

use super::core::{count, forked};
use super::dependencies::Waits;
use super::free::Last;
use super::remap::Gathered;
use super::{Error, Pool, Result};
use crate::arena::{Arena, ArenaKey, Kind, Mapping, Span};
use crate::driver::{DevicePtr, Driver, Stream};
use crate::history::Action;
use crate::metadata::{State, covers};
use crate::pages::{Cut, Refusal, Unmapped};
use crate::size_class::{self, BYTES_MAX, CLASS_MAX, GRANULE, SLOT_MAX};
use crate::sync::lock;
use crate::thread::{Cache, Current, token};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// How many bytes of one class are taken from an arena at once for a magazine.
const REFILL: u64 = 32 << 10;
/// How many blocks at most.
const REFILL_BLOCKS: u64 = 15;
/// The part of a region's memory that it grows by at least (1/128, so at most 0.8 % is ahead of need), up to `STEP_MOST`.
const STEP_PART: u64 = 512;
const STEP_MOST: u64 = 64 << 20;
/// How many reservations one growth adds at most: threads that grow the same arena at once may use each other's.
const RESERVATIONS: u32 = 4;

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

    /// Takes memory from the driver; a held block of `units` from it. Waits while a request is pressed.
    pub(super) fn grow(&self, arena: &Arena, units: u32) -> Result<u32, Refusal> {
        let _beside_others = self.pressed.read().unwrap_or_else(PoisonError::into_inner);
        self.grow_now(arena, units, self.waits_for_growth())
    }

    /// As [`Self::grow`], by whoever holds the lock. No arena's lock is held over a driver call. With `waits` the arena's stream
    /// may be made to wait for others.
    pub(super) fn grow_now(&self, arena: &Arena, units: u32, waits: Waits) -> Result<u32, Refusal> {
        // What can never be held is not worth addresses either.
        if size_class::bytes(units) > self.pages.most() {
            return Err(Refusal::Full);
        }
        count(&self.core.events.growths);
        arena.unsettle();
        if self.is_guarded(arena) {
            self.map_guarded(arena, units)
        } else if self.virtual_memory {
            self.grow_pages(arena, units, waits)
        } else {
            self.grow_slabs(arena, units)
        }
    }

    fn grow_pages(&self, arena: &Arena, units: u32, waits: Waits) -> Result<u32, Refusal> {
        let index = self.wake(arena, units, waits);
        if index != 0 {
            return Ok(index);
        }
        let metadata = &self.core.metadata;
        let properties = self.driver.properties();
        let kind = Kind::of(units);
        let mut step = None;
        let (mut added, mut widened) = (0, false);
        loop {
            let (growth, seam) = {
                let mut inner = arena.lock(metadata);
                let region = inner.region(kind);
                let step = step.unwrap_or_else(|| match self.config.growth {
                    0 => (region.held / STEP_PART).min(STEP_MOST),
                    growth => growth,
                });
                let range_units = Kind::range_units(units);
                let growth = region.plan(&metadata.blocks, range_units, properties.granularity, step);
                // The page in which the block ends has a neighbour too: a handle of its own leaves the rest free with the block.
                let end = growth.map_or(0, |growth| {
                    metadata.blocks.get(growth.first()).addr() + size_class::bytes(range_units)
                });
                (growth, end / properties.granularity * properties.granularity)
            };
            let Some(growth) = growth else {
                // A new reservation has room. If there is still none, others took it, or there are no records left.
                if added == RESERVATIONS {
                    return Err(Refusal::Full);
                }
                self.add_reservation(arena, kind, units)?;
                added += 1;
                continue;
            };
            let Gathered { lent, more, .. } = self.gather(arena, kind, growth.bytes, waits);
            if more > 0 && !widened {
                // Once more, and larger: what is free as a whole is used as a whole.
                self.settle(lent, |_| false);
                arena
                    .lock(metadata)
                    .region(kind)
                    .roll_back(&metadata.blocks, growth, &[]);
                (step, widened) = (Some(growth.bytes + more), true);
                continue;
            }
            let handles: Vec<Mapping> = lent.iter().flat_map(|lent| lent.mappings(arena)).collect();
            let cut = Cut {
                seam: if self.pages.affords_seam() { seam } else { 0 },
                streams: self.others(arena).next().is_some(),
            };
            match self.pages.map(&self.driver, growth.addr, growth.bytes, cut, &handles) {
                Ok(mappings) => {
                    self.settle(lent, |_| true);
                    self.note_memory(Action::Map, arena, growth.addr, growth.bytes);
                    return match arena.lock(metadata).commit(metadata, growth, &mappings, units) {
                        // No records left for a slab: the memory is free now.
                        0 => Err(Refusal::Full),
                        index => Ok(index),
                    };
                }
                Err(Unmapped { refusal, stuck }) => {
                    self.settle(lent, |handle| stuck.iter().any(|mapping| mapping.handle == handle));
                    arena
                        .lock(metadata)
                        .region(kind)
                        .roll_back(&metadata.blocks, growth, &stuck);
                    // What the step adds to the need may be what was too much.
                    if step == Some(0) || matches!(refusal, Refusal::Failed(_)) {
                        return Err(refusal);
                    }
                    step = Some(0);
                }
            }
        }
    }

    /// Reserves addresses for a region: enough for the whole device where that is large, so that its free ranges can
    /// always become one. Where so many are not to be had, as many as the request needs.
    fn add_reservation(&self, arena: &Arena, kind: Kind, units: u32) -> Result<(), Refusal> {
        let properties = self.driver.properties();
        let usual = match kind {
            Kind::Large => properties.total_bytes + properties.total_bytes / 8,
            Kind::Slabs | Kind::Small => properties.total_bytes / 8,
        };
        let most = (BYTES_MAX / properties.granularity) * properties.granularity;
        let need = size_class::bytes(Kind::range_units(units)).next_multiple_of(properties.granularity);
        if need > most {
            return Err(Refusal::Full);
        }
        let usual = usual.next_multiple_of(properties.granularity).clamp(need, most);
        let (addr, bytes) = match self.driver.reserve(usual) {
            Err(error) if error.is_out_of_memory() && need < usual => (self.driver.reserve(need)?, need),
            result => (result?, usual),
        };
        if self.add_segment(arena, kind, Span { addr, bytes }, true) {
            return Ok(());
        }
        // Without records nothing can be given out; addresses that cannot be given back cost nothing.
        let _ = self.driver.unreserve(addr, bytes);
        Err(Refusal::Full)
    }

    /// Adds a segment to an arena, unless its addresses are beyond the table or there are no records left.
    fn add_segment(&self, arena: &Arena, kind: Kind, span: Span, reserved: bool) -> bool {
        let metadata = &self.core.metadata;
        let covered = span.addr.checked_add(span.bytes).is_some_and(covers);
        covered
            && arena
                .lock(metadata)
                .region(kind)
                .add_segment(&metadata.blocks, span, reserved)
    }

    fn grow_slabs(&self, arena: &Arena, units: u32) -> Result<u32, Refusal> {
        let metadata = &self.core.metadata;
        let kind = arena.lock(metadata).kind(units);
        let host = self.driver.is_host(arena.stream());
        let few = kind == Kind::Slabs && host;
        let unit = if few { size_class::bytes(GRANULE) } else { SLAB_UNIT };
        let need = size_class::bytes(Kind::range_units(units)).next_multiple_of(unit);
        let usual = match self.config.growth {
            0 if host && !few => need,
            0 if units <= CLASS_MAX => SLAB_UNIT,
            0 if need < SLAB_SHARED => SLAB_USUAL,
            0 => need,
            growth => growth.checked_next_multiple_of(SLAB_UNIT).unwrap_or(need),
        };
        // As much again as there is of them: few small blocks strand little, and many take few calls.
        let usual = if few {
            let held = arena.lock(metadata).region(kind).held;
            usual.min(held.max(self.driver.properties().granularity))
        } else {
            usual
        };
        let taken = match self.take_slab(arena, kind, usual.max(need), need) {
            Err(Refusal::Full) if usual > need => self.take_slab(arena, kind, need, need),
            other => other,
        };
        let span = match taken {
            Err(Refusal::Full) => self.move_slab(arena, kind, need).ok_or(Refusal::Full)?,
            other => other?,
        };
        self.use_slab(arena, kind, span, units)
    }

    /// Makes a slab from the driver the arena's. A held block of `units` from it.
    pub(super) fn use_slab(&self, arena: &Arena, kind: Kind, span: Span, units: u32) -> Result<u32, Refusal> {
        let metadata = &self.core.metadata;
        if !self.add_segment(arena, kind, span, false) {
            // If it cannot be given back it stays booked; what the stream had before may still be in use.
            if self.synchronize_context().is_ok() {
                let _ = self.pages.give_slab(&self.driver, span.addr, span.bytes);
            }
            return Err(Refusal::Full);
        }
        self.note_memory(Action::Map, arena, span.addr, span.bytes);
        match arena.lock(metadata).take(metadata, units) {
            0 => Err(Refusal::Full),
            index => Ok(index),
        }
    }

    /// A slab that the stream has idle for blocks of another kind: by stream order it may be used for this one at once.
    fn move_slab(&self, arena: &Arena, kind: Kind, need: u64) -> Option<Span> {
        let metadata = &self.core.metadata;
        let mut inner = arena.lock(metadata);
        arena.drain_shared(metadata, &mut inner);
        let others = Kind::ALL.into_iter().filter(|&other| other != kind);
        let found = others
            .into_iter()
            .find_map(|other| inner.region(other).give_up_slab(&metadata.blocks, need));
        drop(inner);
        let span = found?;
        self.note_memory(Action::Unmap, arena, span.addr, span.bytes);
        Some(span)
    }

    /// A slab of `bytes`; with a granule more where the driver's is not aligned to one and `need` would not fit.
    pub(super) fn take_slab(&self, arena: &Arena, kind: Kind, bytes: u64, need: u64) -> Result<Span, Refusal> {
        let granule = size_class::bytes(GRANULE);
        let addr = self.pages.take_slab(&self.driver, bytes, arena.stream())?;
        if addr.is_multiple_of(granule) || bytes - need >= granule {
            return Ok(Span { addr, bytes });
        }
        if let Err(error) = self.pages.give_slab(&self.driver, addr, bytes) {
            // The arena keeps what the driver will not have back, for smaller requests.
            self.add_segment(arena, kind, Span { addr, bytes }, false);
            return Err(error.into());
        }
        let bytes = bytes + granule;
        Ok(Span {
            addr: self.pages.take_slab(&self.driver, bytes, arena.stream())?,
            bytes,
        })
    }
}

/// Slabs from the driver are multiples of this, in bytes: what the address table and small blocks expect, and what
/// the device's own pages are.
pub(super) const SLAB_UNIT: u64 = 2 << 20;
/// Requests from this size on get a slab of their own; smaller ones share one of `SLAB_USUAL` bytes. PyTorch's figures,
/// which make its segments and ours comparable.
const SLAB_SHARED: u64 = 10 << 20;
const SLAB_USUAL: u64 = 20 << 20;
