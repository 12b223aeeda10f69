//! Allocation and free.

use super::error::{call, keep, quietly};
use super::own_streams;
use super::throw;
use crate::driver::{DevicePtr, Stream};
use crate::error::{Error, Result};
use crate::pool::{Hit, forked, pointer};
use crate::registry::process;
use std::ffi::{c_int, c_void};
use std::ptr;

/// What the calling thread's magazine has. Nothing in it can panic: no index is checked, nothing is unwrapped. What is left
/// to do then is a call in last place that cannot unwind, so that a hit needs no stack frame.
#[inline(always)]
fn hit(size: usize, device: c_int, stream: *mut c_void) -> Hit<'static> {
    match process::core(device) {
        Some(core) => core.alloc_hit(size as u64, Stream(stream.addr())),
        None => Hit::Miss,
    }
}

fn miss(size: usize, device: c_int, stream: *mut c_void) -> Result<*mut c_void> {
    call(|| {
        let addr = process::pool(device)?.alloc(size as u64, Stream(stream.addr()))?;
        Ok(pointer(addr))
    })
}

#[cold]
#[inline(never)]
extern "C" fn alloc_miss(size: usize, device: c_int, stream: *mut c_void) -> *mut c_void {
    miss(size, device, stream).unwrap_or_else(|error| {
        keep(error);
        ptr::null_mut()
    })
}

#[cold]
#[inline(never)]
extern "C-unwind" fn torch_alloc_miss(size: usize, device: c_int, stream: *mut c_void) -> *mut c_void {
    keep_torchs(device, stream);
    let prepared = match miss(size, device, stream) {
        Ok(addr) => return addr,
        Err(error) => throw::prepare(error),
    };
    // Nothing that needs dropping is alive any more.
    match prepared {
        // SAFETY: our callers expect exceptions, and this frame and theirs hold nothing that needs dropping.
        Some(prepared) => unsafe { prepared.throw() },
        None => ptr::null_mut(),
    }
}

/// Torch's own streams are never destroyed, so the pool may use their handles when it needs to: memory that they have left serves
/// other streams, once events say that they are done with it.
fn keep_torchs(device: c_int, stream: *mut c_void) {
    let own = Stream(stream.addr());
    if own.is_legacy() || own == Stream::PER_THREAD || forked() {
        return;
    }
    let Some(pool) = process::existing(device) else { return };
    // SAFETY: this is torch's hook for memory of the device.
    if !pool.is_kept(own) && unsafe { own_streams::is_torchs(own.0, device) } {
        quietly(|| pool.keep_stream(own));
    }
}

/// `size` bytes of `device` for use on `stream`, aligned to 512 bytes; null on failure, never for size 0.
///
/// For memory pool sources, CuPy and ctypes.
///
/// # Safety
/// `stream` must be a live stream handle of the device, or one of the default streams' (0, 1, 2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagstone_alloc(size: usize, device: c_int, stream: *mut c_void) -> *mut c_void {
    match hit(size, device, stream) {
        Hit::Block(addr) => pointer(addr),
        Hit::Rest(rest) => rest.finish(),
        Hit::Miss => alloc_miss(size, device, stream),
    }
}

/// As [`flagstone_alloc`], but throws torch's own error on failure: `c10::OutOfMemoryError`, so that Python sees
/// `torch.OutOfMemoryError`. Only for torch's pluggable allocator, which would wrap a null pointer into a tensor.
///
/// # Safety
/// As [`flagstone_alloc`]; and the caller must be C++ that expects exceptions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn flagstone_torch_alloc(size: usize, device: c_int, stream: *mut c_void) -> *mut c_void {
    match hit(size, device, stream) {
        Hit::Block(addr) => pointer(addr),
        Hit::Rest(rest) => rest.finish(),
        Hit::Miss => torch_alloc_miss(size, device, stream),
    }
}

/// Gives a block back. Null is ignored; a pointer that is not a live block is counted and nothing is done. `size` is only
/// compared, and `stream` ignored: torch passes the stream of the allocation, which may be dead by now.
///
/// # Safety
/// Nothing may use the block but work that was given to its stream, or to streams recorded for it, before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagstone_free(ptr: *mut c_void, size: usize, device: c_int, _stream: *mut c_void) {
    let (addr, bytes) = (ptr.addr() as u64, size as u64);
    // Nothing in the hit path can panic, as for `hit`.
    let freed = match process::core(device) {
        Some(core) => core.free_hit(addr, Some(bytes)),
        None => false,
    };
    if !freed {
        free_miss(addr, bytes, device);
    }
}

#[cold]
#[inline(never)]
extern "C" fn free_miss(addr: DevicePtr, bytes: u64, device: c_int) {
    quietly(|| {
        if addr == 0 {
            return Ok(());
        }
        // A foreign pointer is counted by the pool that it was meant for.
        match process::owner(addr, device).or_else(|| process::existing(device)) {
            Some(pool) => pool.free_sized(addr, bytes),
            None => Err(Error::UnknownPointer { addr }),
        }
    });
}
