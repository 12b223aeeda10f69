//! When an event of a simulated device completes: the rule that models and the simulated driver share.

/// The streams of a device. An event completes a fixed lag after it was recorded, and not before the work ahead of it.
#[derive(Debug)]
pub(super) struct Streams {
    lag: u64,
    busy_until: Vec<u64>,
}

impl Streams {
    /// `lag` is in nanoseconds, as all times here.
    pub fn new(count: usize, lag: u64) -> Self {
        Self {
            lag,
            busy_until: vec![0; count],
        }
    }

    /// A stream gets work that lasts until `end`.
    pub fn work(&mut self, stream: u32, end: u64) {
        let busy_until = &mut self.busy_until[stream as usize];
        *busy_until = end.max(*busy_until);
    }

    /// When an event completes that is recorded now.
    pub fn event(&self, stream: u32, now: u64) -> u64 {
        self.busy_until[stream as usize].max(now.saturating_add(self.lag))
    }
}
