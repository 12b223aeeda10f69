//! Free memory is taken from where it is to where it is wanted: fragmentation is undone without copying.
//!
//! When an arena grows, whole mappings that lie in free ranges serve the growth, those of small ranges first.
//!
//! - **Of the same stream:** the memory is mapped at the new addresses at once. What the stream does with the new block comes after
//!   what it did with the old one, so nobody has to wait.
//! - **Of other streams:** once the device is done with it (as for PaddlePaddle's remap compactor, PR 79427), or where the stream may
//!   be made to wait for it.
//!
//! The memory stays mapped at the old addresses too (virtual aliasing, CUDA programming guide), and [`wake`](super::wake) uses them
//! again. GMLake (ASPLOS 2024) maps memory twice as well.
//!
//! What the device is done with is learned from events: when an arena grows one is recorded on its stream. Nobody waits for them.

use super::Pool;
use super::core::count;
use super::dependencies::Waits;
use crate::arena::{Arena, Gate, Idle, Kind, Mapping};
use crate::driver::{Driver, Event, Handle};
use crate::history::Action;
use crate::sync::lock;

/// A part of an arena's free memory that is to be mapped elsewhere too.
pub(super) struct Lent<'a> {
    pub(super) arena: &'a Arena,
    pub(super) kind: Kind,
    pub(super) part: Idle,
    /// Whether the device is known to be done with it.
    pub(super) done: bool,
}

impl Lent<'_> {
    /// Its mappings, for another place in `arena`. When they were used is counted in the epochs of the arena that has them: of
    /// another's nothing is known until this one's next epoch has ended.
    pub(super) fn mappings(&self, arena: &Arena) -> impl Iterator<Item = Mapping> {
        let foreign = self.arena.index != arena.index;
        let done = self.done;
        self.part.mappings.iter().map(move |mapping| Mapping {
            touched: match (done, foreign) {
                (true, _) => 0,
                (false, true) => u64::MAX,
                (false, false) => mapping.touched,
            },
            ..*mapping
        })
    }
}

/// What was found for a growth.
pub(super) struct Gathered<'a> {
    /// Parts that the growth's stream may use at once.
    pub(super) lent: Vec<Lent<'a>>,
    /// Bytes that were not found.
    missing: u64,
    /// By how many bytes the growth has to be larger for a free mapping to fit, so that no new memory is needed; or 0.
    pub(super) more: u64,
}

impl<'a> Gathered<'a> {
    /// Bytes that were not found yet.
    pub(super) fn missing(&self) -> u64 {
        self.missing
    }

    /// How many parts there are.
    pub(super) fn parts(&self) -> usize {
        self.lent.len()
    }

    /// Takes out what was found after the first `parts`.
    pub(super) fn back_to(&mut self, parts: usize) -> Vec<Lent<'a>> {
        let refused = self.lent.split_off(parts);
        self.missing += refused.iter().map(|lent| lent.part.bytes).sum::<u64>();
        refused
    }

    /// The growth could be larger by what the free mapping of `larger` bytes has too much, up to `most`.
    fn widen(&mut self, larger: Option<u64>, most: u64) {
        let more = larger.filter(|_| self.missing > 0).map(|larger| larger - self.missing);
        self.more = more.filter(|&more| more <= most).unwrap_or(0);
    }
}

/// How many events of one arena are under way at most.
const EVENTS: usize = 8;

impl<D: Driver> Pool<D> {
    /// Finds memory for a growth of `bytes` in a region of an arena: parts that its stream may use at once, which are returned, and
    /// what other arenas can spare, whose handles are spare then. With `waits` the stream may be made to wait for others.
    pub(super) fn gather<'a>(&'a self, arena: &'a Arena, kind: Kind, bytes: u64, waits: Waits) -> Gathered<'a> {
        let (spare, more) = self.pages.spare_for(bytes);
        let mut found = Gathered {
            lent: Vec::new(),
            missing: bytes - spare,
            more: more.unwrap_or(0),
        };
        // What is spare is used before anything is taken from where it is.
        if !self.config.remap || found.more > 0 {
            return found;
        }
        self.tick(arena);
        // For small blocks at most twice the growth: a large mapping in which one lives is free as a whole no more.
        let most = if kind == Kind::Large { u64::MAX } else { bytes };
        if arena.key().private.is_none() && found.missing > 0 {
            let kinds = self.lending(arena, kind, found.missing);
            self.lend(arena, kinds, u64::MAX, false, &mut found);
            let larger = kinds.contains(&Kind::Large);
            let larger = larger.then(|| self.smallest_free(arena, found.missing, u64::MAX));
            found.widen(larger.flatten(), most);
            if found.more > 0 {
                return found;
            }
        }
        // A stream that comes anew gets what others have left, where the device has nothing to do: the event that was recorded just
        // now has completed. One that has been here grows: streams that take turns would use one memory for ever.
        let is_new = arena.lock(&self.core.metadata).region(kind).is_new();
        for other in self.others(arena) {
            if found.missing == 0 {
                return found;
            }
            self.tick(other);
            let mut gate = lock(&other.gate);
            if is_new {
                self.poll(&mut gate);
            }
            let done = gate.done;
            drop(gate);
            self.lend(other, &Kind::ALL, done, true, &mut found);
        }
        let may_wait = waits != Waits::Never && self.may_wait(arena);
        for other in self.others(arena).filter(|_| may_wait) {
            if found.missing == 0 {
                return found;
            }
            self.borrow(arena, other, waits, &mut found);
        }
        let larger = self.others(arena).filter_map(|other| {
            let gate = lock(&other.gate);
            let newest = gate.newest(waits == Waits::Overlapping).filter(|_| may_wait);
            let until = newest.map_or(gate.done, |&(epoch, _)| epoch);
            drop(gate);
            self.smallest_free(other, found.missing, until)
        });
        let larger = larger.min();
        found.widen(larger, most);
        found
    }

    /// The other arenas whose memory may be had: but for those that captures hold, and those of streams whose handles may be dead, on
    /// which no event can be recorded.
    pub(super) fn others<'a>(&'a self, arena: &Arena) -> impl Iterator<Item = &'a Arena> + use<'a, D> {
        let own = arena.index;
        self.core
            .arenas_not_held()
            .filter(move |other| other.index != own && self.is_durable(other.key().stream))
    }

    /// The kinds of blocks whose free memory in the same arena serves a growth by `bytes` for blocks of `kind`. Where memory is short, or
    /// several streams use it in turn, all of it is needed.
    fn lending(&self, arena: &Arena, kind: Kind, bytes: u64) -> &'static [Kind] {
        let is_short = self.pages.reserved().saturating_add(bytes) > self.pages.most();
        let apart = !is_short && arena.lock(&self.core.metadata).keeps_apart() && self.others(arena).next().is_none();
        match kind {
            _ if !apart => &Kind::ALL,
            Kind::Large => &[Kind::Large],
            Kind::Slabs | Kind::Small => &[Kind::Slabs, Kind::Small],
        }
    }

    /// Takes free memory of an arena's blocks of some kinds that was last used in an epoch up to `until`, to be mapped elsewhere;
    /// `done` where the device is known to be done with that.
    pub(super) fn lend<'a>(
        &'a self,
        arena: &'a Arena,
        kinds: &[Kind],
        until: u64,
        done: bool,
        found: &mut Gathered<'a>,
    ) {
        let metadata = &self.core.metadata;
        let granularity = self.driver.properties().granularity;
        let mut inner = arena.lock(metadata);
        arena.drain_shared(metadata, &mut inner);
        for &kind in kinds.iter().rev() {
            for part in inner
                .region(kind)
                .lend(&metadata.blocks, granularity, found.missing, until)
            {
                found.missing -= part.bytes;
                found.lent.push(Lent {
                    arena,
                    kind,
                    part,
                    done,
                });
            }
        }
    }

    /// The smallest free mapping of large blocks of at least `bytes`, in bytes, that was last used in an epoch up to `until`.
    fn smallest_free(&self, arena: &Arena, bytes: u64, until: u64) -> Option<u64> {
        let metadata = &self.core.metadata;
        let mut inner = arena.lock(metadata);
        inner.region(Kind::Large).smallest_free(&metadata.blocks, bytes, until)
    }

    /// What was lent are aliases now where their handle was `taken`, and free again where not.
    pub(super) fn settle(&self, lent: Vec<Lent<'_>>, taken: impl Fn(Handle) -> bool) {
        let metadata = &self.core.metadata;
        for Lent { arena, kind, part, .. } in lent {
            if part.mappings.iter().any(|mapping| taken(mapping.handle)) {
                self.note_memory(Action::Unmap, arena, part.addr, part.bytes);
            }
            arena.lock(metadata).settle_lent(metadata, kind, part, &taken);
        }
    }

    /// Looks which of the arena's events have completed, unmaps what is more than it keeps, and records another.
    pub(super) fn tick(&self, arena: &Arena) {
        if arena.key().private.is_some() || !self.is_durable(arena.key().stream) {
            return;
        }
        let mut gate = lock(&arena.gate);
        let before = gate.done;
        self.poll(&mut gate);
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
            self.drop_aliases(arena, done);
        }
    }

    /// Looks which of an arena's events have completed.
    pub(super) fn poll(&self, gate: &mut Gate) {
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
    }

    /// Unmaps aliases that are more than an arena keeps.
    fn drop_aliases(&self, arena: &Arena, done: u64) {
        for kind in Kind::ALL {
            let parts = arena.lock(&self.core.metadata).region(kind).surplus_aliases(done);
            for part in parts {
                self.give_part(arena, kind, part);
            }
        }
    }

    /// Ends the arena's epoch by an event on its stream: the one given, or another.
    fn record_epoch(&self, arena: &Arena, event: Option<Event>) -> Option<(u64, Event)> {
        let stream = arena.stream();
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
