//! Copies and fills. They take effect when their stream reaches them.
//!
//! Ordinary host memory is read at the call, as the runtime stages it, and is written by the time the call returns: the
//! host waits for the stream.

use std::ffi::{c_int, c_void};

use flagstone::driver::Stream;
use flagstone::driver::sim::{CaptureStatus, Code, CuResult, Device, MemoryKind, Work};

use super::memory::{is_registered, owner};
use super::{device_of, runtime};
use crate::peers::{User, lends};
use crate::state::host_address;
use crate::timing;

/// How a copy is asked for.
#[derive(Clone, Copy)]
pub enum Way {
    /// By a `cudaMemcpyKind`.
    Kind(u32),
    /// From device to device, which is possible whatever memory is open to whom.
    Peers,
}

/// The directions of `cudaMemcpyKind`: whether source and destination are device memory. None where it is to be found out.
const fn sides(kind: u32) -> CuResult<(Option<bool>, Option<bool>)> {
    match kind {
        0 => Ok((Some(false), Some(false))),
        1 => Ok((Some(false), Some(true))),
        2 => Ok((Some(true), Some(false))),
        3 => Ok((Some(true), Some(true))),
        4 => Ok((None, None)),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Whether there is memory of a device at the address.
pub fn is_device(addr: usize) -> bool {
    matches!(owner(addr), Some((_, MemoryKind::Device)))
}

/// Whether the device can read and write the host memory at the address by itself.
fn is_pageable(addr: usize) -> bool {
    owner(addr).is_none() && !is_registered(addr)
}

/// A copy that the device does not know both sides of.
fn raw_copy(to: usize, from: usize, bytes: usize) -> impl Fn() + Send + Sync {
    let (to, from) = (host_address(to as u64), host_address(from as u64));
    // SAFETY: the caller of the copy promises that both ranges are alive until the stream has done it. What is memory of the
    // stream's own device is checked before this is called.
    move || unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) }
}

/// A copy on a stream. Whether the host has to wait for it.
pub fn copy(device: &Device, stream: Stream, to: usize, from: usize, bytes: usize, way: Way) -> CuResult<bool> {
    let (kind, staged) = match way {
        Way::Kind(kind) => (kind, false),
        Way::Peers => (3, true),
    };
    let (source, target) = sides(kind)?;
    let agrees = |side: Option<bool>, addr| side.is_none_or(|device| device == is_device(addr));
    if bytes == 0 {
        return Ok(false);
    }
    if !agrees(source, from) || !agrees(target, to) {
        return Err(Code::INVALID_VALUE);
    }
    let capturing = device.stream_is_capturing(stream)? != CaptureStatus::None;
    let own = |addr: usize| device.memory_kind(addr as u64).is_some();
    let (to64, from64, bytes64) = (to as u64, from as u64, bytes as u64);
    let mut work = Work::new().takes(timing::copy_ns(bytes64));
    // What is another device's and not open to this one is no memory of this one's.
    let refused = |addr| is_device(addr) && !own(addr) && !staged && !lends(device, addr as u64, bytes64, User::Copy);
    if refused(from) {
        work = work.reads(from64, bytes64);
    }
    if refused(to) {
        work = work.writes(to64, bytes64);
    }
    let work = match (own(from), own(to)) {
        (true, true) => work.copies(to64, from64, bytes64),
        (false, true) if is_pageable(from) && !capturing => {
            // SAFETY: the caller promises that many bytes of host memory.
            work.stores(to64, unsafe { std::slice::from_raw_parts(from as *const u8, bytes) })
        }
        (false, true) => work.writes(to64, bytes64).calls(raw_copy(to, from, bytes)),
        (true, false) => work.reads(from64, bytes64).calls(raw_copy(to, from, bytes)),
        (false, false) => work.calls(raw_copy(to, from, bytes)),
    };
    device.launch(stream, work)?;
    Ok(is_pageable(to) && !capturing)
}

fn copy_async(stream: usize, to: *mut c_void, from: *const c_void, bytes: usize, way: Way) -> CuResult {
    let stream = Stream(stream);
    let device = device_of(stream)?;
    if copy(device, stream, to as usize, from as usize, bytes, way)? {
        device.stream_synchronize(stream)?;
    }
    Ok(())
}

fn fill(stream: usize, addr: *mut c_void, value: c_int, bytes: usize) -> CuResult {
    let stream = Stream(stream);
    let work = Work::new().takes(timing::copy_ns(bytes as u64));
    device_of(stream)?.launch(stream, work.fills(addr as u64, bytes as u64, value as u8))
}

runtime! {
    fn cudaMemcpyAsync(to: *mut c_void, from: *const c_void, bytes: usize, kind: u32, stream: usize) {
        copy_async(stream, to, from, bytes, Way::Kind(kind))
    }

    /// Between devices nothing is waited for.
    fn cudaMemcpy(to: *mut c_void, from: *const c_void, bytes: usize, kind: u32) {
        let device = device_of(Stream::LEGACY)?;
        copy(device, Stream::LEGACY, to as usize, from as usize, bytes, Way::Kind(kind))?;
        if is_device(to as usize) && is_device(from as usize) {
            return Ok(());
        }
        device.stream_synchronize(Stream::LEGACY)
    }

    fn cudaMemcpyPeerAsync(
        to: *mut c_void,
        _to_device: c_int,
        from: *const c_void,
        _from_device: c_int,
        bytes: usize,
        stream: usize,
    ) {
        copy_async(stream, to, from, bytes, Way::Peers)
    }

    fn cudaMemcpy2DAsync(
        to: *mut c_void,
        to_pitch: usize,
        from: *const c_void,
        from_pitch: usize,
        width: usize,
        height: usize,
        kind: u32,
        stream: usize,
    ) {
        if width > to_pitch || width > from_pitch {
            return Err(Code::INVALID_VALUE);
        }
        for row in 0..height {
            let (to, from) = (to.wrapping_byte_add(row * to_pitch), from.wrapping_byte_add(row * from_pitch));
            copy_async(stream, to, from, width, Way::Kind(kind))?;
        }
        Ok(())
    }

    fn cudaMemsetAsync(addr: *mut c_void, value: c_int, bytes: usize, stream: usize) {
        fill(stream, addr, value, bytes)
    }

    /// The host does not wait: the memory is the device's.
    fn cudaMemset(addr: *mut c_void, value: c_int, bytes: usize) {
        fill(Stream::LEGACY.0, addr, value, bytes)
    }
}
