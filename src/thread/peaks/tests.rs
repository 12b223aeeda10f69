//! Peaks beside owners that are new, and with blocks that wait for other streams.

use super::super::counters::tests::{Setting, random};
use super::*;
use crate::size_class;
use std::cell::Cell;

const MIB: u64 = 1 << 20;

#[test]
fn blocks_that_move_to_owners_that_are_new_count_once() {
    const MOVES: usize = 16;
    const BYTES: u64 = 2 * MIB;
    // Owner 0 looks, owner 1 has all blocks at first, and the others are not there yet.
    let setting = Setting::new(2 + MOVES, 1);
    (0..MOVES).for_each(|_| {
        setting.alloc(1, BYTES);
    });
    let there = Cell::new(2);
    // Each time that owner 1 was gone by it frees a block, and an owner that is new allocates one: its thread is going to settle that,
    // which it cannot before the look is over.
    let come = |owner: &usize| {
        if *owner == 2 && there.get() < setting.owners.len() {
            setting.free(1, BYTES);
            setting.owners[there.get()].slots.alloc(BYTES, BYTES);
            setting.owners[there.get()].big.give_large(BYTES);
            there.set(there.get() + 1);
        }
        *owner < there.get()
    };
    let owners = (0..).take_while(come).map(|owner| {
        let whose = if owner == 0 { Whose::Mine } else { Whose::Anothers };
        (&setting.owners[owner], whose)
    });
    setting.owners[0].alloc(size_class::units(BYTES), BYTES);
    setting.owners[0].settle(&setting.totals, owners);
    assert_eq!(setting.totals.peak(), (MOVES as i64 + 1) * BYTES as i64);
    assert_eq!(there.get(), setting.owners.len(), "not all blocks have moved");
}

#[test]
fn reading_the_numbers_sets_no_peak_that_was_not_there() {
    const BYTES: u64 = 2 * MIB;
    let setting = Setting::new(3, 1);
    setting.alloc(1, BYTES);
    // While owners are gone by for the first time the block moves from owner 1 to owner 2.
    let moved = Cell::new(false);
    let owners = setting.owners(0).enumerate().map(|(place, owner)| {
        if place == 2 && !moved.replace(true) {
            setting.free(1, BYTES);
            setting.alloc(2, BYTES);
        }
        owner
    });
    let sum = setting.totals.sum(owners);
    assert!(moved.get());
    let all = [sum.allocated, sum.peak_allocated, sum.peak_active];
    assert_eq!(all, [BYTES as i64; 3]);
}

/// What is live and what waits, step by step, where any owner frees what any other has.
struct Walk {
    setting: Setting,
    live: Vec<u64>,
    waiting: Vec<u64>,
    /// Given out, and with what waits.
    now: [i64; 2],
    peaks: [i64; 2],
}

impl Walk {
    fn new(threads: usize, streams: usize) -> Self {
        Self {
            setting: Setting::new(threads, streams),
            live: Vec::new(),
            waiting: Vec::new(),
            now: [0; 2],
            peaks: [0; 2],
        }
    }

    fn change(&mut self, [allocated, active]: [i64; 2]) {
        self.now = [self.now[0] + allocated, self.now[1] + active];
        self.peaks = [0, 1].map(|which| self.peaks[which].max(self.now[which]));
    }

    /// One step, with blocks of up to so many units.
    fn step(&mut self, random: u64, most: u64) {
        let owner = (random >> 8) as usize % self.setting.owners.len();
        let pick = |blocks: &mut Vec<u64>| {
            let last = blocks.len().checked_sub(1)?;
            Some(blocks.swap_remove((random >> 12) as usize % (last + 1)))
        };
        // The number of live blocks rises and falls.
        if (random >> 3) % 40 > self.live.len() as u64 {
            let bytes = 512 * (1 + (random >> 12) % most);
            self.setting.alloc(owner, bytes);
            self.live.push(bytes);
            self.change([bytes as i64; 2]);
        } else if random.is_multiple_of(2)
            && let Some(bytes) = pick(&mut self.live)
        {
            self.setting.free(owner, bytes);
            self.change([-(bytes as i64); 2]);
        } else if let Some(bytes) = pick(&mut self.live) {
            self.setting.wait(owner, bytes);
            self.waiting.push(bytes);
            self.change([-(bytes as i64), 0]);
        }
        if (random >> 20) % 3 < 2
            && let Some(bytes) = pick(&mut self.waiting)
        {
            self.setting.totals.sub_pending(bytes);
            self.change([0, -(bytes as i64)]);
        }
        if random % 4096 == 1 {
            self.setting.totals.reset_peaks(self.setting.owners(owner));
            self.peaks = self.now;
        }
    }
}

#[test]
fn with_one_thread_peaks_of_what_waits_are_exact() {
    for most in [40, 2000, 9000] {
        let mut walk = Walk::new(1, 3);
        for step in 0..20_000 {
            walk.step(random(step + most), most);
            let sum = walk.setting.sum();
            assert_eq!([sum.allocated, sum.allocated + sum.pending], walk.now, "step {step}");
            assert_eq!([sum.peak_allocated, sum.peak_active], walk.peaks, "step {step}");
        }
    }
}

#[test]
fn with_several_threads_peaks_of_what_waits_are_within_a_fold_each_and_never_too_low() {
    const THREADS: usize = 4;
    for (most, streams) in [(40, 1), (2000, 1), (9000, 1), (40, 3), (2000, 3), (9000, 3)] {
        let mut walk = Walk::new(THREADS, streams);
        for step in 0..20_000 {
            walk.step(random(step + most), most);
            let sum = walk.setting.sum();
            for (told, peak) in [sum.peak_allocated, sum.peak_active].into_iter().zip(walk.peaks) {
                let above = told - peak;
                assert!(
                    (0..=THREADS as i64 * MIB as i64).contains(&above),
                    "step {step}: {above}"
                );
            }
        }
    }
}
