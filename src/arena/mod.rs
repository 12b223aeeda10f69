//! Arenas: the memory of one stream (or of one private pool of graph captures), under one short lock.
//!
//! An arena is asked only when a thread's magazine has nothing. It cuts small blocks from slabs and larger ones from
//! ranges, and takes both back. Its lock is never held over a driver call.

mod alias;
mod growth;
mod idle;
mod owner;
mod patience;
mod places;
mod range;
mod region;
mod slab;
mod window;

pub(crate) use alias::{Alias, Piece};
pub(crate) use growth::Growth;
pub(crate) use idle::{Idle, What};
use owner::Visits;
pub(crate) use owner::{ArenaKey, Owner, StreamKey, Visit};
pub(crate) use patience::Patience;
pub(crate) use region::{Mapping, Region, Span};
pub(crate) use slab::{Slab, Slabs};

use crate::driver::{Event, Handle, Stream};
use crate::freelist::{Links, TaggedStack, TakeAll};
use crate::metadata::{Block, Blocks, Entry, State, Table};
use crate::size_class::{self, CLASS_MAX, GRANULE, SLOT_MAX};
use crate::sync::atomic::{AtomicBool, AtomicU32};
use crate::sync::{Mutex, MutexGuard, lock};
use slab::Partial;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::Relaxed;

/// All records of a pool.
pub(crate) struct Metadata {
    pub(crate) blocks: Blocks,
    pub(crate) slabs: Slabs,
    pub(crate) table: Table<Block, Slab>,
}

impl Metadata {
    pub(crate) fn new() -> Self {
        Self {
            blocks: Blocks::new(),
            slabs: Slabs::new(),
            table: Table::new(),
        }
    }

    /// The block that begins at `addr` and was given out at some time, or `None`.
    #[inline(always)]
    pub(crate) fn find(&self, addr: u64) -> Option<&Block> {
        let block = match self.table.get(addr) {
            Entry::Block(block) => block,
            Entry::Slab(slab) => slab.block_at(addr)?,
            Entry::None => return None,
        };
        (block.addr() == addr).then_some(block)
    }

    /// The slab that has the granule of `addr`.
    pub(crate) fn slab(&self, addr: u64) -> Option<&Slab> {
        match self.table.get(addr) {
            Entry::Slab(slab) => Some(slab),
            _ => None,
        }
    }

    /// Enters the granule of `addr` into the table.
    pub(crate) fn enter(&self, addr: u64, entry: Entry<'_, Block, Slab>) {
        // SAFETY: records of both kinds live in `self`, beside the table, and are aligned to 64 bytes.
        unsafe { self.table.set(addr, entry) };
    }

    /// Host bytes of the records (the table's leaves not counted).
    pub(crate) fn host_bytes(&self) -> u64 {
        self.blocks.host_bytes() + self.slabs.host_bytes()
    }
}

/// What a region's segments are cut into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Slabs of slots up to 16 KiB.
    Slabs = 0,
    /// Blocks up to 1 MiB.
    Small = 1,
    /// Blocks above.
    Large = 2,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub(crate) const ALL: [Self; 3] = [Self::Slabs, Self::Small, Self::Large];

    /// Where blocks of `units` come from.
    pub(crate) fn of(units: u32) -> Self {
        if units <= SLOT_MAX {
            Self::Slabs
        } else if units <= CLASS_MAX {
            Self::Small
        } else {
            Self::Large
        }
    }

    /// What a region of this kind must find for a block of `units`: the block, or a slab for it.
    pub(crate) fn range_units(units: u32) -> u32 {
        if units <= SLOT_MAX {
            size_class::slots(units).granules * GRANULE
        } else {
            units
        }
    }
}

/// Events on an arena's stream that tell which of its free memory the device is done with. Recorded only while an arena
/// grows, when that memory is wanted elsewhere.
#[derive(Default)]
pub(crate) struct Gate {
    /// Events under way, with the epoch that each ends; oldest first.
    pub(crate) events: VecDeque<(u64, Event)>,
    /// All work up to the end of this epoch is done.
    pub(crate) done: u64,
}

impl Gate {
    /// The newest event, with the epoch that it ends; with `behind` the newest that has another behind it.
    pub(crate) fn newest(&self, behind: bool) -> Option<&(u64, Event)> {
        self.events.iter().rev().nth(usize::from(behind))
    }
}

/// How many large blocks come back without growth until an arena counts as settled.
const SETTLED: u32 = 256;
/// Sixteen times as many once it grew although it was settled, up to so many.
const SETTLED_MOST: u32 = 1 << 20;
/// For each handle or slab that an arena has for large blocks at most so many: what serves a few blocks is known sooner.
const SETTLED_HANDLE: u32 = 2048;

/// Small blocks that have less than this part of an arena's memory, 0.8 %, lend nothing to large ones, and get nothing from them. Which
/// pages they have free depends on what waits in magazines, so that what was lent would not be free when it comes again.
const APART: u64 = 128;

/// One arena.
pub(crate) struct Arena {
    pub(crate) index: u32,
    owner: Mutex<Owner>,
    visits: Visits,
    /// Blocks that other threads returned, for whoever takes the lock next.
    pub(crate) returned: TakeAll,
    /// Blocks of each class, for any thread.
    shared: Box<[TaggedStack]>,
    /// Large blocks that came back since the arena last grew.
    settled: AtomicU32,
    /// How many of them it takes to be settled.
    needed: AtomicU32,
    /// What of its stream's work is known to be done.
    pub(crate) gate: Mutex<Gate>,
    /// Captures and pool objects that hold a private pool; its memory goes nowhere else while there are any.
    pub(crate) holders: AtomicU32,
    in_use: AtomicBool,
    /// Whether large blocks may be had at several addresses.
    is_aliased: AtomicBool,
    /// Of pinned memory: how long its requests wait.
    pub(crate) patience: Patience,
    /// How many handles are mapped for large blocks, and segments.
    handles: AtomicU32,
    /// Of a thread's default stream: the thread has ended.
    ended: AtomicBool,
    inner: Mutex<Inner>,
}

/// An arena under its lock.
pub(crate) struct Locked<'a> {
    arena: &'a Arena,
    inner: MutexGuard<'a, Inner>,
}

impl Deref for Locked<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let in_use = self.inner.regions.iter().any(|region| region.live_segments > 0);
        self.arena.in_use.store(in_use, Relaxed);
        let large = &self.inner.regions[Kind::Large as usize];
        self.arena.is_aliased.store(!large.aliases.is_empty(), Relaxed);
        let handles = large.mapped.len() + large.live_segments;
        self.arena.handles.store(handles as u32, Relaxed);
    }
}

/// What the lock guards.
pub(crate) struct Inner {
    arena: u32,
    /// Whether all blocks that are no slots share the region of the large ones.
    one_region: bool,
    /// Raised with each event that is recorded to learn what is idle, from 1: blocks freed before have a lower number.
    pub(crate) epoch: u64,
    pub(crate) regions: [Region; 3],
    partial: [Partial; SLOT_MAX as usize + 1],
    /// Slab records of each class that are not in use.
    spare: [Vec<u32>; SLOT_MAX as usize + 1],
}

impl Arena {
    pub(crate) fn new(index: u32, key: ArenaKey, stream: Stream, one_region: bool) -> Self {
        let mut shared = Vec::with_capacity(CLASS_MAX as usize + 1);
        shared.resize_with(CLASS_MAX as usize + 1, TaggedStack::default);
        Self {
            index,
            owner: Mutex::new(Owner { key, stream }),
            visits: Visits::default(),
            returned: TakeAll::default(),
            shared: shared.into(),
            settled: AtomicU32::new(0),
            needed: AtomicU32::new(SETTLED),
            gate: Mutex::default(),
            holders: AtomicU32::new(0),
            in_use: AtomicBool::new(false),
            is_aliased: AtomicBool::new(false),
            patience: Patience::default(),
            handles: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                arena: index,
                one_region,
                epoch: 1,
                regions: std::array::from_fn(|_| Region::new(index)),
                partial: [Partial::default(); SLOT_MAX as usize + 1],
                spare: std::array::from_fn(|_| Vec::new()),
            }),
        }
    }

    /// The shared list of a class; sizes above [`CLASS_MAX`] have none.
    pub(crate) fn shared(&self, units: u32) -> Option<&TaggedStack> {
        self.shared.get(units as usize)
    }

    /// What is on the shared lists, until `each` has seen enough of one. Only while all threads are quiet.
    #[cfg(feature = "check")]
    pub(crate) fn walk_shared(&self, metadata: &Metadata, mut each: impl FnMut(u32) -> bool) {
        for list in &self.shared {
            list.walk(&metadata.blocks, &mut each);
        }
    }

    /// A large block came back.
    pub(crate) fn settle(&self) {
        // Relaxed, here and below: a hint. It wraps after 2^32 large blocks, which costs a few hits.
        self.settled.fetch_add(1, Relaxed);
    }

    /// The arena grows, or uses memory at other addresses than before. Magazines that hold what is wanted elsewhere may be why, so
    /// it takes longer the next time.
    pub(crate) fn unsettle(&self) {
        let needed = self.needed.load(Relaxed);
        if self.settled.swap(0, Relaxed) >= needed {
            self.needed.store((needed * 16).min(SETTLED_MOST), Relaxed);
        }
    }

    /// Whether the arena has what its stream needs. As long as it has not, large blocks stay out of the magazines, so that they can
    /// be one with their neighbours: exact reuse is fast, but what waits for its own size is a hole for all others. Where memory
    /// serves at several addresses that takes the longest: each has to be free when the place is wanted that it had the last time.
    pub(crate) fn is_settled(&self) -> bool {
        // Relaxed: hints, as the others.
        let needed = match self.is_aliased.load(Relaxed) {
            true => SETTLED_MOST,
            false => self.needed.load(Relaxed),
        };
        let most = self.handles.load(Relaxed).saturating_mul(SETTLED_HANDLE);
        self.settled.load(Relaxed) >= needed.min(most)
    }

    /// Takes the lock and everything that was returned meanwhile.
    pub(crate) fn lock(&self, metadata: &Metadata) -> Locked<'_> {
        let mut inner = lock(&self.inner);
        inner.give_chain(metadata, self.returned.take());
        Locked { arena: self, inner }
    }

    /// Whether the arena has memory, or addresses, as of when its lock was last free: those of most streams have none once they
    /// are gone.
    pub(crate) fn is_in_use(&self) -> bool {
        // Relaxed: a hint. Who needs to know takes the lock.
        self.in_use.load(Relaxed)
    }

    /// Empties the shared lists into the slabs and ranges.
    pub(crate) fn drain_shared(&self, metadata: &Metadata, inner: &mut Inner) {
        for list in self.shared.iter().filter(|list| !list.is_empty()) {
            inner.give_chain(metadata, list.take());
        }
    }
}

impl Inner {
    /// Where blocks of `units` come from here.
    pub(crate) fn kind(&self, units: u32) -> Kind {
        match Kind::of(units) {
            Kind::Small if self.one_region => Kind::Large,
            kind => kind,
        }
    }

    pub(crate) fn region(&mut self, kind: Kind) -> &mut Region {
        &mut self.regions[kind as usize]
    }

    /// Whether small blocks and large ones keep their memory apart: the small ones have little beside the rest.
    pub(crate) fn keeps_apart(&self) -> bool {
        let small = self.regions[Kind::Slabs as usize].held + self.regions[Kind::Small as usize].held;
        small < self.held() / APART
    }

    /// A region, about to be asked for a place or told of one.
    pub(crate) fn placing(&mut self, kind: Kind) -> &mut Region {
        let clock = self.regions[Kind::Large as usize].places.clock();
        let region = self.region(kind);
        if kind != Kind::Large {
            region.places.set_clock(clock);
        }
        region
    }

    /// A block of exactly `units`, held by the caller and in the table, or 0.
    pub(crate) fn take(&mut self, metadata: &Metadata, units: u32) -> u32 {
        if units <= SLOT_MAX {
            return self.take_slot(metadata, units);
        }
        let kind = self.kind(units);
        let index = self.placing(kind).take(&metadata.blocks, units);
        if index != 0 {
            publish(metadata, index);
        }
        index
    }

    fn take_slot(&mut self, metadata: &Metadata, units: u32) -> u32 {
        let mut slab = self.partial[units as usize].first();
        if slab == 0 {
            let range = self
                .placing(Kind::Slabs)
                .take(&metadata.blocks, Kind::range_units(units));
            if range == 0 {
                return 0;
            }
            slab = self.make_slab(metadata, range, units);
            if slab == 0 {
                self.region(Kind::Slabs).give(&metadata.blocks, range);
                return 0;
            }
        }
        let record = metadata.slabs.get(slab);
        let index = record.pop(&metadata.blocks);
        if record.first_free.load(Relaxed) == 0 {
            self.partial[units as usize].remove(&metadata.slabs, slab);
        }
        index
    }

    /// A slab record of a class, not in use, with block records for its slots; 0 when there are none left.
    fn slab_record(&mut self, metadata: &Metadata, units: u32) -> u32 {
        if let Some(slab) = self.spare[units as usize].pop() {
            return slab;
        }
        let count = size_class::slots(units).count;
        let (slab, first) = (metadata.slabs.take(1), metadata.blocks.take(count));
        if slab == 0 || first == 0 {
            if slab != 0 {
                metadata.slabs.give(slab, 1);
            }
            if first != 0 {
                metadata.blocks.give(first, count);
            }
            return 0;
        }
        for index in first..first + count {
            let block = metadata.blocks.get(index);
            block.set_index(index);
            block.units.store(units, Relaxed);
            block.arena.store(self.arena, Relaxed);
            block.home.store(slab, Relaxed);
            block.is_slot.store(1, Relaxed);
        }
        metadata.slabs.get(slab).set_class(&metadata.blocks, units, first);
        slab
    }

    /// Cuts a held range into slots and puts the slab on its class's list; 0 when there are no records left.
    fn make_slab(&mut self, metadata: &Metadata, range: u32, units: u32) -> u32 {
        let slab = self.slab_record(metadata, units);
        if slab == 0 {
            return 0;
        }
        let shape = size_class::slots(units);
        let record = metadata.slabs.get(slab);
        let block = metadata.blocks.get(range);
        let base = block.addr();
        block.set_state(State::Slab);
        record.base.store(base, Relaxed);
        record.range.store(range, Relaxed);
        let first = record.first_block.load(Relaxed);
        for slot in (0..shape.count).rev() {
            let index = first + slot;
            let block = metadata.blocks.get(index);
            block
                .addr
                .store(base + size_class::bytes(units) * u64::from(slot), Relaxed);
            block.cache.store(0, Relaxed);
            block.set_state(State::Cached);
            record.push(block, index);
        }
        for granule in 0..shape.granules {
            metadata.enter(
                base + u64::from(granule) * size_class::bytes(GRANULE),
                Entry::Slab(record),
            );
        }
        self.partial[units as usize].insert(&metadata.slabs, slab);
        slab
    }

    /// Takes a cached block back into its slab or the ranges.
    pub(crate) fn give(&mut self, metadata: &Metadata, index: u32) {
        let block = metadata.blocks.get(index);
        debug_assert_eq!(block.state(), State::Cached);
        block.cache.store(0, Relaxed);
        if block.is_slot.load(Relaxed) == 1 {
            self.give_slot(metadata, index);
        } else {
            metadata.enter(block.addr(), Entry::None);
            let epoch = self.epoch;
            let kind = self.kind(block.units());
            self.region(kind).release(&metadata.blocks, index, epoch);
        }
    }

    fn give_slot(&mut self, metadata: &Metadata, index: u32) {
        let block = metadata.blocks.get(index);
        let slab = block.home.load(Relaxed);
        let record = metadata.slabs.get(slab);
        let units = record.units.load(Relaxed);
        let was_full = record.first_free.load(Relaxed) == 0;
        record.push(block, index);
        if record.is_empty() {
            if !was_full {
                self.partial[units as usize].remove(&metadata.slabs, slab);
            }
            self.drop_slab(metadata, slab);
        } else if was_full {
            self.partial[units as usize].insert(&metadata.slabs, slab);
        }
    }

    /// Makes an empty slab, on no list, a free range again.
    fn drop_slab(&mut self, metadata: &Metadata, slab: u32) {
        let record = metadata.slabs.get(slab);
        let units = record.units.load(Relaxed);
        for granule in 0..size_class::slots(units).granules {
            let addr = record.base.load(Relaxed) + u64::from(granule) * size_class::bytes(GRANULE);
            metadata.enter(addr, Entry::None);
        }
        let first = record.first_block.load(Relaxed);
        for index in first..first + record.slots.load(Relaxed) {
            metadata.blocks.get(index).set_state(State::Vacant);
        }
        record.first_free.store(0, Relaxed);
        record.free.store(0, Relaxed);
        self.spare[units as usize].push(slab);
        let range = record.range.load(Relaxed);
        let epoch = self.epoch;
        self.region(Kind::Slabs).release(&metadata.blocks, range, epoch);
    }

    /// Takes a chain of cached blocks back.
    pub(crate) fn give_chain(&mut self, metadata: &Metadata, first: u32) {
        let mut index = first;
        while index != 0 {
            let next = metadata.blocks.link(index).load(Relaxed);
            self.give(metadata, index);
            index = next;
        }
    }

    /// A lent part is an alias now if its handle was `taken`, and free again if not.
    pub(crate) fn settle_lent(&mut self, metadata: &Metadata, kind: Kind, part: Idle, taken: impl Fn(Handle) -> bool) {
        let region = self.region(kind);
        if part.mappings.iter().any(|mapping| taken(mapping.handle)) {
            region.alias(&metadata.blocks, part);
        } else {
            region.keep(&metadata.blocks, part);
        }
    }

    /// The growth's memory is mapped: a block of `units` from it, held by the caller and in the table.
    pub(crate) fn commit(&mut self, metadata: &Metadata, growth: Growth, mappings: &[Mapping], units: u32) -> u32 {
        // What the stream was made to wait for is done when its work of this epoch is.
        let epoch = self.epoch;
        let known = |mapping: &Mapping| Mapping {
            touched: mapping.touched.min(epoch),
            ..*mapping
        };
        let mappings: Vec<Mapping> = mappings.iter().map(known).collect();
        let range_units = Kind::range_units(units);
        let index = self
            .region(Kind::of(units))
            .commit(&metadata.blocks, growth, &mappings, range_units);
        if units > SLOT_MAX {
            let addr = metadata.blocks.get(index).addr();
            self.placing(Kind::of(units)).places.note(units, addr);
            publish(metadata, index);
            return index;
        }
        // The range becomes free so that a slab is made of it in the usual way.
        self.region(Kind::Slabs).give(&metadata.blocks, index);
        self.take_slot(metadata, units)
    }

    /// Bytes of memory behind all segments.
    pub(crate) fn held(&self) -> u64 {
        self.regions.iter().map(|region| region.held).sum()
    }

    /// The largest free range, in bytes.
    pub(crate) fn largest(&self, metadata: &Metadata) -> u64 {
        let units = self
            .regions
            .iter()
            .map(|region| region.ranges.largest(&metadata.blocks))
            .max();
        size_class::bytes(units.unwrap_or(0))
    }
}

/// Enters a held range block into the table.
fn publish(metadata: &Metadata, index: u32) {
    let block = metadata.blocks.get(index);
    metadata.enter(block.addr(), Entry::Block(block));
}
