//! Streams. Their device is found by the handle, whatever device is current, as the runtime does.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use flagstone::driver::sim::{Code, CuResult, StreamKind, Work};
use flagstone::driver::{Event, Stream};

use super::{device_of, device_of_event, runtime};
use crate::driver_api::context::current_or_first;
use crate::driver_api::write;
use crate::owners;

/// `cudaStreamNonBlocking`
const NON_BLOCKING: c_uint = 1;

fn create(flags: c_uint) -> CuResult<usize> {
    let kind = match flags {
        0 => StreamKind::Blocking,
        NON_BLOCKING => StreamKind::NonBlocking,
        _ => return Err(Code::INVALID_VALUE),
    };
    Ok(owners::own_stream(current_or_first()?, kind)?.0)
}

runtime! {
    fn cudaStreamCreate(stream: *mut usize) {
        // SAFETY: the caller's promise.
        unsafe { write(stream, create(0)?) }
    }

    fn cudaStreamCreateWithFlags(stream: *mut usize, flags: c_uint) {
        // SAFETY: the caller's promise.
        unsafe { write(stream, create(flags)?) }
    }

    fn cudaStreamCreateWithPriority(stream: *mut usize, flags: c_uint, _priority: c_int) {
        // SAFETY: the caller's promise.
        unsafe { write(stream, create(flags)?) }
    }

    fn cudaStreamDestroy(stream: usize) {
        device_of(Stream(stream))?.stream_destroy(Stream(stream))
    }

    fn cudaStreamGetPriority(stream: usize, priority: *mut c_int) {
        device_of(Stream(stream))?.stream_is_capturing(Stream(stream))?;
        // SAFETY: the caller's promise.
        unsafe { write(priority, 0) }
    }

    fn cudaStreamGetId(stream: usize, id: *mut c_ulonglong) {
        // SAFETY: the caller's promise.
        unsafe { write(id, device_of(Stream(stream))?.stream_get_id(Stream(stream))?.0) }
    }

    fn cudaStreamGetDevice(stream: usize, device: *mut c_int) {
        // SAFETY: the caller's promise.
        unsafe { write(device, device_of(Stream(stream))?.properties().ordinal) }
    }

    fn cudaStreamQuery(stream: usize) {
        if device_of(Stream(stream))?.stream_query(Stream(stream))? { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cudaStreamSynchronize(stream: usize) {
        device_of(Stream(stream))?.stream_synchronize(Stream(stream))
    }

    /// Between devices the host waits: their clocks are not the same.
    fn cudaStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
        let (own, other) = (device_of(Stream(stream))?, device_of_event(Event(event))?);
        if std::ptr::eq(own, other) {
            own.stream_wait_event(Stream(stream), Event(event))
        } else {
            own.stream_is_capturing(Stream(stream))?;
            other.event_synchronize(Event(event))
        }
    }

    fn cudaLaunchHostFunc(stream: usize, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let data = data as usize;
        // SAFETY: the caller promises that the function can be called with the data once the stream gets there.
        let call = move || unsafe { function(data as *mut c_void) };
        device_of(Stream(stream))?.launch(Stream(stream), Work::new().calls(call))
    }

    fn cudaStreamAddCallback(
        stream: usize,
        callback: Option<unsafe extern "C" fn(usize, u32, *mut c_void)>,
        data: *mut c_void,
        _flags: c_uint,
    ) {
        let callback = callback.ok_or(Code::INVALID_VALUE)?;
        let data = data as usize;
        // SAFETY: as above.
        let call = move || unsafe { callback(stream, 0, data as *mut c_void) };
        device_of(Stream(stream))?.launch(Stream(stream), Work::new().calls(call))
    }
}
