//! Which arena is whose, and arenas of streams that are gone.

use crate::arena::{Arena, ArenaKey, StreamKey};
use crate::metadata::Append;
use rustc_hash::FxHashMap;

/// Whose the arenas are.
#[derive(Default)]
pub(super) struct Owned {
    pub(super) arena_of: FxHashMap<ArenaKey, u32>,
    /// Arenas of nobody.
    vacant: Vec<u32>,
    /// Arenas of nobody that were a thread's. Threads find their caches for default streams without asking whose they are: these
    /// serve other threads only, and no others do.
    vacant_threads: Vec<u32>,
    /// How many arenas were made or taken since they were looked through for empty ones.
    since: usize,
}

impl Owned {
    /// An arena for another key that is nobody's any more, if there is one.
    pub(super) fn vacant(
        &mut self,
        arenas: &Append<Arena>,
        key: ArenaKey,
        may_end: impl Fn(StreamKey) -> bool,
    ) -> Option<u32> {
        let threads = match (key.private, key.stream) {
            (None, StreamKey::Legacy) => return None,
            (None, StreamKey::PerThread(_)) => true,
            _ => false,
        };
        self.since += 1;
        let none = |owned: &Self| if threads { &owned.vacant_threads } else { &owned.vacant }.is_empty();
        // At most twice as many are looked through as were made since: each costs the same however many there are.
        if none(self) && self.since > (self.arena_of.len() / 2).max(LOOK_AFTER) {
            self.look(arenas, may_end);
        }
        if threads {
            &mut self.vacant_threads
        } else {
            &mut self.vacant
        }
        .pop()
    }

    /// Looks through all arenas for those that are nobody's any more.
    pub(super) fn look(&mut self, arenas: &Append<Arena>, may_end: impl Fn(StreamKey) -> bool) {
        self.since = 0;
        let (vacant, vacant_threads) = (&mut self.vacant, &mut self.vacant_threads);
        self.arena_of.retain(|key, &mut index| {
            let arena = arenas.get(index);
            let (ended, list) = match (key.private, key.stream) {
                (Some(_), _) => (true, &mut *vacant),
                (None, StreamKey::Legacy) => (false, &mut *vacant),
                (None, StreamKey::PerThread(_)) => (arena.thread_has_ended(), &mut *vacant_threads),
                (None, stream) => (may_end(stream), &mut *vacant),
            };
            let keep = !ended || !arena.is_vacant();
            if !keep {
                list.push(index);
            }
            keep
        });
    }
}

/// How many arenas are made at least until they are looked through for empty ones.
const LOOK_AFTER: usize = 64;
