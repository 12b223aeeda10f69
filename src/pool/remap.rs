//! Free memory is taken from where it is to where it is wanted: fragmentation is undone without copying.
//!
//! When an arena grows, whole mappings that lie in free ranges serve the growth, those of small ranges first.
//!
//! - **Of the same stream:** the memory is mapped at the new addresses at once, and stays mapped at the old ones too (virtual aliasing,
//!   CUDA programming guide). What the stream does with the new block comes after what it did with the old one, so nobody
//!   has to wait. The old addresses are unmapped later. GMLake (ASPLOS 2024) maps memory twice as well, and for good.
//! - **Of other streams:** the memory is unmapped first, so the device must be done with it (as for PaddlePaddle's remap
//!   compactor, PR 79427).
//!
//! What the device is done with is learned from events: when an arena grows, and until it has settled when a sixteenth of what
//! it holds was freed since the last time, one is recorded on its stream. Nobody waits for them.

use super::Pool;
use super::core::count;
use crate::arena::{Arena, Idle, Kind};
use crate::driver::{Driver, Event, Handle};
use crate::sync::lock;
use std::sync::atomic::Ordering::Relaxed;

/// A part of an arena's free memory that is to be mapped elsewhere too.
pub(super) struct Lent<'a> {
    arena: &'a Arena,
    kind: Kind,
    pub(super) part: Idle,
}

/// What was found for a growth.
pub(super) struct Gathered<'a> {
    /// Parts that the growth's stream may use at once.
    pub(super) lent: Vec<Lent<'a>>,
    /// By how many bytes the growth has to be larger for a free mapping to fit, so that no new memory is needed; or 0.
    pub(super) more: u64,
}

/// How many events of one arena are under way at most.
const EVENTS: usize = 8;

impl<D: Driver> Pool<D> {
    /// Finds memory for a growth of `bytes` in a region of an arena: parts that its stream may use at once, which are returned, and
    /// what other arenas can spare, whose handles are spare then.
    pub(super) fn gather<'a>(&'a self, arena: &'a Arena, kind: Kind, bytes: u64) -> Gathered<'a> {
        self.tick(arena);
        let metadata = &self.core.metadata;
        let granularity = self.driver.properties().granularity;
        // For small blocks at most twice the growth: a large mapping in which one lives is free as a whole no more.
        let fits = |larger: u64, missing: u64| kind == Kind::Large || larger - missing <= bytes;
        let mut missing = bytes - self.pages.spare_for(bytes);
        let mut lent = Vec::new();
        if arena.key.private.is_none() && missing > 0 {
            self.lend(arena, u64::MAX, &mut missing, &mut lent);
            let larger = match missing {
                0 => None,
                _ => self.smallest_free(arena, missing, u64::MAX),
            };
            if let Some(larger) = larger.filter(|&larger| fits(larger, missing)) {
                let more = larger - missing;
                return Gathered { lent, more };
            }
        }
        // Relaxed: a capture that begins now gets its memory from elsewhere.
        let others = || {
            let others = self.core.arenas.iter().filter(|other| other.index != arena.index);
            others.filter(|other| other.has_memory() && other.holders.load(Relaxed) == 0)
        };
        for other in others() {
            if missing == 0 {
                break;
            }
            self.tick(other);
            let done = lock(&other.gate).done;
            for kind in Kind::ALL.into_iter().rev() {
                let parts = other
                    .lock(metadata)
                    .region(kind)
                    .finished(&metadata.blocks, granularity, missing, done);
                let given: u64 = parts.into_iter().map(|part| self.give_part(other, kind, part)).sum();
                missing -= given.min(missing);
            }
        }
        let may_wait = missing > 0 && std::env::var_os("BORROW").is_some() && self.may_wait(arena);
        if may_wait {
            for other in others() {
                self.borrow(arena, other, &mut missing, &mut lent);
            }
        }
        let mut more = 0;
        if missing > 0 && kind == Kind::Large {
            let until = |other: &Arena| {
                let gate = lock(&other.gate);
                let newest = gate.events.back().filter(|_| may_wait);
                newest.map_or(gate.done, |&(epoch, _)| epoch)
            };
            let larger = others().filter_map(|other| self.smallest_free(other, missing, until(other)));
            more = larger.min().map_or(0, |larger| larger - missing);
        }
        Gathered { lent, more }
    }

    /// The smallest free mapping of large blocks of at least `bytes`, in bytes, that was last used in an epoch up to `until`.
    fn smallest_free(&self, arena: &Arena, bytes: u64, until: u64) -> Option<u64> {
        let metadata = &self.core.metadata;
        arena.lock(metadata).region(Kind::Large).smallest_free(&metadata.blocks, bytes, until)
    }

    /// Whether the arena's stream may be made to wait for another one's event.
    fn may_wait(&self, arena: &Arena) -> bool {
        self.config.dependencies && arena.key.private.is_none() && self.driver.is_capturing(arena.stream) == Ok(false)
    }

    /// Lets the arena's stream wait, on the device, for other streams' uses of about `bytes` of its own freed blocks. Whether there
    /// were any.
    pub(super) fn claim_pending(&self, arena: &Arena, bytes: u64) -> bool {
        if self.waiting.load(Relaxed) == 0 || !self.may_wait(arena) {
            return false;
        }
        let blocks = &self.core.metadata.blocks;
        let mut pending = lock(&self.pending);
        let ours = |index| {
            let block = blocks.get(index);
            (block.arena.load(Relaxed) == arena.index).then(|| block.bytes())
        };
        let (done, events) = pending.earliest(bytes, ours);
        for event in events {
            if self.driver.stream_wait(arena.stream, event).is_err() {
                count(&self.core.events.driver_errors);
                return false;
            }
        }
        pending.forget(&done);
        drop(pending);
        self.finish_pending(&done);
        !done.is_empty()
    }

    /// Takes free memory of `other` for `arena`, whose stream waits, on the device, for what the other one's has to do.
    fn borrow<'a>(&'a self, arena: &Arena, other: &'a Arena, missing: &mut u64, lent: &mut Vec<Lent<'a>>) {
        let gate = lock(&other.gate);
        let Some(&(epoch, event)) = gate.events.back() else {
            return;
        };
        let found = lent.len();
        let before = *missing;
        self.lend(other, epoch, missing, lent);
        if lent.len() > found && self.driver.stream_wait(arena.stream, event).is_err() {
            count(&self.core.events.driver_errors);
            *missing = before;
            let refused = lent.split_off(found);
            self.settle(refused, |_| false);
        }
    }

    /// Takes free memory of an arena that was last used in an epoch up to `until`, to be mapped elsewhere.
    fn lend<'a>(&'a self, arena: &'a Arena, until: u64, missing: &mut u64, lent: &mut Vec<Lent<'a>>) {
        let metadata = &self.core.metadata;
        let granularity = self.driver.properties().granularity;
        let mut inner = arena.lock(metadata);
        arena.drain_shared(metadata, &mut inner);
        for kind in Kind::ALL.into_iter().rev() {
            for part in inner.region(kind).lend(&metadata.blocks, granularity, *missing, until) {
                *missing -= part.bytes;
                lent.push(Lent { arena, kind, part });
            }
        }
    }

    /// What was lent are aliases now where their handle was `taken`, and free again where not.
    pub(super) fn settle(&self, lent: Vec<Lent<'_>>, taken: impl Fn(Handle) -> bool) {
        let metadata = &self.core.metadata;
        for Lent { arena, kind, part } in lent {
            arena.lock(metadata).settle_lent(metadata, kind, part, &taken);
        }
    }

    /// Looks which of the arena's events have completed, unmaps what they set free, and records another.
    pub(super) fn tick(&self, arena: &Arena) {
        if arena.key.private.is_some() || !self.is_durable(arena.key.stream) {
            return;
        }
        let mut gate = lock(&arena.gate);
        let before = gate.done;
        while let Some(&(epoch, event)) = gate.events.front() {
            match self.driver.event_query(event) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    count(&self.core.events.driver_errors);
                    break;
                }
            }
            gate.done = epoch;
            gate.events.pop_front();
            lock(&self.pending).put_back(event);
        }
        let done = gate.done;
        // With enough under way the newest is recorded anew, later.
        let again = if gate.events.len() < EVENTS {
            None
        } else {
            gate.events.pop_back()
        };
        if let Some(recorded) = self.record_epoch(arena, again.map(|(_, event)| event)) {
            gate.events.push_back(recorded);
        }
        drop(gate);
        if done > before {
            self.unmap_aliases(arena, done);
        }
    }

    fn unmap_aliases(&self, arena: &Arena, done: u64) {
        for kind in Kind::ALL {
            let parts = arena.lock(&self.core.metadata).region(kind).finished_aliases(done);
            for part in parts {
                self.give_part(arena, kind, part);
            }
        }
    }

    /// Ends the arena's epoch by an event on its stream: the one given, or another.
    fn record_epoch(&self, arena: &Arena, event: Option<Event>) -> Option<(u64, Event)> {
        let stream = arena.stream;
        let event = match event {
            Some(event) => event,
            None => lock(&self.pending).event(&self.driver).ok()?,
        };
        // Asked of the legacy stream too: see `wait_for`.
        if self.driver.is_capturing(stream) != Ok(false) {
            lock(&self.pending).put_back(event);
            return None;
        }
        // What is freed from now on belongs to the next epoch. Under the arena's lock, so that whoever freed something in
        // this one had given the stream its work before the event is recorded.
        let epoch = {
            let mut inner = arena.lock(&self.core.metadata);
            inner.epoch += 1;
            inner.freed = 0;
            inner.epoch - 1
        };
        if self.driver.event_record(event, stream).is_ok() {
            return Some((epoch, event));
        }
        count(&self.core.events.driver_errors);
        lock(&self.pending).put_back(event);
        None
    }
}
