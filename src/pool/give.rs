//! Giving memory back to the driver: under pressure, by `trim`, and at the end.

use super::core::{count, forked};
use super::{Error, Pool, Result};
use crate::arena::{Alias, Arena, Idle, Kind, What};
use crate::driver::{Driver, Handle};
use crate::history::Action;
use crate::pages::Target;
use crate::sync::lock;
use std::collections::HashSet;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

impl<D: Driver> Pool<D> {
    /// Takes idle memory of all arenas out of their address ranges, about `most` bytes: handles are spare then, and slabs
    /// go back to the driver. With `strays` also all that is idle on streams whose handles may be dead: no event will ever tell when
    /// it is, so that only a wait for the device, as here, sets it free. Returns the bytes.
    ///
    /// The memory is taken out of the free ranges first and the context synchronised then, so that nothing that was
    /// freed meanwhile, and may still be in use on its own stream, is unmapped.
    pub(super) fn take_idle(&self, most: u64, strays: bool) -> Result<u64> {
        let parts = self.idle_parts(most, strays);
        if parts.is_empty() {
            return Ok(0);
        }
        if let Err(error) = self.synchronize_context() {
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
    fn idle_parts(&self, most: u64, strays: bool) -> Vec<(&Arena, Kind, Idle)> {
        let metadata = &self.core.metadata;
        let mut all = self.take_aliases(|_| true);
        let mut left = most;
        let mut take = |arena, whole: bool| {
            for kind in Kind::ALL {
                let most = if whole { u64::MAX } else { left };
                if most == 0 {
                    return;
                }
                let mut inner = Arena::lock(arena, metadata);
                arena.drain_shared(metadata, &mut inner);
                for part in inner.region(kind).idle(&metadata.blocks, most) {
                    left = left.saturating_sub(part.bytes);
                    all.push((arena, kind, part));
                }
            }
        };
        if strays {
            self.core
                .arenas_not_held()
                .filter(|arena| !self.is_durable(arena.key().stream))
                .for_each(|arena| take(arena, true));
        }
        self.core.arenas_not_held().for_each(|arena| take(arena, false));
        all
    }

    /// Unmaps (or frees) one idle part, outside the arena's lock; the bytes that are spare or given back then.
    pub(super) fn give_part(&self, arena: &Arena, kind: Kind, mut part: Idle) -> u64 {
        let metadata = &self.core.metadata;
        if part.what == What::Alias {
            let result = self.driver.unmap(part.addr, part.bytes);
            let mut inner = arena.lock(metadata);
            match result {
                Ok(()) => inner.region(kind).gone(&metadata.blocks, &part),
                Err(_) => {
                    // Its handle may become another's number: it is only to be unmapped any more.
                    part.mappings.clear();
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
                self.note_memory(Action::Unmap, arena, part.addr, part.bytes);
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
                self.note_memory(Action::Unmap, arena, part.addr, part.bytes);
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
    pub(super) fn give_addresses(&self) {
        let metadata = &self.core.metadata;
        for arena in self.core.arenas_in_use() {
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
    pub(super) fn trim_to(&self, target: Target) -> Result<u64> {
        if forked() {
            return Err(Error::Forked);
        }
        let before = self.pages.reserved();
        if before <= target.bytes {
            return Ok(0);
        }
        self.core.take_magazines(None);
        self.quiesce()?;
        // A request that is short of memory meanwhile waits for what is in our hands instead of failing. And a growth that has just
        // reserved addresses finds them where it left them.
        let _alone = self.pressed.write().unwrap_or_else(PoisonError::into_inner);
        let parts = self.divided(self.idle_parts(u64::MAX, false));
        self.give_nearest(parts, target, true)?;
        self.give_addresses();
        self.unmap_leftovers();
        self.pages.release_spare(&self.driver, target)?;
        Ok(before.saturating_sub(self.pages.reserved()))
    }

    /// The same parts, each mapping one of its own.
    fn divided<'a>(&self, parts: Vec<(&'a Arena, Kind, Idle)>) -> Vec<(&'a Arena, Kind, Idle)> {
        let metadata = &self.core.metadata;
        let divide = |(arena, kind, part): (&'a Arena, Kind, Idle)| {
            let parts = match part.what {
                What::Free if part.mappings.len() > 1 => {
                    arena.lock(metadata).region(kind).divide(&metadata.blocks, part)
                }
                _ => vec![part],
            };
            parts.into_iter().map(move |part| (arena, kind, part))
        };
        parts.into_iter().flat_map(divide).collect()
    }

    /// Unmaps (or frees) as many of the parts as it takes to come down to the target; the others stay free. `wait` for the
    /// device first, unless it is known to be done with them.
    pub(super) fn give_nearest(&self, parts: Vec<(&Arena, Kind, Idle)>, target: Target, wait: bool) -> Result<()> {
        let metadata = &self.core.metadata;
        let size = |part: &Idle| if part.what == What::Free { part.bytes } else { 0 };
        let sizes: Vec<u64> = parts.iter().map(|(_, _, part)| size(part)).collect();
        let mut given = vec![false; parts.len()];
        for place in self.pages.choose(&sizes, target) {
            given[place] = true;
        }
        let mut chosen = Vec::new();
        let keep = |(arena, kind, part): (&Arena, Kind, Idle)| {
            arena.lock(metadata).region(kind).keep(&metadata.blocks, part);
        };
        for (part, given) in parts.into_iter().zip(given) {
            if given || part.2.what != What::Free {
                chosen.push(part);
            } else {
                keep(part);
            }
        }
        if !chosen.is_empty()
            && wait
            && let Err(error) = self.synchronize_context()
        {
            chosen.into_iter().for_each(keep);
            return Err(error.into());
        }
        self.unmap_aliases(&chosen);
        for (arena, kind, part) in chosen {
            self.give_part(arena, kind, part);
        }
        Ok(())
    }

    /// Unmaps the other addresses of memory that is about to be spare. The device is done with it, and so with what it did there
    /// before.
    fn unmap_aliases(&self, parts: &[(&Arena, Kind, Idle)]) {
        let mappings = parts.iter().flat_map(|(_, _, part)| &part.mappings);
        let handles: HashSet<Handle> = mappings.map(|mapping| mapping.handle).collect();
        let of_them = |alias: &Alias| alias.handle.is_some_and(|handle| handles.contains(&handle));
        for (arena, kind, part) in self.take_aliases(of_them) {
            self.give_part(arena, kind, part);
        }
    }

    /// Takes the aliases for which `which` holds out of all arenas, to be unmapped by the caller.
    fn take_aliases(&self, which: impl Fn(&Alias) -> bool) -> Vec<(&Arena, Kind, Idle)> {
        let mut all = Vec::new();
        for arena in self.core.arenas_in_use() {
            for kind in Kind::ALL {
                let aliases = arena.lock(&self.core.metadata).region(kind).take_aliases(&which);
                all.extend(aliases.into_iter().map(|part| (arena, kind, part)));
            }
        }
        all
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
            for arena in self.core.arenas_in_use() {
                arena.holders.store(0, Relaxed);
            }
            // The driver's refusals have nobody to be told to any more.
            let _ = self.take_idle(u64::MAX, false);
            self.give_guarded(0);
            let _ = self.pages.release_spare(&self.driver, Target::default());
            self.give_addresses();
        }
        self.pages.destroy_driver_pool(&self.driver);
        let mut pending = lock(&self.pending);
        let unneeded = self.uses.take_events();
        unneeded.into_iter().for_each(|event| pending.put_back(event));
        for arena in self.core.arenas.iter() {
            let events = std::mem::take(&mut lock(&arena.gate).events);
            events.into_iter().for_each(|(_, event)| pending.put_back(event));
        }
        pending.destroy(&self.driver);
    }
}
