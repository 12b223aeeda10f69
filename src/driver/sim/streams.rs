//! The streams of a device and the handles that name them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::driver::{Stream, StreamId};

use super::device::{Device, State};
use super::order::Clock;
use super::timeline::Queued;
use super::{Call, Code, CuResult, Violation, thread};

/// Whether a stream takes part in the implicit synchronisation of the legacy default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// It does, as streams made with `CU_STREAM_DEFAULT` and per-thread default streams do.
    Blocking,
    /// It does not (`CU_STREAM_NON_BLOCKING`).
    NonBlocking,
}

/// The streams: the legacy one, one for each thread that used handle 2, and the created ones.
pub(super) struct Streams {
    legacy: StreamId,
    by_handle: HashMap<usize, StreamId>,
    by_thread: HashMap<u64, StreamId>,
    all: HashMap<StreamId, StreamState>,
    /// Handles of destroyed streams. The last one is given out next, as drivers reuse the memory behind a handle.
    dead: Vec<usize>,
}

/// A stream. A destroyed one is kept until its work is known to be done.
pub(super) struct StreamState {
    pub kind: StreamKind,
    pub destroyed: bool,
    /// Operations that are not done, in order.
    pub queue: VecDeque<Queued>,
    /// The number of operations so far, and thus the number of the last.
    pub enqueued: u64,
    /// When the last operation that is done was done, on the device's clock.
    pub ready_at: u64,
    /// What comes before the next operation, apart from the stream's own.
    pub clock: Clock,
    /// The capture that the stream is part of.
    pub capture: Option<u64>,
}

impl StreamState {
    fn new(kind: StreamKind) -> Self {
        Self {
            kind,
            destroyed: false,
            queue: VecDeque::new(),
            enqueued: 0,
            ready_at: 0,
            clock: Clock::default(),
            capture: None,
        }
    }

    /// The number of the last operation that is done.
    pub fn done(&self) -> u64 {
        self.enqueued - self.queue.len() as u64
    }
}

impl Streams {
    pub fn new() -> Self {
        let mut streams = Self {
            legacy: StreamId(0),
            by_handle: HashMap::new(),
            by_thread: HashMap::new(),
            all: HashMap::new(),
            dead: Vec::new(),
        };
        streams.legacy = streams.insert(StreamKind::Blocking);
        streams
    }

    pub const fn legacy(&self) -> StreamId {
        self.legacy
    }

    /// The stream that a handle names now, in the calling thread.
    pub fn resolve(&mut self, stream: Stream) -> CuResult<StreamId> {
        if stream.is_legacy() {
            return Ok(self.legacy);
        }
        if stream != Stream::PER_THREAD {
            return self.by_handle.get(&stream.0).copied().ok_or(Code::INVALID_HANDLE);
        }
        let thread = thread::number();
        if let Some(&id) = self.by_thread.get(&thread) {
            return Ok(id);
        }
        let id = self.insert(StreamKind::Blocking);
        self.by_thread.insert(thread, id);
        Ok(id)
    }

    /// Whether the handle was that of a stream and now is none.
    pub fn is_dead(&self, stream: Stream) -> bool {
        self.dead.contains(&stream.0)
    }

    pub fn create(&mut self, kind: StreamKind) -> Stream {
        /// Above every null or special handle, and unlike small numbers that a caller could pass by mistake.
        const FIRST: usize = 0x5EA0_0000;
        static NEXT: AtomicUsize = AtomicUsize::new(FIRST);
        // Relaxed: only the uniqueness of the handle counts. Handles are unique in the process, so that the stream of
        // another device is not taken for one of this device.
        let handle = self
            .dead
            .pop()
            .unwrap_or_else(|| NEXT.fetch_add(0x10, Ordering::Relaxed));
        let id = self.insert(kind);
        self.by_handle.insert(handle, id);
        Stream(handle)
    }

    /// Forgets the handle. The work that the stream has goes on.
    pub fn destroy(&mut self, stream: Stream) -> CuResult {
        let id = self.by_handle.remove(&stream.0).ok_or(Code::INVALID_HANDLE)?;
        self.dead.push(stream.0);
        self.get(id).destroyed = true;
        Ok(())
    }

    /// Forgets the destroyed streams whose work is known to be done.
    pub fn drop_finished(&mut self, seen: &Clock) {
        self.all
            .retain(|&id, stream| !stream.destroyed || stream.enqueued > seen.get(id));
    }

    /// A stream that exists.
    ///
    /// Every `StreamId` that the device keeps in its own tables is that of a stream in `all`, so the entry is found; an
    /// unknown id would get a fresh idle stream.
    pub fn get(&mut self, id: StreamId) -> &mut StreamState {
        self.all
            .entry(id)
            .or_insert_with(|| StreamState::new(StreamKind::NonBlocking))
    }

    pub fn iter(&self) -> impl Iterator<Item = (StreamId, &StreamState)> + '_ {
        self.all.iter().map(|(&id, stream)| (id, stream))
    }

    fn insert(&mut self, kind: StreamKind) -> StreamId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only the uniqueness of the number counts.
        let id = StreamId(NEXT.fetch_add(1, Ordering::Relaxed));
        self.all.insert(id, StreamState::new(kind));
        id
    }
}

impl Device {
    /// A stream.
    ///
    /// # Errors
    /// Injected ones and those of a broken context, as every call.
    pub fn stream_create(&self, kind: StreamKind) -> CuResult<Stream> {
        self.call(Call::StreamCreate, 0, |state| Ok(state.streams.create(kind)))
    }

    /// Destroys a created stream. Returns at once; the stream's work goes on. Its handle can come back as another stream.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for any other handle; `STREAM_CAPTURE_UNSUPPORTED` while it is capturing, which invalidates the
    /// capture.
    pub fn stream_destroy(&self, stream: Stream) -> CuResult {
        let call = Call::StreamDestroy;
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            state.refuse_capturing(call, id)?;
            state.streams.destroy(stream)?;
            state.streams.drop_finished(&state.seen);
            Ok(())
        })
    }

    /// The stream's identity, which no other stream of the process has or will have.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where there is no such stream; `STREAM_CAPTURE_UNSUPPORTED` where it captures, as NVIDIA's own
    /// libraries say that drivers answer.
    pub fn stream_get_id(&self, stream: Stream) -> CuResult<StreamId> {
        let call = Call::StreamGetId;
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            state.refuse_capturing(call, id)?;
            Ok(id)
        })
    }

    /// Whether the stream's work is done.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where there is no such stream; capture errors.
    pub fn stream_query(&self, stream: Stream) -> CuResult<bool> {
        let call = Call::StreamQuery;
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            state.refuse_capturing(call, id)?;
            let done = state.streams.get(id).queue.is_empty();
            if done {
                let tail = state.tail(id);
                state.seen.merge(&tail);
            }
            Ok(done)
        })
    }

    /// Waits for the stream's work, by advancing the clock as far as needed.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where there is no such stream; `NOT_READY`, and a violation, when the wait would never end; capture
    /// errors; what went wrong in the work.
    pub fn stream_synchronize(&self, stream: Stream) -> CuResult {
        let call = Call::StreamSynchronize;
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            state.refuse_capturing(call, id)?;
            state.wait_for_stream(call, id)
        })
    }
}

impl State {
    /// The stream that a call names.
    pub fn stream(&mut self, call: Call, stream: Stream) -> CuResult<StreamId> {
        let found = self.streams.resolve(stream);
        if found.is_err() && self.streams.is_dead(stream) {
            self.violations.add(Violation::StaleStream { call, handle: stream.0 });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{Options, Work};

    #[test]
    fn handles_come_back_and_identities_do_not() {
        let mut streams = Streams::new();
        let first = streams.create(StreamKind::Blocking);
        let id = streams.resolve(first);
        assert_eq!(streams.destroy(first), Ok(()));
        assert_eq!(streams.resolve(first), Err(Code::INVALID_HANDLE));
        assert!(streams.is_dead(first));
        let second = streams.create(StreamKind::NonBlocking);
        assert_eq!(second, first);
        assert!(!streams.is_dead(first));
        assert_ne!(streams.resolve(second), id);
    }

    #[test]
    fn the_default_streams() {
        let mut streams = Streams::new();
        assert_eq!(streams.resolve(Stream(0)), streams.resolve(Stream(1)));
        let mine = streams.resolve(Stream::PER_THREAD);
        assert_ne!(mine, streams.resolve(Stream::LEGACY));
        assert_eq!(mine, streams.resolve(Stream::PER_THREAD));
        let theirs = std::thread::scope(|scope| {
            scope
                .spawn(|| streams.resolve(Stream::PER_THREAD))
                .join()
                .expect("no panic")
        });
        assert_ne!(mine, theirs);
        assert_eq!(streams.destroy(Stream::LEGACY), Err(Code::INVALID_HANDLE));
    }

    #[test]
    fn streams_of_two_devices_have_different_handles() {
        let (mut a, mut b) = (Streams::new(), Streams::new());
        let stream = a.create(StreamKind::Blocking);
        b.create(StreamKind::Blocking);
        assert_eq!(b.resolve(stream), Err(Code::INVALID_HANDLE));
        assert!(!b.is_dead(stream));
    }

    #[test]
    fn work_of_a_destroyed_stream_goes_on_and_its_handle_is_stale() {
        let device = Device::new(Options::default());
        let stream = device.stream_create(StreamKind::NonBlocking).expect("a stream");
        let event = device.event_create(false).expect("an event");
        let addr = device.mem_alloc(1).expect("memory");
        device
            .launch(stream, Work::new().takes(10).fills(addr, 1, 3))
            .expect("a launch");
        device.event_record(event, stream).expect("a record");
        device.stream_destroy(stream).expect("a stream");
        assert_eq!(device.event_record(event, stream), Err(Code::INVALID_HANDLE));
        let stale = Violation::StaleStream {
            call: Call::EventRecord,
            handle: stream.0,
        };
        assert_eq!(device.take_violations(), [stale]);
        assert_eq!(device.event_query(event), Ok(false));
        device.advance(10);
        assert_eq!(device.event_query(event), Ok(true));
        let mut byte = [0];
        device.read(addr, &mut byte).expect("memory");
        assert_eq!(byte, [3]);
        assert_eq!(device.stream_destroy(Stream::LEGACY), Err(Code::INVALID_HANDLE));
    }
}
