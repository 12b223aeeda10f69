//! The implicit synchronisation of the legacy default stream.
//!
//! An operation of the legacy stream comes after all earlier work of the blocking streams, and before all their later
//! work. Streams that are not blocking take no part.

use crate::driver::StreamId;

use super::StreamKind;
use super::device::State;
use super::order::Clock;

impl State {
    /// Makes the next operation of the stream come after what it implicitly waits for.
    pub fn wait_implicitly(&mut self, id: StreamId) {
        for other in self.implicit_predecessors(id) {
            let last = self.streams.get(other).enqueued;
            if last <= self.seen.get(other).max(self.streams.get(id).clock.get(other)) {
                continue;
            }
            if self.streams.get(other).queue.is_empty() {
                let tail = self.tail(other);
                self.streams.get(id).clock.merge(&tail);
            } else {
                let record = self.record(other, 0);
                self.wait(id, &record);
            }
        }
    }

    /// What comes before the next operation of the stream, were it made now.
    pub fn clock_of_next(&mut self, id: StreamId) -> Clock {
        let mut clock = self.tail(id);
        for other in self.implicit_predecessors(id) {
            clock.merge(&self.tail(other));
        }
        clock
    }

    /// What is done when the stream's present work is done.
    pub fn tail(&mut self, id: StreamId) -> Clock {
        let stream = self.streams.get(id);
        let mut clock = stream.clock.clone();
        clock.raise(id, stream.enqueued);
        clock
    }

    fn implicit_predecessors(&mut self, id: StreamId) -> Vec<StreamId> {
        let legacy = self.streams.legacy();
        if id == legacy {
            let blocking = self
                .streams
                .iter()
                .filter(|(_, stream)| stream.kind == StreamKind::Blocking);
            blocking
                .map(|(other, _)| other)
                .filter(|&other| other != legacy)
                .collect()
        } else if self.streams.get(id).kind == StreamKind::Blocking {
            vec![legacy]
        } else {
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::driver::Stream;
    use crate::driver::sim::{Device, Options, StreamKind, Violation, Work};

    fn race(kind: StreamKind, legacy_first: bool) -> bool {
        let device = Device::new(Options::default());
        let addr = device.mem_alloc(512).expect("memory");
        let stream = device.stream_create(kind).expect("a stream");
        let (first, second) = if legacy_first {
            (Stream::LEGACY, stream)
        } else {
            (stream, Stream::LEGACY)
        };
        device
            .launch(first, Work::new().fills(addr, 512, 1).takes(1000))
            .expect("a launch");
        device
            .launch(second, Work::new().fills(addr, 512, 2).takes(1))
            .expect("a launch");
        device.advance(2000);
        let mut bytes = [0; 512];
        device.read(addr, &mut bytes).expect("memory");
        let raced = device
            .violations()
            .iter()
            .any(|violation| matches!(violation, Violation::Race { .. }));
        assert_eq!(bytes, [if raced { 1 } else { 2 }; 512], "the data shows the order, too");
        raced
    }

    #[test]
    fn blocking_streams_are_ordered_with_the_legacy_stream() {
        assert!(!race(StreamKind::Blocking, true));
        assert!(!race(StreamKind::Blocking, false));
    }

    #[test]
    fn others_are_not() {
        assert!(race(StreamKind::NonBlocking, true));
        assert!(race(StreamKind::NonBlocking, false));
    }

    #[test]
    fn a_block_is_free_for_the_stream_that_will_wait_implicitly() {
        let device = Device::new(Options::default());
        let addr = device.mem_alloc(512).expect("memory");
        let stream = |kind| device.stream_create(kind).expect("a stream");
        let (blocking, other) = (stream(StreamKind::Blocking), stream(StreamKind::NonBlocking));
        let free_for = |stream| device.check_handout(addr, 512, stream).is_ok();
        device
            .launch(blocking, Work::new().writes(addr, 512).takes(1))
            .expect("a launch");
        assert!(free_for(Stream::LEGACY) && !free_for(Stream::PER_THREAD) && !free_for(other));
        device.launch(Stream::LEGACY, Work::new()).expect("a launch");
        assert!(
            free_for(Stream::PER_THREAD) && !free_for(other),
            "the legacy stream is between them now"
        );
    }

    #[test]
    fn two_blocking_streams_are_ordered_by_a_legacy_operation_between_them() {
        for between in [false, true] {
            let device = Device::new(Options::default());
            let addr = device.mem_alloc(512).expect("memory");
            let a = device.stream_create(StreamKind::Blocking).expect("a stream");
            device
                .launch(a, Work::new().writes(addr, 512).takes(1000))
                .expect("a launch");
            if between {
                device.launch(Stream::LEGACY, Work::new()).expect("a launch");
            }
            device
                .launch(Stream::PER_THREAD, Work::new().writes(addr, 512))
                .expect("a launch");
            assert_eq!(device.violations().is_empty(), between);
        }
    }
}
