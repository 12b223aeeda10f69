//! Replays traces: on a pool, and on models of other allocators.
//!
//! A trace says when blocks are allocated, used on other streams and freed. A replay makes the same calls in the same order,
//! with the device's clock set to the trace's, and reports what they cost.

mod bill;
mod blocks;
mod caching;
mod clock;
mod device;
mod metered;
mod model;
mod report;
mod run;
mod schedule;
mod series;
mod stopwatch;
mod workers;

pub use device::{ReplayDevice, simulated_device};
pub use metered::Metered;
pub use model::Model;
pub use report::Report;
pub use run::replay;
#[cfg(feature = "python")]
pub(crate) use schedule::{Call as StepCall, Schedule};
pub use series::Sample;

use std::time::Duration;

use crate::trace::Trace;

/// How a trace is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How often; blocks that are live at the end of a pass are freed there. 0 counts as 1.
    pub passes: u32,
    /// How much later than it was recorded an event completes at the earliest, in the trace's time; a trace without time
    /// counts 5 microseconds for each event. Only simulated devices follow it.
    pub lag: Duration,
    /// Threads in use, each call awaited before the next. 0: those that the trace names, or one. Otherwise the first allocates
    /// and the others free in turn.
    pub threads: usize,
    /// Whether each block that is given out is checked against the work of other streams (simulated devices only).
    pub verify: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            passes: 1,
            lag: Duration::from_millis(5),
            threads: 0,
            verify: true,
        }
    }
}

impl Options {
    /// The defaults for a trace: a history says by itself when freed blocks could be used again, so that events have no lag.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        let options = Self::default();
        if trace.is_history() {
            Self {
                lag: Duration::ZERO,
                ..options
            }
        } else {
            options
        }
    }

    fn passes(&self) -> u32 {
        self.passes.max(1)
    }

    fn lag_ns(&self) -> u64 {
        u64::try_from(self.lag.as_nanos()).unwrap_or(u64::MAX)
    }
}
