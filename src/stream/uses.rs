//! Which blocks are in use on which other streams. A rare thing: one lock, one map.

use super::Recorded;
use crate::arena::StreamKey;
use crate::driver::{Event, Stream};
use crate::metadata::{Block, State};
use crate::sync::{Mutex, lock};
use std::collections::HashMap;

/// A use on another stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) key: StreamKey,
    pub(crate) stream: Stream,
    /// Whether the handle may be used now: it is durable, or this very call passed it.
    pub(crate) usable: bool,
    /// The event that covers the use, where it is over as soon as the stream has done what it had been given; otherwise
    /// one is recorded when the block is freed.
    pub(crate) recorded: Option<Recorded>,
}

/// All recorded uses, by block.
#[derive(Default)]
pub(crate) struct Uses {
    of: Mutex<HashMap<u32, Vec<Use>>>,
}

impl Uses {
    /// Adds a use of a live block. The state makes its free look here. Returns an event that is not needed any more.
    pub(crate) fn add(&self, block: &Block, new: Use) -> Option<Event> {
        let mut of = lock(&self.of);
        let uses = of.entry(block.index()).or_default();
        let unneeded = match uses.iter_mut().find(|known| known.key == new.key) {
            // A use until the free covers those that are over before it.
            Some(Use { recorded: None, .. }) => new.recorded,
            Some(known) => match (known.recorded, new.recorded) {
                // Of two threads that record at once the later one may come first.
                (Some(known), Some(new)) if known.covers(&new) => Some(new),
                _ => std::mem::replace(known, new).recorded,
            },
            None => {
                uses.push(new);
                None
            }
        };
        // Already used, or freed meanwhile by a faulty program: nothing to change then.
        let _ = block.change(State::Live, State::Used) || block.change(State::Recorded, State::Used);
        unneeded.map(|recorded| recorded.event)
    }

    /// Takes the uses of a block that was freed.
    pub(crate) fn take(&self, block: &Block) -> Vec<Use> {
        lock(&self.of).remove(&block.index()).unwrap_or_default()
    }

    /// Takes the events of all uses: no block will be freed any more.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        let uses = std::mem::take(&mut *lock(&self.of)).into_values().flatten();
        uses.filter_map(|used| used.recorded.map(|recorded| recorded.event))
            .collect()
    }
}
