//! What is done before a request fails, and giving memory back.
//!
//! Growth was refused: by the limit, or by the device. Each step that frees anything is followed by another attempt, and every
//! step is timed for the error. Only the last ones wait for the device.

use super::core::{count, forked};
use super::{Error, Pool, Result};
use crate::arena::{Arena, ArenaKey, Idle, Kind, StreamKey, What};
use crate::driver::{Driver, DriverError, DriverResult, Stream};
use crate::error::{OutOfMemory, Step};
use crate::pages::Refusal;
use crate::size_class;
use crate::sync::lock;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// The steps of one request.
struct Ladder {
    steps: Vec<Step>,
    began: Instant,
}

impl Ladder {
    fn step(&mut self, name: &'static str, bytes: u64) {
        let nanoseconds = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.steps.push(Step {
            name,
            bytes,
            nanoseconds,
        });
        self.began = Instant::now();
    }
}

impl<D: Driver> Pool<D> {
    /// A held block of `units` by every means, or the error with its numbers.
    pub(super) fn press(&self, arena: &Arena, units: u32, bytes: u64) -> Result<u32> {
        count(&self.core.events.pressure);
        let mut ladder = Ladder {
            steps: Vec::new(),
            began: Instant::now(),
        };
        // What cannot fit into an empty pool is refused without disturbing this one.
        if size_class::bytes(units) <= self.pages.most()
            && let Some(index) = self.climb(arena, units, &mut ladder)?
        {
            return Ok(index);
        }
        count(&self.core.events.out_of_memory);
        Err(Error::OutOfMemory(Box::new(self.out_of_memory(
            arena,
            bytes,
            ladder.steps,
        ))))
    }

    fn climb(&self, arena: &Arena, units: u32, ladder: &mut Ladder) -> Result<Option<u32>> {
        // One at a time: memory that another request has in its hands would be missing here, and this one fail for nothing.
        let _alone = self.pressed.write().unwrap_or_else(PoisonError::into_inner);
        let taken = self.core.take_magazines(None);
        ladder.step("magazines of all threads", taken);
        if let Some(index) = self.again(arena, units)? {
            return Ok(Some(index));
        }
        // A block that is about to be ready costs less than the whole device's work.
        loop {
            let (waited, freed) = self.wait_for_nearest(units);
            if !waited {
                break;
            }
            ladder.step("waited for other streams", freed);
            if let Some(index) = self.again(arena, units)? {
                return Ok(Some(index));
            }
        }
        // Unmapping needs a device that is done with the memory. Where it cannot be waited for, nothing is unmapped.
        let need = size_class::bytes(Kind::range_units(units));
        // The request's own stream may capture, and its handle is live: it was passed just now.
        let capturing = arena.key.private.is_some() && self.driver.is_capturing(arena.stream) != Ok(false);
        let Some(freed) = (!capturing).then(|| self.quiesce().ok()).flatten() else {
            ladder.step("the device could not be waited for", 0);
            return Ok(None);
        };
        ladder.step("waited for the device", freed);
        if let Some(index) = self.again(arena, units)? {
            return Ok(Some(index));
        }
        let idle = self.take_idle(need)?;
        ladder.step("idle memory taken anew", idle);
        if let Some(index) = self.again(arena, units)? {
            return Ok(Some(index));
        }
        // Handles that are too large for what is left of the limit: back to the driver, and taken anew as needed.
        // Others may have filled their magazines anew.
        self.core.take_magazines(None);
        self.take_idle(u64::MAX)?;
        self.give_addresses();
        let given = self.pages.release_spare(&self.driver, 0).unwrap_or_else(|_| {
            count(&self.core.events.driver_errors);
            0
        });
        ladder.step("idle memory given back", given);
        self.again(arena, units)
    }

    /// Another attempt: from the arena, then from the driver.
    fn again(&self, arena: &Arena, units: u32) -> Result<Option<u32>> {
        let metadata = &self.core.metadata;
        {
            let mut inner = arena.lock(metadata);
            arena.drain_shared(metadata, &mut inner);
            let ranges = &mut inner.region(Kind::of(units)).ranges;
            ranges.promote(&metadata.blocks, Kind::range_units(units));
            let index = inner.take(metadata, units);
            if index != 0 {
                return Ok(Some(index));
            }
        }
        match self.grow_now(arena, units) {
            Ok(index) => Ok(Some(index)),
            Err(Refusal::Full) => Ok(None),
            Err(Refusal::Failed(error)) => Err(error.into()),
        }
    }

    /// Waits for the events of one waiting block, if any can be had for which that is enough. Whether there was one, and
    /// the bytes that became ready.
    fn wait_for_nearest(&self, units: u32) -> (bool, u64) {
        let blocks = &self.core.metadata.blocks;
        let events = lock(&self.pending).nearest(|index| blocks.get(index).units() >= units);
        if events.is_empty()
            || events
                .iter()
                .any(|&event| self.driver.event_synchronize(event).is_err())
        {
            return (false, 0);
        }
        let before = self.core.totals.pending.load(Relaxed);
        let polled = self.poll_pending();
        (polled, before.saturating_sub(self.core.totals.pending.load(Relaxed)))
    }

    /// Waits for the whole context, unless that would end a capture, also one of another thread.
    fn synchronize(&self) -> DriverResult<()> {
        if self.may_capture() {
            return Err(DriverError {
                call: "cuCtxSynchronize",
                code: 900,
                name: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            });
        }
        count(&self.core.events.synchronizations);
        self.driver.synchronize()
    }

    /// Waits for the whole context, and takes everything that waited for streams. Returns the bytes.
    fn quiesce(&self) -> Result<u64> {
        let waiting = lock(&self.pending).take();
        if let Err(error) = self.synchronize() {
            lock(&self.pending).restore(waiting);
            return Err(error.into());
        }
        let done = lock(&self.pending).finish(waiting);
        let blocks = &self.core.metadata.blocks;
        let bytes = done.iter().map(|&index| blocks.get(index).bytes()).sum();
        self.finish_pending(&done);
        Ok(bytes)
    }

    /// Takes idle memory of all arenas out of their address ranges, about `most` bytes: handles are spare then, and slabs
    /// go back to the driver. Returns the bytes.
    ///
    /// The memory is taken out of the free ranges first and the context synchronised then, so that nothing that was
    /// freed meanwhile, and may still be in use on its own stream, is unmapped.
    fn take_idle(&self, most: u64) -> Result<u64> {
        let parts = self.idle_parts(most);
        if parts.is_empty() {
            return Ok(0);
        }
        if let Err(error) = self.synchronize() {
            for (arena, kind, part) in parts {
                arena
                    .lock(&self.core.metadata)
                    .region(kind)
                    .keep(&self.core.metadata.blocks, part);
            }
            return Err(error.into());
        }
        Ok(parts
            .into_iter()
            .map(|(arena, kind, part)| self.give_part(arena, kind, part))
            .sum())
    }

    /// Idle parts of all arenas that no capture holds, taken out of the free ranges; and all aliases, without which a handle that
    /// is given back would keep its memory.
    fn idle_parts(&self, most: u64) -> Vec<(&Arena, Kind, Idle)> {
        let metadata = &self.core.metadata;
        let mut all = Vec::new();
        for arena in self.core.arenas.iter() {
            for kind in Kind::ALL {
                let aliases = arena.lock(metadata).region(kind).finished_aliases(u64::MAX);
                all.extend(aliases.into_iter().map(|part| (arena, kind, part)));
            }
        }
        let mut left = most;
        // Relaxed: a capture that begins now gets its memory from elsewhere.
        for arena in self.core.arenas.iter().filter(|arena| arena.holders.load(Relaxed) == 0) {
            for kind in Kind::ALL {
                if left == 0 {
                    return all;
                }
                let mut inner = arena.lock(metadata);
                arena.drain_shared(metadata, &mut inner);
                for part in inner.region(kind).idle(&metadata.blocks, left) {
                    left = left.saturating_sub(part.bytes);
                    all.push((arena, kind, part));
                }
            }
        }
        all
    }

    /// Unmaps (or frees) one idle part, outside the arena's lock; the bytes that are spare or given back then.
    pub(super) fn give_part(&self, arena: &Arena, kind: Kind, part: Idle) -> u64 {
        let metadata = &self.core.metadata;
        if part.what == What::Alias {
            let result = self.driver.unmap(part.addr, part.bytes);
            let mut inner = arena.lock(metadata);
            match result {
                Ok(()) => inner.region(kind).gone(&metadata.blocks, &part),
                Err(_) => {
                    inner.region(kind).keep(&metadata.blocks, part);
                    count(&self.core.events.driver_errors);
                }
            }
            return 0;
        }
        if part.mappings.is_empty() {
            let result = self.pages.give_slab(&self.driver, part.addr, part.bytes);
            let mut inner = arena.lock(metadata);
            if result.is_ok() {
                inner.region(kind).gone(&metadata.blocks, &part);
                return part.bytes;
            }
            inner.region(kind).keep(&metadata.blocks, part);
            count(&self.core.events.driver_errors);
            return 0;
        }
        let mut bytes = 0;
        // Each mapping becomes a hole of its own as soon as it is gone, so that a failure leaves the others mapped.
        let parts = arena.lock(metadata).region(kind).divide(&metadata.blocks, part);
        for part in parts {
            let result = self.pages.unmap(&self.driver, &part.mappings[0]);
            let mut inner = arena.lock(metadata);
            if result.is_ok() {
                inner.region(kind).gone(&metadata.blocks, &part);
                bytes += part.bytes;
            } else {
                inner.region(kind).keep(&metadata.blocks, part);
                count(&self.core.events.driver_errors);
            }
        }
        bytes
    }

    /// Gives reserved addresses back where nothing is mapped. Each stream reserves as many as the device has memory, and
    /// streams come and go.
    fn give_addresses(&self) {
        let metadata = &self.core.metadata;
        for arena in self.core.arenas.iter() {
            for kind in Kind::ALL {
                let empty = arena.lock(metadata).region(kind).empty_reservations(&metadata.blocks);
                for span in empty {
                    if self.driver.unreserve(span.addr, span.bytes).is_err() {
                        count(&self.core.events.driver_errors);
                        // There is a record for it: one was just given back, and without one only addresses are lost.
                        arena
                            .lock(metadata)
                            .region(kind)
                            .add_segment(&metadata.blocks, span, true);
                    }
                }
            }
        }
    }

    /// [`Pool::trim`].
    pub(super) fn trim_to(&self, target: u64) -> Result<u64> {
        if forked() {
            return Err(Error::Forked);
        }
        let before = self.pages.reserved();
        if before <= target {
            return Ok(0);
        }
        self.core.take_magazines(None);
        self.quiesce()?;
        let spare = self.pages.spare_bytes();
        self.take_idle((before - target).saturating_sub(spare))?;
        {
            // A growth that has just reserved addresses finds them where it left them.
            let _alone = self.pressed.write().unwrap_or_else(PoisonError::into_inner);
            self.give_addresses();
        }
        self.pages.release_spare(&self.driver, target)?;
        Ok(before.saturating_sub(self.pages.reserved()))
    }

    /// [`Pool::reserve`].
    pub(super) fn reserve_ahead(&self, bytes: u64) -> Result<()> {
        if forked() {
            return Err(Error::Forked);
        }
        let key = ArenaKey {
            stream: StreamKey::Legacy,
            private: None,
        };
        let arena = self.arena_for(key, Stream::LEGACY)?;
        // What was taken is held until all is there: given back, it would be what the next round finds, again and again.
        let mut held = Vec::new();
        let result = self.take_until(arena, bytes, &mut held);
        let mut inner = arena.lock(&self.core.metadata);
        for index in held {
            inner.give(&self.core.metadata, index);
        }
        result
    }

    /// Grows the arena until the pool holds `bytes`; the blocks that this took are in `held`.
    fn take_until(&self, arena: &Arena, bytes: u64, held: &mut Vec<u32>) -> Result<()> {
        // Others may take memory meanwhile, so it is looked at once in each round.
        while let Some(missing @ 1..) = bytes.checked_sub(self.pages.reserved()) {
            // In one piece if possible; a piece has a largest size.
            let missing = missing.clamp(2 << 20, size_class::BYTES_MAX);
            match self.grow(arena, size_class::units(missing)) {
                Ok(index) => held.push(index),
                Err(Refusal::Full) => {
                    count(&self.core.events.out_of_memory);
                    return Err(Error::OutOfMemory(Box::new(self.out_of_memory(
                        arena,
                        missing,
                        Vec::new(),
                    ))));
                }
                Err(Refusal::Failed(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The numbers of a request that failed.
    fn out_of_memory(&self, arena: &Arena, requested: u64, steps: Vec<Step>) -> OutOfMemory {
        let sum = self.core.sum();
        let (allocated, reserved) = (sum.allocated.max(0) as u64, self.pages.reserved());
        OutOfMemory {
            requested,
            device: self.device(),
            limit: self.pages.limit(),
            allocated,
            pending: sum.pending,
            reserved,
            cached: reserved.saturating_sub(allocated + sum.pending),
            largest_free: arena.lock(&self.core.metadata).largest(&self.core.metadata),
            device_free: self.driver.memory_info().ok().map(|(free, _)| free),
            device_total: self.driver.properties().total_bytes,
            steps,
        }
    }

    /// For `Drop`: all memory in which no block is live goes back to the driver.
    pub(super) fn give_everything_back(&mut self) {
        // In a forked child the driver does not work, and the memory is the parent's.
        if forked() {
            return;
        }
        // Whoever has not ended a private pool by now never will.
        lock(&self.routes).close();
        self.core.take_magazines(None);
        // A device that cannot be waited for keeps its memory: unmapping under running work would be worse.
        if self.quiesce().is_ok() {
            for arena in self.core.arenas.iter() {
                arena.holders.store(0, Relaxed);
            }
            // The driver's refusals have nobody to be told to any more.
            let _ = self.take_idle(u64::MAX);
            let _ = self.pages.release_spare(&self.driver, 0);
            self.give_addresses();
        }
        let mut pending = lock(&self.pending);
        for arena in self.core.arenas.iter() {
            let events = std::mem::take(&mut lock(&arena.gate).events);
            events.into_iter().for_each(|(_, event)| pending.put_back(event));
        }
        pending.destroy(&self.driver);
    }
}
