//! Walks every invariant of a pool (feature `check`). Call it while no other thread uses the pool.

use super::Pool;
use crate::arena::{Arena, Inner, Kind};
use crate::driver::Driver;
use crate::metadata::{Block, State};
use crate::sync::lock;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

/// What is wrong, in words.
type Verdict = Result<(), String>;

macro_rules! hold {
    ($condition:expr, $($text:tt)*) => {
        if !$condition { return Err(format!($($text)*)); }
    };
}

/// Blocks counted while walking.
#[derive(Default)]
struct Tally {
    live: u64,
    live_bytes: u64,
    pending: u64,
    pending_bytes: u64,
    held: u64,
    /// Those that are ready to be given out, and whether the list that each is on was walked.
    cached: HashMap<u32, bool>,
    /// The addresses of segments and guarded blocks: the first and the one behind the last.
    ranges: Vec<(u64, u64)>,
}

impl<D: Driver> Pool<D> {
    /// Verifies the invariants in SAFETY.md that concern the pool's records.
    ///
    /// # Errors
    /// Says which invariant does not hold, and where.
    pub fn check(&self) -> Verdict {
        let mut tally = Tally::default();
        for arena in self.core.arenas.iter() {
            let mut inner = arena.lock(&self.core.metadata);
            for kind in Kind::ALL {
                self.check_region(arena, &mut inner, kind, &mut tally)?;
            }
            tally.held += inner.held();
            let shared = |each: &mut dyn FnMut(u32) -> bool| arena.walk_shared(&self.core.metadata, each);
            self.check_list("a shared list", shared, &mut tally)?;
        }
        self.check_caches(&mut tally)?;
        self.check_guarded(&mut tally)?;
        if let Some((&index, _)) = tally.cached.iter().find(|(_, seen)| !**seen) {
            let addr = self.core.metadata.blocks.get(index).addr();
            return Err(format!("{addr:#x}: ready to be given out, and on no list"));
        }
        tally.ranges.sort_unstable();
        for pair in tally.ranges.windows(2) {
            let ((start, end), (next, _)) = (pair[0], pair[1]);
            hold!(end <= next, "{start:#x} to {end:#x} overlaps what begins at {next:#x}");
        }
        let (reserved, spare) = (self.pages.reserved(), self.pages.spare_bytes());
        hold!(
            tally.held + spare == reserved,
            "{} held + {spare} spare is not {reserved} reserved",
            tally.held
        );
        let stats = self.stats();
        hold!(
            tally.live == stats.live_blocks,
            "{} live blocks, {} counted",
            tally.live,
            stats.live_blocks
        );
        hold!(
            tally.live_bytes == stats.allocated_bytes,
            "{} bytes live, {} counted",
            tally.live_bytes,
            stats.allocated_bytes
        );
        hold!(
            tally.pending == stats.pending_blocks,
            "{} blocks wait, {} counted",
            tally.pending,
            stats.pending_blocks
        );
        hold!(
            tally.pending_bytes == self.core.pending(),
            "{} bytes wait, otherwise counted",
            tally.pending_bytes
        );
        hold!(
            lock(&self.pending).len() as u64 == tally.pending,
            "{} blocks wait, {} are queued",
            tally.pending,
            lock(&self.pending).len()
        );
        Ok(())
    }

    fn check_region(&self, arena: &Arena, inner: &mut Inner, kind: Kind, tally: &mut Tally) -> Verdict {
        let metadata = &self.core.metadata;
        let region = inner.region(kind);
        let mut free: Vec<u32> = Vec::new();
        let alias = |index: u32| region.aliases.values().any(|part| part.block == index);
        for segment in region.segments.iter().filter(|segment| segment.first != 0) {
            tally.ranges.push((segment.base, segment.base + segment.bytes));
            let (mut addr, mut before, mut mapped) = (segment.base, 0, 0);
            let mut last = State::Live;
            let mut index = segment.first;
            while index != 0 {
                let block = metadata.blocks.get(index);
                let state = block.state();
                hold!(
                    block.addr() == addr,
                    "{kind:?}: block at {:#x} should be at {addr:#x}",
                    block.addr()
                );
                hold!(
                    block.before.load(Relaxed) == before,
                    "{addr:#x}: the link back is wrong"
                );
                hold!(
                    block.arena.load(Relaxed) == arena.index,
                    "{addr:#x}: belongs to another arena"
                );
                let pair = (last, state);
                hold!(
                    pair != (State::Free, State::Free) && pair != (State::Unmapped, State::Unmapped),
                    "{addr:#x}: not one with its neighbour, both {state:?}"
                );
                if state != State::Unmapped && !alias(index) {
                    mapped += block.bytes();
                }
                match state {
                    State::Free => free.push(index),
                    State::Slab => self.check_slab(index, tally)?,
                    State::Live | State::Used | State::Recorded | State::Pending | State::Cached => {
                        hold!(
                            metadata.find(addr).map(Block::index) == Some(index),
                            "{addr:#x}: not in the table"
                        );
                        tally.add(index, state, block.bytes());
                    }
                    State::Unmapped => {}
                    State::Busy if region.stuck.iter().any(|stuck| stuck.block == index) => {}
                    State::Busy if alias(index) => {}
                    State::Vacant | State::Busy => return Err(format!("{addr:#x}: {state:?} within a segment")),
                }
                (addr, before, last, index) = (block.end(), index, state, block.behind.load(Relaxed));
            }
            hold!(
                addr == segment.base + segment.bytes,
                "segment {:#x} ends at {addr:#x}",
                segment.base
            );
            let mappings: u64 = segment.mappings.values().map(|mapping| mapping.bytes).sum();
            hold!(
                !segment.reserved || mappings == mapped,
                "segment {:#x}: {mappings} bytes mapped, {mapped} in blocks",
                segment.base
            );
        }
        let mut binned = region.ranges.all(&metadata.blocks);
        binned.sort_unstable();
        free.sort_unstable();
        hold!(
            binned == free,
            "{kind:?}: {} ranges are free, {} in bins",
            free.len(),
            binned.len()
        );
        Ok(())
    }

    fn check_slab(&self, range: u32, tally: &mut Tally) -> Verdict {
        let metadata = &self.core.metadata;
        let base = metadata.blocks.get(range).addr();
        let Some(record) = metadata.slab(base) else {
            return Err(format!("{base:#x}: a slab that is not in the table"));
        };
        let (first, slots) = (record.first_block.load(Relaxed), record.slots.load(Relaxed));
        for index in first..first + slots {
            let block = metadata.blocks.get(index);
            hold!(
                metadata.find(block.addr()).map(Block::index) == Some(index),
                "{:#x}: slot not found",
                block.addr()
            );
            tally.add(index, block.state(), block.bytes());
        }
        let mut vacant = 0;
        let mut index = record.first_free.load(Relaxed);
        while index != 0 {
            hold!(
                (first..first + slots).contains(&index),
                "{base:#x}: a vacant slot of another slab"
            );
            vacant += 1;
            hold!(
                tally.place(index),
                "{base:#x}: a vacant slot is not free, or vacant twice"
            );
            index = metadata.blocks.get(index).link.load(Relaxed);
        }
        hold!(
            vacant == record.free.load(Relaxed),
            "{base:#x}: {vacant} slots vacant, otherwise counted"
        );
        hold!(vacant < slots, "{base:#x}: an empty slab was kept");
        Ok(())
    }

    /// Guarded blocks with memory end where it ends, and are found.
    fn check_guarded(&self, tally: &mut Tally) -> Verdict {
        for (block, held) in self.guarded_blocks() {
            let (addr, state) = (block.addr(), block.state());
            tally.held += held;
            tally.ranges.push((addr, block.end()));
            // Freed, and the driver would not unmap all of it.
            if state == State::Unmapped {
                continue;
            }
            hold!(
                held == block.bytes().next_multiple_of(self.driver.properties().granularity),
                "{addr:#x}: {held} bytes of memory for {}",
                block.bytes()
            );
            hold!(
                self.core.metadata.find(addr).map(Block::index) == Some(block.index()),
                "{addr:#x}: not in the table"
            );
            hold!(
                state.is_given_out() || state == State::Pending,
                "{addr:#x}: guarded, with memory and {state:?}"
            );
            tally.add(block.index(), state, block.bytes());
        }
        Ok(())
    }

    /// Every block of a list is ready to be given out, known from the walk, and on that list only.
    fn check_list(&self, name: &str, walk: impl FnOnce(&mut dyn FnMut(u32) -> bool), tally: &mut Tally) -> Verdict {
        let mut wrong = None;
        walk(&mut |index| {
            let right = tally.place(index);
            if !right {
                wrong = Some(index);
            }
            right
        });
        wrong.map_or(Ok(()), |index| {
            let block = self.core.metadata.blocks.get(index);
            Err(format!(
                "{:#x}: on {name} while {:?}, or on two",
                block.addr(),
                block.state()
            ))
        })
    }

    /// The same of every block in a magazine, or freed to its owner by other threads.
    fn check_caches(&self, tally: &mut Tally) -> Verdict {
        let blocks = &self.core.metadata.blocks;
        for cache in self.core.caches.iter() {
            let mut bytes = 0;
            let mut wrong = None;
            let held = cache.walk(|index| {
                bytes += blocks.get(index).bytes();
                let owner = blocks.get(index).cache.load(Relaxed);
                if !tally.place(index) || owner != cache.index {
                    wrong = Some(index);
                }
            });
            if let Some(index) = wrong {
                let block = blocks.get(index);
                return Err(format!(
                    "{:#x}: in a magazine while {:?}, or in two, or not its owner's",
                    block.addr(),
                    block.state()
                ));
            }
            hold!(
                bytes == held,
                "a cache has {bytes} bytes in magazines and counts {held}"
            );
            let remote = |each: &mut dyn FnMut(u32) -> bool| cache.walk_remote(blocks, each);
            self.check_list("the list of what other threads freed", remote, tally)?;
        }
        Ok(())
    }
}

impl Tally {
    fn add(&mut self, index: u32, state: State, bytes: u64) {
        match state {
            State::Live | State::Used | State::Recorded => {
                self.live += 1;
                self.live_bytes += bytes;
            }
            State::Pending => {
                self.pending += 1;
                self.pending_bytes += bytes;
            }
            State::Cached => {
                self.cached.insert(index, false);
            }
            _ => {}
        }
    }

    /// Notes that a list has the block; whether it is one that may be on a list, and was on none.
    fn place(&mut self, index: u32) -> bool {
        self.cached
            .get_mut(&index)
            .is_some_and(|seen| !std::mem::replace(seen, true))
    }
}
