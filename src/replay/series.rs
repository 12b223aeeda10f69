//! Bytes held over time, in few enough samples to draw.

use super::schedule::Call;

/// The most samples of a series.
const SAMPLES: u64 = 500;

/// What was held at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Microseconds since the first pass began.
    pub time_us: u64,
    /// Bytes requested by the blocks that are live.
    pub live_bytes: u64,
    /// Bytes held from the driver.
    pub reserved_bytes: u64,
}

/// Takes every n-th step of a run as a sample.
pub(super) struct Series {
    every: u64,
    steps: u64,
    live_bytes: u64,
    pub samples: Vec<Sample>,
}

impl Series {
    /// A series of a run of that many steps.
    pub fn new(steps: u64) -> Self {
        Self {
            every: steps.div_ceil(SAMPLES).max(1),
            steps: 0,
            live_bytes: 0,
            samples: Vec::new(),
        }
    }

    /// A call was made, `time` nanoseconds after the run began. `reserved` is asked where that gives a sample.
    pub fn step(&mut self, time: u64, call: Call, reserved: impl FnOnce() -> u64) {
        match call {
            Call::Alloc { size } => self.live_bytes += size,
            Call::Free { size } => self.live_bytes -= size,
            Call::Use { .. } => {}
        }
        self.steps += 1;
        if self.steps.is_multiple_of(self.every) {
            let (time_us, live_bytes) = (time / 1000, self.live_bytes);
            self.samples.push(Sample {
                time_us,
                live_bytes,
                reserved_bytes: reserved(),
            });
        }
    }
}
