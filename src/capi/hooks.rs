//! The optional hooks of torch's pluggable allocator. None of them can fail towards torch.

use super::error::quietly;
use super::filter::{Filter, StdFunction};
use super::own_streams;
use crate::driver::{DevicePtr, Stream};
use crate::error::Error;
use crate::registry::{held, process};
use std::ffi::{c_int, c_void};

/// CUDA was initialised with this many devices. Pools are made when they are needed.
#[unsafe(no_mangle)]
pub extern "C" fn flagstone_init(_devices: c_int) {}

/// `torch.cuda.empty_cache()`: all pools give their idle memory back.
#[unsafe(no_mangle)]
pub extern "C" fn flagstone_reset() {
    for pool in process::all() {
        quietly(|| pool.trim(0).map(drop));
    }
}

/// `torch.cuda.set_per_process_memory_fraction`: the device's limit, as a part of its memory.
#[unsafe(no_mangle)]
pub extern "C" fn flagstone_memory_fraction(fraction: f64, device: c_int) {
    quietly(|| {
        let pool = process::pool(device)?;
        pool.set_limit(Some((pool.total_bytes() as f64 * fraction.clamp(0.0, 1.0)) as u64));
        Ok(())
    });
}

/// The beginning of a block and, through `size`, its bytes.
///
/// # Safety
/// `size` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagstone_base_alloc(ptr: *mut c_void, size: *mut usize) -> *mut c_void {
    quietly(|| {
        let bytes = block(ptr)?;
        if !size.is_null() {
            // SAFETY: the caller's promise.
            unsafe { size.write(bytes as usize) };
        }
        Ok(())
    });
    ptr
}

fn block(ptr: *mut c_void) -> Result<u64, Error> {
    let addr = ptr.addr() as DevicePtr;
    let block = process::all().find_map(|pool| pool.block(addr));
    block.map(|block| block.bytes).ok_or(Error::UnknownPointer { addr })
}

/// `Tensor.record_stream`: the block is also used by `stream` until it is freed. Torch's own streams are never destroyed,
/// so events can be recorded on them when the block is freed.
///
/// # Safety
/// `stream` must be a live stream handle, and torch have allocated the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagstone_record_stream(ptr: *mut c_void, stream: *mut c_void) {
    let (addr, stream) = (ptr.addr() as DevicePtr, Stream(stream.addr()));
    quietly(|| match process::all().find(|pool| pool.owns(addr)) {
        Some(pool) => {
            // SAFETY: the block is of that device.
            if !pool.is_kept(stream) && unsafe { own_streams::is_torchs(stream.0, pool.device()) } {
                pool.keep_stream(stream)?;
            }
            pool.record_stream(addr, stream)
        }
        // A foreign pointer has no device to be counted on: the first pool counts it.
        None => process::all()
            .next()
            .map_or(Err(Error::UnknownPointer { addr }), |pool| {
                pool.record_stream(addr, stream)
            }),
    });
}

/// Requests that `filter` accepts come from a private pool from now on.
///
/// # Safety
/// `filter` must be null or point to a live `std::function<bool(cudaStream_t)>`, which may be called until
/// [`flagstone_end_allocate_to_pool`] returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagstone_begin_allocate_to_pool(
    device: c_int,
    id0: u64,
    id1: u64,
    filter: *const StdFunction,
) {
    quietly(|| {
        // SAFETY: the caller's promise.
        let filter = unsafe { Filter::copy(filter) };
        let accepts = move |stream| filter.as_ref().is_none_or(|filter| filter.accepts(stream));
        held::begin(device, (id0, id1), accepts)
    });
}

/// Ends what [`flagstone_begin_allocate_to_pool`] began.
#[unsafe(no_mangle)]
pub extern "C" fn flagstone_end_allocate_to_pool(device: c_int, id0: u64, id1: u64) {
    quietly(|| {
        process::pool(device)?.end_private((id0, id1));
        Ok(())
    });
}

/// One holder of a private pool less.
#[unsafe(no_mangle)]
pub extern "C" fn flagstone_release_pool(device: c_int, id0: u64, id1: u64) {
    quietly(|| {
        process::pool(device)?.release_private((id0, id1));
        Ok(())
    });
}
