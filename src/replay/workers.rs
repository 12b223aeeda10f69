//! Threads that make the calls of a replay, one call at a time.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::Duration;

use crate::driver::{DevicePtr, Driver, Stream};
use crate::error::Result;
use crate::pool::Pool;

use super::stopwatch::timed;

/// A call of the pool.
#[derive(Clone, Copy)]
pub(super) enum Job {
    Alloc {
        bytes: u64,
        stream: Stream,
    },
    Free {
        addr: DevicePtr,
        /// The other stream on which the block was used last, if any.
        last_used_on: Option<Stream>,
    },
}

/// What the pool said, and how long it took. A free gives no address.
type Outcome = (Result<Option<DevicePtr>>, Duration);

/// Which thread makes a call.
#[derive(Clone, Copy)]
enum Turns {
    /// The one that made it when the trace was recorded.
    Recorded,
    /// Allocations are the caller's, frees the others' in turn; this one's is next.
    Freeing(usize),
}

/// Threads that wait for calls to make; the caller is the first of them. They end when this is dropped.
pub(super) struct Workers {
    others: Vec<(Sender<Job>, Receiver<Outcome>)>,
    turns: Turns,
}

impl Workers {
    /// As many threads as a trace names, or the most that are started: threads of a higher number share them then.
    pub fn recorded<'scope, D: Driver>(
        scope: &'scope Scope<'scope, '_>,
        pool: &'scope Pool<D>,
        threads: usize,
    ) -> Self {
        const MOST: usize = 64;
        Self::start(scope, pool, threads.clamp(1, MOST), Turns::Recorded)
    }

    /// One thread that allocates, the caller, and others that free; with 1 the caller frees too.
    pub fn freeing<'scope, D: Driver>(scope: &'scope Scope<'scope, '_>, pool: &'scope Pool<D>, threads: usize) -> Self {
        Self::start(scope, pool, threads, Turns::Freeing(0))
    }

    fn start<'scope, D: Driver>(
        scope: &'scope Scope<'scope, '_>,
        pool: &'scope Pool<D>,
        threads: usize,
        turns: Turns,
    ) -> Self {
        let start = || {
            let (jobs, to_do) = channel::<Job>();
            let (done, outcomes) = channel();
            scope.spawn(move || {
                // Either end is gone once the replay is over.
                while let Ok(job) = to_do.recv() {
                    if done.send(make(pool, job)).is_err() {
                        break;
                    }
                }
            });
            (jobs, outcomes)
        };
        Self {
            others: std::iter::repeat_with(start).take(threads.saturating_sub(1)).collect(),
            turns,
        }
    }

    /// Makes a call in its thread, and waits for it. `thread` is the one of the trace.
    pub fn call<D: Driver>(&mut self, pool: &Pool<D>, thread: u32, job: Job) -> Outcome {
        let place = match (&mut self.turns, job) {
            (Turns::Recorded, _) => (thread as usize % (self.others.len() + 1)).checked_sub(1),
            (Turns::Freeing(_), Job::Alloc { .. }) => None,
            (Turns::Freeing(next), Job::Free { .. }) => {
                let place = *next;
                *next = (place + 1) % self.others.len().max(1);
                Some(place)
            }
        };
        let Some((jobs, outcomes)) = place.and_then(|place| self.others.get(place)) else {
            return make(pool, job);
        };
        // A thread that has panicked takes no job and gives no outcome: the call is then made here.
        match jobs.send(job).ok().and_then(|()| outcomes.recv().ok()) {
            Some(outcome) => outcome,
            None => make(pool, job),
        }
    }
}

fn make<D: Driver>(pool: &Pool<D>, job: Job) -> Outcome {
    timed(|| match job {
        Job::Alloc { bytes, stream } => pool.alloc(bytes, stream).map(Some),
        Job::Free {
            addr,
            last_used_on: None,
        } => pool.free(addr).map(|()| None),
        Job::Free {
            addr,
            last_used_on: Some(stream),
        } => pool.free_on(addr, stream).map(|()| None),
    })
}
