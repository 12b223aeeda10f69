//! Events.

use std::ffi::c_uint;

use flagstone::driver::sim::Code;
use flagstone::driver::{Event, Stream};

use super::context::current;
use super::write;
use crate::calls::export;
use crate::owners;

/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: c_uint = 2;

export! {
    fn cuEventCreate(event: *mut usize, flags: c_uint) {
        // SAFETY: the caller's promise.
        unsafe { write(event, owners::own_event(current()?, flags & DISABLE_TIMING == 0)?.0) }
    }

    fn cuEventRecord(event: usize, stream: usize) {
        current()?.event_record(Event(event), Stream(stream))
    }

    fn cuEventQuery(event: usize) {
        if current()?.event_query(Event(event))? { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuEventSynchronize(event: usize) {
        current()?.event_synchronize(Event(event))
    }

    fn cuEventDestroy_v2(event: usize) {
        current()?.event_destroy(Event(event))
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) {
        let ns = current()?.event_elapsed_ns(Event(start), Event(end))?;
        // SAFETY: the caller's promise.
        unsafe { write(milliseconds, ns as f32 / 1e6) }
    }

    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: usize, end: usize) {
        let ns = current()?.event_elapsed_ns(Event(start), Event(end))?;
        // SAFETY: the caller's promise.
        unsafe { write(milliseconds, ns as f32 / 1e6) }
    }
}
