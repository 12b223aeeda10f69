//! An arena that gets more memory: of others, of spare handles, and new of the driver.

use super::Pool;
use super::core::count;
use super::dependencies::Waits;
use super::remap::Gathered;
use crate::arena::{Arena, Kind, Mapping, Span};
use crate::driver::Driver;
use crate::history::Action;
use crate::metadata::covers;
use crate::pages::{Cut, Refusal, Unmapped};
use crate::size_class::{self, BYTES_MAX, CLASS_MAX, GRANULE};
use std::sync::PoisonError;

/// The part of a region's memory that it grows by at least (1/512, so at most 0.2 % is ahead of need), up to `STEP_MOST`.
const STEP_PART: u64 = 512;
const STEP_MOST: u64 = 64 << 20;
/// How many reservations one growth adds at most: threads that grow the same arena at once may use each other's.
const RESERVATIONS: u32 = 4;
/// Slabs from the driver are multiples of this, in bytes: what the address table and small blocks expect, and what
/// the device's own pages are.
pub(super) const SLAB_UNIT: u64 = 2 << 20;
/// Requests from this size on get a slab of their own; smaller ones share one of `SLAB_USUAL` bytes. PyTorch's figures,
/// which make its segments and ours comparable.
const SLAB_SHARED: u64 = 10 << 20;
const SLAB_USUAL: u64 = 20 << 20;

impl<D: Driver> Pool<D> {
    /// Takes memory from the driver; a held block of `units` from it. Waits while a request is pressed.
    pub(super) fn grow(&self, arena: &Arena, units: u32) -> Result<u32, Refusal> {
        let _beside_others = self.pressed.read().unwrap_or_else(PoisonError::into_inner);
        self.grow_now(arena, units, self.waits_for_growth())
    }

    /// As [`Self::grow`], by whoever holds the lock. No arena's lock is held over a driver call. With `waits` the arena's stream
    /// may be made to wait for others.
    pub(super) fn grow_now(&self, arena: &Arena, units: u32, waits: Waits) -> Result<u32, Refusal> {
        // What can never be held is not worth addresses either.
        if size_class::bytes(units) > self.pages.most() {
            return Err(Refusal::Full);
        }
        count(&self.core.events.growths);
        arena.unsettle();
        if self.is_guarded(arena) {
            self.map_guarded(arena, units)
        } else if self.virtual_memory {
            self.grow_pages(arena, units, waits)
        } else {
            self.grow_slabs(arena, units)
        }
    }

    fn grow_pages(&self, arena: &Arena, units: u32, waits: Waits) -> Result<u32, Refusal> {
        let index = self.wake(arena, units, waits);
        if index != 0 {
            return Ok(index);
        }
        let metadata = &self.core.metadata;
        let properties = self.driver.properties();
        let kind = Kind::of(units);
        let mut step = None;
        let (mut added, mut widened) = (0, false);
        loop {
            let (growth, seam) = {
                let mut inner = arena.lock(metadata);
                let region = inner.region(kind);
                let step = step.unwrap_or_else(|| match self.config.growth {
                    0 => (region.held / STEP_PART).min(STEP_MOST),
                    growth => growth,
                });
                let range_units = Kind::range_units(units);
                let growth = region.plan(&metadata.blocks, range_units, properties.granularity, step);
                // The page in which the block ends has a neighbour too: a handle of its own leaves the rest free with the block.
                let end = growth.map_or(0, |growth| {
                    metadata.blocks.get(growth.first()).addr() + size_class::bytes(range_units)
                });
                (growth, end / properties.granularity * properties.granularity)
            };
            let Some(growth) = growth else {
                // A new reservation has room. If there is still none, others took it, or there are no records left.
                if added == RESERVATIONS {
                    return Err(Refusal::Full);
                }
                self.add_reservation(arena, kind, units)?;
                added += 1;
                continue;
            };
            let Gathered { lent, more, .. } = self.gather(arena, kind, growth.bytes, waits);
            if more > 0 && !widened {
                // Once more, and larger: what is free as a whole is used as a whole.
                self.settle(lent, |_| false);
                arena
                    .lock(metadata)
                    .region(kind)
                    .roll_back(&metadata.blocks, growth, &[]);
                (step, widened) = (Some(growth.bytes + more), true);
                continue;
            }
            let handles: Vec<Mapping> = lent.iter().flat_map(|lent| lent.mappings(arena)).collect();
            let cut = Cut {
                seam: if self.pages.affords_seam() { seam } else { 0 },
                streams: self.others(arena).next().is_some(),
            };
            match self.pages.map(&self.driver, growth.addr, growth.bytes, cut, &handles) {
                Ok(mappings) => {
                    self.settle(lent, |_| true);
                    self.note_memory(Action::Map, arena, growth.addr, growth.bytes);
                    return match arena.lock(metadata).commit(metadata, growth, &mappings, units) {
                        // No records left for a slab: the memory is free now.
                        0 => Err(Refusal::Full),
                        index => Ok(index),
                    };
                }
                Err(Unmapped { refusal, stuck }) => {
                    self.settle(lent, |handle| stuck.iter().any(|mapping| mapping.handle == handle));
                    arena
                        .lock(metadata)
                        .region(kind)
                        .roll_back(&metadata.blocks, growth, &stuck);
                    // What the step adds to the need may be what was too much.
                    if step == Some(0) || matches!(refusal, Refusal::Failed(_)) {
                        return Err(refusal);
                    }
                    step = Some(0);
                }
            }
        }
    }

    /// Reserves addresses for a region: enough for the whole device where that is large, so that its free ranges can
    /// always become one. Where so many are not to be had, as many as the request needs.
    fn add_reservation(&self, arena: &Arena, kind: Kind, units: u32) -> Result<(), Refusal> {
        let properties = self.driver.properties();
        let usual = match kind {
            Kind::Large => properties.total_bytes + properties.total_bytes / 8,
            Kind::Slabs | Kind::Small => properties.total_bytes / 8,
        };
        let most = (BYTES_MAX / properties.granularity) * properties.granularity;
        let need = size_class::bytes(Kind::range_units(units)).next_multiple_of(properties.granularity);
        if need > most {
            return Err(Refusal::Full);
        }
        let usual = usual.next_multiple_of(properties.granularity).clamp(need, most);
        let (addr, bytes) = match self.driver.reserve(usual) {
            Err(error) if error.is_out_of_memory() && need < usual => (self.driver.reserve(need)?, need),
            result => (result?, usual),
        };
        if self.add_segment(arena, kind, Span { addr, bytes }, true) {
            return Ok(());
        }
        // Without records nothing can be given out; addresses that cannot be given back cost nothing.
        let _ = self.driver.unreserve(addr, bytes);
        Err(Refusal::Full)
    }

    /// Adds a segment to an arena, unless its addresses are beyond the table or there are no records left.
    fn add_segment(&self, arena: &Arena, kind: Kind, span: Span, reserved: bool) -> bool {
        let metadata = &self.core.metadata;
        let covered = span.addr.checked_add(span.bytes).is_some_and(covers);
        covered
            && arena
                .lock(metadata)
                .region(kind)
                .add_segment(&metadata.blocks, span, reserved)
    }

    fn grow_slabs(&self, arena: &Arena, units: u32) -> Result<u32, Refusal> {
        let metadata = &self.core.metadata;
        let kind = arena.lock(metadata).kind(units);
        let host = self.driver.is_host(arena.stream());
        let few = kind == Kind::Slabs && host;
        let unit = if few { size_class::bytes(GRANULE) } else { SLAB_UNIT };
        let need = size_class::bytes(Kind::range_units(units)).next_multiple_of(unit);
        let usual = match self.config.growth {
            0 if host && !few => need,
            0 if units <= CLASS_MAX => SLAB_UNIT,
            0 if need < SLAB_SHARED => SLAB_USUAL,
            0 => need,
            growth => growth.checked_next_multiple_of(SLAB_UNIT).unwrap_or(need),
        };
        // As much again as there is of them: few small blocks strand little, and many take few calls.
        let usual = if few {
            let held = arena.lock(metadata).region(kind).held;
            usual.min(held.max(self.driver.properties().granularity))
        } else {
            usual
        };
        let taken = match self.take_slab(arena, kind, usual.max(need), need) {
            Err(Refusal::Full) if usual > need => self.take_slab(arena, kind, need, need),
            other => other,
        };
        let span = match taken {
            Err(Refusal::Full) => self.move_slab(arena, kind, need).ok_or(Refusal::Full)?,
            other => other?,
        };
        self.use_slab(arena, kind, span, units)
    }

    /// Makes a slab from the driver the arena's. A held block of `units` from it.
    pub(super) fn use_slab(&self, arena: &Arena, kind: Kind, span: Span, units: u32) -> Result<u32, Refusal> {
        let metadata = &self.core.metadata;
        if !self.add_segment(arena, kind, span, false) {
            // If it cannot be given back it stays booked; what the stream had before may still be in use.
            if self.synchronize_context().is_ok() {
                let _ = self.pages.give_slab(&self.driver, span.addr, span.bytes);
            }
            return Err(Refusal::Full);
        }
        self.note_memory(Action::Map, arena, span.addr, span.bytes);
        match arena.lock(metadata).take(metadata, units) {
            0 => Err(Refusal::Full),
            index => Ok(index),
        }
    }

    /// A slab that the stream has idle for blocks of another kind: by stream order it may be used for this one at once.
    fn move_slab(&self, arena: &Arena, kind: Kind, need: u64) -> Option<Span> {
        let metadata = &self.core.metadata;
        let mut inner = arena.lock(metadata);
        arena.drain_shared(metadata, &mut inner);
        let others = Kind::ALL.into_iter().filter(|&other| other != kind);
        let found = others
            .into_iter()
            .find_map(|other| inner.region(other).give_up_slab(&metadata.blocks, need));
        drop(inner);
        let span = found?;
        self.note_memory(Action::Unmap, arena, span.addr, span.bytes);
        Some(span)
    }

    /// A slab of `bytes`; with a granule more where the driver's is not aligned to one and `need` would not fit.
    pub(super) fn take_slab(&self, arena: &Arena, kind: Kind, bytes: u64, need: u64) -> Result<Span, Refusal> {
        let granule = size_class::bytes(GRANULE);
        let addr = self.pages.take_slab(&self.driver, bytes, arena.stream())?;
        if addr.is_multiple_of(granule) || bytes - need >= granule {
            return Ok(Span { addr, bytes });
        }
        if let Err(error) = self.pages.give_slab(&self.driver, addr, bytes) {
            // The arena keeps what the driver will not have back, for smaller requests.
            self.add_segment(arena, kind, Span { addr, bytes }, false);
            return Err(error.into());
        }
        let bytes = bytes + granule;
        Ok(Span {
            addr: self.pages.take_slab(&self.driver, bytes, arena.stream())?,
            bytes,
        })
    }
}
