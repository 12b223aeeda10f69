//! What happened to a pool's memory, event by event, while somebody asks for it: a ring of the newest events.
//!
//! Nothing is recorded on the hit path. While a history is recorded, requests and frees take the slow way, which looks
//! here: requests because the pool is watched, frees because blocks are marked as recorded.
//! Each event takes one short lock, so events have one order over all threads, in which the free of a block comes before
//! its next use.

mod stack;

pub use stack::Frame;
#[cfg(feature = "python")]
pub(crate) use stack::Shadow;

use crate::driver::{DevicePtr, Stream};
use crate::sync::atomic::AtomicBool;
use crate::sync::{Mutex, lock};
use crate::thread::Current;
use stack::Stacks;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The most events that a history can be asked to keep: 128 Mi.
const EVENTS_MAX: usize = 1 << 27;

/// What an event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A block was given out.
    Alloc,
    /// A block was given back, and is ready for its own stream.
    Free,
    /// A block was given back, and waits for other streams.
    FreeWaiting,
    /// A block that waited is ready.
    FreeDone,
    /// A block is also in use on the event's stream.
    Use,
    /// Memory is behind these addresses.
    Map,
    /// No memory is behind these addresses any more.
    Unmap,
    /// A request of `requested` bytes failed for want of memory. The address is the number of bytes that the device had free.
    OutOfMemory,
}

impl Action {
    /// The name that Python sees.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::FreeWaiting => "free_waiting",
            Self::FreeDone => "free_done",
            Self::Use => "use",
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::OutOfMemory => "oom",
        }
    }
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since 1970; never goes back within a history.
    pub time: u64,
    /// What happened.
    pub action: Action,
    /// The thread, by a number that no other thread of the process has or had; 0 for one that was ending.
    pub thread: u64,
    /// First address.
    pub addr: DevicePtr,
    /// Bytes, rounded.
    pub bytes: u64,
    /// Bytes as asked for.
    pub requested: u64,
    /// The handle of the stream whose memory it is; of a use, of the stream that uses it.
    pub stream: Stream,
    /// Bytes that the pool held from the driver.
    pub reserved: u64,
    /// The thread's Python stack, as a place in [`History::stacks`]; 0 is none.
    pub stack: u32,
}

// What the documentation says of the memory that a history takes.
const _: () = assert!(size_of::<Event>() == 64);

/// A history that was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The newest events, in order.
    pub events: Vec<Event>,
    /// How many older ones there were.
    pub dropped: u64,
    /// Stacks, each with its innermost frame first.
    pub stacks: Vec<Box<[Frame]>>,
}

/// What an event is about, before it has a time and a thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) addr: DevicePtr,
    pub(crate) bytes: u64,
    pub(crate) requested: u64,
    pub(crate) stream: Stream,
}

/// The ring of one pool.
#[derive(Default)]
pub(crate) struct Recorder {
    on: AtomicBool,
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Event>,
    /// How many it may have.
    most: usize,
    dropped: u64,
    /// `None` where no stacks are wanted.
    stacks: Option<Stacks>,
    clock: Option<Clock>,
}

/// Nanoseconds since 1970 that never go back.
struct Clock {
    began: Duration,
    since: Instant,
}

impl Clock {
    fn start() -> Self {
        Self {
            // A clock before 1970 counts from there.
            began: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            since: Instant::now(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from((self.began + self.since.elapsed()).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Recorder {
    /// Whether events are recorded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        // Relaxed: what runs beside the start or the stop may be recorded or not.
        self.on.load(Relaxed)
    }

    /// Starts an empty history of at most `most` events. Whether none was being recorded before.
    pub(crate) fn start(&self, most: usize, stacks: bool) -> bool {
        let mut ring = lock(&self.ring);
        *ring = Ring {
            most: most.clamp(1, EVENTS_MAX),
            stacks: stacks.then(Stacks::default),
            clock: Some(Clock::start()),
            ..Ring::default()
        };
        !self.on.swap(true, Relaxed)
    }

    /// Records nothing from now on; what was recorded stays. Whether something was being recorded.
    pub(crate) fn stop(&self) -> bool {
        self.on.swap(false, Relaxed)
    }

    /// A copy of what was recorded.
    pub(crate) fn get(&self) -> History {
        let ring = lock(&self.ring);
        History {
            events: ring.events.iter().copied().collect(),
            dropped: ring.dropped,
            stacks: ring.stacks.as_ref().map(Stacks::all).unwrap_or_default(),
        }
    }

    /// Adds an event of the calling thread. `reserved` is asked when the event has its place in the order.
    #[cold]
    pub(crate) fn add(&self, action: Action, subject: Subject, reserved: impl FnOnce() -> u64) {
        let thread = Current::with(|current| current.number).unwrap_or(0);
        let mut ring = lock(&self.ring);
        let Some(time) = ring.clock.as_ref().map(Clock::now) else {
            return;
        };
        let stack = ring.stacks.as_mut().map_or(0, Stacks::current);
        if ring.events.len() == ring.most {
            ring.events.pop_front();
            ring.dropped += 1;
        }
        let Subject {
            addr,
            bytes,
            requested,
            stream,
        } = subject;
        ring.events.push_back(Event {
            time,
            action,
            thread,
            addr,
            bytes,
            requested,
            stream,
            reserved: reserved(),
            stack,
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SUBJECT: Subject = Subject {
        addr: 512,
        bytes: 512,
        requested: 100,
        stream: Stream::LEGACY,
    };

    #[test]
    fn keeps_the_newest_events_and_counts_the_others() {
        let recorder = Recorder::default();
        assert!(!recorder.is_on());
        recorder.add(Action::Alloc, SUBJECT, || 0);
        assert_eq!(recorder.get(), History::default(), "never started");
        assert!(recorder.start(3, false));
        for reserved in 0..5 {
            recorder.add(Action::Alloc, SUBJECT, || reserved);
        }
        assert!(recorder.is_on() && recorder.stop() && !recorder.stop() && !recorder.is_on());
        let history = recorder.get();
        assert_eq!(history.dropped, 2);
        assert_eq!(
            history.events.iter().map(|event| event.reserved).collect::<Vec<_>>(),
            [2, 3, 4]
        );
        assert!(history.events.is_sorted_by_key(|event| event.time));
        assert!(recorder.start(3, false));
        assert_eq!(recorder.get(), History::default(), "a new start is an empty history");
        assert!(!recorder.start(3, false));
    }

    #[test]
    fn an_event_has_the_stack_of_its_thread() {
        let frame = |code| Frame { code, at: 2 };
        let recorder = Recorder::default();
        recorder.start(100, true);
        recorder.add(Action::Alloc, SUBJECT, || 0);
        stack::Shadow::with(|shadow| shadow.frames().extend([frame(1), frame(2)]));
        recorder.add(Action::Free, SUBJECT, || 0);
        recorder.add(Action::Alloc, SUBJECT, || 0);
        std::thread::scope(|scope| {
            scope.spawn(|| recorder.add(Action::Free, SUBJECT, || 0));
        });
        stack::Shadow::forget_all();
        recorder.add(Action::Free, SUBJECT, || 0);
        let history = recorder.get();
        let stacks: Vec<u32> = history.events.iter().map(|event| event.stack).collect();
        assert_eq!(stacks, [0, 1, 1, 0, 0]);
        assert_eq!(history.stacks, [Box::from([]), Box::from([frame(2), frame(1)])]);
    }
}
