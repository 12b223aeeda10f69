//! What is done before a request fails.
//!
//! Growth was refused: by the limit, or by the device. Each step that may have freed anything is followed by another attempt, and
//! every step is counted and timed. Only the last ones wait for the device, each for at most the time that the setting
//! `wait` allows.

use super::core::count;
use super::dependencies::Waits;
use super::steps::{Ladder, Outcome, Stage};
use super::{Error, Pool, Result};
use crate::arena::{Arena, Kind};
use crate::config::Dependencies;
use crate::driver::Driver;
use crate::error::{OutOfMemory, Step};
use crate::pages::{Refusal, Target};
use crate::size_class;
use std::sync::PoisonError;
use std::time::Instant;

/// How often the callbacks are asked for one request, at most.
const ASKED_MOST: usize = 8;

/// A request that is short of memory.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) arena: &'a Arena,
    pub(super) units: u32,
    pub(super) bytes: u64,
}

impl<D: Driver> Pool<D> {
    /// A held block of `units` by every means, or the error with its numbers.
    pub(super) fn press(&self, arena: &Arena, units: u32, bytes: u64) -> Result<u32> {
        count(&self.core.events.pressure);
        let mut ladder = Ladder::new(&self.steps);
        // What cannot fit into an empty pool is refused without disturbing this one.
        if size_class::bytes(units) <= self.pages.most()
            && let Some(index) = self.climb(Request { arena, units, bytes }, &mut ladder)?
        {
            return Ok(index);
        }
        count(&self.core.events.out_of_memory);
        self.note_out_of_memory(arena, bytes);
        Err(Error::OutOfMemory(Box::new(self.out_of_memory(
            arena,
            bytes,
            ladder.steps,
        ))))
    }

    fn climb(&self, request: Request<'_>, ladder: &mut Ladder<'_>) -> Result<Option<u32>> {
        let wait = || self.pressed.write().unwrap_or_else(PoisonError::into_inner);
        // One at a time: memory that another request has in its hands would be missing here, and this one fail for nothing.
        let mut alone = Some(wait());
        for stage in Stage::ALL {
            let entered = Instant::now();
            for round in 1.. {
                let began = Instant::now();
                let frees = (stage == Stage::Callbacks).then(|| self.core.count_frees());
                if stage == Stage::Callbacks {
                    // They may call the pool.
                    alone = None;
                }
                let outcome = self.take_step(stage, request, entered);
                if alone.is_none() {
                    alone = Some(wait());
                }
                let Some(outcome) = outcome? else { break };
                let found = match outcome {
                    Outcome::Freed(_) => self.again(request.arena, request.units, stage >= Stage::StreamWaits)?,
                    Outcome::TimedOut | Outcome::Refused => None,
                };
                ladder.note(stage, began, outcome, found.is_some());
                if found.is_some() {
                    return Ok(found);
                }
                match (stage, outcome) {
                    // One block at a time: the next may be the one that is missing.
                    (Stage::Events, Outcome::Freed(_)) => {}
                    // It was too little, or another request was faster: they may have more.
                    (Stage::Callbacks, _) if round < ASKED_MOST && Some(self.core.count_frees()) > frees => {}
                    // Unmapping needs a device that is done with the memory. Where it cannot be waited for, nothing is. On a
                    // device that has failed that looks like a shortage, and is none.
                    (Stage::Device, Outcome::Refused) => {
                        return self.broken().map_or(Ok(None), |error| Err(error.into()));
                    }
                    (Stage::Device, Outcome::TimedOut) => return Ok(None),
                    _ => break,
                }
            }
        }
        Ok(None)
    }

    /// Takes one step, which was `entered` when it was first taken for this request. `None` when there is nothing to do.
    fn take_step(&self, stage: Stage, request: Request<'_>, entered: Instant) -> Result<Option<Outcome>> {
        Ok(match stage {
            Stage::Magazines => Some(Outcome::Freed(self.core.take_magazines(None))),
            Stage::StreamWaits => self.order_pending(request),
            Stage::Callbacks => {
                let before = self.core.allocated();
                let asked = self.ask_callbacks(request.bytes);
                let freed = u64::try_from(before - self.core.allocated()).unwrap_or(0);
                if asked {
                    self.core.take_magazines(None);
                }
                asked.then_some(Outcome::Freed(freed))
            }
            Stage::Events => self.wait_for_nearest(request, entered),
            Stage::Device => Some(self.wait_for_device(request)),
            Stage::IdleTaken => {
                let need = size_class::bytes(Kind::range_units(request.units));
                let taken = self.take_idle(need, true)?;
                // Without addresses an arena of a stream that is gone can be another's.
                self.give_addresses();
                Some(Outcome::Freed(taken))
            }
            Stage::IdleGiven => {
                // Handles that are too large for what is left of the limit: back to the driver, and taken anew as needed.
                // Others may have filled their magazines anew.
                self.core.take_magazines(None);
                let slabs = self.take_idle(u64::MAX, false)?;
                self.give_addresses();
                self.unmap_leftovers();
                let handles = self
                    .pages
                    .release_spare(&self.driver, Target::default())
                    .unwrap_or_else(|_| {
                        count(&self.core.events.driver_errors);
                        0
                    });
                if self.pages.trim_driver_pool(&self.driver).is_err() {
                    count(&self.core.events.driver_errors);
                }
                Some(Outcome::Freed(if self.virtual_memory { handles } else { slabs }))
            }
        })
    }

    /// Another attempt: from the arena, then from the driver. With `waits` the arena's stream may be made to wait for others.
    fn again(&self, arena: &Arena, units: u32, waits: bool) -> Result<Option<u32>> {
        let metadata = &self.core.metadata;
        {
            let mut inner = arena.lock(metadata);
            arena.drain_shared(metadata, &mut inner);
            let kind = inner.kind(units);
            let ranges = &mut inner.region(kind).ranges;
            ranges.promote(&metadata.blocks, Kind::range_units(units));
            let index = inner.take(metadata, units);
            if index != 0 {
                return Ok(Some(index));
            }
        }
        let allowed = waits && self.config.dependencies != Dependencies::Off;
        match self.grow_now(arena, units, if allowed { Waits::Always } else { Waits::Never }) {
            Ok(index) => Ok(Some(index)),
            Err(Refusal::Full) => Ok(None),
            Err(Refusal::Failed(error)) => Err(error.into()),
        }
    }

    /// The numbers of a request that failed.
    pub(super) fn out_of_memory(&self, arena: &Arena, requested: u64, steps: Vec<Step>) -> OutOfMemory {
        let (allocated, pending) = (self.core.allocated().max(0) as u64, self.core.pending());
        let reserved = self.pages.reserved();
        OutOfMemory {
            requested,
            device: self.device(),
            limit: self.pages.limit(),
            allocated,
            pending,
            reserved,
            cached: reserved.saturating_sub(allocated + pending),
            largest_free: arena.lock(&self.core.metadata).largest(&self.core.metadata),
            device_free: self.driver.memory_info().ok().map(|(free, _)| free),
            device_total: self.driver.properties().total_bytes,
            steps,
        }
    }
}
