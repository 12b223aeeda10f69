//! Counters and peaks step by step, of owners that one thread moves: values, peaks, and how often there is anything to do.

use super::super::sums::{Live, Sum};
use super::*;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

type Waiting = Box<dyn FnOnce()>;

thread_local! {
    static WAITING: RefCell<Option<Waiting>> = const { RefCell::new(None) };
}

/// What other threads do while this one waits for them.
pub(in crate::thread) fn others_get_on() {
    if let Some(step) = WAITING.take() {
        step();
    }
}

/// Owners, of which each thread has as many.
pub(in crate::thread) struct Setting {
    pub(in crate::thread) totals: Totals,
    pub(in crate::thread) owners: Vec<Counters>,
    streams: usize,
}

impl Setting {
    pub(in crate::thread) fn new(threads: usize, streams: usize) -> Self {
        let owner = || {
            let owner = Counters::new(1 << 40);
            owner.big.set_bound(1 << 40);
            owner
        };
        Self {
            totals: Totals::default(),
            owners: (0..threads * streams).map(|_| owner()).collect(),
            streams,
        }
    }

    /// As this owner's thread sees them.
    pub(in crate::thread) fn owners(&self, me: usize) -> impl Iterator<Item = (&Counters, Whose)> + Clone {
        let whose = move |owner: usize| {
            if owner / self.streams == me / self.streams {
                Whose::Mine
            } else {
                Whose::Anothers
            }
        };
        self.owners
            .iter()
            .enumerate()
            .map(move |(owner, counters)| (counters, whose(owner)))
    }

    /// The owner with this number allocates: a hit, or not. Whether there was something to do about it.
    pub(in crate::thread) fn alloc(&self, owner: usize, bytes: u64) -> bool {
        let (own, units, requested) = (&self.owners[owner], size_class::units(bytes), bytes - 1);
        let beyond = if requested % 3 == 0 {
            own.alloc(units, requested);
            true
        } else if units > CLASS_MAX {
            own.slots.alloc(bytes, requested);
            own.big.give_large(bytes)
        } else {
            own.alloc_small(units.into(), requested);
            own.small.give(bytes)
        };
        if beyond && own.settle(&self.totals, self.owners(owner)) {
            let mine = self.owners(owner).filter(|&(_, whose)| whose == Whose::Mine);
            mine.for_each(|(owner, _)| owner.open());
        }
        own.open();
        beyond
    }

    /// It frees: a hit where there is room.
    pub(in crate::thread) fn free(&self, owner: usize, bytes: u64) {
        let (own, units, requested) = (&self.owners[owner], size_class::units(bytes), bytes - 1);
        let large = units > CLASS_MAX;
        let stock = if large { &own.big } else { &own.small };
        match stock.room(bytes) {
            Some(hits) if !large => {
                stock.take(hits);
                own.free_small(requested);
            }
            Some(hits) => {
                stock.take(hits);
                own.slots.free(requested);
            }
            None => {
                own.free(&self.totals, units, requested);
            }
        }
        own.open();
    }

    /// It frees a block that waits from now on.
    pub(in crate::thread) fn wait(&self, owner: usize, bytes: u64) {
        let own = &self.owners[owner];
        own.free_waiting(&self.totals, (size_class::units(bytes), bytes - 1), self.owners(owner));
        own.open();
    }

    /// How many of a pair's two steps wanted something, which is at most one.
    fn pair(&self, owner: usize, bytes: u64) -> usize {
        let beyond = self.alloc(owner, bytes);
        self.free(owner, bytes);
        beyond.into()
    }

    pub(in crate::thread) fn sum(&self) -> Sum {
        self.totals.sum(self.owners(0))
    }
}

pub(in crate::thread) fn random(step: u64) -> u64 {
    step.wrapping_mul(6_364_136_223_846_793_005) >> 33
}

#[test]
fn steady_pairs_of_small_blocks_announce_nothing_more() {
    for (bytes, kept) in [(4608, 0), (4608, 3), ((1 << 20) - 512, 0), ((1 << 20) - 512, 3)] {
        let setting = Setting::new(2, 1);
        // There is room below a peak.
        setting.alloc(0, 64 << 20);
        setting.free(0, 64 << 20);
        for _ in 0..kept {
            setting.alloc(1, bytes);
        }
        let changes = |pairs: usize| {
            let changes = |_: &usize| {
                let before = setting.totals.small.load(Relaxed);
                for owner in [0, 1] {
                    setting.alloc(owner, bytes);
                }
                let between = setting.totals.small.load(Relaxed);
                for owner in [0, 1] {
                    setting.free(owner, bytes);
                }
                [between, setting.totals.small.load(Relaxed)] != [before; 2]
            };
            (0..pairs).filter(changes).count()
        };
        changes(3);
        assert_eq!(changes(100), 0, "pairs of {bytes} bytes beside {kept} blocks");
    }
}

#[test]
fn one_owner_has_exact_values_and_peaks() {
    // Small blocks, large ones, and both together.
    for (seed, most) in [(1u64, 3000u64), (2, 20_000), (3, 200)] {
        let setting = Setting::new(1, 1);
        let mut live = Vec::new();
        let (mut now, mut given, mut peak, mut at_peak) = (0i64, 0i64, 0i64, Live::default());
        for step in 0..3000u64 {
            let random = random(step + seed);
            if random % 5 < 2 && !live.is_empty() {
                let bytes: u64 = live.swap_remove(random as usize % live.len());
                setting.free(0, bytes);
                now -= bytes as i64;
            } else {
                let bytes = 512 * (1 + random % most);
                setting.alloc(0, bytes);
                live.push(bytes);
                now += bytes as i64;
                given += bytes as i64;
                if now > peak {
                    (peak, at_peak) = (now, live_of(&live));
                }
            }
            let sum = setting.sum();
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
    let setting = Setting::new(1, 1);
    setting.pair(0, 4 << 20);
    setting.alloc(0, 1024);
    setting.totals.reset_peaks(setting.owners(0));
    let sum = setting.sum();
    let peaks = (sum.peak_allocated, sum.peak.requested, sum.peak_active);
    assert_eq!(peaks, (1024, 1023, 1024));
    // The idle bytes of before are no reason not to see this.
    setting.alloc(0, 3 << 20);
    assert_eq!(setting.sum().peak_allocated, (3 << 20) + 1024);
}

/// What is live, step by step, of owners that allocate and free whatever any of them has.
struct Walk {
    setting: Setting,
    live: Vec<u64>,
    now: i64,
    peak: i64,
}

impl Walk {
    fn new(threads: usize, streams: usize) -> Self {
        Self {
            setting: Setting::new(threads, streams),
            live: Vec::new(),
            now: 0,
            peak: 0,
        }
    }

    /// One step, with blocks of up to so many units.
    fn step(&mut self, random: u64, most: u64) {
        let owner = (random >> 8) as usize % self.setting.owners.len();
        // The number of live blocks rises and falls.
        let rises = (random >> 3) % 40 > self.live.len() as u64;
        if rises {
            let bytes = 512 * (1 + (random >> 12) % most);
            self.setting.alloc(owner, bytes);
            self.live.push(bytes);
            self.now += bytes as i64;
            self.peak = self.peak.max(self.now);
        } else if let Some(last) = self.live.len().checked_sub(1) {
            let bytes = self.live.swap_remove((random >> 12) as usize % (last + 1));
            self.setting.free(owner, bytes);
            self.now -= bytes as i64;
        }
        if random.is_multiple_of(1024) {
            self.setting.owners[owner].rest(&self.setting.totals);
        }
        if random % 4096 == 1 {
            self.setting.totals.reset_peaks(self.setting.owners(owner));
            self.peak = self.now;
        }
    }
}

#[test]
fn with_several_owners_of_one_thread_the_peak_is_exact() {
    for most in [40, 2000, 9000] {
        let mut walk = Walk::new(1, 3);
        for step in 0..20_000 {
            walk.step(random(step + most), most);
            let sum = walk.setting.sum();
            assert_eq!(
                (sum.allocated, sum.peak_allocated),
                (walk.now, walk.peak),
                "step {step}"
            );
            assert_eq!(sum.peak_active, walk.peak, "step {step}");
        }
    }
}

#[test]
fn with_several_threads_the_peak_is_within_a_fold_each_and_never_too_low() {
    const THREADS: usize = 4;
    for (most, streams) in [
        (40, 1),
        (500, 1),
        (2000, 1),
        (9000, 1),
        (40, 3),
        (500, 3),
        (2000, 3),
        (9000, 3),
    ] {
        let mut walk = Walk::new(THREADS, streams);
        for step in 0..20_000 {
            walk.step(random(step + most), most);
            let sum = walk.setting.sum();
            assert_eq!(sum.allocated, walk.now, "step {step}");
            for peak in [&walk.setting.totals.peak, &walk.setting.totals.active_peak] {
                let above = peak.load(Relaxed) - walk.peak;
                assert!((0..=THREADS as i64 * FOLD).contains(&above), "step {step}: {above}");
            }
        }
    }
}

#[test]
fn pairs_on_the_streams_of_one_thread_announce_nothing_more() {
    for (bytes, streams) in [(4608, 8), (512 << 10, 2), ((1 << 20) - 512, 1)] {
        let setting = Setting::new(1, streams);
        setting.pair(0, 64 << 20);
        let pairs = |_| (0..streams).map(|owner| setting.pair(owner, bytes)).sum::<usize>();
        let (first, later) = ((0..8).map(pairs).sum::<usize>(), (0..100).map(pairs).sum::<usize>());
        assert!(first <= 2 * streams && later == 0, "of {bytes} bytes: {first}, {later}");
    }
}

#[test]
fn a_stream_takes_the_fold_of_those_that_rest() {
    const BYTES: u64 = (1 << 20) - 512;
    let setting = Setting::new(1, 4);
    setting.pair(0, 64 << 20);
    for owner in 0..4 {
        setting.pair(owner, 4608);
    }
    let pairs = |_| setting.pair(2, BYTES);
    let (first, later) = ((0..4).map(pairs).sum::<usize>(), (0..100).map(pairs).sum::<usize>());
    assert!(first <= 3 && later == 0, "{first}, {later}");
}

#[test]
fn of_large_blocks_the_peak_is_exact_with_several_owners() {
    let setting = Setting::new(3, 1);
    let mut live: Vec<(usize, u64)> = Vec::new();
    let (mut now, mut peak) = (0i64, 0i64);
    for step in 0..20_000u64 {
        let random = random(step);
        if random % 16 < 7 && !live.is_empty() {
            let (owner, bytes) = live.swap_remove(random as usize / 16 % live.len());
            setting.free(owner, bytes);
            now -= bytes as i64;
        } else if live.len() < 12 {
            let (owner, bytes) = (random as usize / 16 % 3, (2 + random / 64 % 40) << 20);
            setting.alloc(owner, bytes);
            live.push((owner, bytes));
            now += bytes as i64;
            peak = peak.max(now);
        }
        if random.is_multiple_of(1024) {
            setting.owners[0].rest(&setting.totals);
        }
        if random % 2048 == 1 {
            setting.totals.reset_peaks(setting.owners(0));
            peak = now;
        }
        let sum = setting.sum();
        assert_eq!((sum.allocated, sum.peak_allocated), (now, peak), "step {step}");
        assert_eq!(sum.peak_active, peak, "step {step}");
    }
}

/// A large size that is a hit in [`Setting::alloc`].
const HIT: u64 = (16 << 20) + 512;

#[test]
fn pairs_of_large_blocks_want_nothing_once_their_peak_was_there() {
    let setting = Setting::new(4, 1);
    // What owner 3 announced of small blocks is more than it has when peaks begin again.
    for _ in 0..129 {
        setting.alloc(3, 8 << 10);
    }
    (0..127).for_each(|_| setting.free(3, 8 << 10));
    setting.totals.reset_peaks(setting.owners(0));
    for owner in 0..3 {
        setting.alloc(owner, HIT);
    }
    (0..3).for_each(|owner| setting.free(owner, HIT));
    let pairs = |_| (0..3).map(|owner| setting.pair(owner, HIT)).sum::<usize>();
    let (first, later) = ((0..4).map(pairs).sum::<usize>(), (0..1000).map(pairs).sum::<usize>());
    assert!(
        first <= 3 && later == 0,
        "{first} and then {later} pairs looked for a peak"
    );
}

#[test]
fn small_pairs_of_several_threads_want_nothing_after_a_few() {
    for bytes in [512, 8 << 10, 512 << 10, (1 << 20) - 512] {
        let setting = Setting::new(4, 1);
        let pairs = |_| (0..4).map(|owner| setting.pair(owner, bytes)).sum::<usize>();
        let (first, later) = ((0..8).map(pairs).sum::<usize>(), (0..1000).map(pairs).sum::<usize>());
        assert!(first <= 8 && later == 0, "of {bytes} bytes: {first}, {later}");
    }
}

#[test]
fn large_pairs_that_never_meet_do_so_while_one_waits() {
    let setting = Rc::new(Setting::new(2, 1));
    setting.pair(0, HIT);
    // Whenever owner 1 looks, owner 0 is between a free and its next allocation, which comes while owner 1 waits.
    let other = setting.clone();
    WAITING.set(Some(Box::new(move || {
        other.alloc(0, HIT);
    })));
    setting.alloc(1, HIT);
    (0..2).for_each(|owner| setting.free(owner, HIT));
    assert_eq!(setting.sum().peak_allocated, 2 * HIT as i64);
    // Who looked last has stopped the other one's hits: that finds that there is nothing to do.
    let pairs = |range: Range<usize>| range.map(|pair| setting.pair(pair % 2, HIT)).sum::<usize>();
    let (first, later) = (pairs(0..2), pairs(2..1000));
    assert!(
        first <= 2 && later == 0,
        "{first} and then {later} pairs looked for a peak"
    );
}
