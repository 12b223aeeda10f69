//! Streams. A handle is one of the device whose context is current.

use std::ffi::{c_uint, c_ulonglong};

use flagstone::driver::sim::{Code, StreamKind};
use flagstone::driver::{Event, Stream};

use super::context::current;
use super::write;
use crate::calls::export;
use crate::owners;

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: c_uint = 1;

export! {
    fn cuStreamCreate(stream: *mut usize, flags: c_uint) {
        let kind = if flags & NON_BLOCKING == 0 { StreamKind::Blocking } else { StreamKind::NonBlocking };
        // SAFETY: the caller's promise.
        unsafe { write(stream, owners::own_stream(current()?, kind)?.0) }
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
