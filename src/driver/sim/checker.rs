//! Finds work and memory use in no order: by what the program made sure of, not by what happened in time.
//!
//! Work counts as finished once the host has seen it finish (an event queried as complete, a synchronisation, a call that
//! waits). Work comes before other work on the same stream, through events, and through the legacy stream. A real device
//! may be slower than the modelled clock by any factor, so nothing else counts.

use crate::driver::{DevicePtr, Stream, StreamId};

use super::device::{Device, State};
use super::mappings::end_of;
use super::order::Clock;
use super::timeline::{Op, Record};
use super::touches::Touch;
use super::work::{Access, Effect, Work};
use super::{Call, Code, CuResult, Violation};

impl Device {
    /// Gives a stream work. Part of a capture, the work is recorded and not carried out.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for a stream that does not exist; `INVALID_VALUE` for a range that wraps around; `NOT_SUPPORTED` for
    /// work that changes bytes where memory is not backed; capture errors. Memory that the work cannot access when
    /// its stream reaches it breaks the context (`ILLEGAL_ADDRESS`).
    pub fn launch(&self, stream: Stream, work: Work) -> CuResult {
        let call = Call::LaunchKernel;
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            if work.needs_backing() && !state.physical.backed() {
                return Err(Code::NOT_SUPPORTED);
            }
            for access in work.touched.iter().filter(|access| access.bytes > 0) {
                end_of(access.addr, access.bytes)?;
            }
            if let Some(capture) = state.capturing(id)? {
                state.captures.add_work(capture, id, work);
            } else {
                state.before_operation(call, id)?;
                state.enqueue(id, work);
            }
            Ok(())
        })
    }

    /// Checks that a block can be given out to a stream: no work of another stream that is not ordered before the stream's
    /// next operation may still touch it, and the device has access to it. Call it with each block that a pool
    /// gives out.
    ///
    /// # Errors
    /// The violation, which is recorded too.
    pub fn check_handout(&self, addr: DevicePtr, bytes: u64, stream: Stream) -> Result<(), Violation> {
        let mut state = self.lock();
        let found = state.handout_fault(addr, bytes, stream);
        if let Some(violation) = &found {
            state.violations.add(violation.clone());
        }
        found.map_or(Ok(()), Err)
    }
}

impl State {
    /// Puts work at the end of a stream that is not capturing, and looks for races with earlier work.
    pub fn enqueue(&mut self, id: StreamId, work: Work) {
        let op = self.streams.get(id).enqueued + 1;
        for &Access { addr, bytes, write } in work.touched.iter().filter(|access| access.bytes > 0) {
            let end = addr.saturating_add(bytes);
            if let Some((at, user)) = self.unordered(id, addr, end, write) {
                self.violations.add(Violation::Race {
                    addr: at,
                    stream: id,
                    user,
                });
            }
            self.touches.add(addr, end, Touch { stream: id, op, write }, &self.seen);
        }
        self.push(id, Op::Work(work));
    }

    /// Does what work does when its stream has reached it.
    pub fn carry_out(&mut self, id: StreamId, work: &Work) {
        if self.faults.sticky.is_some() {
            return;
        }
        for &Access { addr, bytes, .. } in &work.touched {
            if !self.accessible(addr, bytes) {
                self.violations.add(Violation::IllegalAddress {
                    addr,
                    bytes,
                    stream: id,
                });
                self.faults.sticky = Some(Code::ILLEGAL_ADDRESS);
                return;
            }
        }
        for effect in &work.effects {
            carry_out(effect);
        }
    }

    /// The host has seen the record done.
    pub fn see(&mut self, record: &Record) {
        self.seen.merge(&record.clock);
        self.seen.raise(record.stream, record.op);
    }

    /// The host waits for the stream's present work.
    pub fn wait_for_stream(&mut self, call: Call, id: StreamId) -> CuResult {
        let last = self.streams.get(id).enqueued;
        self.wait_until(call, |state| state.streams.get(id).done() >= last)?;
        let tail = self.tail(id);
        self.seen.merge(&tail);
        Ok(())
    }

    /// The host waits for all work of the device.
    pub fn wait_for_all(&mut self, call: Call) -> CuResult {
        self.wait_until(call, |state| state.timeline.is_idle())?;
        for (id, stream) in self.streams.iter() {
            self.seen.raise(id, stream.enqueued);
        }
        self.streams.drop_finished(&self.seen);
        Ok(())
    }

    /// The first byte of the range that work may still touch which nobody has seen finish, and the stream of the work.
    pub fn in_use(&self, addr: u64, end: u64) -> Option<(u64, StreamId)> {
        let mut touches = self.touches.on(addr, end);
        touches
            .find(|(_, touch)| touch.op > self.seen.get(touch.stream))
            .map(|(at, touch)| (at, touch.stream))
    }

    fn unordered(&mut self, id: StreamId, addr: u64, end: u64, write: bool) -> Option<(u64, StreamId)> {
        let clock: &Clock = &self.streams.get(id).clock;
        let seen = &self.seen;
        let mut touches = self.touches.on(addr, end);
        touches
            .find(|(_, touch)| {
                let conflict = (write || touch.write) && touch.stream != id;
                conflict && touch.op > clock.get(touch.stream) && touch.op > seen.get(touch.stream)
            })
            .map(|(at, touch)| (at, touch.stream))
    }

    fn handout_fault(&mut self, addr: u64, bytes: u64, stream: Stream) -> Option<Violation> {
        let Ok(id) = self.streams.resolve(stream) else {
            return Some(Violation::StaleStream {
                call: Call::LaunchKernel,
                handle: stream.0,
            });
        };
        if !self.accessible(addr, bytes) {
            return Some(Violation::IllegalAddress {
                addr,
                bytes,
                stream: id,
            });
        }
        let clock = self.clock_of_next(id);
        let mut touches = self.touches.on(addr, addr + bytes);
        let (_, touch) =
            touches.find(|(_, touch)| touch.op > clock.get(touch.stream) && touch.op > self.seen.get(touch.stream))?;
        Some(Violation::Handout {
            addr,
            bytes,
            stream: id,
            user: touch.stream,
        })
    }
}

/// Changes memory, or calls the caller's function.
fn carry_out(effect: &Effect) {
    match effect {
        Effect::Fill { addr, bytes, value } => {
            // SAFETY: `State::carry_out` has checked that the device has memory with access at each range that the work
            // touches, which includes this one; launch has checked that the memory has bytes; and it cannot go
            // while the state is locked.
            unsafe { std::ptr::write_bytes(*addr as *mut u8, *value, *bytes as usize) };
        }
        Effect::Write { addr, data } => {
            // SAFETY: as above.
            unsafe { std::ptr::copy(data.as_ptr(), *addr as *mut u8, data.len()) };
        }
        Effect::Copy { to, from, bytes } => {
            // SAFETY: as above, for both ranges.
            unsafe { std::ptr::copy(*from as *const u8, *to as *mut u8, *bytes as usize) };
        }
        Effect::Call(function) => function(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::driver::sim::{Options, StreamKind};

    /// A device with a block of memory, two streams that are not blocking, and an event.
    struct Scene {
        device: Device,
        addr: DevicePtr,
        a: Stream,
        b: Stream,
        event: crate::driver::Event,
    }

    const BYTES: u64 = 4096;

    impl Scene {
        fn new() -> Self {
            let device = Device::new(Options::default());
            let addr = device.mem_alloc(BYTES).expect("memory");
            let stream = || device.stream_create(StreamKind::NonBlocking).expect("a stream");
            let (a, b) = (stream(), stream());
            let event = device.event_create(false).expect("an event");
            Self {
                device,
                addr,
                a,
                b,
                event,
            }
        }
        fn use_on(&self, stream: Stream) {
            self.device
                .launch(stream, Work::new().writes(self.addr, BYTES).takes(10))
                .expect("a launch");
        }
        fn free_for(&self, stream: Stream) -> bool {
            self.device.check_handout(self.addr, BYTES, stream).is_ok()
        }
    }

    #[test]
    fn a_block_is_free_for_its_own_stream_only() {
        let scene = Scene::new();
        scene.use_on(scene.a);
        assert!(scene.free_for(scene.a));
        assert!(!scene.free_for(scene.b));
        assert!(!scene.free_for(Stream::LEGACY));
        scene.device.advance(100);
        assert!(!scene.free_for(scene.b), "it is done, but nobody has looked");
        assert_eq!(scene.device.violations().len(), 3);
        assert!(
            scene.device.check_handout(scene.addr + BYTES, 1, scene.b).is_err(),
            "no memory is there"
        );
    }

    #[test]
    fn seeing_the_event_complete_frees_it_for_all() {
        let scene = Scene::new();
        scene.use_on(scene.a);
        scene.device.event_record(scene.event, scene.a).expect("a record");
        assert_eq!(scene.device.event_query(scene.event), Ok(false));
        assert!(!scene.free_for(scene.b), "the query said no");
        scene.device.advance(10);
        assert_eq!(scene.device.event_query(scene.event), Ok(true));
        assert!(scene.free_for(scene.b));
        scene.use_on(scene.a);
        assert!(!scene.free_for(scene.b), "used again after the record");
    }

    #[test]
    fn a_wait_orders_the_waiting_stream_and_those_that_wait_for_it() {
        let scene = Scene::new();
        let Scene {
            device, a, b, event, ..
        } = &scene;
        scene.use_on(*a);
        device.event_record(*event, *a).expect("a record");
        device.stream_wait_event(*b, *event).expect("a wait");
        assert!(scene.free_for(*b));
        let c = device.stream_create(StreamKind::NonBlocking).expect("a stream");
        assert!(!scene.free_for(c));
        device.event_record(*event, *b).expect("a record");
        device.stream_wait_event(c, *event).expect("a wait");
        assert!(scene.free_for(c), "through b");
    }

    #[test]
    fn a_wait_is_for_what_was_recorded_when_it_was_made() {
        let scene = Scene::new();
        let Scene {
            device, a, b, event, ..
        } = &scene;
        device.event_record(*event, *a).expect("a record");
        device.stream_wait_event(*b, *event).expect("a wait");
        scene.use_on(*a);
        device.event_record(*event, *a).expect("a record");
        assert!(!scene.free_for(*b), "the wait was for the earlier record");
    }

    #[test]
    fn synchronising_frees_what_it_waited_for() {
        for whole in [false, true] {
            let scene = Scene::new();
            scene.use_on(scene.a);
            let other = scene.device.mem_alloc(512).expect("memory");
            scene
                .device
                .launch(scene.b, Work::new().writes(other, 512))
                .expect("a launch");
            let device = &scene.device;
            if whole {
                device.ctx_synchronize()
            } else {
                device.stream_synchronize(scene.a)
            }
            .expect("done");
            assert!(scene.free_for(scene.b));
            assert_eq!(device.check_handout(other, 512, scene.a).is_ok(), whole);
        }
    }

    #[test]
    fn work_in_no_order_races_when_one_writes() {
        let race = |first: Work, second: Work, wait: bool| {
            let scene = Scene::new();
            let Scene {
                device,
                a,
                b,
                event,
                addr,
                ..
            } = &scene;
            let shift = |mut work: Work| {
                work.touched.iter_mut().for_each(|access| access.addr += addr);
                work
            };
            device.launch(*a, shift(first)).expect("a launch");
            device.event_record(*event, *a).expect("a record");
            if wait {
                device.stream_wait_event(*b, *event).expect("a wait");
            }
            device.launch(*b, shift(second)).expect("a launch");
            !device.violations().is_empty()
        };
        let (read, write) = (|| Work::new().reads(0, 512), || Work::new().writes(0, 512));
        assert!(race(write(), write(), false));
        assert!(race(read(), write(), false));
        assert!(race(write(), read(), false));
        assert!(!race(read(), read(), false));
        assert!(!race(write(), write(), true));
        assert!(!race(write(), Work::new().writes(512, 512), false), "side by side");
    }

    #[test]
    fn work_takes_effect_when_its_stream_reaches_it() {
        let Scene { device, addr, a, b, .. } = Scene::new();
        let calls = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&calls);
        device
            .launch(a, Work::new().takes(10).fills(addr, 4, 1))
            .expect("a launch");
        device
            .launch(a, Work::new().takes(10).stores(addr, [5, 6]).copies(addr + 2, addr, 2))
            .expect("a launch");
        device
            .launch(
                b,
                Work::new().takes(15).calls(move || counter.store(1, Ordering::Relaxed)),
            )
            .expect("a launch");
        let mut seen = [0; 4];
        for (time, bytes, called) in [(9, [0, 0, 0, 0], 0), (10, [1, 1, 1, 1], 0), (20, [5, 6, 5, 6], 1)] {
            device.set_time(time);
            device.read(addr, &mut seen).expect("memory");
            assert_eq!((seen, calls.load(Ordering::Relaxed)), (bytes, called), "at {time} ns");
        }
        let unbacked = Device::new(Options {
            backed: false,
            ..Options::default()
        });
        assert_eq!(
            unbacked.launch(Stream::LEGACY, Work::new().fills(addr, 1, 1)),
            Err(Code::NOT_SUPPORTED)
        );
        assert_eq!(
            device.launch(a, Work::new().reads(u64::MAX, 2)),
            Err(Code::INVALID_VALUE)
        );
    }

    #[test]
    fn touching_no_memory_breaks_the_context() {
        let Scene { device, addr, a, .. } = Scene::new();
        device
            .launch(a, Work::new().takes(5).writes(addr + (1 << 30), 1))
            .expect("launching shows nothing");
        assert_eq!(device.stream_synchronize(a), Err(Code::ILLEGAL_ADDRESS));
        assert!(matches!(
            device.take_violations()[..],
            [Violation::IllegalAddress { .. }]
        ));
        assert_eq!(
            device.mem_alloc(1),
            Err(Code::ILLEGAL_ADDRESS),
            "and every call after it"
        );
    }
}
