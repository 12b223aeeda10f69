//! Which operations touched which memory last.

use std::collections::BTreeMap;

use crate::driver::StreamId;

use super::order::Clock;

/// An operation that touched memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Touch {
    pub stream: StreamId,
    /// The operation's number in its stream.
    pub op: u64,
    pub write: bool,
}

/// For each touched range, the last read and the last write of each stream. The ranges are disjoint.
pub(super) struct Touches {
    ranges: BTreeMap<u64, (u64, Vec<Touch>)>,
    /// The number of ranges at which finished work is looked for again.
    sweep_at: usize,
}

/// Below this many ranges, finished work is left where it is.
const SWEEP_LEAST: usize = 1024;

impl Touches {
    pub const fn new() -> Self {
        Self {
            ranges: BTreeMap::new(),
            sweep_at: SWEEP_LEAST,
        }
    }

    /// Adds an operation on a range that is not empty. Work that is `done` is dropped on the way.
    pub fn add(&mut self, addr: u64, end: u64, touch: Touch, done: &Clock) {
        if self.ranges.len() >= self.sweep_at {
            self.sweep(done);
        }
        self.split(addr);
        self.split(end);
        let mut gaps = Vec::new();
        let mut covered = addr;
        for (&start, (stop, touches)) in self.ranges.range_mut(addr..end) {
            if start > covered {
                gaps.push((covered, start));
            }
            covered = *stop;
            touches.retain(|old| old.op > done.get(old.stream));
            match touches
                .iter_mut()
                .find(|old| old.stream == touch.stream && old.write == touch.write)
            {
                Some(old) => old.op = touch.op,
                None => touches.push(touch),
            }
        }
        if covered < end {
            gaps.push((covered, end));
        }
        for (start, stop) in gaps {
            self.ranges.insert(start, (stop, vec![touch]));
        }
    }

    /// The operations that touched a part of the range, each with the first byte.
    pub fn on(&self, addr: u64, end: u64) -> impl Iterator<Item = (u64, Touch)> + '_ {
        let before = self
            .ranges
            .range(..addr)
            .next_back()
            .filter(|(_, (stop, _))| *stop > addr);
        before
            .into_iter()
            .chain(self.ranges.range(addr..end))
            .flat_map(move |(&start, (_, touches))| touches.iter().map(move |&touch| (start.max(addr), touch)))
    }

    /// Forgets what touched the range.
    pub fn forget(&mut self, addr: u64, end: u64) {
        if self.on(addr, end).next().is_none() {
            return;
        }
        self.split(addr);
        self.split(end);
        let gone: Vec<u64> = self.ranges.range(addr..end).map(|(&start, _)| start).collect();
        for start in gone {
            self.ranges.remove(&start);
        }
    }

    /// Makes `at` a border, if a range lies over it.
    fn split(&mut self, at: u64) {
        if let Some((_, (stop, touches))) = self.ranges.range_mut(..at).next_back()
            && *stop > at
        {
            let back = (*stop, touches.clone());
            *stop = at;
            self.ranges.insert(at, back);
        }
    }

    fn sweep(&mut self, done: &Clock) {
        self.ranges.retain(|_, (_, touches)| {
            touches.retain(|touch| touch.op > done.get(touch.stream));
            !touches.is_empty()
        });
        // Twice what is left: sweeps cost a constant for each operation.
        self.sweep_at = SWEEP_LEAST.max(2 * self.ranges.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(stream: u64, op: u64) -> Touch {
        Touch {
            stream: StreamId(stream),
            op,
            write: true,
        }
    }

    fn on(touches: &Touches, addr: u64, end: u64) -> Vec<(u64, u64, u64)> {
        touches
            .on(addr, end)
            .map(|(at, touch)| (at, touch.stream.0, touch.op))
            .collect()
    }

    #[test]
    fn overlapping_operations_split_ranges() {
        let (mut touches, done) = (Touches::new(), Clock::default());
        touches.add(100, 200, touch(1, 1), &done);
        touches.add(300, 400, touch(1, 2), &done);
        touches.add(150, 350, touch(2, 1), &done);
        assert_eq!(on(&touches, 100, 150), [(100, 1, 1)]);
        assert_eq!(on(&touches, 150, 200), [(150, 1, 1), (150, 2, 1)]);
        assert_eq!(on(&touches, 200, 300), [(200, 2, 1)]);
        assert_eq!(on(&touches, 349, 351), [(349, 1, 2), (349, 2, 1), (350, 1, 2)]);
        assert_eq!(on(&touches, 0, 100), []);
        touches.forget(120, 380);
        assert_eq!(on(&touches, 0, 1000), [(100, 1, 1), (380, 1, 2)]);
    }

    #[test]
    fn the_last_operation_of_a_stream_stands_for_its_earlier_ones() {
        let (mut touches, done) = (Touches::new(), Clock::default());
        touches.add(0, 100, touch(1, 1), &done);
        touches.add(0, 100, touch(1, 5), &done);
        assert_eq!(on(&touches, 0, 100), [(0, 1, 5)]);
        touches.add(
            0,
            100,
            Touch {
                write: false,
                ..touch(1, 6)
            },
            &done,
        );
        assert_eq!(touches.on(0, 100).count(), 2, "reads and writes are kept apart");
    }

    #[test]
    fn finished_work_is_dropped() {
        let (mut touches, mut done) = (Touches::new(), Clock::default());
        for at in 0..10 * SWEEP_LEAST as u64 {
            touches.add(2 * at, 2 * at + 1, touch(1, at + 1), &done);
            done.raise(StreamId(1), at + 1);
        }
        assert!(
            touches.ranges.len() <= SWEEP_LEAST,
            "{} ranges are kept",
            touches.ranges.len()
        );
        touches.add(0, 1, touch(2, 1), &done);
        assert_eq!(on(&touches, 0, 1), [(0, 2, 1)]);
    }
}
