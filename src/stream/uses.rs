//! Which blocks are in use on which other streams. A rare thing: one lock, one map.

use crate::arena::StreamKey;
use crate::driver::Stream;
use crate::metadata::Block;
use crate::sync::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

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
    /// Adds a use of a live block. The mark on the block makes its free look here.
    pub(crate) fn add(&self, block: &Block, index: u32, new: Use) {
        let mut of = lock(&self.of);
        let uses = of.entry(index).or_default();
        if !uses.iter().any(|known| known.key == new.key) {
            uses.push(new);
        }
        // Relaxed: whoever frees the block got the pointer, or the news, from the caller.
        block.uses.store(1, Relaxed);
    }

    /// Takes the uses of a block that was freed.
    pub(crate) fn take(&self, block: &Block, index: u32) -> Vec<Use> {
        // Relaxed: as in `add`.
        if block.uses.swap(0, Relaxed) == 0 {
            return Vec::new();
        }
        lock(&self.of).remove(&index).unwrap_or_default()
    }
}
