//! Device memory in slabs.

use super::context::current;
use super::write;
use crate::calls::export;
use crate::state::machine;

export! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (free_bytes, total_bytes) = current()?.mem_get_info()?;
        // SAFETY: the caller's promise.
        unsafe {
            write(free, free_bytes as usize)?;
            write(total, total_bytes as usize)
        }
    }

    fn cuMemAlloc_v2(addr: *mut u64, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { write(addr, current()?.mem_alloc(bytes as u64)?) }
    }

    /// From any context: addresses are unique in the process.
    fn cuMemFree_v2(addr: u64) {
        current()?;
        machine()?.owner(addr)?.mem_free(addr)
    }

    /// Of whatever device. Either result may be left out.
    fn cuMemGetAddressRange_v2(start: *mut u64, bytes: *mut usize, addr: u64) {
        current()?;
        let (found, found_bytes) = machine()?.owner(addr)?.mem_get_address_range(addr)?;
        // SAFETY: the caller promises that each is null or can be written.
        unsafe {
            let _ = write(start, found);
            let _ = write(bytes, found_bytes as usize);
        }
        Ok(())
    }
}
