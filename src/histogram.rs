//! Counts of times by powers of two: how long things took, without keeping each.
#![forbid(unsafe_code)]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How many ranges there are: the last is open, from 2^31 ns (2.1 s) on.
pub const BUCKETS: usize = 32;

/// How often something took how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Histogram {
    /// How often it took at least `2^i` and less than `2^(i+1)` nanoseconds, for each `i`; 0 ns count as 1.
    pub counts: [u64; BUCKETS],
    /// All times together.
    pub nanoseconds: u64,
}

impl Histogram {
    /// How many times there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A time in nanoseconds that `part` (0 to 1) of all were below; at most twice the least such. 0 where there are none.
    #[must_use]
    pub fn below(&self, part: f64) -> u64 {
        let wanted = (self.count() as f64 * part.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return 2 << place;
            }
        }
        0
    }
}

/// A histogram that all threads add to.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    counts: [AtomicU64; BUCKETS],
    nanoseconds: AtomicU64,
}

impl Recorder {
    /// Counts one time.
    pub(crate) fn add(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let place = (nanoseconds.max(1).ilog2() as usize).min(BUCKETS - 1);
        // Relaxed, here and below: numbers that nothing else is read through.
        self.counts[place].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }

    /// The counts so far.
    pub(crate) fn get(&self) -> Histogram {
        Histogram {
            counts: std::array::from_fn(|place| self.counts[place].load(Relaxed)),
            nanoseconds: self.nanoseconds.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_by_powers_of_two() {
        let recorder = Recorder::default();
        assert_eq!(recorder.get().below(0.5), 0);
        for nanoseconds in [0, 1, 2, 3, 4, 1000, 1_000_000_000_000] {
            recorder.add(Duration::from_nanos(nanoseconds));
        }
        let histogram = recorder.get();
        assert_eq!(histogram.counts[..3], [2, 2, 1]);
        assert_eq!(
            (histogram.counts[9], histogram.counts[31], histogram.count()),
            (1, 1, 7)
        );
        assert_eq!(histogram.nanoseconds, 1_000_000_001_010);
        assert_eq!(histogram.below(0.0), 2);
        assert_eq!(histogram.below(0.5), 4);
        assert_eq!(histogram.below(6.0 / 7.0), 1024);
        assert_eq!(histogram.below(1.0), 1 << 32);
    }
}
