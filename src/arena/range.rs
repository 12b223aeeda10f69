//! Free ranges by size: O(1) good-fit with a two-level bitmap (Masmano et al., TLSF, ECRTS 2004).
//!
//! Sizes below 32 units have a bin each; above, every power of two is divided into 32 bins, so the ranges of one bin differ by
//! at most 3 %. A search looks through a bounded number of ranges in the request's own bin for the best of them, then takes the
//! first range of the next bin that is not empty, which always fits. Both cost the same with one free range and with a million.

use crate::metadata::{Blocks, State};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

const SUB: u32 = 32;
const WORDS: usize = 28;
const BINS: usize = WORDS * SUB as usize;
/// How many ranges of the request's own bin are looked at.
const SCAN: u32 = 16;

/// Bins of free ranges. Guarded by the arena's lock, as are the links in the blocks (hence `Relaxed` throughout).
pub(crate) struct Ranges {
    words: u32,
    bits: [u32; WORDS],
    heads: Box<[u32]>,
    by_addr: BTreeMap<u64, u32>,
}

/// The bin that a range of `units` is kept in.
const fn bin(units: u32) -> u32 {
    if units < SUB {
        return units;
    }
    let exponent = units.ilog2();
    (exponent - 4) * SUB + ((units >> (exponent - 5)) & (SUB - 1))
}

impl Ranges {
    pub(crate) fn new() -> Self {
        Self {
            words: 0,
            bits: [0; WORDS],
            heads: vec![0; BINS].into(),
            by_addr: BTreeMap::new(),
        }
    }

    /// Adds a range that the caller holds.
    pub(crate) fn insert(&mut self, blocks: &Blocks, index: u32) {
        let block = blocks.get(index);
        let bin = bin(block.units());
        let head = self.heads[bin as usize];
        block.set_state(State::Free);
        block.bin_prev.store(0, Relaxed);
        block.bin_next.store(head, Relaxed);
        if head != 0 {
            blocks.get(head).bin_prev.store(index, Relaxed);
        }
        self.heads[bin as usize] = index;
        self.by_addr.insert(block.addr(), index);
        self.words |= 1 << (bin / SUB);
        self.bits[(bin / SUB) as usize] |= 1 << (bin % SUB);
    }

    /// Takes a range out; the caller holds it then.
    pub(crate) fn remove(&mut self, blocks: &Blocks, index: u32) {
        let block = blocks.get(index);
        debug_assert_eq!(block.state(), State::Free);
        self.by_addr.remove(&block.addr());
        let bin = bin(block.units());
        let (prev, next) = (block.bin_prev.load(Relaxed), block.bin_next.load(Relaxed));
        if next != 0 {
            blocks.get(next).bin_prev.store(prev, Relaxed);
        }
        if prev != 0 {
            blocks.get(prev).bin_next.store(next, Relaxed);
            return;
        }
        self.heads[bin as usize] = next;
        if next == 0 {
            let word = &mut self.bits[(bin / SUB) as usize];
            *word &= !(1 << (bin % SUB));
            if *word == 0 {
                self.words &= !(1 << (bin / SUB));
            }
        }
    }

    /// A range of at least `units`, still in its bin, or 0.
    pub(crate) fn find(&self, blocks: &Blocks, units: u32) -> u32 {
        let own = bin(units);
        let mut best = 0;
        let mut best_units = u32::MAX;
        let mut index = self.heads[own as usize];
        for _ in 0..SCAN {
            if index == 0 {
                break;
            }
            let block = blocks.get(index);
            let have = block.units();
            if have >= units && have < best_units {
                (best, best_units) = (index, have);
            }
            index = block.bin_next.load(Relaxed);
        }
        if best != 0 { best } else { self.first_above(own) }
    }

    /// The range in which an address lies, or 0.
    pub(crate) fn around(&self, blocks: &Blocks, addr: u64) -> u32 {
        let last = self.by_addr.range(..=addr).next_back();
        last.map_or(0, |(_, &index)| if blocks.get(index).end() > addr { index } else { 0 })
    }

    /// Lets [`Self::find`] find what it overlooks: a range that fits, but lies in the request's own bin behind others that
    /// do not. Looks through the whole bin; for when a request would fail otherwise.
    pub(crate) fn promote(&mut self, blocks: &Blocks, units: u32) {
        let mut index = self.heads[bin(units) as usize];
        while index != 0 && blocks.get(index).units() < units {
            index = blocks.get(index).bin_next.load(Relaxed);
        }
        if index != 0 {
            self.remove(blocks, index);
            self.insert(blocks, index);
        }
    }

    /// The first range of the lowest bin above `bin` that is not empty, or 0.
    fn first_above(&self, bin: u32) -> u32 {
        let from = bin + 1;
        let (mut word, bit) = (from / SUB, from % SUB);
        let mut bits = self.bits.get(word as usize).map_or(0, |bits| bits & (u32::MAX << bit));
        if bits == 0 {
            let words = self.words & u32::MAX.checked_shl(word + 1).unwrap_or(0);
            if words == 0 {
                return 0;
            }
            word = words.trailing_zeros();
            bits = self.bits[word as usize];
        }
        self.heads[(word * SUB + bits.trailing_zeros()) as usize]
    }

    /// The largest free range, in units. Looks through one bin.
    pub(crate) fn largest(&self, blocks: &Blocks) -> u32 {
        let Some(word) = self.words.checked_ilog2() else {
            return 0;
        };
        let bin = word * SUB + self.bits[word as usize].ilog2();
        let mut index = self.heads[bin as usize];
        let mut largest = 0;
        while index != 0 {
            let block = blocks.get(index);
            largest = largest.max(block.units());
            index = block.bin_next.load(Relaxed);
        }
        largest
    }

    /// All free ranges, in no order.
    pub(crate) fn all(&self, blocks: &Blocks) -> Vec<u32> {
        let mut all = Vec::new();
        for &head in &self.heads {
            let mut index = head;
            while index != 0 {
                all.push(index);
                index = blocks.get(index).bin_next.load(Relaxed);
            }
        }
        all
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(blocks: &Blocks, units: u32) -> u32 {
        let index = blocks.take(1);
        blocks.get(index).units.store(units, Relaxed);
        index
    }

    #[test]
    fn bins_are_in_order_and_at_most_a_32nd_wide() {
        let mut last = 0;
        for units in (1..100_000).chain((17..32).map(|e| (1 << e) - 1)).chain([u32::MAX]) {
            let here = bin(units);
            assert!(here >= last && (here as usize) < BINS);
            last = here;
        }
        for units in [1 << 10, 12_345, 1 << 30] {
            let widest = units + units / 32 + 1;
            assert!(bin(widest) > bin(units), "{units} and {widest} share a bin");
        }
    }

    proptest! {
        #[test]
        fn finds_a_range_when_one_fits_by_a_bin(have in prop::collection::vec(1u32..1 << 22, 0..40), want in 1u32..1 << 22) {
            let blocks = Blocks::new();
            let mut ranges = Ranges::new();
            for &units in &have {
                let index = range(&blocks, units);
                ranges.insert(&blocks, index);
            }
            prop_assert_eq!(ranges.largest(&blocks), have.iter().copied().max().unwrap_or(0));
            let found = ranges.find(&blocks, want);
            if found == 0 {
                prop_assert!(!have.iter().any(|&units| bin(units) > bin(want)), "missed a range");
            } else {
                let units = blocks.get(found).units();
                prop_assert!(units >= want);
                // No range of a lower bin would have fitted for certain.
                prop_assert!(!have.iter().any(|&other| bin(other) > bin(want) && bin(other) < bin(units)));
            }
            for index in ranges.all(&blocks) {
                ranges.remove(&blocks, index);
            }
            prop_assert_eq!(ranges.find(&blocks, 1), 0);
            prop_assert_eq!((ranges.words, ranges.bits), (0, [0; WORDS]));
        }
    }
}
