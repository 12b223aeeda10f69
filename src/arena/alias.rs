//! Second addresses: memory that was mapped elsewhere stays mapped where it was, too.
//!
//! A handle may be mapped at several addresses, of which the blocks use one; the others are its aliases. Each is a busy block of
//! its region. Once the memory is free again, as a whole, it can be had at any of them without a driver call. So a program that asks
//! for the same sizes again and again ends up with addresses for all of them (as GMLake, ASPLOS 2024, keeps what it stitched).
//!
//! Invariant: the handle of an alias is mapped at the one address that is in use as well, so it is never spare.

use super::idle::{Idle, What};
use super::region::{Mapping, Region};
use super::{Inner, Kind, Metadata};
use crate::driver::Handle;
use crate::metadata::{Blocks, State};
use crate::size_class;
use rustc_hash::FxHashMap;
use std::sync::atomic::Ordering::Relaxed;

/// How many aliases a region keeps; more are unmapped, those used longest ago first.
const ALIASES: usize = 8192;

/// Where free memory is: an address of an arena's region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) arena: u32,
    pub(crate) kind: Kind,
    pub(crate) addr: u64,
}

/// An alias of memory that is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where it could be used.
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) handle: Handle,
    /// Where it is free.
    pub(crate) source: Source,
}

/// Addresses of memory that is mapped, and used, elsewhere by now. Many, and each is looked at before a region grows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alias {
    pub(crate) block: u32,
    pub(crate) bytes: u64,
    /// `None` where it could not be unmapped: it is only to be tried again.
    pub(crate) handle: Option<Handle>,
    /// As a mapping's.
    touched: u64,
}

impl Alias {
    /// Of a part with one mapping, or with none any more.
    pub(super) fn of(part: &Idle) -> Self {
        let mapping = part.mappings.first();
        Self {
            block: part.block,
            bytes: part.bytes,
            handle: mapping.map(|mapping| mapping.handle),
            touched: mapping.map_or(0, |mapping| mapping.touched),
        }
    }

    fn mapping(&self, addr: u64) -> Option<Mapping> {
        let Self { bytes, touched, .. } = *self;
        let handle = self.handle?;
        Some(Mapping {
            addr,
            bytes,
            handle,
            touched,
        })
    }

    /// The part to be unmapped.
    fn part(&self, addr: u64) -> Idle {
        Idle {
            block: self.block,
            addr,
            bytes: self.bytes,
            mappings: self.mapping(addr).into_iter().collect(),
            what: What::Alias,
        }
    }
}

impl Region {
    /// Whether no memory is, or was, mapped in it.
    pub(crate) fn is_new(&self) -> bool {
        self.held == 0 && self.aliases.is_empty()
    }

    /// A lent part is mapped elsewhere now: what is left are addresses.
    pub(crate) fn alias(&mut self, blocks: &Blocks, lent: Idle) {
        let segment = blocks.get(lent.block).home.load(Relaxed) as usize;
        self.remove_mapping(segment, lent.addr);
        self.held -= lent.bytes;
        self.aliases.insert(lent.addr, Alias::of(&lent));
    }

    /// Takes out the aliases for which `which` holds, to be unmapped by the caller.
    pub(crate) fn take_aliases(&mut self, which: impl Fn(&Alias) -> bool) -> Vec<Idle> {
        let chosen = self.aliases.iter().filter(|(_, alias)| which(alias));
        let parts: Vec<Idle> = chosen.map(|(&addr, alias)| alias.part(addr)).collect();
        for part in &parts {
            self.aliases.remove(&part.addr);
        }
        parts
    }

    /// Takes out aliases that are more than the region keeps, of those that nothing uses since the epoch `done`.
    pub(crate) fn surplus_aliases(&mut self, done: u64) -> Vec<Idle> {
        let surplus = self.aliases.len().saturating_sub(ALIASES);
        if surplus == 0 {
            return Vec::new();
        }
        // One that could not be unmapped has no handle any more: it is tried again with the next wait for the device.
        let mapped = self.aliases.values().filter(|alias| alias.handle.is_some());
        let mut epochs: Vec<u64> = mapped.map(|alias| alias.touched).collect();
        // Of fewer that have a mapping all may go.
        let surplus = surplus.min(epochs.len());
        let last = match surplus {
            0 => return Vec::new(),
            _ => (*epochs.select_nth_unstable(surplus - 1).1).min(done),
        };
        self.take_aliases(|alias| alias.handle.is_some() && alias.touched <= last)
    }

    /// The mappings that are free as a whole and were last used in an epoch up to `until`.
    pub(crate) fn whole_free(&self, blocks: &Blocks, until: u64) -> Vec<Mapping> {
        let free = self.ranges.all(blocks).into_iter().map(|index| blocks.get(index));
        let whole = free.flat_map(|block| {
            let (addr, end) = (block.addr(), block.end());
            let segment = &self.segments[block.home.load(Relaxed) as usize];
            let within = move |mapping: &&Mapping| mapping.addr + mapping.bytes <= end && mapping.touched <= until;
            segment
                .mappings
                .range(addr..end)
                .map(|(_, mapping)| mapping)
                .filter(within)
        });
        whole.copied().collect()
    }

    /// Takes a mapping that is free as a whole, of that handle and last used in an epoch up to `until`, out of its free range.
    pub(crate) fn take_whole(&mut self, blocks: &Blocks, addr: u64, handle: Handle, until: u64) -> Option<Idle> {
        let index = Some(self.ranges.around(blocks, addr)).filter(|&index| index != 0)?;
        let block = blocks.get(index);
        let segment = &self.segments[block.home.load(Relaxed) as usize];
        let mapping = *segment.mappings.get(&addr)?;
        let whole = addr + mapping.bytes <= block.end() && mapping.handle == handle && mapping.touched <= until;
        if !whole {
            return None;
        }
        self.carve(blocks, index, vec![mapping])
    }

    /// The aliases that together with free ranges are the `bytes` at `addr`; `None` where anything else is there, or nothing is an alias.
    fn aliases_at(&self, blocks: &Blocks, addr: u64, bytes: u64) -> Option<Vec<(u64, u64, Handle)>> {
        let mut index = self.ranges.around(blocks, addr);
        if index == 0 {
            let (_, alias) = self.aliases.range(..=addr).next_back()?;
            index = alias.block;
        }
        let mut found = Vec::new();
        while index != 0 {
            let block = blocks.get(index);
            if block.end() <= addr {
                return None;
            }
            if let Some(alias) = self.aliases.get(&block.addr()) {
                found.push((block.addr(), alias.bytes, alias.handle?));
            } else if block.state() != State::Free {
                return None;
            }
            if block.end() >= addr + bytes {
                break;
            }
            index = block.behind.load(Relaxed);
        }
        Some(found).filter(|found| index != 0 && !found.is_empty())
    }

    /// An alias is memory again, last used in the epoch `touched`.
    fn wake(&mut self, blocks: &Blocks, addr: u64, touched: u64) {
        let Some(alias) = self.aliases.remove(&addr) else {
            return;
        };
        let segment = blocks.get(alias.block).home.load(Relaxed) as usize;
        if let Some(mapping) = alias.mapping(addr) {
            self.insert_mapping(segment, Mapping { touched, ..mapping });
        }
        self.held += alias.bytes;
        self.give(blocks, alias.block);
    }
}

impl Inner {
    /// Adds the mappings that are free as a whole and were last used in an epoch up to `until`.
    pub(crate) fn whole_free(&mut self, metadata: &Metadata, until: u64, sources: &mut FxHashMap<Handle, Source>) {
        let arena = self.arena;
        for kind in Kind::ALL {
            let free = self.region(kind).whole_free(&metadata.blocks, until);
            sources.extend(free.into_iter().map(|mapping| {
                let addr = mapping.addr;
                (mapping.handle, Source { arena, kind, addr })
            }));
        }
    }

    /// Aliases of what `sources` has, and of what is free here, which is added, that give room for `units` of a kind; the fewest bytes.
    pub(crate) fn window(
        &mut self,
        metadata: &Metadata,
        kind: Kind,
        units: u32,
        sources: &mut FxHashMap<Handle, Source>,
    ) -> Option<Vec<Piece>> {
        self.whole_free(metadata, u64::MAX, sources);
        self.region(kind).window(&metadata.blocks, units, sources, kind)
    }

    /// Aliases that are, with free ranges, the place that a range of `units` had the last time; their memory is free here or, of others, in
    /// `sources`. `None` where the place is free as it is, or cannot be had.
    pub(crate) fn place_again(
        &mut self,
        metadata: &Metadata,
        kind: Kind,
        units: u32,
        sources: &FxHashMap<Handle, Source>,
    ) -> Option<Vec<Piece>> {
        let bytes = size_class::bytes(units);
        let region = self.placing(kind);
        let place = region.places.expect(units)?;
        let mut pieces: Vec<Piece> = Vec::new();
        for (addr, bytes_at, handle) in region.aliases_at(&metadata.blocks, place, bytes)? {
            let source = self
                .free_handle(&metadata.blocks, handle)
                .or_else(|| sources.get(&handle).copied())?;
            // Memory that is free in the place itself, or that is there twice, is not enough for it.
            let within = (source.arena, source.kind) == (self.arena, kind)
                && source.addr < place + bytes
                && place < source.addr + bytes_at;
            if within || pieces.iter().any(|piece| piece.handle == handle) {
                return None;
            }
            pieces.push(Piece {
                addr,
                bytes: bytes_at,
                handle,
                source,
            });
        }
        Some(pieces)
    }

    /// Where the memory of a handle is free here, as a whole.
    fn free_handle(&self, blocks: &Blocks, handle: Handle) -> Option<Source> {
        Kind::ALL.into_iter().find_map(|kind| {
            let region = &self.regions[kind as usize];
            let &addr = region.mapped.get(&handle)?;
            let block = blocks.get(Some(region.ranges.around(blocks, addr)).filter(|&index| index != 0)?);
            let segment = &region.segments[block.home.load(Relaxed) as usize];
            let mapping = segment.mappings.get(&addr)?;
            let source = Source {
                arena: self.arena,
                kind,
                addr,
            };
            (addr + mapping.bytes <= block.end()).then_some(source)
        })
    }

    /// Uses memory of this arena where a request of `units` had its place the last time, if it is mapped there, and free as a whole
    /// elsewhere. What was moved.
    pub(crate) fn wake_again(&mut self, metadata: &Metadata, units: u32) -> Option<Vec<Piece>> {
        let kind = Kind::of(units);
        // A slot of a slab that there is needs no place.
        if self.region(kind).aliases.is_empty() || kind == Kind::Slabs && self.partial[units as usize].first() != 0 {
            return None;
        }
        let pieces = self.place_again(metadata, kind, Kind::range_units(units), &FxHashMap::default())?;
        self.wake(metadata, kind, &pieces, &[]).then_some(pieces)
    }

    /// Uses the memory of a window at its aliases. `lent` are those whose memory other arenas have lent, with their handles, and
    /// whether the device is done with it. `false` when something has changed since the window was found: nothing that was lent is
    /// used then.
    pub(crate) fn wake(
        &mut self,
        metadata: &Metadata,
        kind: Kind,
        window: &[Piece],
        lent: &[(u64, Handle, bool)],
    ) -> bool {
        let blocks = &metadata.blocks;
        let (arena, epoch) = (self.arena, self.epoch);
        let is_alias = |region: &Region, addr: u64, handle: Handle| {
            let alias = region.aliases.get(&addr);
            alias.and_then(|alias| alias.handle) == Some(handle)
        };
        let region = self.region(kind);
        if !lent.iter().all(|&(addr, handle, _)| is_alias(region, addr, handle)) {
            return false;
        }
        for piece in window.iter().filter(|piece| piece.source.arena == arena) {
            if !is_alias(self.region(kind), piece.addr, piece.handle) {
                return false;
            }
            let source = piece.source;
            let region = self.region(source.kind);
            let Some(moved) = region.take_whole(blocks, source.addr, piece.handle, u64::MAX) else {
                return false;
            };
            let touched = moved.mappings.iter().map(|mapping| mapping.touched).max();
            region.alias(blocks, moved);
            self.region(kind).wake(blocks, piece.addr, touched.unwrap_or(epoch));
        }
        for &(addr, _, done) in lent {
            // What the stream was made to wait for is done when its work of this epoch is.
            self.region(kind).wake(blocks, addr, if done { 0 } else { epoch });
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::region::Span;
    use super::*;

    const PAGE: u64 = 2 << 20;

    /// A region with so many free pages, each touched in an epoch of its own from 1 on.
    fn region(blocks: &Blocks, pages: u64) -> Region {
        let mut region = Region::new(1);
        let span = Span {
            addr: 1 << 40,
            bytes: 2 * pages * PAGE,
        };
        assert!(region.add_segment(blocks, span, true));
        let growth = region.plan(blocks, 1, PAGE, pages * PAGE).expect("a hole");
        let mappings: Vec<Mapping> = (0..pages)
            .map(|page| Mapping {
                addr: growth.addr + page * PAGE,
                bytes: PAGE,
                handle: Handle(page + 1),
                touched: page + 1,
            })
            .collect();
        let index = region.commit(blocks, growth, &mappings, 1);
        region.give(blocks, index);
        region
    }

    #[test]
    fn more_aliases_than_are_kept_go_when_nothing_uses_them() {
        let blocks = Blocks::new();
        let pages = ALIASES as u64 + 10;
        let mut region = region(&blocks, pages);
        for part in region.lend(&blocks, PAGE, u64::MAX, u64::MAX) {
            region.alias(&blocks, part);
        }
        assert_eq!((region.aliases.len() as u64, region.held), (pages, 0));
        assert!(region.surplus_aliases(0).is_empty());
        assert_eq!(region.surplus_aliases(4).len(), 4);
        let surplus = region.surplus_aliases(u64::MAX);
        let oldest: Vec<Handle> = surplus.iter().map(|part| part.mappings[0].handle).collect();
        assert_eq!(oldest, (5..=10).map(Handle).collect::<Vec<_>>());
        assert!(region.surplus_aliases(u64::MAX).is_empty());
    }
}
