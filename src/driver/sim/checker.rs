//! Finds work and memory use in no order: by what the program made sure of, not by what happened in time.
//!
//! Work counts as finished once the host has seen it finish (an event queried as complete, a synchronisation, a call that
//! waits). Work comes before other work on the same stream, through events, and through the legacy stream. A real device
//! may be slower than the modelled clock by any factor, so nothing else counts.

use crate::driver::{DevicePtr, Stream, StreamId};

use super::device::{Device, State};
use super::timeline::Record;
use super::{Call, CuResult, Violation};

impl Device {
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
        self.wait_for_all_within(call, u64::MAX).map(drop)
    }

    /// As [`Self::wait_for_all`], for at most that many nanoseconds. Whether it is done.
    pub fn wait_for_all_within(&mut self, call: Call, ns: u64) -> CuResult<bool> {
        if !self.wait_within(call, ns, |state| state.timeline.is_idle())? {
            return Ok(false);
        }
        for (id, stream) in self.streams.iter() {
            self.seen.raise(id, stream.enqueued);
        }
        self.streams.drop_finished(&self.seen);
        Ok(true)
    }

    /// The first byte of the range that work may still touch which nobody has seen finish, and the stream of the work.
    pub fn in_use(&self, addr: u64, end: u64) -> Option<(u64, StreamId)> {
        let mut touches = self.touches.on(addr, end);
        touches
            .find(|(_, touch)| touch.op > self.seen.get(touch.stream))
            .map(|(at, touch)| (at, touch.stream))
    }

    /// The first byte that an operation of the stream, if it were next, would touch in no order with another, and whose.
    pub fn unordered(&mut self, id: StreamId, addr: u64, end: u64, write: bool) -> Option<(u64, StreamId)> {
        let clock = &self.streams.get(id).clock;
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
        if bytes == 0 {
            return None;
        }
        if !self.accessible(addr, bytes) {
            return Some(Violation::HandoutWithoutMemory {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{Options, StreamKind, Work};

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
        let d = device.stream_create(StreamKind::NonBlocking).expect("a stream");
        device.event_synchronize(*event).expect("done");
        assert!(scene.free_for(d), "what b waited for is done when b is");
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
}
