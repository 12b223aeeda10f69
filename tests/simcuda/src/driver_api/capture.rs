//! Stream capture. Which calls end one is the simulated device's business.

use std::ffi::{c_ulonglong, c_void};
use std::ptr::{null, null_mut};

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

    /// Graphs are not shown.
    fn cuStreamGetCaptureInfo_v2(
        stream: usize,
        out: *mut u32,
        id: *mut c_ulonglong,
        graph: *mut *mut c_void,
        nodes: *mut *const c_void,
        count: *mut usize,
    ) {
        let (found, number) = current()?.stream_get_capture_info(Stream(stream))?;
        // SAFETY: the caller promises that the first can be written, and each other that there is.
        unsafe {
            write(out, status(found))?;
            let _ = (write(id, number), write(graph, null_mut()), write(nodes, null()), write(count, 0));
        }
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode(exchanged: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { exchange(exchanged) }
    }
}
