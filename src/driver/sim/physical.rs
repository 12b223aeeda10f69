//! The device's physical memory: how much of it is taken, and the bytes where they are kept.

use std::fs::File;

use super::address_space::DISTANCE;
use super::{Code, CuResult, host_map};

/// Physical memory. Where it is backed, its bytes lie in one sparse file, so that memory mapped at two addresses shows
/// the same bytes.
pub(super) struct Physical {
    capacity: u64,
    used: u64,
    others: u64,
    backed: bool,
    /// Whether the bytes are `DISTANCE` away from the device's addresses.
    strict: bool,
    file: Option<File>,
    /// Where the next extent starts in the file. Offsets are not used twice: a hole costs nothing.
    end: u64,
}

/// A piece of physical memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    offset: u64,
    pub bytes: u64,
}

impl Physical {
    pub const fn new(capacity: u64, backed: bool, strict: bool) -> Self {
        Self {
            capacity,
            used: 0,
            others: 0,
            backed,
            strict,
            file: None,
            end: 0,
        }
    }

    pub const fn backed(&self) -> bool {
        self.backed
    }

    /// Where the host reaches the byte at a device address.
    pub const fn host_address(&self, addr: u64) -> u64 {
        if self.strict { addr + DISTANCE } else { addr }
    }

    /// Bytes that this process holds.
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Bytes that nobody holds.
    pub const fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used).saturating_sub(self.others)
    }

    /// Sets what other processes hold.
    pub const fn set_others(&mut self, bytes: u64) {
        self.others = bytes;
    }

    pub fn take(&mut self, bytes: u64) -> CuResult<Extent> {
        if bytes > self.free() {
            return Err(Code::OUT_OF_MEMORY);
        }
        let offset = self.end;
        if self.backed {
            let end = offset.checked_add(bytes).ok_or(Code::OUT_OF_MEMORY)?;
            if self.file.is_none() {
                self.file = Some(host_map::memory_file()?);
            }
            if let Some(file) = &self.file {
                file.set_len(end).map_err(|_| Code::OUT_OF_MEMORY)?;
            }
            self.end = end;
        }
        self.used += bytes;
        Ok(Extent { offset, bytes })
    }

    pub fn give(&mut self, extent: Extent) {
        self.used -= extent.bytes;
        if let Some(file) = &self.file {
            host_map::punch(file, extent.offset, extent.bytes);
        }
    }

    /// Puts the extent behind reserved addresses, without access.
    pub fn show(&self, extent: Extent, addr: u64) -> CuResult {
        self.file.as_ref().map_or(Ok(()), |file| {
            host_map::show_file(self.host_address(addr), extent.bytes, file, extent.offset)
        })
    }

    /// Makes shown memory readable and writable.
    pub fn allow(&self, addr: u64, bytes: u64) -> CuResult {
        if self.backed {
            host_map::allow(self.host_address(addr), bytes)
        } else {
            Ok(())
        }
    }

    /// Takes shown memory from its addresses.
    pub fn hide(&self, addr: u64, bytes: u64) -> CuResult {
        if self.backed {
            host_map::hide(self.host_address(addr), bytes)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::address_space::AddressSpace;

    #[test]
    fn what_is_given_back_costs_the_host_nothing() {
        let page = host_map::page_bytes();
        let mut physical = Physical::new(page, true, false);
        let mut addresses = AddressSpace::new(page);
        let addr = addresses.take(page, page).expect("addresses");
        let blocks = |physical: &Physical| {
            use std::os::unix::fs::MetadataExt;
            physical
                .file
                .as_ref()
                .map(|file| file.metadata().expect("a file").blocks())
        };
        for _ in 0..2 {
            let extent = physical.take(page).expect("memory");
            assert_eq!(physical.take(page), Err(Code::OUT_OF_MEMORY));
            physical.show(extent, addr).expect("memory");
            physical.allow(addr, page).expect("memory");
            // SAFETY: the page was just made writable, and nobody else has its address.
            unsafe { (addr as *mut u8).write(1) };
            assert_ne!(blocks(&physical), Some(0));
            physical.hide(addr, page).expect("memory");
            physical.give(extent);
            assert_eq!((blocks(&physical), physical.used()), (Some(0), 0));
        }
    }
}
