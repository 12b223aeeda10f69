//! Wall time of many short calls.

use std::time::{Duration, Instant};

/// Adds up the time of calls, without the time that reading the clock takes.
pub(super) struct Stopwatch {
    total: Duration,
    calls: u64,
    /// What a call that does nothing is measured to take.
    overhead: Duration,
}

impl Stopwatch {
    pub fn new() -> Self {
        const TRIES: u32 = 1000;
        let nothing: Duration = (0..TRIES).map(|_| timed(|| ()).1).sum();
        Self {
            total: Duration::ZERO,
            calls: 0,
            overhead: nothing / TRIES,
        }
    }

    /// A call took that long, by [`timed`].
    pub fn add(&mut self, time: Duration) {
        self.total += time.saturating_sub(self.overhead);
        self.calls += 1;
    }

    /// Nanoseconds for one call; none without calls.
    pub fn ns_per_call(&self) -> Option<f64> {
        (self.calls > 0).then(|| self.total.as_nanos() as f64 / self.calls as f64)
    }
}

/// The result of a call and the wall time that it took.
pub(super) fn timed<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = call();
    (result, start.elapsed())
}
