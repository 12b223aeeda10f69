//! What `cuMemAlloc` gives: whole pages for large requests, parts of shared pages for small ones.

use std::collections::{BTreeMap, HashMap};

use super::address_space::AddressSpace;
use super::physical::{Extent, Physical};
use super::ranges::Ranges;
use super::{Code, CuResult};

/// Small allocations are multiples of this many bytes, and aligned to it.
const ALIGNMENT: u64 = 512;
/// The live allocations. Those up to half a page share pages: 1 MiB with the usual pages of 2 MiB.
pub(super) struct Allocations {
    page: u64,
    /// Bytes that each allocation occupies, by address.
    live: BTreeMap<u64, u64>,
    /// Physical memory by the address of its first byte: a large allocation, or a page that small ones share.
    extents: HashMap<u64, Extent>,
    /// The free parts of shared pages.
    parts: Ranges,
}

impl Allocations {
    pub fn new(page: u64) -> Self {
        Self {
            page,
            live: BTreeMap::new(),
            extents: HashMap::new(),
            parts: Ranges::new(page),
        }
    }

    pub fn alloc(&mut self, bytes: u64, physical: &mut Physical, addresses: &mut AddressSpace) -> CuResult<u64> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (addr, held) = if bytes <= self.page / 2 {
            let held = bytes.next_multiple_of(ALIGNMENT);
            if let Some(addr) = self.parts.take(held, ALIGNMENT) {
                (addr, held)
            } else {
                let page = self.pages(self.page, physical, addresses)?;
                self.parts.add(page, self.page);
                (self.parts.take(held, ALIGNMENT).ok_or(Code::OUT_OF_MEMORY)?, held)
            }
        } else {
            let held = bytes.checked_next_multiple_of(self.page).ok_or(Code::OUT_OF_MEMORY)?;
            (self.pages(held, physical, addresses)?, held)
        };
        self.live.insert(addr, held);
        Ok(addr)
    }

    /// Frees the allocation at an address.
    pub fn free(&mut self, addr: u64, physical: &mut Physical, addresses: &mut AddressSpace) -> CuResult {
        let bytes = self.live.remove(&addr).ok_or(Code::INVALID_VALUE)?;
        let base = if bytes < self.page {
            self.parts.add(addr, bytes);
            let page = addr / self.page * self.page;
            if !self.parts.take_exactly(page, self.page) {
                return Ok(());
            }
            page
        } else {
            addr
        };
        if let Some(extent) = self.extents.remove(&base) {
            physical.hide(base, extent.bytes)?;
            physical.give(extent);
            addresses.give(base, extent.bytes);
        }
        Ok(())
    }

    /// Start and bytes of the live allocation around an address.
    pub fn around(&self, addr: u64) -> Option<(u64, u64)> {
        let (&start, &bytes) = self.live.range(..=addr).next_back()?;
        (addr - start < bytes).then_some((start, bytes))
    }

    pub fn count(&self) -> usize {
        self.live.len()
    }

    fn pages(&mut self, bytes: u64, physical: &mut Physical, addresses: &mut AddressSpace) -> CuResult<u64> {
        let extent = physical.take(bytes)?;
        let addr = match addresses.take(bytes, self.page) {
            Ok(addr) => addr,
            Err(code) => {
                physical.give(extent);
                return Err(code);
            }
        };
        if let Err(code) = physical.show(extent, addr).and_then(|()| physical.allow(addr, bytes)) {
            // Addresses that could not be hidden again are lost, not reused.
            if physical.hide(addr, bytes).is_ok() {
                addresses.give(addr, bytes);
            }
            physical.give(extent);
            return Err(code);
        }
        self.extents.insert(addr, extent);
        Ok(addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;

    fn parts(pages: u64) -> (Allocations, Physical, AddressSpace) {
        (
            Allocations::new(PAGE),
            Physical::new(pages * PAGE, false, false),
            AddressSpace::new(PAGE),
        )
    }

    #[test]
    fn small_allocations_share_a_page_that_goes_back_with_the_last() {
        let (mut allocations, mut physical, mut addresses) = parts(1);
        let all: Vec<u64> = (0..4096)
            .map(|_| {
                allocations
                    .alloc(1, &mut physical, &mut addresses)
                    .expect("room in the page")
            })
            .collect();
        assert_eq!(physical.used(), PAGE);
        assert!(all.iter().all(|addr| addr % ALIGNMENT == 0));
        assert_eq!(
            allocations.alloc(1, &mut physical, &mut addresses),
            Err(Code::OUT_OF_MEMORY)
        );
        for addr in all {
            assert_eq!(allocations.free(addr, &mut physical, &mut addresses), Ok(()));
        }
        assert_eq!((physical.used(), allocations.count()), (0, 0));
    }

    #[test]
    fn large_allocations_take_whole_pages() {
        let (mut allocations, mut physical, mut addresses) = parts(4);
        let addr = allocations
            .alloc(PAGE / 2 + 1, &mut physical, &mut addresses)
            .expect("a page");
        assert_eq!((addr % PAGE, physical.used()), (0, PAGE));
        assert_eq!(
            allocations.alloc(3 * PAGE + 1, &mut physical, &mut addresses),
            Err(Code::OUT_OF_MEMORY)
        );
        assert_eq!(
            allocations.alloc(u64::MAX, &mut physical, &mut addresses),
            Err(Code::OUT_OF_MEMORY)
        );
        assert_eq!(allocations.around(addr + PAGE - 1), Some((addr, PAGE)));
        assert_eq!(allocations.around(addr + PAGE), None);
        assert_eq!(
            allocations.free(addr + 512, &mut physical, &mut addresses),
            Err(Code::INVALID_VALUE)
        );
        assert_eq!(allocations.free(addr, &mut physical, &mut addresses), Ok(()));
        assert_eq!(
            allocations.free(addr, &mut physical, &mut addresses),
            Err(Code::INVALID_VALUE)
        );
    }
}
