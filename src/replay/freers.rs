//! Threads that free what the replaying thread allocated.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::Duration;

use crate::driver::{DevicePtr, Driver, Stream};
use crate::error::{Error, Result};
use crate::pool::Pool;

use super::stopwatch::timed;

/// A block to free, and the other stream on which it was used last, if any.
type Job = (DevicePtr, Option<Stream>);
/// What the pool said, and how long it took.
type Outcome = (Result<()>, Duration);

/// Threads that take turns in freeing. They end when this is dropped.
pub(super) struct Freers {
    threads: Vec<(Sender<Job>, Receiver<Outcome>)>,
    next: usize,
}

impl Freers {
    /// Starts `count` threads; with 0, frees are made by the caller.
    pub fn new<'scope, D: Driver>(scope: &'scope Scope<'scope, '_>, pool: &'scope Pool<D>, count: usize) -> Self {
        let start = || {
            let (jobs, to_do) = channel::<Job>();
            let (done, outcomes) = channel();
            scope.spawn(move || {
                // Either end is gone once the replay is over.
                while let Ok((addr, stream)) = to_do.recv() {
                    if done.send(free(pool, addr, stream)).is_err() {
                        break;
                    }
                }
            });
            (jobs, outcomes)
        };
        Self {
            threads: std::iter::repeat_with(start).take(count).collect(),
            next: 0,
        }
    }

    /// Frees a block in the next thread and waits for it.
    pub fn free<D: Driver>(&mut self, pool: &Pool<D>, addr: DevicePtr, last_used_on: Option<Stream>) -> Outcome {
        let Some((jobs, outcomes)) = self.threads.get(self.next) else {
            return free(pool, addr, last_used_on);
        };
        self.next = (self.next + 1) % self.threads.len();
        // A thread that has panicked takes no job and gives no outcome: the block is then freed here.
        match jobs.send((addr, last_used_on)).ok().and_then(|()| outcomes.recv().ok()) {
            Some(outcome) => outcome,
            None => free(pool, addr, last_used_on),
        }
    }
}

fn free<D: Driver>(pool: &Pool<D>, addr: DevicePtr, last_used_on: Option<Stream>) -> (Result<(), Error>, Duration) {
    timed(|| match last_used_on {
        None => pool.free(addr),
        Some(stream) => pool.free_on(addr, stream),
    })
}
