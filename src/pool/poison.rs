//! Filling memory with the pattern of the setting `poison`: what is given out, and what was freed.
//!
//! Each fill is work of the block's own stream, so it comes after what the block was used for and before what it will be. A capture
//! would take it for a part of the graph: streams that capture, and private pools, are left alone.

use super::core::count;
use super::{Known, Pool};
use crate::arena::StreamKey;
use crate::driver::{DevicePtr, Driver, DriverResult, Stream};
use crate::metadata::Block;
use crate::thread::Current;

impl<D: Driver> Pool<D> {
    /// Fills the block at `addr`, which its user does not have yet. `stream` is its own, and live.
    pub(super) fn poison_fresh(&self, addr: DevicePtr, known: &Known, stream: Stream) -> DriverResult<()> {
        let (Some(value), Some(block)) = (self.config.poison, self.core.metadata.find(addr)) else {
            return Ok(());
        };
        let capturing = match known.capturing {
            Some(capturing) => capturing,
            None => self.driver.is_capturing(stream)?,
        };
        if capturing || self.core.arena_of(block).key().private.is_some() {
            return Ok(());
        }
        self.driver.fill(addr, block.bytes(), value, stream)
    }

    /// Fills a freed block that the caller holds and nothing uses any more, unless its stream can be told nothing now: its handle
    /// may be dead, or it captures. A free does not fail for that.
    pub(super) fn poison_freed(&self, block: &Block) {
        let Some(value) = self.config.poison else {
            return;
        };
        let owner = self.core.arena_of(block).owner();
        let stream = owner.stream;
        let usable = match owner.key.stream {
            _ if owner.key.private.is_some() => false,
            // The handle is another stream's in any other thread.
            StreamKey::PerThread(number) => Current::with(|current| current.number) == Some(number),
            key => self.driver.is_host(stream) || self.is_durable(key),
        };
        if !usable || self.driver.is_capturing(stream) != Ok(false) {
            return;
        }
        if self.driver.fill(block.addr(), block.bytes(), value, stream).is_err() {
            count(&self.core.events.driver_errors);
        }
    }
}
