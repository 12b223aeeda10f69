//! Streams. A handle is one of the device whose context is current.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use flagstone::driver::sim::{Code, CuResult, Device, StreamKind, Work};
use flagstone::driver::{Event, Stream};

use super::context::{current, primary};
use super::write;
use crate::calls::export;
use crate::owners;

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: c_uint = 1;

fn create(flags: c_uint) -> CuResult<usize> {
    let kind = match flags {
        0 => StreamKind::Blocking,
        NON_BLOCKING => StreamKind::NonBlocking,
        _ => return Err(Code::INVALID_VALUE),
    };
    Ok(owners::own_stream(current()?, kind)?.0)
}

/// Whether the handle is that of a stream of the current device.
fn check(stream: usize) -> CuResult<&'static Device> {
    let device = current()?;
    device.stream_is_capturing(Stream(stream))?;
    Ok(device)
}

export! {
    fn cuStreamCreate(stream: *mut usize, flags: c_uint) {
        // SAFETY: the caller's promise.
        unsafe { write(stream, create(flags)?) }
    }

    /// A priority beyond the range is the nearest in it, as in the driver. All streams run at the same speed here.
    fn cuStreamCreateWithPriority(stream: *mut usize, flags: c_uint, _priority: c_int) {
        // SAFETY: the caller's promise.
        unsafe { write(stream, create(flags)?) }
    }

    fn cuStreamGetCtx(stream: usize, context: *mut usize) {
        // SAFETY: the caller's promise.
        unsafe { write(context, primary(check(stream)?.properties().ordinal)) }
    }

    fn cuStreamGetDevice(stream: usize, device: *mut c_int) {
        // SAFETY: the caller's promise.
        unsafe { write(device, check(stream)?.properties().ordinal) }
    }

    fn cuLaunchHostFunc(stream: usize, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let data = data as usize;
        // SAFETY: the caller promises that the function can be called with the data once the stream gets there.
        let call = move || unsafe { function(data as *mut c_void) };
        current()?.launch(Stream(stream), Work::new().calls(call))
    }

    fn cuStreamDestroy_v2(stream: usize) {
        current()?.stream_destroy(Stream(stream))
    }

    fn cuStreamGetId(stream: usize, id: *mut c_ulonglong) {
        // SAFETY: the caller's promise.
        unsafe { write(id, current()?.stream_get_id(Stream(stream))?.0) }
    }

    fn cuStreamQuery(stream: usize) {
        if current()?.stream_query(Stream(stream))? { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuStreamSynchronize(stream: usize) {
        current()?.stream_synchronize(Stream(stream))
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
        current()?.stream_wait_event(Stream(stream), Event(event))
    }
}
