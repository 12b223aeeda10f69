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
use crate::driver::{Driver, Event};
use crate::sync::lock;
use std::sync::atomic::Ordering::Relaxed;

/// What was found for a growth.
pub(super) struct Gathered {
    /// Parts of the arena's own.
    pub(super) lent: Vec<(Kind, Idle)>,
    /// By how many bytes the growth has to be larger for a free mapping to fit, so that no new memory is needed; or 0.
    pub(super) more: u64,
}

/// How many events of one arena are under way at most.
const EVENTS: usize = 8;

impl<D: Driver> Pool<D> {
    /// Finds memory for a growth of `bytes` in a region of an arena: parts of its own that it may use at once, which are returned, and
    /// what other arenas can spare, whose handles are spare then.
    pub(super) fn gather(&self, arena: &Arena, kind: Kind, bytes: u64) -> Gathered {
        self.tick(arena);
        let metadata = &self.core.metadata;
        let granularity = self.driver.properties().granularity;
        let mut missing = bytes - self.pages.spare_for(bytes);
        let mut lent = Vec::new();
        let mut larger = None;
        if arena.key.private.is_none() {
            let mut inner = arena.lock(metadata);
            arena.drain_shared(metadata, &mut inner);
            for from in Kind::ALL.into_iter().rev() {
                for part in inner.region(from).lend(&metadata.blocks, granularity, missing) {
                    missing -= part.bytes;
                    lent.push((from, part));
                }
            }
            if missing > 0 {
                larger = inner.region(Kind::Large).smallest_free(&metadata.blocks, missing);
            }
        }
        // For small blocks at most twice the growth: a large mapping in which one lives is free as a whole no more.
        if let Some(larger) = larger.filter(|&larger| kind == Kind::Large || larger - missing <= bytes) {
            return Gathered {
                lent,
                more: larger - missing,
            };
        }
        for other in self.core.arenas.iter().filter(|other| other.index != arena.index) {
            // Relaxed: a capture that begins now gets its memory from elsewhere.
            if missing == 0 || other.holders.load(Relaxed) > 0 {
                continue;
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
        Gathered { lent, more: 0 }
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
        // Asked of the legacy stream too: see `record_use`.
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
