//! What was given out so far, by stream, private pool and size.
//!
//! The caches count what they give out. What threads without a cache got, or a private pool, is counted here, by arena; and what
//! streams and private pools got that are gone, since their caches and arenas serve others then.

use super::{Core, Pool};
use crate::arena::Arena;
use crate::driver::Driver;
use crate::metadata::Block;
use crate::stats::{GivenOut, Totals};
use crate::sync::{Mutex, lock};
use crate::thread::{Cache, Counters, Given, Totals as Level, Whose, size_of_count};
use std::collections::BTreeMap;

#[derive(Default)]
struct Accounts {
    /// By arena and size.
    open: BTreeMap<(u32, u64), Given>,
    /// By size.
    closed: BTreeMap<u64, Given>,
}

/// What no cache counts.
#[derive(Default)]
pub(super) struct Ledger {
    accounts: Mutex<Accounts>,
    /// For threads that have no cache; written under the lock.
    pub(super) orphans: Counters,
}

impl Ledger {
    /// A block of an arena was given out without a cache.
    pub(super) fn alloc<'a>(
        &self,
        arena: u32,
        block: &Block,
        level: &Level,
        owners: impl Iterator<Item = (&'a Counters, Whose)> + Clone,
    ) {
        let (allocated, requested) = (block.bytes(), block.requested());
        let mut accounts = lock(&self.accounts);
        let open = accounts.open.entry((arena, size_of_count(allocated)));
        open.or_default().add(Given::one(allocated, requested));
        self.orphans.alloc(block.units(), requested);
        self.orphans.settle_exactly(level, owners);
        // As an owner does that was stopped.
        drop(level.no_look());
    }

    /// A block was given back by a thread without a cache.
    pub(super) fn free(&self, block: &Block, level: &Level) {
        let _lock = lock(&self.accounts);
        self.orphans.free(level, block.units(), block.requested());
        // Every time: no owner is there to do it later.
        self.orphans.rest(level);
    }

    /// The same of a block that waits for other streams from now on.
    pub(super) fn free_waiting<'a>(
        &self,
        block: (u32, u64),
        level: &Level,
        owners: impl Iterator<Item = (&'a Counters, Whose)> + Clone,
    ) {
        let _lock = lock(&self.accounts);
        self.orphans.free_waiting(level, block, owners);
        self.orphans.rest(level);
    }

    /// The arena's stream, or its private pool, is gone, and nobody uses the arena or a cache for it.
    pub(super) fn close<'a>(&self, arena: &Arena, caches: impl Iterator<Item = &'a Cache>) {
        let mut accounts = lock(&self.accounts);
        let Accounts { open, closed } = &mut *accounts;
        let keys: Vec<_> = open
            .range((arena.index, 0)..=(arena.index, u64::MAX))
            .map(|(&key, _)| key)
            .collect();
        for key in keys {
            if let Some(given) = open.remove(&key) {
                closed.entry(key.1).or_default().add(given);
            }
        }
        for cache in caches.filter(|cache| cache.arena == arena.index) {
            cache.each_size(true, |size, given| closed.entry(size).or_default().add(given));
        }
    }
}

impl Core {
    /// What each arena's owner got so far, by size; and under `None` what those got that are gone.
    fn given_out(&self) -> BTreeMap<(Option<u32>, u64), Given> {
        let mut all: BTreeMap<_, Given> = BTreeMap::new();
        // Locked throughout: what is closed meanwhile would be counted twice, or not at all.
        let accounts = lock(&self.ledger.accounts);
        for (&(arena, size), &given) in &accounts.open {
            all.entry((Some(arena), size)).or_default().add(given);
        }
        for (&size, &given) in &accounts.closed {
            all.entry((None, size)).or_default().add(given);
        }
        for cache in self.caches.iter() {
            cache.each_size(false, |size, given| {
                all.entry((Some(cache.arena), size)).or_default().add(given);
            });
        }
        all
    }
}

impl<D: Driver> Pool<D> {
    /// What was given out so far, by stream, private pool and size. Looks at every size of every thread; exact when no thread
    /// allocates meanwhile.
    pub fn totals(&self) -> Totals {
        let row = |((arena, size), given): ((Option<u32>, u64), Given)| {
            let owner = arena.map(|index| self.core.arenas.get(index).owner());
            GivenOut {
                stream: owner.map(|owner| owner.stream),
                private: owner.and_then(|owner| owner.key.private),
                size,
                alloc_count: given.allocs,
                requested_bytes: given.requested,
                allocated_bytes: given.allocated,
            }
        };
        Totals {
            device: self.device(),
            given_out: self.core.given_out().into_iter().map(row).collect(),
        }
    }
}
