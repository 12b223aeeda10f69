//! Stream capture: what is recorded instead of being carried out, and which calls it forbids.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{Stream, StreamId};

use super::device::{Device, State};
use super::order::Clock;
use super::work::Work;
use super::{Call, Code, CuResult, StreamKind, Violation, thread};

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

/// Captured work, in an order that keeps all its dependencies.
#[derive(Debug, Clone)]
pub struct Graph {
    works: Arc<[Work]>,
}

impl Graph {
    /// How many pieces of work it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.works.len()
    }

    /// Whether it has no work.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }
}

/// The captures that have not been ended.
#[derive(Default)]
pub(super) struct Captures {
    open: BTreeMap<u64, Capture>,
}

struct Capture {
    mode: CaptureMode,
    thread: u64,
    origin: StreamId,
    valid: bool,
    branches: BTreeMap<StreamId, Branch>,
    works: Vec<Work>,
}

/// A stream's part of a capture.
#[derive(Default)]
struct Branch {
    /// How much work the stream has in it.
    works: u64,
    /// What comes before the next, apart from the stream's own.
    clock: Clock,
}

/// What an event was recorded on in a capture.
#[derive(Clone)]
pub(super) struct CapturedPoint {
    pub capture: u64,
    clock: Clock,
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

    /// Gives a stream the work of a graph, one piece after the other. Work that ran side by side in the capture does not
    /// do so here.
    ///
    /// # Errors
    /// As [`launch`](Self::launch); `STREAM_CAPTURE_UNSUPPORTED` on a capturing stream, which a real device allows.
    pub fn graph_launch(&self, graph: &Graph, stream: Stream) -> CuResult {
        let call = Call::GraphLaunch;
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            state.refuse_capturing(call, id)?;
            state.before_operation(call, id)?;
            for work in graph.works.iter() {
                state.enqueue(id, work.clone());
            }
            Ok(())
        })
    }
}

impl Captures {
    fn begin(&mut self, origin: StreamId, mode: CaptureMode) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only the uniqueness of the number counts.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let branches = BTreeMap::from([(origin, Branch::default())]);
        let thread = thread::number();
        self.open.insert(
            number,
            Capture {
                mode,
                thread,
                origin,
                valid: true,
                branches,
                works: Vec::new(),
            },
        );
        number
    }

    /// Whether the capture of that origin can be ended by the calling thread.
    fn check_end(&self, capture: u64, stream: StreamId) -> CuResult {
        let Some(capture) = self.open.get(&capture) else {
            return Err(Code::ILLEGAL_STATE);
        };
        if capture.origin != stream {
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != CaptureMode::Relaxed && capture.thread != thread::number() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        Ok(())
    }

    fn is_valid(&self, capture: u64) -> bool {
        self.open.get(&capture).is_some_and(|capture| capture.valid)
    }

    /// Adds work of a stream that is part of the capture.
    pub fn add_work(&mut self, capture: u64, stream: StreamId, work: Work) {
        if let Some(capture) = self.open.get_mut(&capture) {
            capture.works.push(work);
            capture.branches.entry(stream).or_default().works += 1;
        }
    }

    /// The present end of a stream that is part of the capture.
    pub fn point(&self, capture: u64, stream: StreamId) -> CapturedPoint {
        let mut clock = Clock::default();
        if let Some(branch) = self
            .open
            .get(&capture)
            .and_then(|capture| capture.branches.get(&stream))
        {
            clock.merge(&branch.clock);
            clock.raise(stream, branch.works);
        }
        CapturedPoint { capture, clock }
    }

    /// The valid captures that forbid unsafe calls to the calling thread.
    fn forbidding(&self) -> Vec<u64> {
        if self.open.is_empty() {
            return Vec::new();
        }
        let (thread, mode) = (thread::number(), thread::capture_mode());
        let forbids = |capture: &Capture| {
            let own = capture.thread == thread && capture.mode != CaptureMode::Relaxed;
            let others = capture.thread != thread && capture.mode == CaptureMode::Global;
            capture.valid
                && match mode {
                    CaptureMode::Global => own || others,
                    CaptureMode::ThreadLocal => own,
                    CaptureMode::Relaxed => false,
                }
        };
        self.open
            .iter()
            .filter(|(_, capture)| forbids(capture))
            .map(|(&number, _)| number)
            .collect()
    }
}

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

    fn end_capture(&mut self, capture: u64) -> CuResult<Graph> {
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
    fn blocking_capture(&mut self) -> Option<u64> {
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
