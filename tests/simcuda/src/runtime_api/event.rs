//! Events. An event is recorded on streams of its own device only; any thread can wait for it.

use std::ffi::c_uint;

use flagstone::driver::sim::{Code, CuResult};
use flagstone::driver::{Event, Stream};

use super::major::Major;
use super::{device_of, device_of_event, runtime};
use crate::driver_api::context::current_or_first;
use crate::driver_api::write;
use crate::owners;

/// `cudaEventDisableTiming`
const DISABLE_TIMING: c_uint = 2;

fn record(event: usize, stream: usize) -> CuResult {
    let (own, device) = (device_of_event(Event(event))?, device_of(Stream(stream))?);
    if !std::ptr::eq(own, device) {
        return Err(Code::INVALID_HANDLE);
    }
    device.event_record(Event(event), Stream(stream))
}

/// # Safety
/// `milliseconds` is null or can be written.
unsafe fn write_elapsed(milliseconds: *mut f32, start: usize, end: usize) -> CuResult {
    let ns = device_of_event(Event(start))?.event_elapsed_ns(Event(start), Event(end))?;
    // SAFETY: by the contract.
    unsafe { write(milliseconds, ns as f32 / 1e6) }
}

runtime! {
    fn cudaEventCreate(event: *mut usize) {
        // SAFETY: the caller's promise.
        unsafe { write(event, owners::own_event(current_or_first()?, true)?.0) }
    }

    fn cudaEventCreateWithFlags(event: *mut usize, flags: c_uint) {
        // SAFETY: the caller's promise.
        unsafe { write(event, owners::own_event(current_or_first()?, flags & DISABLE_TIMING == 0)?.0) }
    }

    fn cudaEventRecord(event: usize, stream: usize) {
        record(event, stream)
    }

    fn cudaEventRecordWithFlags(event: usize, stream: usize, _flags: c_uint) {
        record(event, stream)
    }

    fn cudaEventQuery(event: usize) {
        if device_of_event(Event(event))?.event_query(Event(event))? { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cudaEventSynchronize(event: usize) {
        device_of_event(Event(event))?.event_synchronize(Event(event))
    }

    fn cudaEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) {
        // SAFETY: the caller's promise.
        unsafe { write_elapsed(milliseconds, start, end) }
    }

    /// Of CUDA 12 alone: what CUDA 13 has under the other name.
    fn cudaEventElapsedTime_v2(milliseconds: *mut f32, start: usize, end: usize) {
        Major::Cuda12.only()?;
        // SAFETY: the caller's promise.
        unsafe { write_elapsed(milliseconds, start, end) }
    }

    fn cudaEventDestroy(event: usize) {
        device_of_event(Event(event))?.event_destroy(Event(event))
    }
}
