//! The streams of a device and the handles that name them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::driver::{Stream, StreamId};

use super::order::Clock;
use super::timeline::Queued;
use super::{Code, CuResult, thread};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
