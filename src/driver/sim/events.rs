//! Events, and the calls that wait for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::driver::{Event, Stream};

use super::capture::CapturedPoint;
use super::device::{Device, State};
use super::timeline::Record;
use super::{Call, Code, CuResult, Violation};

/// The events of a device. Their numbers are unique in the process and do not come back, so that each use of a destroyed
/// one is found.
#[derive(Default)]
pub(super) struct Events {
    all: HashMap<usize, EventState>,
    /// The highest number given out.
    last: usize,
}

#[derive(Clone)]
struct EventState {
    timing: bool,
    recorded: Recorded,
}

/// What an event was last recorded on.
#[derive(Clone)]
enum Recorded {
    Nothing,
    Work(Arc<Record>),
    Capture(CapturedPoint),
}

impl Device {
    /// Makes later work of the stream wait for what the event was recorded on by now. A stream that waits for an event of a
    /// capture becomes part of the capture.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where there is no such stream or event; capture errors.
    pub fn stream_wait_event(&self, stream: Stream, event: Event) -> CuResult {
        let call = Call::StreamWaitEvent;
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            match state.event(call, event)?.recorded.clone() {
                Recorded::Nothing => Ok(()),
                Recorded::Capture(point) => state.join_capture(call, id, &point),
                Recorded::Work(record) => {
                    if let Some(capture) = state.capturing(id)? {
                        state.invalidate(call, capture);
                        return Err(Code::STREAM_CAPTURE_ISOLATION);
                    }
                    state.before_operation(call, id)?;
                    state.wait(id, &record);
                    Ok(())
                }
            }
        })
    }

    /// An event, with or without timing.
    ///
    /// # Errors
    /// Injected ones and those of a broken context, as every call.
    pub fn event_create(&self, timing: bool) -> CuResult<Event> {
        self.call(Call::EventCreate, 0, |state| Ok(state.events.create(timing)))
    }

    /// Records the stream's present work. The event completes when it is done, at the earliest after the lag. On a
    /// capturing stream the event becomes part of the capture.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where there is no such stream or event; capture errors.
    pub fn event_record(&self, event: Event, stream: Stream) -> CuResult {
        let call = Call::EventRecord;
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            state.event(call, event)?;
            let recorded = if let Some(capture) = state.capturing(id)? {
                Recorded::Capture(state.captures.point(capture, id))
            } else {
                state.before_operation(call, id)?;
                Recorded::Work(state.record(id, state.timeline.lag))
            };
            state.event(call, event)?.recorded = recorded;
            Ok(())
        })
    }

    /// Whether the recorded work is done; true for an event that was never recorded.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where there is no such event; `CAPTURED_EVENT` where it was recorded in a capture, which is
    /// invalidated; capture errors.
    pub fn event_query(&self, event: Event) -> CuResult<bool> {
        let call = Call::EventQuery;
        self.call(call, 0, |state| {
            let Some(record) = state.recorded_work(call, event)? else {
                return Ok(true);
            };
            if record.is_done() {
                state.see(&record);
            }
            Ok(record.is_done())
        })
    }

    /// Waits for the recorded work, by advancing the clock as far as needed.
    ///
    /// # Errors
    /// As [`event_query`](Self::event_query); `NOT_READY`, and a violation, when the wait would never end.
    pub fn event_synchronize(&self, event: Event) -> CuResult {
        self.event_synchronize_within(event, u64::MAX).map(drop)
    }

    /// As [`event_synchronize`](Self::event_synchronize), for at most that many nanoseconds of the clock, which is no
    /// violation then. Whether the work is done.
    ///
    /// # Errors
    /// As [`event_synchronize`](Self::event_synchronize).
    pub fn event_synchronize_within(&self, event: Event, ns: u64) -> CuResult<bool> {
        let call = Call::EventSynchronize;
        self.call(call, 0, |state| {
            let Some(record) = state.recorded_work(call, event)? else {
                return Ok(true);
            };
            let done = state.wait_within(call, ns, |_| record.is_done())?;
            if done {
                state.see(&record);
            }
            Ok(done)
        })
    }

    /// Nanoseconds of the device's clock between two events.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where either does not exist, has no timing or was never recorded; `NOT_READY` where either is not
    /// complete; `CAPTURED_EVENT`.
    pub fn event_elapsed_ns(&self, start: Event, end: Event) -> CuResult<i64> {
        let call = Call::EventElapsedTime;
        self.call(call, 0, |state| {
            let mut time = |event| {
                if !state.event(call, event)?.timing {
                    return Err(Code::INVALID_HANDLE);
                }
                let record = state.recorded_work(call, event)?.ok_or(Code::INVALID_HANDLE)?;
                record.done_at.get().copied().ok_or(Code::NOT_READY)
            };
            let (start, end) = (time(start)?, time(end)?);
            Ok(end.wrapping_sub(start).cast_signed())
        })
    }

    /// Destroys an event. Waits that were made for it stay.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where there is no such event.
    pub fn event_destroy(&self, event: Event) -> CuResult {
        let call = Call::EventDestroy;
        self.call(call, 0, |state| {
            state.event(call, event)?;
            state.events.all.remove(&event.0);
            Ok(())
        })
    }

    /// Waits for all work of the device, by advancing the clock as far as needed.
    ///
    /// # Errors
    /// `NOT_READY`, and a violation, when the wait would never end; `STREAM_CAPTURE_UNSUPPORTED` while any stream is
    /// capturing, in whatever mode, which invalidates the captures; what went wrong in the work.
    pub fn ctx_synchronize(&self) -> CuResult {
        self.ctx_synchronize_within(u64::MAX).map(drop)
    }

    /// As [`ctx_synchronize`](Self::ctx_synchronize), for at most that many nanoseconds of the clock, which is no violation
    /// then. Whether the work is done.
    ///
    /// # Errors
    /// As [`ctx_synchronize`](Self::ctx_synchronize).
    pub fn ctx_synchronize_within(&self, ns: u64) -> CuResult<bool> {
        let call = Call::CtxSynchronize;
        self.call(call, 0, |state| {
            state.refuse_captures(call)?;
            state.wait_for_all_within(call, ns)
        })
    }

    /// How many events exist.
    #[must_use]
    pub fn event_count(&self) -> usize {
        self.lock().events.all.len()
    }
}

impl Events {
    fn create(&mut self, timing: bool) -> Event {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        // Relaxed: only the uniqueness of the number counts.
        self.last = NEXT.fetch_add(1, Ordering::Relaxed);
        self.all.insert(
            self.last,
            EventState {
                timing,
                recorded: Recorded::Nothing,
            },
        );
        Event(self.last)
    }
}

impl State {
    fn event(&mut self, call: Call, event: Event) -> CuResult<&mut EventState> {
        // Numbers up to the last were this device's, or another's; both are faults of the caller.
        if !self.events.all.contains_key(&event.0) && (1..=self.events.last).contains(&event.0) {
            self.violations.add(Violation::StaleEvent { call, event: event.0 });
        }
        self.events.all.get_mut(&event.0).ok_or(Code::INVALID_HANDLE)
    }

    /// The work that the event was recorded on; none when it was never recorded. An event of a capture cannot be asked.
    fn recorded_work(&mut self, call: Call, event: Event) -> CuResult<Option<Arc<Record>>> {
        match self.event(call, event)?.recorded.clone() {
            Recorded::Nothing => Ok(None),
            Recorded::Work(record) => Ok(Some(record)),
            Recorded::Capture(point) => {
                self.invalidate(call, point.capture);
                Err(Code::CAPTURED_EVENT)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{Options, StreamKind, Work};

    fn scene() -> (Device, Stream, Event) {
        let device = Device::new(Options::default());
        let stream = device.stream_create(StreamKind::NonBlocking).expect("a stream");
        let event = device.event_create(true).expect("an event");
        (device, stream, event)
    }

    #[test]
    fn an_event_completes_with_the_work_before_it() {
        let (device, stream, event) = scene();
        assert_eq!(device.event_query(event), Ok(true), "never recorded");
        device.launch(stream, Work::new().takes(100)).expect("a launch");
        device.event_record(event, stream).expect("a record");
        device.launch(stream, Work::new().takes(100)).expect("a launch");
        device.advance(99);
        assert_eq!(device.event_query(event), Ok(false));
        device.advance(1);
        assert_eq!(
            (device.event_query(event), device.stream_query(stream)),
            (Ok(true), Ok(false))
        );
        device.event_record(event, stream).expect("a record");
        assert_eq!(device.event_query(event), Ok(false), "recorded again");
    }

    #[test]
    fn the_lag_is_the_least_time_from_record_to_completion() {
        let (device, stream, event) = scene();
        device.set_lag(50);
        for (work, completes) in [(10, 50), (80, 80)] {
            device.launch(stream, Work::new().takes(work)).expect("a launch");
            device.event_record(event, stream).expect("a record");
            device.advance(completes - 1);
            assert_eq!(device.event_query(event), Ok(false));
            device.advance(1);
            assert_eq!(device.event_query(event), Ok(true));
        }
    }

    #[test]
    fn work_lasts_until_its_moment_and_takes_no_longer_when_it_starts_late() {
        let (device, stream, event) = scene();
        for (before, until, done) in [(20, 70, 70), (20, 80, 90), (10, 120, 120)] {
            device.launch(stream, Work::new().takes(before)).expect("a launch");
            device.launch(stream, Work::new().until(until)).expect("a launch");
            device.event_record(event, stream).expect("a record");
            device.event_synchronize(event).expect("done");
            assert_eq!(device.now_ns(), done);
        }
    }

    #[test]
    fn held_work_is_done_after_the_hold_and_awaiting_it_is_a_deadlock() {
        let (device, stream, event) = scene();
        device.event_record(event, stream).expect("a record");
        device.hold(stream).expect("a stream");
        assert_eq!(device.event_query(event), Ok(true), "recorded before the hold");
        let other = device.stream_create(StreamKind::NonBlocking).expect("a stream");
        device.event_record(event, stream).expect("a record");
        device.stream_wait_event(other, event).expect("a wait");
        device.advance(1_000_000);
        assert_eq!(device.event_query(event), Ok(false));
        assert_eq!(device.stream_query(other), Ok(false), "it waits for the held one");
        assert_eq!(device.event_synchronize(event), Err(Code::NOT_READY));
        assert_eq!(device.stream_synchronize(other), Err(Code::NOT_READY));
        assert_eq!(device.ctx_synchronize(), Err(Code::NOT_READY));
        let addr = device.mem_alloc(1).expect("memory");
        assert_eq!(device.mem_free(addr), Err(Code::NOT_READY), "it waits for the device");
        assert_eq!(device.take_violations().len(), 4);
        device.resume(stream).expect("a stream");
        assert_eq!(
            (device.event_query(event), device.stream_query(other)),
            (Ok(true), Ok(true))
        );
        assert_eq!(device.mem_free(addr), Ok(()));
    }

    #[test]
    fn synchronising_advances_the_clock_as_far_as_needed() {
        let (device, stream, event) = scene();
        let other = device.stream_create(StreamKind::NonBlocking).expect("a stream");
        device.launch(stream, Work::new().takes(30)).expect("a launch");
        device.event_record(event, stream).expect("a record");
        device.stream_wait_event(other, event).expect("a wait");
        device.launch(other, Work::new().takes(30)).expect("a launch");
        device.event_synchronize(event).expect("done");
        assert_eq!(device.now_ns(), 30);
        device.stream_synchronize(other).expect("done");
        assert_eq!(device.now_ns(), 60);
        device.set_time(10);
        assert_eq!(device.now_ns(), 60, "the clock never goes back");
        device.launch(stream, Work::new().takes(40)).expect("a launch");
        device.ctx_synchronize().expect("done");
        assert_eq!(device.now_ns(), 100);
    }

    #[test]
    fn a_wait_outlives_a_new_record_and_the_event() {
        let (device, stream, event) = scene();
        let other = device.stream_create(StreamKind::NonBlocking).expect("a stream");
        device.launch(stream, Work::new().takes(10)).expect("a launch");
        device.event_record(event, stream).expect("a record");
        device.stream_wait_event(other, event).expect("a wait");
        device.launch(stream, Work::new().takes(1000)).expect("a launch");
        device.event_record(event, stream).expect("a record");
        device.event_destroy(event).expect("an event");
        assert_eq!(device.stream_query(other), Ok(false));
        device.advance(10);
        assert_eq!(device.stream_query(other), Ok(true));
        assert_eq!(device.event_query(event), Err(Code::INVALID_HANDLE));
        assert_eq!(
            device.take_violations(),
            [Violation::StaleEvent {
                call: Call::EventQuery,
                event: event.0
            }]
        );
        assert_eq!(device.event_destroy(Event(0)), Err(Code::INVALID_HANDLE));
        assert_eq!(
            (device.take_violations(), device.event_count()),
            (vec![], 0),
            "no event ever had that number"
        );
    }

    #[test]
    fn elapsed_time_is_that_of_the_device() {
        let (device, stream, start) = scene();
        let (end, untimed) = (
            device.event_create(true).expect("an event"),
            device.event_create(false).expect("an event"),
        );
        assert_eq!(
            device.event_elapsed_ns(start, end),
            Err(Code::INVALID_HANDLE),
            "never recorded"
        );
        for (event, work) in [(start, 5), (end, 7), (untimed, 0)] {
            device.launch(stream, Work::new().takes(work)).expect("a launch");
            device.event_record(event, stream).expect("a record");
        }
        assert_eq!(device.event_elapsed_ns(start, end), Err(Code::NOT_READY));
        device.advance(12);
        assert_eq!(device.event_elapsed_ns(start, end), Ok(7));
        assert_eq!(device.event_elapsed_ns(end, start), Ok(-7));
        assert_eq!(device.event_elapsed_ns(start, untimed), Err(Code::INVALID_HANDLE));
    }
}
