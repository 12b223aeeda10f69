//! Growth of pinned memory, which cannot be mapped anew.
//!
//! A slab keeps its addresses, and what is free in two of them never becomes one. How much is held should still follow from how much
//! is in use, and not from how that lies:
//!
//! - a request that would fit if what is free lay together waits for copies that are under way, as long as the arena has patience;
//! - one for which too little is free waits only if the arena had enough for some time: a pipeline that fills gets what it asks for;
//! - growth gives slabs that are idle back, and takes one in place of them.

use super::Pool;
use super::core::count;
use crate::arena::{Arena, Kind};
use crate::driver::Driver;
use crate::pages::Refusal;
use crate::size_class;
use crate::sync::lock;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// The most that one request waits before the arena grows.
const WAIT: Duration = Duration::from_millis(20);
/// How long to sleep where other threads free blocks, and after how long without one they are not waited for.
const NAP: Duration = Duration::from_micros(100);
const STILL: Duration = Duration::from_millis(5);
/// What is pinned ahead of need: this part of what is in use, within bounds.
const AHEAD_PART: u64 = 16;
const AHEAD_LEAST: u64 = 512 << 10;
const AHEAD_MOST: u64 = 64 << 20;

/// Slabs are multiples of this part of the power of two above what they are for, at most so many bytes.
const ROUND_PART: u64 = 16;
const ROUND_MOST: u64 = 8 << 20;

/// What an arena has for a request.
enum Found {
    /// A held block.
    Block(u32),
    /// So many bytes are free, but not in one place, and so many in use.
    Parts { free: u64, used: u64 },
}

/// How long a request has waited, and for what.
struct Wait {
    entered: Instant,
    /// How much was in use when it was looked at last, and since when that was so.
    used: u64,
    since: Instant,
}

impl<D: Driver> Pool<D> {
    /// A held block of `units`, above the slots, after a wait or a growth. One request at a time: what one sets free, or pins ahead,
    /// may serve the next.
    pub(super) fn grow_pinned(&self, arena: &Arena, units: u32) -> Result<u32, Refusal> {
        let _alone = self.pressed.write().unwrap_or_else(PoisonError::into_inner);
        let need = size_class::bytes(units);
        if need > self.pages.most() {
            return Err(Refusal::Full);
        }
        let now = Instant::now();
        let mut wait = Wait {
            entered: now,
            used: 0,
            since: now,
        };
        let mut wanted = None;
        loop {
            let (free, used) = match self.look_for(arena, units) {
                Found::Block(index) => return Ok(index),
                Found::Parts { free, used } => (free, used),
            };
            // Before any wait: what the program has in use at once when nothing holds it up.
            wanted.get_or_insert(used + need);
            let patience = &arena.patience;
            let may_wait = patience.is_left() && (free >= need || patience.is_steady());
            if !may_wait || !self.wait_for_any(arena, used, &mut wait) {
                break;
            }
        }
        // Slabs that only copies keep from being idle become one with the new.
        while self.wait_for_any(arena, self.used_bytes(arena), &mut wait) {}
        self.core.take_magazines(Some(arena.index));
        self.replace_idle(arena, units, wanted.unwrap_or(need))
    }

    /// What the arena has by now.
    fn look_for(&self, arena: &Arena, units: u32) -> Found {
        let metadata = &self.core.metadata;
        let mut inner = arena.lock(metadata);
        arena.drain_shared(metadata, &mut inner);
        let region = inner.region(Kind::Large);
        region.ranges.promote(&metadata.blocks, units);
        let free = region.free_bytes(&metadata.blocks);
        let used = region.held - free;
        match inner.take(metadata, units) {
            0 => Found::Parts { free, used },
            index => Found::Block(index),
        }
    }

    fn used_bytes(&self, arena: &Arena) -> u64 {
        let metadata = &self.core.metadata;
        let mut inner = arena.lock(metadata);
        let region = inner.region(Kind::Large);
        region.held - region.free_bytes(&metadata.blocks)
    }

    /// Waits until a copy from the arena's memory, of which `used` bytes are in use, is done; or, where other threads free blocks,
    /// a little, if one has done so a little before. Whether it is worth another look.
    fn wait_for_any(&self, arena: &Arena, used: u64, wait: &mut Wait) -> bool {
        let left = self.longest_wait().min(WAIT).saturating_sub(wait.entered.elapsed());
        if left.is_zero() {
            return false;
        }
        let began = Instant::now();
        if used != wait.used {
            (wait.used, wait.since) = (used, began);
        }
        let blocks = &self.core.metadata.blocks;
        let event = {
            let pending = lock(&self.pending);
            let first = pending.nearest(|index| self.core.arena_of(blocks.get(index)).index == arena.index);
            first.and_then(|block| pending.events_of(block).first().copied())
        };
        let others_free = used > 0 && arena.patience.others_free() && began - wait.since < STILL;
        let helped = match event {
            Some(event) => self.driver.event_synchronize(event, left) == Ok(true),
            None if others_free => {
                std::thread::sleep(NAP);
                true
            }
            None => false,
        };
        arena.patience.spend(began.elapsed());
        self.poll_pending();
        helped
    }

    /// Gives the arena's idle slabs back and takes one in place of them, so that it holds `wanted` bytes and something ahead. A held
    /// block of `units` from it.
    fn replace_idle(&self, arena: &Arena, units: u32, wanted: u64) -> Result<u32, Refusal> {
        let metadata = &self.core.metadata;
        let page = self.driver.properties().granularity;
        let need = size_class::bytes(units).next_multiple_of(page);
        let (held, parts) = {
            let mut inner = arena.lock(metadata);
            arena.drain_shared(metadata, &mut inner);
            let region = inner.region(Kind::Large);
            (region.held, region.idle(&metadata.blocks, u64::MAX))
        };
        let idle: u64 = parts.iter().map(|part| part.bytes).sum();
        let room = self
            .pages
            .most()
            .saturating_sub(self.pages.reserved().saturating_sub(idle));
        // The first may be the only one. Where sizes vary, a slab that is only just large enough would not be for the next request.
        let (ahead, round) = match held > 0 && arena.patience.varies() {
            false => (0, page),
            true => (
                (wanted / AHEAD_PART).clamp(AHEAD_LEAST, AHEAD_MOST),
                (need.next_power_of_two() / ROUND_PART).clamp(page, ROUND_MOST),
            ),
        };
        // Where enough is held, but in pieces, a little more makes the next such growth less likely.
        let more = (wanted + ahead)
            .saturating_sub(held)
            .max(ahead / 2)
            .max(self.config.growth);
        let usual = (idle + more).max(need.next_multiple_of(round)).next_multiple_of(page);
        let usual = usual.min(size_class::BYTES_MAX.min(room) / page * page).max(need);
        // Where not even what is needed has room nothing is given back: the steps that come next may have better use for it.
        if room < need || parts.iter().any(|part| part.bytes >= usual) {
            let mut inner = arena.lock(metadata);
            for part in parts {
                inner.region(Kind::Large).keep(&metadata.blocks, part);
            }
            return match inner.take(metadata, units) {
                0 => Err(Refusal::Full),
                index => Ok(index),
            };
        }
        count(&self.core.events.growths);
        arena.unsettle();
        arena.patience.renew();
        // Copies are done with it, and so is the host.
        for part in parts {
            self.give_part(arena, Kind::Large, part);
        }
        let span = match self.take_slab(arena, Kind::Large, usual, need) {
            Err(Refusal::Full) if usual > need => self.take_slab(arena, Kind::Large, need, need)?,
            other => other?,
        };
        self.use_slab(arena, Kind::Large, span, units)
    }
}
