//! Guarded blocks, for the setting `guard`: each has pages of its own and ends where they end.
//!
//! ```text
//!   live    |.......[ block ]  guard  |    reserved: pages + one page; the guard, like `.` after a free, has no memory
//!   freed   |                         |    addresses stay reserved until enough others were freed
//! ```
//!
//! What runs past the end of a block, or uses one that was freed, is an illegal address, at once, instead of somebody else's
//! data. Invariants:
//! - a block of a guarded pool that is no capture's has a place, from its allocation until its addresses go back;
//! - a place has mappings exactly while its block is given out or waits, but for those that the driver would not unmap;
//! - the arena of a block that is given out or waits is visited, and so keeps its owner.

use super::Pool;
use super::core::count;
use crate::arena::{Arena, Mapping};
use crate::driver::{DevicePtr, Driver, DriverError};
use crate::history::Action;
use crate::metadata::{Block, Entry, State, covers};
use crate::pages::{Cut, Refusal, Unmapped};
use crate::size_class;
use crate::sync::{Mutex, lock};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

/// The addresses of one block.
struct Place {
    /// How many are reserved, the guard included.
    bytes: u64,
    block: u32,
    mappings: Vec<Mapping>,
}

impl Place {
    /// Bytes of memory behind them.
    fn held(&self) -> u64 {
        self.mappings.iter().map(|mapping| mapping.bytes).sum()
    }
}

/// All guarded blocks of a pool.
#[derive(Default)]
pub(super) struct Guards {
    places: Mutex<Places>,
    /// Held by whoever takes memory or addresses of freed blocks away, over calls of the driver.
    taking: Mutex<()>,
}

/// What the lock guards.
#[derive(Default)]
struct Places {
    /// By first address.
    all: BTreeMap<DevicePtr, Place>,
    /// Those whose blocks were freed, oldest first.
    freed: VecDeque<DevicePtr>,
    freed_bytes: u64,
}

impl Places {
    /// First address of the place around `addr`.
    fn base(&self, addr: DevicePtr) -> Option<DevicePtr> {
        let (&base, place) = self.all.range(..=addr).next_back()?;
        (addr - base < place.bytes).then_some(base)
    }
}

impl<D: Driver> Pool<D> {
    /// Whether blocks of this arena have pages of their own. Those of captures have not: a graph uses freed blocks as often as it is
    /// replayed.
    pub(super) fn is_guarded(&self, arena: &Arena) -> bool {
        self.config.guard.is_some() && arena.key().private.is_none()
    }

    /// The guarded blocks that have memory, and how many bytes each.
    pub(super) fn guarded_blocks(&self) -> Vec<(&Block, u64)> {
        let places = lock(&self.guards.places);
        let with_memory = places.all.values().filter(|place| !place.mappings.is_empty());
        with_memory
            .map(|place| (self.core.metadata.blocks.get(place.block), place.held()))
            .collect()
    }

    /// The block around whose addresses, the guard included, `addr` is.
    pub(super) fn guarded_at(&self, addr: DevicePtr) -> Option<&Block> {
        let places = lock(&self.guards.places);
        let base = places.base(addr)?;
        places
            .all
            .get(&base)
            .map(|place| self.core.metadata.blocks.get(place.block))
    }

    /// A held block of `units` with pages of its own.
    pub(super) fn map_guarded(&self, arena: &Arena, units: u32) -> Result<u32, Refusal> {
        let metadata = &self.core.metadata;
        let granularity = self.driver.properties().granularity;
        // At most 2 TiB, and two pages.
        let mapped = size_class::bytes(units).next_multiple_of(granularity);
        let bytes = mapped + granularity;
        let base = self.reserve_guarded(bytes)?;
        let index = if covers(base + bytes) {
            metadata.blocks.take(1)
        } else {
            0
        };
        if index == 0 {
            // Addresses that cannot be given back cost nothing.
            let _ = self.driver.unreserve(base, bytes);
            return Err(Refusal::Full);
        }
        let block = metadata.blocks.get(index);
        let addr = base + mapped - size_class::bytes(units);
        block.set_index(index);
        block.addr.store(addr, Relaxed);
        block.units.store(units, Relaxed);
        block.arena.store(arena.index, Relaxed);
        block.is_slot.store(0, Relaxed);
        let (mappings, refusal) = match self.pages.map(&self.driver, base, mapped, Cut::default(), &[]) {
            Ok(mappings) => (mappings, None),
            Err(Unmapped { refusal, stuck }) => (stuck, Some(refusal)),
        };
        let place = Place {
            bytes,
            block: index,
            mappings,
        };
        lock(&self.guards.places).all.insert(base, place);
        if let Some(refusal) = refusal {
            block.set_state(State::Unmapped);
            {
                let mut places = lock(&self.guards.places);
                places.freed.push_front(base);
                places.freed_bytes += bytes;
            }
            self.give_oldest();
            return Err(refusal);
        }
        // Held by us.
        block.set_state(State::Cached);
        metadata.enter(addr, Entry::Block(block));
        // Its owner stays while we are on a visit, and this one lasts as long as the block.
        arena.visit().keep();
        self.note_memory(Action::Map, arena, base, mapped);
        Ok(index)
    }

    /// Addresses for a block. Where there are none left, those of all freed blocks are given up for them.
    fn reserve_guarded(&self, bytes: u64) -> Result<DevicePtr, DriverError> {
        match self.driver.reserve(bytes) {
            Err(error) if error.is_out_of_memory() => {
                self.give_guarded(0);
                self.driver.reserve(bytes)
            }
            result => result,
        }
    }

    /// The device is done with a block that was freed: its memory goes, and its addresses stay for a while.
    pub(super) fn retire(&self, arena: &Arena, block: &Block) {
        block.set_state(State::Unmapped);
        let taking = lock(&self.guards.taking);
        let Some(base) = lock(&self.guards.places).base(block.addr()) else {
            return;
        };
        let before = self.unmap_guarded(base);
        self.note_memory(Action::Unmap, arena, base, before);
        {
            let mut places = lock(&self.guards.places);
            places.freed.push_back(base);
            places.freed_bytes += places.all.get(&base).map_or(0, |place| place.bytes);
        }
        drop(taking);
        arena.end_visit();
        self.give_guarded(self.config.guard.unwrap_or(0));
    }

    /// Unmaps the memory of a freed block; how much there was. What the driver does not unmap stays for the next time.
    fn unmap_guarded(&self, base: DevicePtr) -> u64 {
        let mappings = match lock(&self.guards.places).all.get_mut(&base) {
            Some(place) => std::mem::take(&mut place.mappings),
            None => return 0,
        };
        let bytes = mappings.iter().map(|mapping| mapping.bytes).sum();
        for mapping in mappings {
            if self.pages.unmap(&self.driver, &mapping).is_err() {
                count(&self.core.events.driver_errors);
                if let Some(place) = lock(&self.guards.places).all.get_mut(&base) {
                    place.mappings.push(mapping);
                }
            }
        }
        bytes
    }

    /// Once more for memory of freed blocks that the driver did not unmap.
    pub(super) fn unmap_leftovers(&self) {
        let _taking = lock(&self.guards.taking);
        let bases: Vec<DevicePtr> = {
            let places = lock(&self.guards.places);
            let freed = places.freed.iter().copied();
            freed
                .filter(|base| places.all.get(base).is_some_and(|place| !place.mappings.is_empty()))
                .collect()
        };
        for base in bases {
            self.unmap_guarded(base);
        }
    }

    /// Gives up the addresses of blocks that were freed first, until those of at most `keep` bytes are left.
    pub(super) fn give_guarded(&self, keep: u64) {
        while lock(&self.guards.places).freed_bytes > keep {
            if !self.give_oldest() {
                return;
            }
        }
    }

    /// Gives up the addresses of the block that was freed first. `false` where the driver does not have them back.
    fn give_oldest(&self) -> bool {
        let metadata = &self.core.metadata;
        let _taking = lock(&self.guards.taking);
        let Some(base) = lock(&self.guards.places).freed.pop_front() else {
            return false;
        };
        self.unmap_guarded(base);
        let gone = {
            let mut places = lock(&self.guards.places);
            match places.all.get(&base) {
                Some(place) if place.mappings.is_empty() => {
                    places.freed_bytes -= place.bytes;
                    places.all.remove(&base)
                }
                _ => {
                    places.freed.push_front(base);
                    None
                }
            }
        };
        let Some(place) = gone else {
            return false;
        };
        let block = metadata.blocks.get(place.block);
        metadata.enter(block.addr(), Entry::None);
        block.set_state(State::Vacant);
        metadata.blocks.give(place.block, 1);
        if self.driver.unreserve(base, place.bytes).is_err() {
            // Only addresses are lost.
            count(&self.core.events.driver_errors);
        }
        true
    }
}
