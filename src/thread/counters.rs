//! What a thread has allocated and freed, counted without an atomic read-modify-write of what other threads use.
//!
//! Each owner adds to its own numbers, of small blocks (up to 1 MiB) and of larger ones apart. The pool knows of it what owners
//! have told it, in sum the level:
//!
//! - Small blocks are told when their bytes are more than 1 MiB from what was told, either way.
//! - Large ones stay told when they are freed, as idle bytes of the owner. Its next large blocks use them, and only what these
//!   need beyond changes the level.
//!
//! There can be a new peak only where an owner has more than ever, or allocates a large block while the level is above the peak:
//! then the bytes of all owners are added up, at once. So with one owner the peak is exact; with several, what small blocks add
//! within 1 MiB of an owner is not looked at, and what moves between two while they are added up can count twice.
//!
//! Where the level was above the peak for nothing, everybody's idle bytes are told, so that it is not looked for again at every hit.
//!
//! A hit asks all this by one comparison: `most` is how many bytes it may have given out before there is something to do.

use super::barrier;
use super::slots::{Number, Slots};
use crate::sync::atomic::{AtomicI64, AtomicU64, fence};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// How far an owner's small blocks may be from what it told, in bytes; blocks above are large.
pub(crate) const FOLD: i64 = 1 << 20;
/// The most idle bytes of an owner, beside those of blocks that are in its magazines.
const IDLE: i64 = 64 << 20;
/// Whether hits are counted. Without it (for `benches/instructions.rs`, to see what that costs) the statistics are wrong.
pub(crate) const COUNTED: bool = !cfg!(feature = "uncounted");
/// `least` of a stock whose magazines take no block.
const SHUT: i64 = i64::MAX;

/// The bytes of an owner's small or large blocks.
///
/// `hits` changes in the owner's section alone, `stocked` there or by the one taker; the rest is the owner's. All is read by anyone,
/// a moment late.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Stock {
    /// Of blocks that users got from magazines, less those that came back there.
    hits: AtomicI64,
    /// How high `hits` may be before there is something to tell, or to look for.
    most: AtomicI64,
    /// How low: below, magazines have no room, or there is something to tell.
    least: AtomicI64,
    /// Of blocks that users got or gave back otherwise.
    others: AtomicI64,
    /// What the level has of them.
    told: AtomicI64,
    /// What was put into magazines otherwise than by hits, less what was taken out: they hold `stocked - hits`.
    stocked: AtomicI64,
    /// The most that magazines may hold.
    bound: AtomicI64,
}

/// What was given out and given back so far.
#[derive(Debug, Default)]
#[repr(C)]
struct Flow {
    allocs: Number,
    /// Bytes as asked for, given out and given back.
    requested: Number,
    frees: Number,
    returned: Number,
    /// Bytes given back, rounded.
    freed: Number,
}

/// One owner's counters. Written by the owner alone but for what [`Stock`] says; read by anyone, a moment late.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Counters {
    pub(super) small: Stock,
    flow: Flow,
    pub(super) big: Stock,
    pub(super) slots: Slots,
    /// The most bytes that the owner had given out, since peaks began again.
    high: AtomicI64,
    /// How often they had, as far as the owner knows.
    resets: AtomicU64,
}

/// The pool's totals.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Totals {
    /// The peak of allocated bytes less the level and less what is pending. Below 0 a new peak is possible, and no large block is
    /// given out by a hit alone; the peak of active bytes is not below this one.
    slack: AtomicI64,
    /// The most bytes given out, with what was live then.
    peak: AtomicI64,
    peak_live: [AtomicI64; 5],
    /// Bytes freed that wait for other streams.
    pub(crate) pending: AtomicU64,
    /// The most bytes given out and pending together.
    active_peak: AtomicI64,
    /// How often peaks began again.
    resets: AtomicU64,
}

/// What is live at a moment, beside the allocated bytes of all blocks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) requested: i64,
    pub(crate) blocks: i64,
    /// Of large blocks.
    pub(crate) large_allocated: i64,
    pub(crate) large_requested: i64,
    pub(crate) large_blocks: i64,
}

impl Live {
    fn plus(self, other: Self) -> Self {
        Self {
            requested: self.requested + other.requested,
            blocks: self.blocks + other.blocks,
            large_allocated: self.large_allocated + other.large_allocated,
            large_requested: self.large_requested + other.large_requested,
            large_blocks: self.large_blocks + other.large_blocks,
        }
    }
}

impl Flow {
    #[inline(always)]
    fn alloc(&self, requested: u64) {
        self.allocs.add(1);
        self.requested.add(requested);
    }

    #[inline(always)]
    fn free(&self, allocated: u64, requested: u64) {
        self.frees.add(1);
        self.returned.add(requested);
        self.freed.add(allocated);
    }
}

impl Stock {
    /// Magazines that hold at most so many bytes.
    pub(super) fn new(bound: u64) -> Self {
        let stock = Self::default();
        stock.bound.store(bound as i64, Relaxed);
        stock
    }

    /// A magazine gave a block to a user. Whether there is something to do about it, [`Counters::settle`].
    #[inline(always)]
    pub(super) fn give(&self, bytes: u64) -> bool {
        // Relaxed, here and below unless said: within the owner's section or a taker's, or numbers that only the owner writes.
        let hits = self.hits.load(Relaxed) + bytes as i64;
        self.hits.store(hits, Relaxed);
        COUNTED && hits > self.most.load(Relaxed)
    }

    /// As [`Self::give`], of a large block.
    #[inline(always)]
    pub(super) fn give_large(&self, bytes: u64) -> bool {
        if !COUNTED {
            return self.give(bytes);
        }
        let hits = self.hits.load(Relaxed) + bytes as i64;
        // SeqCst, with the accesses to `most`: of two owners that allocate at once, where one uses idle bytes and the other
        // one raises the level and sets `most`, at least one sees what the other did, and with it the peak. The swap is a full
        // barrier, on a cache line of our own.
        self.hits.swap(hits, SeqCst);
        barrier::both();
        hits > self.most.load(SeqCst)
    }

    /// A magazine has room for a block that comes back from a user: then [`Self::take`] this.
    #[inline(always)]
    pub(super) fn room(&self, bytes: u64) -> Option<i64> {
        // Acquire: what a taker that has finished did to the magazines happened before.
        let least = self.least.load(Acquire);
        let hits = self.hits.load(Relaxed) - bytes as i64;
        (hits >= least).then_some(hits)
    }

    /// What [`Self::room`] gave: the block is in a magazine.
    #[inline(always)]
    pub(super) fn take(&self, hits: i64) {
        self.hits.store(hits, Relaxed);
    }

    /// Puts bytes into magazines that do not come from a user; `false` where there is no room. Within the owner's section.
    pub(super) fn stock(&self, bytes: u64) -> bool {
        let stocked = self.stocked.load(Relaxed) + bytes as i64;
        let fits = stocked - self.hits.load(Relaxed) <= self.bound.load(Relaxed);
        if fits {
            self.stocked.store(stocked, Relaxed);
        }
        fits
    }

    /// All magazines are empty. Within the owner's section or a taker's.
    pub(super) fn unload(&self) {
        self.stocked.store(self.hits.load(Relaxed), Relaxed);
    }

    /// Bytes in the magazines.
    pub(super) fn held(&self) -> u64 {
        (self.stocked.load(Relaxed) - self.hits.load(Relaxed)).max(0) as u64
    }

    /// Lets magazines hold at most so many bytes. Whether that is new.
    pub(super) fn set_bound(&self, bound: u64) -> bool {
        let new = self.bound.load(Relaxed) != bound as i64;
        self.bound.store(bound as i64, Relaxed);
        new
    }

    /// Lets blocks into the magazines as far as there is room, and as far as `hits` may fall for another reason.
    fn open(&self, least: i64) {
        let least = least.max(self.stocked.load(Relaxed) - self.bound.load(Relaxed));
        // Release: the owner sees the magazines as a taker left them.
        self.least.store(least, Release);
    }

    /// Bytes of blocks that were given out here, less those given back: below 0 where the owner frees what others allocated.
    fn live(&self) -> i64 {
        // SeqCst: see `give_large`.
        self.hits.load(SeqCst) + self.others.load(SeqCst)
    }

    fn change(&self, bytes: i64) {
        // SeqCst: as in `give_large`.
        self.others.swap(self.others.load(Relaxed) + bytes, SeqCst);
        barrier::both();
    }

    /// Bytes beyond what the level has.
    fn untold(&self) -> i64 {
        // SeqCst: see `reclaim`.
        self.live() - self.told.load(SeqCst)
    }

    /// Tells the level what it does not have, or has too much: by the owner, or by whoever looked for a peak in vain.
    fn tell(&self, totals: &Totals) {
        let mut told = self.told.load(SeqCst);
        loop {
            let live = self.live();
            // SeqCst: see `give_large`, and `reclaim`. Of two who tell at once one does.
            match self.told.compare_exchange(told, live, SeqCst, SeqCst) {
                Ok(_) => {
                    totals.slack.fetch_sub(live - told, SeqCst);
                    break;
                }
                Err(now) => told = now,
            }
        }
        barrier::both();
    }

    /// Tells the idle bytes of whatever owner: its next block that would use them has to be told again. Whether that was at once.
    fn reclaim(&self, totals: &Totals) -> bool {
        if self.untold() < 0 {
            self.tell(totals);
            // In this order: an owner that sets `most` meanwhile sees the change, or its `most` is set back here; see `tune`.
            self.most.store(i64::MIN, SeqCst);
            // SeqCst: an owner that used the idle bytes meanwhile sees `most`, or we see what it has: see `give_large`.
            fence(SeqCst);
            if self.untold() > 0 {
                self.tell(totals);
                return true;
            }
        }
        false
    }

    fn set_most(&self, more: i64) {
        self.most.store(self.hits.load(Relaxed) + more, Relaxed);
    }

    /// Lets every allocation be one to [`Counters::settle`].
    fn stop(&self) {
        self.most.store(i64::MIN, Relaxed);
    }
}

impl Counters {
    /// For magazines of small blocks that hold at most so many bytes.
    pub(super) fn new(bound: u64) -> Self {
        Self {
            small: Stock::new(bound),
            ..Self::default()
        }
    }

    /// Keeps blocks out of the magazines.
    pub(super) fn shut(&self) {
        // Relaxed: the taker's barrier is next.
        self.small.least.store(SHUT, Relaxed);
        self.big.least.store(SHUT, Relaxed);
    }

    /// Whether [`Self::shut`] was the last to say.
    pub(super) fn is_shut(&self) -> bool {
        self.small.least.load(Relaxed) == SHUT && self.big.least.load(Relaxed) == SHUT
    }

    /// Lets blocks into the magazines as far as there is room, and until they have to be told. Within the owner's section.
    pub(super) fn open(&self) {
        let least = self.small.told.load(Relaxed) - self.small.others.load(Relaxed) - FOLD;
        self.small.open(least);
        self.big.open(i64::MIN);
    }

    /// The same by a taker that ends: it does not know what the owner is telling, so they are told within twice as much.
    pub(super) fn open_again(&self) {
        self.small.open(self.small.hits.load(Relaxed) - FOLD);
        self.big.open(i64::MIN);
    }

    /// A small block from a magazine was given out.
    #[inline(always)]
    pub(super) fn alloc_small(&self, requested: u64) {
        if COUNTED {
            self.flow.alloc(requested);
        }
    }

    /// A small block came back into a magazine.
    #[inline(always)]
    pub(super) fn free_small(&self, allocated: u64, requested: u64) {
        if COUNTED {
            self.flow.free(allocated, requested);
        }
    }

    /// A block was given out that is from no magazine of the owner's. [`Self::settle`] is next.
    pub(crate) fn alloc(&self, allocated: u64, requested: u64) {
        if is_large(allocated) {
            self.slots.alloc(allocated, requested);
            self.big.change(allocated as i64);
        } else {
            self.flow.alloc(requested);
            self.small.change(allocated as i64);
        }
    }

    /// A block was given back that is in no magazine of the owner's. Whether that was told.
    pub(crate) fn free(&self, totals: &Totals, allocated: u64, requested: u64) -> bool {
        let (stock, least) = if is_large(allocated) {
            self.slots.free(requested);
            (&self.big, -IDLE)
        } else {
            self.flow.free(allocated, requested);
            (&self.small, -FOLD)
        };
        stock.change(-(allocated as i64));
        let tells = stock.untold() < least;
        if tells {
            stock.tell(totals);
            self.tune(totals);
        }
        tells
    }

    /// Does what an allocation may ask for: tells the level, and looks for a new peak.
    pub(crate) fn settle<'a>(&self, totals: &Totals, large: bool, owners: impl Iterator<Item = &'a Self> + Clone) {
        // SeqCst: see `tune`.
        let resets = totals.resets.load(SeqCst);
        if self.resets.load(Relaxed) != resets {
            self.resets.store(resets, Relaxed);
            self.high.store(i64::MIN, Relaxed);
        }
        let tells = self.small.untold() > FOLD;
        if tells {
            self.small.tell(totals);
        }
        if self.big.untold() > 0 {
            self.big.tell(totals);
        }
        let live = self.small.live() + self.big.live();
        let higher = live > self.high.load(Relaxed);
        if higher {
            self.high.store(live, Relaxed);
        }
        if higher || tells || large {
            self.look_for_peak(totals, owners);
        }
        self.tune(totals);
    }

    /// Looks for a new peak at this moment.
    fn look_for_peak<'a>(&self, totals: &Totals, owners: impl Iterator<Item = &'a Self> + Clone) {
        // SeqCst: see `Stock::give_large`.
        if self.small.untold().max(0) > totals.slack.load(SeqCst) {
            totals.raise(owners);
        }
    }

    /// Tells the level what it has too much, for an owner that rests from now on.
    pub(crate) fn rest(&self, totals: &Totals) {
        for stock in [&self.small, &self.big] {
            if stock.untold() < 0 {
                stock.tell(totals);
            }
        }
        self.tune(totals);
    }

    /// Sets how many bytes hits may give out before there is something to do: small ones to tell, large ones beyond the idle bytes,
    /// or more than the owner ever had and than the peak is certain to have room for.
    fn tune(&self, totals: &Totals) {
        // SeqCst, both: see `Stock::give_large`.
        let told = self.big.told.load(SeqCst);
        let (small, big) = (self.small.untold(), self.big.live() - told);
        let below_peak = totals.slack.load(SeqCst) - small;
        let below_high = self.high.load(Relaxed) - self.small.live() - self.big.live();
        let both = below_peak.max(below_high).max(0);
        // Each has what it can use, or else half.
        let (for_small, for_big) = ((FOLD - small).max(0), (-big).max(0));
        let for_small = for_small.min((both / 2).max(both - for_big));
        self.small.set_most(for_small);
        self.big.set_most(for_big.min(both - for_small));
        // SeqCst, as in `Totals::reset_peaks` and `Stock::reclaim`: either this sees that peaks began again, or that idle bytes
        // are gone, or what it set is set back.
        fence(SeqCst);
        if totals.resets.load(SeqCst) != self.resets.load(Relaxed) || self.big.told.load(SeqCst) != told {
            self.stop();
        }
        // SeqCst, as in `Totals::raise`: either this sees it, or what it set is set back.
        if totals.slack.load(SeqCst) < 0 {
            self.big.stop();
        }
    }

    fn stop(&self) {
        self.small.stop();
        self.big.stop();
    }

    /// What is live by all allocations and frees of this owner. Below 0 where it frees what others allocated.
    fn live(&self) -> Live {
        let (flow, large) = (self.flow.flows(), self.slots.flows());
        let requested = |flows: &Flows| flows.requested.wrapping_sub(flows.returned) as i64;
        let blocks = |flows: &Flows| flows.allocs.wrapping_sub(flows.frees) as i64;
        let (large_requested, large_blocks) = (requested(&large), blocks(&large));
        Live {
            requested: requested(&flow) + large_requested,
            blocks: blocks(&flow) + large_blocks,
            large_allocated: self.big.live(),
            large_requested,
            large_blocks,
        }
    }
}

/// Whether a block of so many bytes is counted as a large one.
#[inline(always)]
fn is_large(allocated: u64) -> bool {
    allocated > FOLD as u64
}

/// The bytes that all owners have given out and not got back.
fn allocated<'a>(owners: impl Iterator<Item = &'a Counters>) -> i64 {
    owners.map(|owner| owner.small.live() + owner.big.live()).sum()
}

/// From now on each large block that owners allocate is one to settle.
fn stop_large<'a>(owners: impl Iterator<Item = &'a Counters>) {
    owners.for_each(|owner| owner.big.stop());
    // SeqCst: an owner that allocates one meanwhile sees it, or we see what it has; and see `Counters::tune`.
    fence(SeqCst);
}

fn live<'a>(owners: impl Iterator<Item = &'a Counters>) -> Live {
    owners.fold(Live::default(), |sum, owner| sum.plus(owner.live()))
}

impl Totals {
    /// Bytes given out, or freed and waiting, now.
    pub(crate) fn active_now<'a>(&self, owners: impl Iterator<Item = &'a Counters>) -> u64 {
        u64::try_from(self.active(allocated(owners))).unwrap_or(0)
    }

    fn active(&self, allocated: i64) -> i64 {
        allocated + self.pending.load(Relaxed) as i64
    }

    /// Bytes freed that wait, by this much more.
    pub(crate) fn add_pending<'a>(&self, bytes: u64, owners: impl Iterator<Item = &'a Counters> + Clone) {
        self.pending.fetch_add(bytes, Relaxed);
        let slack = self.slack.fetch_sub(bytes as i64, SeqCst) - bytes as i64;
        if (-(bytes as i64)..0).contains(&slack) {
            stop_large(owners.clone());
        }
        // What owners have not told yet is missing here.
        if self.peak.load(Relaxed) - slack > self.active_peak.load(Relaxed) {
            self.raise_active_peak(allocated(owners));
        }
    }

    /// Bytes freed that wait, by this much less.
    pub(crate) fn sub_pending(&self, bytes: u64) {
        self.pending.fetch_sub(bytes, Relaxed);
        self.slack.fetch_add(bytes as i64, SeqCst);
    }

    /// Raises the peaks to what is allocated now, if that is more than before.
    fn raise<'a>(&self, owners: impl Iterator<Item = &'a Counters> + Clone) {
        let mut allocated;
        loop {
            // While the level is above the peak, whoever allocates a large block has to look.
            stop_large(owners.clone());
            allocated = self::allocated(owners.clone());
            let before = self.peak.fetch_max(allocated, Relaxed);
            if allocated > before {
                self.slack.fetch_add(allocated - before, SeqCst);
                self.note(live(owners));
                break;
            }
            // Once more where an owner used idle bytes meanwhile: it may not have seen that they were told anew.
            let told_anew = |owner: &Counters| owner.big.reclaim(self);
            if owners.clone().filter(|owner| told_anew(owner)).count() == 0 {
                break;
            }
        }
        self.raise_active_peak(allocated);
    }

    fn raise_active_peak(&self, allocated: i64) {
        let active = self.active(allocated);
        if active > self.active_peak.load(Relaxed) {
            self.active_peak.fetch_max(active, Relaxed);
        }
    }

    /// Keeps what was live at a new peak.
    fn note(&self, live: Live) {
        let live = [
            live.requested,
            live.blocks,
            live.large_allocated,
            live.large_requested,
            live.large_blocks,
        ];
        for (kept, live) in self.peak_live.iter().zip(live) {
            kept.store(live, Relaxed);
        }
    }

    fn peak_live(&self) -> Live {
        let [requested, blocks, large_allocated, large_requested, large_blocks] =
            std::array::from_fn(|place| self.peak_live[place].load(Relaxed));
        Live {
            requested,
            blocks,
            large_allocated,
            large_requested,
            large_blocks,
        }
    }

    /// The present values and peaks over all owners; exact when no thread is allocating or freeing.
    pub(crate) fn sum<'a>(&self, owners: impl Iterator<Item = &'a Counters> + Clone) -> Sum {
        let mut sum = Sum::default();
        for owner in owners {
            let large = owner.slots.flows();
            sum.all.add(&owner.flow.flows());
            sum.all.add(&large);
            sum.large.add(&large);
            sum.allocated += owner.small.live() + owner.big.live();
            sum.live = sum.live.plus(owner.live());
        }
        // Large blocks are counted by what was given out.
        let freed = sum.large.given.wrapping_sub(sum.live.large_allocated as u64);
        sum.large.freed = freed;
        sum.all.freed += freed;
        sum.pending = self.pending.load(Relaxed);
        (sum.peak_allocated, sum.peak) = (self.peak.load(Relaxed), self.peak_live());
        // What several owners have not told may be above all that was looked at.
        if sum.allocated > sum.peak_allocated {
            (sum.peak_allocated, sum.peak) = (sum.allocated, sum.live);
        }
        let active = sum.allocated + sum.pending as i64;
        sum.peak_active = self.active_peak.load(Relaxed).max(sum.peak_allocated).max(active);
        sum
    }

    /// Lets peaks begin again at what is live now.
    pub(crate) fn reset_peaks<'a>(&self, owners: impl Iterator<Item = &'a Counters> + Clone) {
        let (allocated, live) = (allocated(owners.clone()), live(owners.clone()));
        let before = self.peak.swap(allocated, Relaxed);
        self.note(live);
        self.active_peak.store(self.active(allocated), Relaxed);
        self.slack.fetch_add(allocated - before, SeqCst);
        // SeqCst: see `Counters::tune`.
        self.resets.fetch_add(1, SeqCst);
        fence(SeqCst);
        owners.for_each(Counters::stop);
    }
}

/// Counters added up over all owners.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sum {
    pub(crate) allocated: i64,
    pub(crate) live: Live,
    pub(crate) pending: u64,
    pub(crate) peak_allocated: i64,
    /// What was live when `allocated` was `peak_allocated`.
    pub(crate) peak: Live,
    pub(crate) peak_active: i64,
    /// What was given out and given back so far, of all blocks and of the large ones.
    pub(crate) all: Flows,
    pub(crate) large: Flows,
}

/// What was given out and given back so far.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Flows {
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
    /// Bytes as asked for, given out and given back.
    pub(crate) requested: u64,
    pub(crate) returned: u64,
    /// Bytes given out, rounded; of large blocks only.
    pub(super) given: u64,
    /// Bytes given back, rounded.
    pub(crate) freed: u64,
}

impl Flows {
    fn add(&mut self, flows: &Self) {
        self.allocs += flows.allocs;
        self.frees += flows.frees;
        self.requested += flows.requested;
        self.returned += flows.returned;
        self.given += flows.given;
        self.freed += flows.freed;
    }
}

impl Flow {
    fn flows(&self) -> Flows {
        Flows {
            allocs: self.allocs.get(),
            frees: self.frees.get(),
            requested: self.requested.get(),
            returned: self.returned.get(),
            given: 0,
            freed: self.freed.get(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn owners<const COUNT: usize>() -> [Counters; COUNT] {
        std::array::from_fn(|_| {
            let owner = Counters::new(1 << 40);
            owner.big.set_bound(1 << 40);
            owner
        })
    }

    /// The owner with this number allocates: a hit, or not.
    fn alloc(totals: &Totals, owners: &[Counters], owner: usize, bytes: u64) {
        let (own, large, requested) = (&owners[owner], is_large(bytes), bytes - 1);
        let beyond = if requested % 3 == 0 {
            own.alloc(bytes, requested);
            true
        } else if large {
            own.slots.alloc(bytes, requested);
            own.big.give_large(bytes)
        } else {
            own.alloc_small(requested);
            own.small.give(bytes)
        };
        if beyond {
            own.settle(totals, large, owners.iter());
        }
        own.open();
    }

    /// It frees: a hit where there is room.
    fn free(totals: &Totals, owners: &[Counters], owner: usize, bytes: u64) {
        let (own, large, requested) = (&owners[owner], is_large(bytes), bytes - 1);
        let stock = if large { &own.big } else { &own.small };
        match stock.room(bytes) {
            Some(hits) if !large => {
                stock.take(hits);
                own.free_small(bytes, requested);
            }
            Some(hits) => {
                stock.take(hits);
                own.slots.free(requested);
            }
            None => {
                own.free(totals, bytes, requested);
            }
        }
        own.open();
    }

    #[test]
    fn one_owner_has_exact_values_and_peaks() {
        // Small blocks, large ones, and both together.
        for (seed, most) in [(1u64, 3000u64), (2, 20_000), (3, 200)] {
            let (totals, owner) = (Totals::default(), owners::<1>());
            let mut live = Vec::new();
            let (mut now, mut given, mut peak, mut at_peak) = (0i64, 0i64, 0i64, Live::default());
            for step in 0..3000u64 {
                let random = (step + seed).wrapping_mul(6_364_136_223_846_793_005) >> 33;
                if random % 5 < 2 && !live.is_empty() {
                    let bytes: u64 = live.swap_remove(random as usize % live.len());
                    free(&totals, &owner, 0, bytes);
                    now -= bytes as i64;
                } else {
                    let bytes = 512 * (1 + random % most);
                    alloc(&totals, &owner, 0, bytes);
                    live.push(bytes);
                    now += bytes as i64;
                    given += bytes as i64;
                    if now > peak {
                        (peak, at_peak) = (now, live_of(&live));
                    }
                }
                let sum = totals.sum(owner.iter());
                assert_eq!((sum.allocated, sum.peak_allocated), (now, peak), "step {step}");
                assert_eq!(sum.live, live_of(&live), "step {step}");
                assert_eq!(sum.peak, at_peak, "step {step}");
                assert_eq!(sum.peak_active, peak);
                let freed = sum.all.freed as i64;
                assert_eq!(
                    (sum.all.allocs - sum.all.frees, freed),
                    (live.len() as u64, given - now)
                );
                assert_eq!(sum.all.returned as i64, freed - sum.all.frees as i64);
            }
        }
    }

    fn live_of(live: &[u64]) -> Live {
        let large = || live.iter().filter(|&&bytes| bytes > FOLD as u64);
        Live {
            requested: live.iter().map(|&bytes| bytes as i64 - 1).sum(),
            blocks: live.len() as i64,
            large_allocated: large().sum::<u64>() as i64,
            large_requested: large().map(|&bytes| bytes as i64 - 1).sum(),
            large_blocks: large().count() as i64,
        }
    }

    #[test]
    fn peaks_begin_again_at_what_is_live() {
        let (totals, owner) = (Totals::default(), owners::<1>());
        alloc(&totals, &owner, 0, 4 << 20);
        free(&totals, &owner, 0, 4 << 20);
        alloc(&totals, &owner, 0, 1024);
        totals.reset_peaks(owner.iter());
        let sum = totals.sum(owner.iter());
        let peaks = (sum.peak_allocated, sum.peak.requested, sum.peak_active);
        assert_eq!(peaks, (1024, 1023, 1024));
        // The idle bytes of before are no reason not to see this.
        alloc(&totals, &owner, 0, 3 << 20);
        assert_eq!(totals.sum(owner.iter()).peak_allocated, (3 << 20) + 1024);
    }

    #[test]
    fn with_several_owners_the_peak_is_within_a_fold_each() {
        let (totals, owners) = (Totals::default(), owners::<4>());
        let (mut now, mut peak) = (0i64, 0i64);
        for step in 0..4000usize {
            let owner = step % 4;
            alloc(&totals, &owners, owner, 300 << 10);
            now += 300 << 10;
            peak = peak.max(now);
            if step % 8 >= 4 {
                free(&totals, &owners, owner, 600 << 10);
                now -= 600 << 10;
            }
        }
        let sum = totals.sum(owners.iter());
        assert_eq!(sum.allocated, now);
        assert!(
            sum.peak_allocated >= peak && sum.peak_allocated <= peak + 4 * 2 * FOLD,
            "{} {peak}",
            sum.peak_allocated
        );
    }

    #[test]
    fn of_large_blocks_the_peak_is_exact_with_several_owners() {
        let (totals, owners) = (Totals::default(), owners::<3>());
        let mut live: Vec<(usize, u64)> = Vec::new();
        let (mut now, mut peak) = (0i64, 0i64);
        for step in 0..20_000u64 {
            let random = step.wrapping_mul(6_364_136_223_846_793_005) >> 33;
            if random % 16 < 7 && !live.is_empty() {
                let (owner, bytes) = live.swap_remove(random as usize / 16 % live.len());
                free(&totals, &owners, owner, bytes);
                now -= bytes as i64;
            } else if live.len() < 12 {
                let (owner, bytes) = (random as usize / 16 % 3, (2 + random / 64 % 40) << 20);
                alloc(&totals, &owners, owner, bytes);
                live.push((owner, bytes));
                now += bytes as i64;
                peak = peak.max(now);
            }
            if random % 1024 == 0 {
                owners[0].rest(&totals);
            }
            if random % 2048 == 1 {
                totals.reset_peaks(owners.iter());
                peak = now;
            }
            let sum = totals.sum(owners.iter());
            assert_eq!((sum.allocated, sum.peak_allocated), (now, peak), "step {step}");
            assert_eq!(sum.peak_active, peak, "step {step}");
        }
    }
}

#[cfg(all(test, loom))]
mod models;
