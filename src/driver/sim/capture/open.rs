//! The captures under way.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::StreamId;
use crate::driver::sim::order::Clock;
use crate::driver::sim::work::Work;
use crate::driver::sim::{Code, CuResult, thread};

use super::CaptureMode;

/// The captures that have not been ended.
#[derive(Default)]
pub(in crate::driver::sim) struct Captures {
    pub(super) open: BTreeMap<u64, Capture>,
}

/// A capture.
pub(super) struct Capture {
    pub(super) mode: CaptureMode,
    pub(super) thread: u64,
    pub(super) origin: StreamId,
    pub(super) valid: bool,
    pub(super) branches: BTreeMap<StreamId, Branch>,
    pub(super) works: Vec<Work>,
}

/// A stream's part of a capture.
#[derive(Default)]
pub(super) struct Branch {
    /// How much work the stream has in it.
    pub(super) works: u64,
    /// What comes before the next, apart from the stream's own.
    pub(super) clock: Clock,
}

/// What an event was recorded on in a capture.
#[derive(Clone)]
pub(in crate::driver::sim) struct CapturedPoint {
    pub capture: u64,
    pub(super) clock: Clock,
}

impl Captures {
    pub(super) fn begin(&mut self, origin: StreamId, mode: CaptureMode) -> u64 {
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
    pub(super) fn check_end(&self, capture: u64, stream: StreamId) -> CuResult {
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

    pub(super) fn is_valid(&self, capture: u64) -> bool {
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

    /// The captures, valid or not, that forbid unsafe calls to the calling thread.
    pub(super) fn forbidding(&self) -> Vec<u64> {
        if self.open.is_empty() {
            return Vec::new();
        }
        let (thread, mode) = (thread::number(), thread::capture_mode());
        let forbids = |capture: &Capture| {
            let own = capture.thread == thread && capture.mode != CaptureMode::Relaxed;
            match mode {
                CaptureMode::Global => own || capture.mode == CaptureMode::Global,
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
