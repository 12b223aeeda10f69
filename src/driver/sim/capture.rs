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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Event;
    use crate::driver::sim::{Options, exchange_capture_mode};

    /// A device with two streams that are not blocking and an event.
    fn scene() -> (Device, Stream, Stream, Event) {
        let device = Device::new(Options::default());
        let stream = || device.stream_create(StreamKind::NonBlocking).expect("a stream");
        let (a, b, event) = (stream(), stream(), device.event_create(false).expect("an event"));
        (device, a, b, event)
    }

    /// Runs the function in another thread, in that capture mode.
    fn elsewhere<T: Send>(mode: CaptureMode, function: impl FnOnce() -> T + Send) -> T {
        let in_mode = || {
            exchange_capture_mode(mode);
            function()
        };
        std::thread::scope(|scope| scope.spawn(in_mode).join().expect("no panic"))
    }

    #[test]
    fn captured_work_is_carried_out_at_each_launch_of_its_graph() {
        let (device, a, b, _) = scene();
        let addr = device.mem_alloc(512).expect("memory");
        device.stream_begin_capture(a, CaptureMode::Global).expect("a capture");
        device
            .launch(a, Work::new().fills(addr, 512, 7).takes(10))
            .expect("a launch");
        let graph = device.stream_end_capture(a).expect("a graph");
        let byte = || {
            let mut byte = [0];
            device.read(addr, &mut byte).expect("memory");
            byte[0]
        };
        device.advance(100);
        assert_eq!((byte(), graph.len(), device.stream_query(a)), (0, 1, Ok(true)));
        for _ in 0..2 {
            device.graph_launch(&graph, b).expect("a launch");
            assert_eq!(byte(), 0);
            device.advance(10);
            assert_eq!(byte(), 7);
            device.write(addr, &[0]).expect("memory");
        }
        assert!(
            device.check_handout(addr, 512, a).is_err(),
            "the last launch may still use it"
        );
    }

    #[test]
    fn beginning_and_ending() {
        let (device, a, b, event) = scene();
        let begin = |stream| device.stream_begin_capture(stream, CaptureMode::ThreadLocal);
        assert_eq!(begin(Stream::LEGACY), Err(Code::STREAM_CAPTURE_UNSUPPORTED));
        assert_eq!(device.stream_end_capture(a).err(), Some(Code::ILLEGAL_STATE));
        assert_eq!(begin(a), Ok(()));
        assert_eq!(begin(a), Err(Code::ILLEGAL_STATE));
        let (status, first) = device.stream_get_capture_info(a).expect("a capture");
        assert_eq!(
            (status, device.stream_is_capturing(b)),
            (CaptureStatus::Active, Ok(CaptureStatus::None))
        );
        device.event_record(event, a).expect("a record");
        device.stream_wait_event(b, event).expect("a wait");
        assert_eq!(device.stream_end_capture(b).err(), Some(Code::STREAM_CAPTURE_UNMATCHED));
        let end = || device.stream_end_capture(a);
        assert_eq!(
            elsewhere(CaptureMode::Relaxed, end).err(),
            Some(Code::STREAM_CAPTURE_WRONG_THREAD)
        );
        assert!(end().is_ok_and(|graph| graph.is_empty()));
        assert_eq!(begin(a), Ok(()));
        assert!(
            device
                .stream_get_capture_info(a)
                .is_ok_and(|(_, second)| second > first)
        );
        device.abort_capture(a);
        assert_eq!(device.stream_is_capturing(a), Ok(CaptureStatus::None));
        device.stream_begin_capture(a, CaptureMode::Relaxed).expect("a capture");
        assert!(
            elsewhere(CaptureMode::Global, end).is_ok(),
            "a relaxed one can be ended anywhere"
        );
        assert_eq!(device.violations(), []);
    }

    #[test]
    fn unsafe_calls_fail_and_invalidate_by_the_modes_of_capture_and_thread() {
        use CaptureMode::{Global, Relaxed, ThreadLocal};
        // Capture mode, thread mode, whether the call is allowed to the capturing thread and to another.
        let rule = [
            (Global, Global, false, false),
            (Global, ThreadLocal, false, true),
            (Global, Relaxed, true, true),
            (ThreadLocal, Global, false, true),
            (ThreadLocal, ThreadLocal, false, true),
            (ThreadLocal, Relaxed, true, true),
            (Relaxed, Global, true, true),
            (Relaxed, ThreadLocal, true, true),
            (Relaxed, Relaxed, true, true),
        ];
        for (capture, thread, own, other) in rule {
            for (is_own, allowed) in [(true, own), (false, other)] {
                let (device, a, ..) = scene();
                device.stream_begin_capture(a, capture).expect("a capture");
                let call = || device.mem_alloc(512);
                let result = if is_own {
                    let before = exchange_capture_mode(thread);
                    let result = call();
                    exchange_capture_mode(before);
                    result
                } else {
                    elsewhere(thread, call)
                };
                let case = format!("capture {capture:?}, thread {thread:?}, own thread {is_own}");
                assert_eq!(result.is_ok(), allowed, "{case}");
                assert_eq!(device.violations().is_empty(), allowed, "{case}");
                let expected = if allowed {
                    CaptureStatus::Active
                } else {
                    CaptureStatus::Invalidated
                };
                assert_eq!(device.stream_is_capturing(a), Ok(expected), "{case}");
                assert_eq!(device.stream_end_capture(a).is_ok(), allowed, "{case}");
            }
        }
    }

    #[test]
    fn each_unsafe_call_is_refused_and_the_safe_ones_are_not() {
        let (device, a, b, event) = scene();
        let addr = device.mem_alloc(512).expect("memory");
        let pinned = device.mem_host_alloc(512).expect("memory");
        let refused = |call: &dyn Fn() -> CuResult| {
            device.stream_begin_capture(a, CaptureMode::Global).expect("a capture");
            let result = call();
            device.abort_capture(a);
            assert_eq!(device.take_violations().len(), usize::from(result.is_err()));
            result == Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        };
        let unsafe_calls: [&dyn Fn() -> CuResult; 9] = [
            &|| device.mem_alloc(512).map(drop),
            &|| device.mem_free(addr),
            &|| device.mem_host_alloc(512).map(drop),
            &|| device.mem_free_host(pinned),
            &|| device.event_query(event).map(drop),
            &|| device.event_synchronize(event),
            &|| device.stream_query(b).map(drop),
            &|| device.stream_synchronize(b),
            &|| device.ctx_synchronize(),
        ];
        for (index, call) in unsafe_calls.iter().enumerate() {
            assert!(refused(call), "unsafe call {index}");
        }
        assert!(!refused(&|| device.mem_get_info().map(drop)));
        assert!(!refused(&|| device.mem_create(2 << 20).map(drop)));
        assert!(!refused(&|| device.event_record(event, b)));
        assert!(!refused(&|| device.stream_get_id(a).map(drop)));
        assert!(
            device.mem_free(addr).is_ok() && device.mem_free_host(pinned).is_ok(),
            "nothing had been freed"
        );
    }

    #[test]
    fn some_calls_are_refused_even_in_relaxed_mode() {
        let (device, a, _, event) = scene();
        let refused = |call: &dyn Fn() -> CuResult| {
            device.stream_begin_capture(a, CaptureMode::Relaxed).expect("a capture");
            device.event_record(event, a).expect("a record");
            let code = call().expect_err("an error");
            assert_eq!(
                device.stream_end_capture(a).err(),
                Some(Code::STREAM_CAPTURE_INVALIDATED)
            );
            code
        };
        assert_eq!(refused(&|| device.event_query(event).map(drop)), Code::CAPTURED_EVENT);
        assert_eq!(refused(&|| device.event_synchronize(event)), Code::CAPTURED_EVENT);
        assert_eq!(
            refused(&|| device.stream_query(a).map(drop)),
            Code::STREAM_CAPTURE_UNSUPPORTED
        );
        assert_eq!(
            refused(&|| device.stream_synchronize(a)),
            Code::STREAM_CAPTURE_UNSUPPORTED
        );
        assert_eq!(refused(&|| device.stream_destroy(a)), Code::STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(refused(&|| device.ctx_synchronize()), Code::STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(
            device.event_query(event),
            Err(Code::CAPTURED_EVENT),
            "also after the capture"
        );
    }

    #[test]
    fn streams_fork_from_a_capture_and_must_be_joined() {
        for join in [true, false] {
            let (device, a, b, event) = scene();
            device.stream_begin_capture(a, CaptureMode::Global).expect("a capture");
            device.event_record(event, a).expect("a record");
            device.stream_wait_event(b, event).expect("a wait");
            assert_eq!(device.stream_is_capturing(b), Ok(CaptureStatus::Active));
            device.launch(b, Work::new()).expect("a launch");
            if join {
                device.event_record(event, b).expect("a record");
                device.stream_wait_event(a, event).expect("a wait");
            }
            let end = device.stream_end_capture(a);
            assert_eq!(
                end.err(),
                if join {
                    None
                } else {
                    Some(Code::STREAM_CAPTURE_UNJOINED)
                }
            );
            assert_eq!(device.stream_is_capturing(b), Ok(CaptureStatus::None));
            assert_eq!(
                device.stream_wait_event(b, event),
                Err(Code::CAPTURED_EVENT),
                "its capture is over"
            );
        }
    }

    #[test]
    fn captures_are_kept_apart_from_other_work_and_from_each_other() {
        let (device, a, b, event) = scene();
        device.event_record(event, b).expect("a record");
        device.stream_begin_capture(a, CaptureMode::Relaxed).expect("a capture");
        assert_eq!(device.stream_wait_event(a, event), Err(Code::STREAM_CAPTURE_ISOLATION));
        assert_eq!(device.launch(a, Work::new()), Err(Code::STREAM_CAPTURE_INVALIDATED));
        assert_eq!(device.event_record(event, a), Err(Code::STREAM_CAPTURE_INVALIDATED));
        device.abort_capture(a);
        device.stream_begin_capture(a, CaptureMode::Relaxed).expect("a capture");
        device.stream_begin_capture(b, CaptureMode::Relaxed).expect("a capture");
        device.event_record(event, a).expect("a record");
        assert_eq!(device.stream_wait_event(b, event), Err(Code::STREAM_CAPTURE_MERGE));
        for stream in [a, b] {
            assert_eq!(
                device.stream_end_capture(stream).err(),
                Some(Code::STREAM_CAPTURE_INVALIDATED)
            );
        }
    }

    #[test]
    fn the_legacy_stream_disturbs_captures_of_blocking_streams_only() {
        for (kind, disturbs) in [(StreamKind::Blocking, true), (StreamKind::NonBlocking, false)] {
            let device = Device::new(Options::default());
            let stream = device.stream_create(kind).expect("a stream");
            device
                .stream_begin_capture(stream, CaptureMode::Relaxed)
                .expect("a capture");
            let implicit = disturbs.then_some(Code::STREAM_CAPTURE_IMPLICIT);
            assert_eq!(device.stream_is_capturing(Stream::LEGACY).err(), implicit);
            assert_eq!(
                device.stream_is_capturing(stream),
                Ok(CaptureStatus::Active),
                "asking does not disturb"
            );
            assert_eq!(device.launch(Stream::LEGACY, Work::new()).err(), implicit);
            assert_eq!(device.stream_end_capture(stream).is_err(), disturbs);
        }
    }
}
