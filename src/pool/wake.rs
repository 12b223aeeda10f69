//! Memory that is mapped at several addresses is used where it is wanted, without a driver call but for events.
//!
//! What a remap leaves behind are aliases: addresses of memory that is used elsewhere. Before a region grows it is looked whether
//! aliases side by side, and the free ranges around them, have room for the request, while their memory is free as a whole: in the same
//! arena, or in others, where the same holds as for a remap.

use super::Pool;
use super::core::count;
use super::dependencies::Waits;
use super::remap::Lent;
use crate::arena::{Arena, Kind, Piece};
use crate::driver::{Driver, Event};
use crate::history::Action;
use crate::sync::lock;
use rustc_hash::FxHashMap;

/// Another arena whose free memory may be used.
struct Lender<'a> {
    arena: &'a Arena,
    /// The device is done with what it did up to this epoch.
    done: u64,
    /// What may be waited for on the device: the event at the end of a later epoch.
    event: Option<(u64, Event)>,
}

impl Lender<'_> {
    /// Memory that was last used up to this epoch may be used.
    fn until(&self) -> u64 {
        self.event.map_or(self.done, |(epoch, _)| epoch)
    }
}

impl<D: Driver> Pool<D> {
    /// Uses memory that is free as a whole where it is mapped as well, if a block of `units` fits there: without a driver call
    /// but for events. A held block, or 0.
    pub(super) fn wake(&self, arena: &Arena, units: u32, waits: Waits) -> u32 {
        if !self.config.remap || arena.key().private.is_some() {
            return 0;
        }
        // Nothing is asked of other arenas' streams where nothing could come of it.
        if arena
            .lock(&self.core.metadata)
            .region(Kind::of(units))
            .aliases
            .is_empty()
        {
            return 0;
        }
        let index = self.wake_from(arena, units, &[]);
        if index != 0 || self.others(arena).next().is_none() {
            return index;
        }
        self.wake_from(arena, units, &self.lenders(arena, waits))
    }

    /// The other arenas, and what of their memory the arena may use.
    fn lenders<'a>(&'a self, arena: &Arena, waits: Waits) -> Vec<Lender<'a>> {
        let may_wait = waits != Waits::Never && self.may_wait(arena);
        let lenders = self.others(arena).map(|other| {
            // An event is recorded only where the stream may wait for anything: otherwise streams that take turns would use one memory
            // for ever, and none would get its own.
            if waits == Waits::Always {
                self.tick(other);
            }
            let mut gate = lock(&other.gate);
            self.poll(&mut gate);
            let event = gate.newest(waits == Waits::Overlapping).filter(|_| may_wait).copied();
            Lender {
                arena: other,
                done: gate.done,
                event: event.filter(|&(epoch, _)| epoch > gate.done),
            }
        });
        lenders.collect()
    }

    /// As [`Self::wake`], with what other arenas may lend.
    fn wake_from(&self, arena: &Arena, units: u32, lenders: &[Lender<'_>]) -> u32 {
        let metadata = &self.core.metadata;
        let kind = Kind::of(units);
        let mut sources = FxHashMap::default();
        for lender in lenders {
            let mut inner = lender.arena.lock(metadata);
            inner.whole_free(metadata, lender.until(), &mut sources);
        }
        let window = {
            let mut inner = arena.lock(metadata);
            arena.drain_shared(metadata, &mut inner);
            let range_units = Kind::range_units(units);
            match inner.place_again(metadata, kind, range_units, &sources) {
                None => inner.window(metadata, kind, range_units, &mut sources),
                again => again,
            }
        };
        let Some(window) = window else { return 0 };
        let Some(lent) = self.lend_window(arena, &window, lenders) else {
            return 0;
        };
        let mut inner = arena.lock(metadata);
        let from_others = window.iter().filter(|piece| piece.source.arena != arena.index);
        let pieces = from_others.zip(&lent);
        let pieces: Vec<_> = pieces
            .map(|(piece, lent)| (piece.addr, piece.handle, lent.done))
            .collect();
        let woken = inner.wake(metadata, kind, &window, &pieces);
        let index = if woken {
            let range_units = Kind::range_units(units);
            inner.region(kind).ranges.promote(&metadata.blocks, range_units);
            inner.take(metadata, units)
        } else {
            0
        };
        drop(inner);
        self.settle(lent, |_| woken);
        if woken {
            self.note_woken(arena, &window);
        }
        index
    }

    /// Notes that memory is used at other addresses of an arena; what was lent was noted where it was.
    fn note_woken(&self, arena: &Arena, pieces: &[Piece]) {
        for piece in pieces {
            if piece.source.arena == arena.index {
                self.note_memory(Action::Unmap, arena, piece.source.addr, piece.bytes);
            }
            self.note_memory(Action::Map, arena, piece.addr, piece.bytes);
        }
    }

    /// Before a request of `units` is met from what is free: makes the place free that it had the last time, where all that it takes is
    /// memory of the same arena that is free and mapped there as well. No driver call.
    pub(super) fn wake_again(&self, arena: &Arena, units: u32) {
        if !self.config.remap || arena.key().private.is_some() {
            return;
        }
        let woken = arena.lock(&self.core.metadata).wake_again(&self.core.metadata, units);
        if let Some(pieces) = woken {
            arena.unsettle();
            self.note_woken(arena, &pieces);
        }
    }

    /// Takes what a window needs of other arenas out of their free ranges, in the window's order; the arena's stream waits where it
    /// has to. `None` when something has changed since the window was found.
    fn lend_window<'a>(&'a self, arena: &Arena, window: &[Piece], lenders: &[Lender<'a>]) -> Option<Vec<Lent<'a>>> {
        let metadata = &self.core.metadata;
        let mut all = Vec::new();
        for piece in window.iter().filter(|piece| piece.source.arena != arena.index) {
            let taken = lenders
                .iter()
                .find(|lender| lender.arena.index == piece.source.arena)
                .and_then(|lender| {
                    let mut inner = lender.arena.lock(metadata);
                    let region = inner.region(piece.source.kind);
                    let part = region.take_whole(&metadata.blocks, piece.source.addr, piece.handle, lender.until())?;
                    Some((lender, part))
                });
            let Some((lender, part)) = taken else {
                self.settle(all, |_| false);
                return None;
            };
            all.push(Lent {
                arena: lender.arena,
                kind: piece.source.kind,
                done: part.mappings.iter().all(|mapping| mapping.touched <= lender.done),
                part,
            });
        }
        for lender in lenders {
            let undone = |lent: &Lent<'_>| !lent.done && lent.arena.index == lender.arena.index;
            if !all.iter().any(undone) {
                continue;
            }
            let gate = lock(&lender.arena.gate);
            if gate.done >= lender.until() {
                continue;
            }
            // It may have been recorded anew meanwhile, for a later epoch.
            let event = gate.events.iter().find(|&&(epoch, _)| epoch >= lender.until());
            let waited = event.is_some_and(|&(_, event)| self.driver.stream_wait(arena.stream(), event).is_ok());
            drop(gate);
            if !waited {
                count(&self.core.events.driver_errors);
                self.settle(all, |_| false);
                return None;
            }
            count(&self.core.events.stream_waits);
        }
        Some(all)
    }
}
