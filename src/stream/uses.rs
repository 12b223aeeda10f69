//! Which blocks are in use on which other streams. A rare thing: one lock, one map.

use crate::arena::StreamKey;
use crate::driver::Stream;
use crate::metadata::{Block, State};
use crate::sync::lock;
use std::collections::HashMap;
use std::sync::Mutex;

/// A use on another stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) key: StreamKey,
    pub(crate) stream: Stream,
    /// Whether the handle may be used now: it is durable, or this very call passed it.
    pub(crate) usable: bool,
}

/// All recorded uses, by block.
#[derive(Default)]
pub(crate) struct Uses {
    of: Mutex<HashMap<u32, Vec<Use>>>,
}

impl Uses {
    /// Adds a use of a live block. The state makes its free look here.
    pub(crate) fn add(&self, block: &Block, new: Use) {
        let mut of = lock(&self.of);
        let uses = of.entry(block.index()).or_default();
        if !uses.iter().any(|known| known.key == new.key) {
            uses.push(new);
        }
        // Already used, or freed meanwhile by a faulty program: nothing to change then.
        let _ = block.change(State::Live, State::Used) || block.change(State::Recorded, State::Used);
    }

    /// Takes the uses of a block that was freed.
    pub(crate) fn take(&self, block: &Block) -> Vec<Use> {
        lock(&self.of).remove(&block.index()).unwrap_or_default()
    }
}
