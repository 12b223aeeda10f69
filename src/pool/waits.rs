//! Waiting for other streams: blocks that are freed and still in use. Every wait of the host has a bound, the setting `wait`.

use super::core::{count, forked};
use super::dependencies::Waits;
use super::pressure::Request;
use super::steps::Outcome;
use super::{Pool, Result};
use crate::arena::Kind;
use crate::config::Dependencies;
use crate::driver::{Driver, DriverError, DriverResult};
use crate::error::Error;
use crate::size_class;
use crate::sync::lock;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

impl<D: Driver> Pool<D> {
    /// The most that a step waits.
    pub(super) fn longest_wait(&self) -> Duration {
        self.config.wait.unwrap_or(Duration::MAX)
    }

    /// Makes the request's stream wait for the streams that still use blocks of its own: the nearest one that is enough, or
    /// as many as are. The host waits for nothing, and the blocks are ready at once. `None` where the stream may not wait.
    pub(super) fn order_pending(&self, request: Request<'_>) -> Option<Outcome> {
        let need = size_class::bytes(Kind::range_units(request.units));
        let may_wait = self.config.dependencies != Dependencies::Off && self.may_wait(request.arena);
        may_wait.then(|| Outcome::Freed(self.claim(request.arena, need, Waits::Always)))
    }

    /// Waits for the events of one waiting block, if any can be had for which that is enough. `None` when nothing waits
    /// for events.
    pub(super) fn wait_for_nearest(&self, request: Request<'_>, entered: Instant) -> Option<Outcome> {
        let blocks = &self.core.metadata.blocks;
        let events = {
            let pending = lock(&self.pending);
            let enough = pending.nearest(|index| blocks.get(index).units() >= request.units);
            pending.events_of(enough.or_else(|| pending.nearest(|_| true))?)
        };
        for event in events {
            let left = match self.longest_wait() {
                Duration::MAX => Duration::MAX,
                longest => longest.saturating_sub(entered.elapsed()),
            };
            match self.driver.event_synchronize(event, left) {
                Ok(true) => {}
                Ok(false) => return Some(Outcome::TimedOut),
                Err(_) => return Some(Outcome::Refused),
            }
        }
        let before = self.core.pending();
        // Without any that is ready after the wait the driver answers no queries: nothing to wait for again.
        let polled = self.poll_pending();
        let freed = before.saturating_sub(self.core.pending());
        polled.then_some(Outcome::Freed(freed))
    }

    /// Waits for the whole context, and takes everything that waited for streams.
    pub(super) fn wait_for_device(&self, request: Request<'_>) -> Outcome {
        let arena = request.arena;
        // The request's own stream may capture, and its handle is live: it was passed just now.
        if arena.key().private.is_some() && self.driver.is_capturing(arena.stream()) != Ok(false) {
            return Outcome::Refused;
        }
        match self.quiesce() {
            Ok(bytes) => Outcome::Freed(bytes),
            Err(Error::Driver(error)) if error.code == NOT_READY => Outcome::TimedOut,
            Err(_) => Outcome::Refused,
        }
    }

    /// Waits for the whole context, unless that would end a capture, also one of another thread.
    pub(super) fn synchronize_context(&self) -> DriverResult<()> {
        let call = "cuCtxSynchronize";
        let _nobody_announces = self.announcing.read().unwrap_or_else(PoisonError::into_inner);
        if self.may_capture() {
            // A device that has failed does not tell of captures either.
            if let Some(error) = self.broken() {
                return Err(error);
            }
            return Err(DriverError {
                call,
                code: 900,
                name: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            });
        }
        count(&self.core.events.synchronizations);
        if self.driver.synchronize(self.longest_wait())? {
            return Ok(());
        }
        Err(DriverError {
            call,
            code: NOT_READY,
            name: "CUDA_ERROR_NOT_READY",
        })
    }

    /// Waits for the whole context, and takes everything that waited for streams. Returns the bytes.
    pub(super) fn quiesce(&self) -> Result<u64> {
        if forked() {
            return Err(Error::Forked);
        }
        // They stay where they are: others may find that their events are complete meanwhile.
        let mark = lock(&self.pending).mark();
        self.synchronize_context()?;
        let done = lock(&self.pending).finish(mark);
        let blocks = &self.core.metadata.blocks;
        let bytes = done.iter().map(|&index| blocks.get(index).bytes()).sum();
        self.finish_pending(&done);
        Ok(bytes)
    }
}

/// The work that was waited for is not done.
const NOT_READY: u32 = 600;
