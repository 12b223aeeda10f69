//! Stream capture: what is recorded instead of being carried out, and which calls it forbids.

mod graph;
mod open;
mod rules;
#[cfg(test)]
mod tests;

use crate::driver::Stream;

use super::device::Device;
use super::{Call, Code, CuResult};

pub use graph::Graph;
pub(super) use open::{CapturedPoint, Captures};

/// Which calls of which threads a capture forbids; and a thread's own mode, which frees it from the rule or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CaptureMode {
    /// Unsafe calls of all threads. The mode that threads start in.
    #[default]
    Global,
    /// Unsafe calls of the thread that began the capture.
    ThreadLocal,
    /// None.
    Relaxed,
}

/// Whether a stream is capturing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CaptureStatus {
    /// It is not.
    None,
    /// It is.
    Active,
    /// It is part of a capture that was invalidated and has not been ended.
    Invalidated,
}

impl Device {
    /// Begins a capture on the stream.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` on the legacy stream, `ILLEGAL_STATE` on a stream that captures, `INVALID_HANDLE` where
    /// there is no such stream.
    pub fn stream_begin_capture(&self, stream: Stream, mode: CaptureMode) -> CuResult {
        let call = Call::StreamBeginCapture;
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            if id == state.streams.legacy() {
                return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
            }
            if state.streams.get(id).capture.is_some() {
                return Err(Code::ILLEGAL_STATE);
            }
            state.streams.get(id).capture = Some(state.captures.begin(id, mode));
            Ok(())
        })
    }

    /// Ends the capture that was begun on the stream.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` where the stream does not capture, `STREAM_CAPTURE_UNMATCHED` where its capture was begun on another
    /// one, `STREAM_CAPTURE_WRONG_THREAD` where another thread began it and it is not relaxed: these leave it as it
    /// is. `STREAM_CAPTURE_INVALIDATED`, or `STREAM_CAPTURE_UNJOINED` where work of another stream was not joined to
    /// this one: these end it.
    pub fn stream_end_capture(&self, stream: Stream) -> CuResult<Graph> {
        let call = Call::StreamEndCapture;
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            let capture = state.streams.get(id).capture.ok_or(Code::ILLEGAL_STATE)?;
            state.captures.check_end(capture, id)?;
            state.end_capture(capture)
        })
    }

    /// Ends the stream's capture, from any thread and in whatever state, and drops what was captured. For tests; not a
    /// driver function.
    pub fn abort_capture(&self, stream: Stream) {
        let mut state = self.lock();
        if let Ok(id) = state.streams.resolve(stream)
            && let Some(capture) = state.streams.get(id).capture
        {
            // Whether it was valid does not matter any more.
            drop(state.end_capture(capture));
        }
    }

    /// Whether the stream is capturing.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where there is no such stream; `STREAM_CAPTURE_IMPLICIT` for the legacy stream while a blocking one
    /// captures, which does not invalidate the capture.
    pub fn stream_is_capturing(&self, stream: Stream) -> CuResult<CaptureStatus> {
        self.stream_get_capture_info(stream).map(|(status, _)| status)
    }

    /// Whether the stream is capturing, and the number of its capture (0 without), which no other capture of the process
    /// has or will have.
    ///
    /// # Errors
    /// As [`stream_is_capturing`](Self::stream_is_capturing), as which it counts.
    pub fn stream_get_capture_info(&self, stream: Stream) -> CuResult<(CaptureStatus, u64)> {
        let call = Call::StreamIsCapturing;
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            if id == state.streams.legacy() && state.blocking_capture().is_some() {
                return Err(Code::STREAM_CAPTURE_IMPLICIT);
            }
            let Some(capture) = state.streams.get(id).capture else {
                return Ok((CaptureStatus::None, 0));
            };
            let valid = state.captures.is_valid(capture);
            Ok((
                if valid {
                    CaptureStatus::Active
                } else {
                    CaptureStatus::Invalidated
                },
                capture,
            ))
        })
    }
}
