//! The device's clock, and the operations that streams carry out in order as it advances.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use crate::driver::{Stream, StreamId};

use super::device::{Device, State};
use super::order::Clock;
use super::streams::StreamState;
use super::work::Work;
use super::{Call, Code, CuResult, Violation};

/// The clock and the streams that have something to do.
pub(super) struct Timeline {
    /// Nanoseconds since the device was made.
    pub now: u64,
    /// Events complete at the earliest this many nanoseconds after they were recorded.
    pub lag: u64,
    /// The streams whose queue is not empty.
    busy: BTreeSet<StreamId>,
}

impl Timeline {
    pub const fn new(lag: u64) -> Self {
        Self {
            now: 0,
            lag,
            busy: BTreeSet::new(),
        }
    }

    /// Whether all work of the device is done.
    pub fn is_idle(&self) -> bool {
        self.busy.is_empty()
    }
}

/// An operation in a stream's queue, and when it was put there.
pub(super) struct Queued {
    at: u64,
    op: Op,
}

pub(super) enum Op {
    Work(Work),
    /// Completes a recorded event.
    Record {
        record: Arc<Record>,
        not_before: u64,
    },
    /// Waits for a recorded event.
    Wait(Arc<Record>),
    /// Holds the stream until it is opened.
    Gate {
        opened_at: Option<u64>,
    },
}

/// A point in a stream's work.
pub(super) struct Record {
    pub stream: StreamId,
    /// The number of the operation that completes it.
    pub op: u64,
    /// What comes before it, apart from the stream's own operations.
    pub clock: Clock,
    pub done_at: OnceLock<u64>,
}

impl Record {
    pub fn is_done(&self) -> bool {
        self.done_at.get().is_some()
    }
}

impl StreamState {
    /// When the first operation of the queue is done; none while it waits for something that has not happened.
    fn due(&self) -> Option<u64> {
        let Queued { at, op } = self.queue.front()?;
        let start = self.ready_at.max(*at);
        match op {
            Op::Work(work) => Some(start.saturating_add(work.duration_ns).max(work.until_ns)),
            Op::Record { not_before, .. } => Some(start.max(*not_before)),
            Op::Wait(record) => record.done_at.get().map(|&done| start.max(done)),
            Op::Gate { opened_at } => opened_at.map(|opened| start.max(opened)),
        }
    }
}

impl State {
    /// Puts an operation at the end of a stream's queue.
    pub fn push(&mut self, id: StreamId, op: Op) {
        let at = self.timeline.now;
        let stream = self.streams.get(id);
        stream.enqueued += 1;
        stream.queue.push_back(Queued { at, op });
        self.timeline.busy.insert(id);
        self.settle();
    }

    /// Records the present end of a stream. It is done `lag` nanoseconds from now, or with the stream's work if later.
    pub fn record(&mut self, id: StreamId, lag: u64) -> Arc<Record> {
        let not_before = self.timeline.now.saturating_add(lag);
        let stream = self.streams.get(id);
        stream.clock.drop_known(&self.seen);
        let record = Arc::new(Record {
            stream: id,
            op: stream.enqueued + 1,
            clock: stream.clock.clone(),
            done_at: OnceLock::new(),
        });
        self.push(
            id,
            Op::Record {
                record: Arc::clone(&record),
                not_before,
            },
        );
        record
    }

    /// Makes later operations of a stream come after the record.
    pub fn wait(&mut self, id: StreamId, record: &Arc<Record>) {
        let stream = self.streams.get(id);
        stream.clock.merge(&record.clock);
        stream.clock.raise(record.stream, record.op);
        stream.clock.drop_known(&self.seen);
        if !record.is_done() {
            self.push(id, Op::Wait(Arc::clone(record)));
        }
    }

    /// Carries out everything that is due by now.
    pub fn settle(&mut self) {
        while let Some((due, id)) = self.next().filter(|&(due, _)| due <= self.timeline.now) {
            self.complete(id, due);
        }
    }

    /// Advances the clock until `done`, as a host does that waits. Fails when that can never be.
    pub fn wait_until(&mut self, call: Call, done: impl Fn(&mut Self) -> bool) -> CuResult {
        self.wait_within(call, u64::MAX, done).map(drop)
    }

    /// As [`Self::wait_until`], for at most that many nanoseconds: with an end, a wait for what can never be is no fault.
    /// Whether it is `done`.
    pub fn wait_within(&mut self, call: Call, ns: u64, done: impl Fn(&mut Self) -> bool) -> CuResult<bool> {
        let end = self.timeline.now.saturating_add(ns);
        while !done(self) {
            match self.next().filter(|&(due, _)| due <= end) {
                Some((due, id)) => {
                    self.timeline.now = self.timeline.now.max(due);
                    self.complete(id, due);
                }
                None if end == u64::MAX => {
                    self.violations.add(Violation::Deadlock { call });
                    return Err(Code::NOT_READY);
                }
                None => {
                    self.timeline.now = end;
                    return Ok(false);
                }
            }
        }
        // What went wrong in the work that was waited for shows here, as on a real device.
        self.faults.sticky.map_or(Ok(true), Err)
    }

    /// The operation that is done next, of all streams.
    fn next(&mut self) -> Option<(u64, StreamId)> {
        let streams = &mut self.streams;
        self.timeline
            .busy
            .iter()
            .filter_map(|&id| Some((streams.get(id).due()?, id)))
            .min()
    }

    fn complete(&mut self, id: StreamId, due: u64) {
        let stream = self.streams.get(id);
        let Some(Queued { op, .. }) = stream.queue.pop_front() else {
            return;
        };
        stream.ready_at = due;
        if stream.queue.is_empty() {
            self.timeline.busy.remove(&id);
        }
        match op {
            Op::Work(work) => self.carry_out(id, &work),
            // Set once: each record is completed by the one operation made with it.
            Op::Record { record, .. } => drop(record.done_at.set(due)),
            Op::Wait(_) | Op::Gate { .. } => {}
        }
    }
}

impl Device {
    /// The device's clock, in nanoseconds since it was made.
    pub fn now_ns(&self) -> u64 {
        self.lock().timeline.now
    }

    /// Sets the clock and carries out what is due by then. The clock never goes back: an earlier time changes nothing.
    pub fn set_time(&self, ns: u64) {
        let mut state = self.lock();
        state.timeline.now = state.timeline.now.max(ns);
        state.settle();
    }

    /// Advances the clock and carries out what is due by then.
    pub fn advance(&self, ns: u64) {
        let mut state = self.lock();
        state.timeline.now = state.timeline.now.saturating_add(ns);
        state.settle();
    }

    /// Sets the lag of events recorded from now on: they complete at the earliest that many nanoseconds later.
    pub fn set_lag(&self, ns: u64) {
        self.lock().timeline.lag = ns;
    }

    /// Keeps everything that the stream gets from now on from being done, until [`resume`](Self::resume).
    ///
    /// # Errors
    /// `INVALID_HANDLE` where there is no such stream.
    pub fn hold(&self, stream: Stream) -> CuResult {
        let mut state = self.lock();
        let id = state.streams.resolve(stream)?;
        state.push(id, Op::Gate { opened_at: None });
        Ok(())
    }

    /// Ends all holds of the stream.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where there is no such stream.
    pub fn resume(&self, stream: Stream) -> CuResult {
        let mut state = self.lock();
        let id = state.streams.resolve(stream)?;
        let now = state.timeline.now;
        for queued in &mut state.streams.get(id).queue {
            if let Op::Gate { opened_at } = &mut queued.op {
                opened_at.get_or_insert(now);
            }
        }
        state.settle();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::Options;

    #[test]
    fn held_work_starts_when_the_stream_is_resumed() {
        let device = Device::new(Options::default());
        device.launch(Stream::LEGACY, Work::new().takes(20)).expect("a launch");
        device.hold(Stream::LEGACY).expect("a stream");
        device.launch(Stream::LEGACY, Work::new().takes(10)).expect("a launch");
        device.hold(Stream::LEGACY).expect("a stream");
        device.advance(100);
        device.resume(Stream::LEGACY).expect("a stream");
        device.advance(9);
        assert_eq!(device.stream_query(Stream::LEGACY), Ok(false));
        device.advance(1);
        assert_eq!(device.stream_query(Stream::LEGACY), Ok(true), "both holds have ended");
        assert_eq!(device.hold(Stream(0x10)), Err(Code::INVALID_HANDLE));
        assert_eq!(device.resume(Stream(0x10)), Err(Code::INVALID_HANDLE));
    }
}
