//! Stream-ordered pools: those that a program makes. A handle is the device's own number for the pool, with its ordinal above.

use std::ffi::{c_int, c_void};

use flagstone::driver::sim::{Code, CuResult, Device};
use flagstone::driver::{MemoryPool, Stream};

use super::context::current;
use super::write;
use crate::calls::export;
use crate::state::machine;

/// `CUmemPoolProps`, as far as it is read.
#[repr(C)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location: c_int,
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const DEVICE: u32 = 1;
/// Where a handle keeps the ordinal.
const ORDINAL_SHIFT: u32 = 32;

/// The device of a pool, and its own number for it.
fn own(pool: usize) -> CuResult<(&'static Device, MemoryPool)> {
    let ordinal = c_int::try_from(pool >> ORDINAL_SHIFT).map_err(|_| Code::INVALID_VALUE)?;
    let device = machine()?.device(ordinal).map_err(|_| Code::INVALID_VALUE)?;
    Ok((device, MemoryPool(pool & ((1 << ORDINAL_SHIFT) - 1))))
}

export! {
    fn cuMemPoolCreate(pool: *mut usize, properties: *const Properties) {
        // SAFETY: the caller's promise.
        let properties = unsafe { properties.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        if properties.kind != PINNED || properties.handle_types != 0 || properties.location_kind != DEVICE {
            return Err(Code::INVALID_VALUE);
        }
        let device = machine()?.device(properties.location)?;
        let number = device.mem_pool_create()?.0;
        // SAFETY: the caller's promise.
        unsafe { write(pool, number | (properties.location as usize) << ORDINAL_SHIFT) }
    }

    fn cuMemPoolDestroy(pool: usize) {
        let (device, pool) = own(pool)?;
        device.mem_pool_destroy(pool)
    }

    fn cuMemPoolSetAttribute(pool: usize, attribute: u32, value: *const c_void) {
        let (device, pool) = own(pool)?;
        if value.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller promises an int.
        let switch = || unsafe { value.cast::<c_int>().read() } != 0;
        match attribute {
            1 => device.mem_pool_set(pool, |options| options.follow_event_dependencies = switch()),
            2 => device.mem_pool_set(pool, |options| options.allow_opportunistic = switch()),
            3 => device.mem_pool_set(pool, |options| options.allow_internal_dependencies = switch()),
            // SAFETY: not null, and the caller promises a `cuuint64_t`.
            4 => device.mem_pool_set(pool, |options| options.release_threshold = unsafe { value.cast::<u64>().read() }),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Other devices do not get at the memory by kernels, whatever they are given.
    fn cuMemPoolSetAccess(pool: usize, _descriptors: *const c_void, _count: usize) {
        own(pool).map(drop)
    }

    fn cuMemPoolTrimTo(pool: usize, keep: usize) {
        let (device, pool) = own(pool)?;
        device.mem_pool_trim_to(pool, keep as u64)
    }

    fn cuMemAllocFromPoolAsync(addr: *mut u64, bytes: usize, pool: usize, stream: usize) {
        current()?;
        let (device, pool) = own(pool)?;
        let found = device.mem_alloc_from_pool_async(bytes as u64, pool, Stream(stream))?;
        // SAFETY: the caller's promise.
        unsafe { write(addr, found) }
    }

    fn cuMemFreeAsync(addr: u64, stream: usize) {
        current()?;
        machine()?.owner(addr)?.mem_free_async(addr, Stream(stream))
    }
}
