//! All of a cache's blocks at once: for its owner, or for anyone while the owner is kept out.

use super::{Cache, NO_STREAM};
use crate::sync::{length, yield_now};
use crate::thread::barrier;
use crate::thread::magazine::Magazine;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How often a taker looks before it leaves a busy owner alone. With a yield each, a few milliseconds.
const PATIENCE: usize = length(1000, 2);

impl Cache {
    /// Keeps the owner out of its magazines.
    fn revoke(&self) {
        // Relaxed, all of these: the barrier orders them before the load of `busy`.
        self.revoked.store(1, Relaxed);
        self.stream.store(NO_STREAM, Relaxed);
        self.own.counters.shut();
        barrier::heavy();
    }

    /// Lets the owner into its magazines again.
    fn restore(&self) {
        // Release, all of these: the owner sees the magazines as we left them.
        self.own.counters.open_again();
        self.stream.store(self.serves, Release);
        self.revoked.store(0, Release);
    }

    /// Empties all magazines, of the owner: the first block of a chain, or 0.
    pub(crate) fn take_own(&self) -> u32 {
        match self.enter() {
            Some(busy) => {
                let chain = self.unload(0);
                busy.open();
                chain
            }
            None => 0,
        }
    }

    /// Empties all magazines and the remote list of whatever thread: the first block of a chain, or 0. The caller holds
    /// the pool's lock for takers. An owner that stays busy (it was suspended within a hit) keeps its magazines.
    pub(crate) fn take_anyone(&self) -> u32 {
        self.revoke();
        let mut chain = self.take_remote();
        for _ in 0..PATIENCE {
            // Acquire: the magazines as the owner left them.
            if self.own.busy.load(Acquire) == 0 {
                // The owner may have opened what we shut, if it was in its section then. It does so once: from now on it sees
                // that they are revoked.
                if self.own.counters.is_shut() {
                    chain = self.unload(chain);
                    break;
                }
                self.revoke();
            }
            yield_now();
        }
        self.restore();
        chain
    }

    fn magazines(&self) -> impl Iterator<Item = &Magazine> {
        self.own.magazines.iter().chain(&self.own.large)
    }

    /// Puts the blocks of all magazines before a chain. Within the owner's section or a taker's.
    fn unload(&self, chain: u32) -> u32 {
        let chain = self.magazines().fold(chain, |chain, magazine| magazine.empty(chain));
        self.own.counters.small.unload();
        self.own.counters.big.unload();
        chain
    }

    /// What the magazines hold, block by block. Only while the owner is quiet.
    #[cfg(feature = "check")]
    pub(crate) fn walk(&self, mut each: impl FnMut(u32)) -> u64 {
        for block in self.magazines().flat_map(Magazine::blocks) {
            debug_assert_eq!(block.state(), crate::metadata::State::Cached);
            each(block.index());
        }
        self.held()
    }
}
