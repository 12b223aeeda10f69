//! Stream capture. Which calls end one is the simulated device's business.

use std::ffi::c_void;
use std::ptr::null_mut;

use flagstone::driver::Stream;
use flagstone::driver::sim::{CaptureMode, CaptureStatus, Code, CuResult, exchange_capture_mode};

use super::context::current;
use super::write;
use crate::calls::export;

/// The mode of a `CUstreamCaptureMode`.
pub const fn mode(number: u32) -> CuResult<CaptureMode> {
    match number {
        0 => Ok(CaptureMode::Global),
        1 => Ok(CaptureMode::ThreadLocal),
        2 => Ok(CaptureMode::Relaxed),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// The number of a `CUstreamCaptureStatus`.
pub const fn status(status: CaptureStatus) -> u32 {
    match status {
        CaptureStatus::None => 0,
        CaptureStatus::Active => 1,
        CaptureStatus::Invalidated => 2,
    }
}

/// Exchanges the thread's capture mode with the one there.
///
/// # Safety
/// `exchanged` is null or can be read and written.
pub unsafe fn exchange(exchanged: *mut u32) -> CuResult {
    // SAFETY: the caller's promise.
    let new = mode(*unsafe { exchanged.as_ref() }.ok_or(Code::INVALID_VALUE)?)?;
    let old = match exchange_capture_mode(new) {
        CaptureMode::Global => 0,
        CaptureMode::ThreadLocal => 1,
        CaptureMode::Relaxed => 2,
    };
    // SAFETY: the caller's promise.
    unsafe { write(exchanged, old) }
}

export! {
    fn cuStreamBeginCapture_v2(stream: usize, capture_mode: u32) {
        current()?.stream_begin_capture(Stream(stream), mode(capture_mode)?)
    }

    /// Graphs are not kept: the handle is null, as that of a capture that gave none.
    fn cuStreamEndCapture(stream: usize, graph: *mut *mut c_void) {
        current()?.stream_end_capture(Stream(stream))?;
        // SAFETY: the caller's promise.
        unsafe { write(graph, null_mut()) }
    }

    fn cuStreamIsCapturing(stream: usize, out: *mut u32) {
        let found = current()?.stream_is_capturing(Stream(stream))?;
        // SAFETY: the caller's promise.
        unsafe { write(out, status(found)) }
    }

    fn cuThreadExchangeStreamCaptureMode(exchanged: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { exchange(exchanged) }
    }
}
