//! What captures forbid, and what makes them fail.

use crate::driver::StreamId;
use crate::driver::sim::device::State;
use crate::driver::sim::{Call, Code, CuResult, StreamKind, Violation};

use super::Graph;
use super::open::{Branch, Capture, CapturedPoint};

impl State {
    /// Refuses a call that is unsafe in capture where a capture forbids it, and invalidates the capture.
    pub fn check_capture(&mut self, call: Call) -> CuResult {
        if !call.is_unsafe_in_capture() {
            return Ok(());
        }
        let forbidding = self.captures.forbidding();
        for &capture in &forbidding {
            self.invalidate(call, capture);
        }
        if forbidding.is_empty() {
            Ok(())
        } else {
            Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        }
    }

    /// Refuses a call that makes no sense on a capturing stream, in whatever mode, and invalidates the capture.
    pub fn refuse_capturing(&mut self, call: Call, id: StreamId) -> CuResult {
        match self.streams.get(id).capture {
            None => Ok(()),
            Some(capture) => {
                self.invalidate(call, capture);
                Err(Code::STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// Refuses a call that makes no sense while any stream captures, and invalidates all captures.
    pub fn refuse_captures(&mut self, call: Call) -> CuResult {
        let open: Vec<u64> = self.captures.open.keys().copied().collect();
        for &capture in &open {
            self.invalidate(call, capture);
        }
        if open.is_empty() {
            Ok(())
        } else {
            Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        }
    }

    /// The capture that the stream is part of, if it can take more.
    pub fn capturing(&mut self, id: StreamId) -> CuResult<Option<u64>> {
        match self.streams.get(id).capture {
            Some(capture) if !self.captures.is_valid(capture) => Err(Code::STREAM_CAPTURE_INVALIDATED),
            capture => Ok(capture),
        }
    }

    /// What precedes each operation that is carried out: the implicit waits of the legacy stream.
    pub fn before_operation(&mut self, call: Call, id: StreamId) -> CuResult {
        if id == self.streams.legacy()
            && let Some(capture) = self.blocking_capture()
        {
            self.invalidate(call, capture);
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        self.wait_implicitly(id);
        Ok(())
    }

    /// Makes a stream part of a capture, or orders the work of two of its streams.
    pub fn join_capture(&mut self, call: Call, id: StreamId, point: &CapturedPoint) -> CuResult {
        let own = self.capturing(id)?;
        if let Some(other) = own.filter(|&own| own != point.capture) {
            self.invalidate(call, other);
            self.invalidate(call, point.capture);
            return Err(Code::STREAM_CAPTURE_MERGE);
        }
        let Some(capture) = self.captures.open.get_mut(&point.capture) else {
            return Err(Code::CAPTURED_EVENT);
        };
        if !capture.valid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        if id == self.streams.legacy() {
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        capture.branches.entry(id).or_default().clock.merge(&point.clock);
        self.streams.get(id).capture = Some(point.capture);
        Ok(())
    }

    /// Makes a capture fail.
    pub fn invalidate(&mut self, call: Call, capture: u64) {
        if let Some(open) = self.captures.open.get_mut(&capture).filter(|capture| capture.valid) {
            open.valid = false;
            self.violations.add(Violation::CaptureInvalidated { call, capture });
        }
    }

    pub(super) fn end_capture(&mut self, capture: u64) -> CuResult<Graph> {
        let Some(ended) = self.captures.open.remove(&capture) else {
            return Err(Code::ILLEGAL_STATE);
        };
        for &id in ended.branches.keys() {
            self.streams.get(id).capture = None;
        }
        if !ended.valid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let joined = ended
            .branches
            .get(&ended.origin)
            .map(|origin| origin.clock.clone())
            .unwrap_or_default();
        let loose = |(&id, branch): (&StreamId, &Branch)| id != ended.origin && branch.works > joined.get(id);
        if ended.branches.iter().any(loose) {
            return Err(Code::STREAM_CAPTURE_UNJOINED);
        }
        Ok(Graph {
            works: ended.works.into(),
        })
    }

    /// A valid capture that a blocking stream is part of.
    pub(super) fn blocking_capture(&mut self) -> Option<u64> {
        let streams = &mut self.streams;
        let blocking = |capture: &Capture| {
            capture.valid
                && capture
                    .branches
                    .keys()
                    .any(|&id| streams.get(id).kind == StreamKind::Blocking)
        };
        let mut blocking = blocking;
        self.captures
            .open
            .iter()
            .find(|(_, capture)| blocking(capture))
            .map(|(&number, _)| number)
    }
}
