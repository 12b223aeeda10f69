//! Pinned host memory.

use std::ffi::{c_uint, c_void};

use super::context::current;
use super::write;
use crate::calls::export;
use crate::runtime_api::{host_register, host_unregister};
use crate::state::machine;

export! {
    /// All memory is portable, as the devices are all in one process.
    fn cuMemHostAlloc(addr: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        // SAFETY: the caller's promise.
        unsafe { write(addr, current()?.mem_host_alloc(bytes as u64)? as *mut c_void) }
    }

    /// From any context.
    fn cuMemFreeHost(addr: *mut c_void) {
        current()?;
        machine()?.owner(addr as u64)?.mem_free_host(addr as u64)
    }

    fn cuMemHostRegister_v2(addr: *mut c_void, bytes: usize, _flags: c_uint) {
        current()?;
        host_register(addr as usize, bytes)
    }

    fn cuMemHostUnregister(addr: *mut c_void) {
        current()?;
        host_unregister(addr as usize)
    }
}
