//! The steps that are taken before a request fails, and what each of them has given.

use crate::error::Step;
use crate::stats::StepTotal;
use crate::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// A step, in the order in which they are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Magazines,
    StreamWaits,
    Callbacks,
    Events,
    Device,
    IdleTaken,
    IdleGiven,
}

impl Stage {
    pub(super) const ALL: [Self; 7] = [
        Self::Magazines,
        Self::StreamWaits,
        Self::Callbacks,
        Self::Events,
        Self::Device,
        Self::IdleTaken,
        Self::IdleGiven,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Magazines => "magazines of all threads",
            Self::StreamWaits => "waits between streams",
            Self::Callbacks => "callbacks",
            Self::Events => "waited for other streams",
            Self::Device => "waited for the device",
            Self::IdleTaken => "idle memory taken anew",
            Self::IdleGiven => "idle memory given back",
        }
    }
}

/// What a step has done.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    /// So many bytes became free, or went back to the driver.
    Freed(u64),
    /// The device was not done in the time that the step may wait.
    TimedOut,
    /// The device could not be waited for, or could not be asked.
    Refused,
}

/// How often a step was taken, over all requests.
#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    sufficed: AtomicU64,
    timed_out: AtomicU64,
    nanoseconds: AtomicU64,
}

/// The counters of a pool's steps.
#[derive(Debug, Default)]
pub(super) struct Counters([Counter; Stage::ALL.len()]);

impl Counters {
    pub(super) fn totals(&self) -> Vec<StepTotal> {
        // Relaxed, here and below: numbers that nothing else is read through.
        let total = |stage: Stage| {
            let counter = &self.0[stage as usize];
            StepTotal {
                name: stage.name(),
                count: counter.count.load(Relaxed),
                sufficed: counter.sufficed.load(Relaxed),
                timed_out: counter.timed_out.load(Relaxed),
                nanoseconds: counter.nanoseconds.load(Relaxed),
            }
        };
        Stage::ALL.map(total).to_vec()
    }
}

/// The steps of one request.
pub(super) struct Ladder<'a> {
    counters: &'a Counters,
    pub(super) steps: Vec<Step>,
}

impl<'a> Ladder<'a> {
    pub(super) const fn new(counters: &'a Counters) -> Self {
        Self {
            counters,
            steps: Vec::new(),
        }
    }

    /// A step was taken, and the request tried again; `sufficed` when it got its memory.
    pub(super) fn note(&mut self, stage: Stage, began: Instant, outcome: Outcome, sufficed: bool) {
        let nanoseconds = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let counter = &self.counters.0[stage as usize];
        counter.count.fetch_add(1, Relaxed);
        counter.sufficed.fetch_add(u64::from(sufficed), Relaxed);
        counter.nanoseconds.fetch_add(nanoseconds, Relaxed);
        let (name, bytes) = match outcome {
            Outcome::Freed(bytes) => (stage.name(), bytes),
            Outcome::TimedOut => {
                counter.timed_out.fetch_add(1, Relaxed);
                ("the device was not done in the time that a step may wait", 0)
            }
            Outcome::Refused => ("the device could not be waited for", 0),
        };
        self.steps.push(Step {
            name,
            bytes,
            nanoseconds,
        });
    }
}
