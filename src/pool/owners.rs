//! Which arena is whose, and arenas of streams that are gone.

use crate::arena::{Arena, ArenaKey, StreamKey};
use crate::metadata::Append;
use std::collections::HashMap;

/// Whose the arenas are.
#[derive(Default)]
pub(super) struct Owned {
    pub(super) arena_of: HashMap<ArenaKey, u32>,
    /// Arenas of nobody.
    vacant: Vec<u32>,
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
        // Threads find their caches for default streams without asking whose they are.
        if key.private.is_none() && key.stream.is_default() {
            return None;
        }
        self.since += 1;
        // At most twice as many are looked through as were made since: each costs the same however many there are.
        if self.vacant.is_empty() && self.since > (self.arena_of.len() / 2).max(LOOK_AFTER) {
            self.since = 0;
            let vacant = &mut self.vacant;
            self.arena_of.retain(|key, &mut index| {
                let ended = match key.private {
                    Some(_) => true,
                    None => !key.stream.is_default() && may_end(key.stream),
                };
                let keep = !ended || !arenas.get(index).is_vacant();
                if !keep {
                    vacant.push(index);
                }
                keep
            });
        }
        self.vacant.pop()
    }
}

/// How many arenas are made at least until they are looked through for empty ones.
const LOOK_AFTER: usize = 64;
