//! A set of free address ranges.

use std::collections::{BTreeMap, BTreeSet};

/// Free ranges, best fit, adjacent ranges merged. All in bytes.
pub(super) struct Ranges {
    by_addr: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    /// Ranges are not merged across multiples of this.
    boundary: u64,
}

impl Ranges {
    pub const fn new(boundary: u64) -> Self {
        Self {
            by_addr: BTreeMap::new(),
            by_size: BTreeSet::new(),
            boundary,
        }
    }

    /// Makes a range free. It must not overlap a free one.
    pub fn add(&mut self, mut addr: u64, mut bytes: u64) {
        if let Some((&before, &len)) = self.by_addr.range(..addr).next_back()
            && before + len == addr
            && before / self.boundary == addr / self.boundary
        {
            self.remove(before, len);
            addr = before;
            bytes += len;
        }
        let end = addr + bytes;
        if let Some(&len) = self.by_addr.get(&end)
            && end / self.boundary == addr / self.boundary
        {
            self.remove(end, len);
            bytes += len;
        }
        self.insert(addr, bytes);
    }

    /// Takes the lowest part of the smallest range that holds `bytes` at that alignment (a power of two).
    pub fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let (len, start, addr) = self.by_size.range((bytes, 0)..).find_map(|&(len, start)| {
            let addr = start.next_multiple_of(align);
            (addr - start <= len - bytes).then_some((len, start, addr))
        })?;
        self.remove(start, len);
        if addr > start {
            self.insert(start, addr - start);
        }
        if addr + bytes < start + len {
            self.insert(addr + bytes, start + len - addr - bytes);
        }
        Some(addr)
    }

    /// Takes exactly this range out, if it is one free range.
    pub fn take_exactly(&mut self, addr: u64, bytes: u64) -> bool {
        let found = self.by_addr.get(&addr) == Some(&bytes);
        if found {
            self.remove(addr, bytes);
        }
        found
    }

    fn insert(&mut self, addr: u64, bytes: u64) {
        self.by_addr.insert(addr, bytes);
        self.by_size.insert((bytes, addr));
    }

    fn remove(&mut self, addr: u64, bytes: u64) {
        self.by_addr.remove(&addr);
        self.by_size.remove(&(bytes, addr));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge_up_to_the_boundary() {
        let mut ranges = Ranges::new(1024);
        ranges.add(0, 512);
        ranges.add(1024, 512);
        ranges.add(512, 512);
        assert!(ranges.take_exactly(0, 1024), "merged below the boundary, not across it");
        assert!(ranges.take_exactly(1024, 512));
    }

    #[test]
    fn the_smallest_range_that_fits_is_cut() {
        let mut ranges = Ranges::new(u64::MAX);
        ranges.add(0x1000, 0x1000);
        ranges.add(0x4000, 0x800);
        assert_eq!(ranges.take(0x400, 1), Some(0x4000));
        assert_eq!(ranges.take(0x800, 1), Some(0x1000));
        assert_eq!(ranges.take(0x401, 1), Some(0x1800));
        assert_eq!(ranges.take(0x800, 1), None);
    }

    #[test]
    fn alignment_leaves_both_ends_free() {
        let mut ranges = Ranges::new(u64::MAX);
        ranges.add(0x1800, 0x2000);
        assert_eq!(ranges.take(0x1000, 0x1000), Some(0x2000));
        assert!(ranges.take_exactly(0x1800, 0x800));
        assert!(ranges.take_exactly(0x3000, 0x800));
    }
}
