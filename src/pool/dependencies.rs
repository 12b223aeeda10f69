//! Streams that wait for each other on the device, so that memory that is free but for that serves where it is wanted.
//!
//! `cuStreamWaitEvent` orders what a stream does from now on after what another one has been given so far. Nobody waits on the
//! host; the two streams' work no longer overlaps there, so [`Dependencies`](crate::config::Dependencies) says when this is done.

use super::Pool;
use super::core::count;
use super::remap::Gathered;
use crate::arena::{Arena, Kind};
use crate::config::Dependencies;
use crate::driver::Driver;
use crate::sync::lock;
use std::sync::atomic::Ordering::Relaxed;

/// For what a stream may be made to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// For nothing.
    Never,
    /// For work behind which the other stream has more: it goes on when the waiting one begins.
    Overlapping,
    /// For everything.
    Always,
}

impl<D: Driver> Pool<D> {
    /// What the setting allows before memory is taken from the driver.
    pub(super) fn waits_for_growth(&self) -> Waits {
        match self.config.dependencies {
            Dependencies::Off | Dependencies::Pressure => Waits::Never,
            Dependencies::Overlap => Waits::Overlapping,
            Dependencies::Growth => Waits::Always,
        }
    }

    /// Whether the arena's stream, whose handle is live, may be made to wait. A capture would become a part of what it waits for.
    pub(super) fn may_wait(&self, arena: &Arena) -> bool {
        let stream = arena.stream();
        arena.key().private.is_none() && !self.driver.is_host(stream) && self.driver.is_capturing(stream) == Ok(false)
    }

    /// Lets the arena's stream wait for other streams' uses of its own freed blocks, those freed first first, until they are
    /// about `bytes`. They are free for it then. Returns their bytes.
    ///
    /// The caller has asked [`Self::may_wait`].
    pub(super) fn claim(&self, arena: &Arena, bytes: u64, waits: Waits) -> u64 {
        // Relaxed: a block that begins to wait just now is found the next time.
        if self.waiting.load(Relaxed) == 0 {
            return 0;
        }
        let blocks = &self.core.metadata.blocks;
        let ours = |index| {
            let block = blocks.get(index);
            // Relaxed: set before the block could be reached.
            (block.arena.load(Relaxed) == arena.index).then(|| block.bytes())
        };
        let mut pending = lock(&self.pending);
        let done = pending.earliest(bytes, waits == Waits::Overlapping, ours);
        match pending.order(&self.driver, arena.stream(), &done) {
            // Relaxed: a number that nothing else is read through.
            Ok(waits) => self.core.events.stream_waits.fetch_add(waits, Relaxed),
            Err(_) => {
                count(&self.core.events.driver_errors);
                return 0;
            }
        };
        drop(pending);
        self.finish_pending(&done);
        done.iter().map(|&index| blocks.get(index).bytes()).sum()
    }

    /// Takes free memory of `other` for the arena, whose stream waits for what the other one has to do.
    ///
    /// The caller has asked [`Self::may_wait`] for the arena; the other stream's handle is live.
    pub(super) fn borrow<'a>(&'a self, arena: &Arena, other: &'a Arena, waits: Waits, found: &mut Gathered<'a>) {
        if !self.may_wait(other) {
            return;
        }
        if self.claim(other, found.missing(), waits) > 0 {
            self.tick(other);
        }
        let gate = lock(&other.gate);
        let Some(&(epoch, event)) = gate.newest(waits == Waits::Overlapping) else {
            return;
        };
        let before = found.parts();
        self.lend(other, &Kind::ALL, epoch, false, found);
        if found.parts() == before {
            return;
        }
        // Under the gate's lock the event is not recorded anew.
        if self.driver.stream_wait(arena.stream(), event).is_ok() {
            count(&self.core.events.stream_waits);
            return;
        }
        count(&self.core.events.driver_errors);
        self.settle(found.back_to(before), |_| false);
    }
}
