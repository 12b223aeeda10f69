//! Memory of the device and pinned memory of the host.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flagstone::driver::sim::{Code, CuResult, MemoryKind};

use super::pool::forget;
use super::runtime;
use crate::driver_api::context::current_or_first;
use crate::driver_api::write;
use crate::state::machine;

/// `cudaPointerAttributes`. That of CUDA 13 has reserved fields after these, which nobody may read.
#[repr(C)]
struct PointerAttributes {
    kind: u32,
    device: c_int,
    device_pointer: usize,
    host_pointer: usize,
}

/// `cudaMemoryTypeHost`
const HOST: u32 = 1;
/// `cudaMemoryTypeDevice`
const DEVICE: u32 = 2;

/// `cudaErrorHostMemoryAlreadyRegistered`
const ALREADY_REGISTERED: Code = Code(712);
/// `cudaErrorHostMemoryNotRegistered`
const NOT_REGISTERED: Code = Code(713);

/// Host memory that was registered: its bytes by address.
static REGISTERED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn registered() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the address is in host memory that was registered.
pub fn is_registered(addr: usize) -> bool {
    let known = registered();
    let before = known.range(..=addr).next_back();
    before.is_some_and(|(&start, &bytes)| addr - start < bytes)
}

/// The ordinal of the device that has the memory at an address, and what memory it is; none for ordinary host memory.
pub fn owner(addr: usize) -> Option<(c_int, MemoryKind)> {
    let device = machine().ok()?.owner(addr as u64).ok()?;
    Some((device.properties().ordinal, device.memory_kind(addr as u64)?))
}

fn host_alloc(addr: *mut *mut c_void, bytes: usize) -> CuResult {
    let found = if bytes == 0 {
        0
    } else {
        current_or_first()?.mem_host_alloc(bytes as u64)?
    };
    // SAFETY: the caller's promise.
    unsafe { write(addr, found as *mut c_void) }
}

/// Makes host memory known to the driver. Twice is an error.
pub fn host_register(addr: usize, bytes: usize) -> CuResult {
    if addr == 0 || bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if is_registered(addr) {
        return Err(ALREADY_REGISTERED);
    }
    registered().insert(addr, bytes);
    Ok(())
}

/// Takes that back. The address is the one that was registered.
pub fn host_unregister(addr: usize) -> CuResult {
    registered().remove(&addr).map(drop).ok_or(NOT_REGISTERED)
}

runtime! {
    /// No bytes are no memory: the address is null.
    fn cudaMalloc(addr: *mut *mut c_void, bytes: usize) {
        let device = current_or_first()?;
        let found = if bytes == 0 { 0 } else { device.mem_alloc(bytes as u64)? };
        // SAFETY: the caller's promise.
        unsafe { write(addr, found as *mut c_void) }
    }

    /// Of whatever device. Null is allowed.
    fn cudaFree(addr: *mut c_void) {
        current_or_first()?;
        if addr.is_null() {
            return Ok(());
        }
        machine()?.owner(addr as u64)?.mem_free(addr as u64)?;
        forget(addr as u64);
        Ok(())
    }

    fn cudaHostAlloc(addr: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        host_alloc(addr, bytes)
    }

    fn cudaMallocHost(addr: *mut *mut c_void, bytes: usize) {
        host_alloc(addr, bytes)
    }

    fn cudaFreeHost(addr: *mut c_void) {
        current_or_first()?;
        if addr.is_null() {
            return Ok(());
        }
        machine()?.owner(addr as u64)?.mem_free_host(addr as u64)
    }

    fn cudaHostRegister(addr: *mut c_void, bytes: usize, _flags: c_uint) {
        current_or_first()?;
        host_register(addr as usize, bytes)
    }

    fn cudaHostUnregister(addr: *mut c_void) {
        host_unregister(addr as usize)
    }

    fn cudaHostGetDevicePointer(device: *mut *mut c_void, host: *mut c_void, _flags: c_uint) {
        if !is_registered(host as usize) && owner(host as usize).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { write(device, host) }
    }

    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) {
        let (free_bytes, total_bytes) = current_or_first()?.mem_get_info()?;
        // SAFETY: the caller's promise.
        unsafe {
            write(free, free_bytes as usize)?;
            write(total, total_bytes as usize)
        }
    }

    fn cudaPointerGetAttributes(attributes: *mut PointerAttributes, addr: *const c_void) {
        let addr = addr as usize;
        let found = match owner(addr) {
            Some((device, MemoryKind::Device)) => (DEVICE, device, addr, 0),
            Some((device, MemoryKind::Host)) => (HOST, device, addr, addr),
            None if is_registered(addr) => (HOST, 0, addr, addr),
            None => (0, -1, 0, addr),
        };
        let (kind, device, device_pointer, host_pointer) = found;
        let found = PointerAttributes { kind, device, device_pointer, host_pointer };
        // SAFETY: the caller's promise.
        unsafe { write(attributes, found) }
    }
}
