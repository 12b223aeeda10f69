//! What was given out so far, by stream, private pool and size.
//!
//! The caches count what they give out. What threads without a cache got, or a private pool, is counted here, by arena; and what
//! streams and private pools got that are gone, since their caches and arenas serve others then.

use super::{Core, Pool};
use crate::arena::Arena;
use crate::driver::Driver;
use crate::stats::{GivenOut, Totals};
use crate::sync::{Mutex, lock};
use crate::thread::{Cache, Given, size_of_count};
use std::collections::{BTreeMap, HashMap};

#[derive(Default)]
struct Accounts {
    /// By arena and size.
    open: HashMap<(u32, u64), Given>,
    /// By size.
    closed: HashMap<u64, Given>,
}

/// What no cache counts.
#[derive(Default)]
pub(super) struct Ledger(Mutex<Accounts>);

impl Ledger {
    /// A block of an arena was given out without a cache.
    pub(super) fn count(&self, arena: u32, allocated: u64, requested: u64) {
        let mut accounts = lock(&self.0);
        let open = accounts.open.entry((arena, size_of_count(allocated)));
        open.or_default().add(Given::one(allocated, requested));
    }

    /// The arena's stream, or its private pool, is gone, and nobody uses the arena or a cache for it.
    pub(super) fn close<'a>(&self, arena: &Arena, caches: impl Iterator<Item = &'a Cache>) {
        let mut accounts = lock(&self.0);
        let Accounts { open, closed } = &mut *accounts;
        for ((_, size), given) in open.extract_if(|(index, _), _| *index == arena.index) {
            closed.entry(size).or_default().add(given);
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
        let accounts = lock(&self.ledger.0);
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
