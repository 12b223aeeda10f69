//! Pinned host memory.

use std::collections::BTreeMap;

use super::address_space::AddressSpace;
use super::{Code, CuResult, host_map};

/// The pinned host memory of a device. It is always readable and writable, and costs nothing until it is touched.
pub(super) struct HostMemory {
    addresses: AddressSpace,
    page: u64,
    capacity: u64,
    used: u64,
    live: BTreeMap<u64, u64>,
}

impl HostMemory {
    pub fn new(capacity: u64) -> Self {
        let page = host_map::page_bytes();
        Self {
            addresses: AddressSpace::new(page),
            page,
            capacity,
            used: 0,
            live: BTreeMap::new(),
        }
    }

    pub fn alloc(&mut self, bytes: u64) -> CuResult<u64> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let held = bytes.checked_next_multiple_of(self.page).ok_or(Code::OUT_OF_MEMORY)?;
        if held > self.capacity - self.used {
            return Err(Code::OUT_OF_MEMORY);
        }
        let addr = self.addresses.take(held, self.page)?;
        if let Err(code) = host_map::show_private(addr, held) {
            self.addresses.give(addr, held);
            return Err(code);
        }
        self.used += held;
        self.live.insert(addr, held);
        Ok(addr)
    }

    pub fn free(&mut self, addr: u64) -> CuResult {
        let bytes = *self.live.get(&addr).ok_or(Code::INVALID_VALUE)?;
        host_map::hide(addr, bytes)?;
        self.live.remove(&addr);
        self.used -= bytes;
        self.addresses.give(addr, bytes);
        Ok(())
    }

    /// Bytes held, in whole pages.
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Start and bytes of the live allocation around an address.
    pub fn around(&self, addr: u64) -> Option<(u64, u64)> {
        let (&start, &bytes) = self.live.range(..=addr).next_back()?;
        (addr - start < bytes).then_some((start, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_are_accounted_and_limited() {
        let page = host_map::page_bytes();
        let mut host = HostMemory::new(3 * page);
        let addr = host.alloc(1).expect("a page");
        assert_eq!((addr % page, host.used()), (0, page));
        assert_eq!(host.alloc(2 * page + 1), Err(Code::OUT_OF_MEMORY));
        assert_eq!(host.alloc(u64::MAX), Err(Code::OUT_OF_MEMORY));
        assert_eq!(host.alloc(0), Err(Code::INVALID_VALUE));
        assert_eq!(host.around(addr + page - 1), Some((addr, page)));
        assert_eq!(host.free(addr + 1), Err(Code::INVALID_VALUE));
        assert_eq!(host.free(addr), Ok(()));
        assert_eq!(host.free(addr), Err(Code::INVALID_VALUE));
        assert_eq!(host.used(), 0);
    }
}
