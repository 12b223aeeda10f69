//! Freed blocks that wait for events of other streams.
//!
//! Each stream has a queue of events in the order in which they were recorded, which is the order in which they complete:
//! only the front is asked. An unready stream never holds up another one's blocks, nor a later event of a stream an earlier
//! one's, whichever block was freed first.
//!
//! Blocks one of whose uses could get no event (its stream was capturing, or its handle may be dead) are put aside until
//! the context was synchronised.

use crate::arena::StreamKey;
use crate::driver::{Driver, DriverResult, Event, Stream};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// A recorded event, with its place in the order in which the pool recorded them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) event: Event,
    order: u64,
}

/// An event that a block waits for.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    recorded: Recorded,
    block: u32,
}

/// What a block still waits for.
#[derive(Debug, Clone, Copy)]
struct Left {
    events: u32,
    /// The how many-th block this was to begin.
    began: u64,
}

/// A block that waits for the context.
#[derive(Debug, Clone, Copy)]
struct Aside {
    block: u32,
    bytes: u64,
    began: u64,
}

/// All waiting blocks of a pool.
#[derive(Default)]
pub(crate) struct Pending {
    queues: FxHashMap<StreamKey, VecDeque<Waiting>>,
    left: FxHashMap<u32, Left>,
    aside: Vec<Aside>,
    /// How many blocks have begun to wait.
    begun: u64,
    /// Events that may be recorded again.
    spare: Vec<Event>,
    /// How many events were recorded.
    recorded: u64,
}

impl Recorded {
    /// Whether it covers what `other` does: it was recorded later, on the same stream.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.order > other.order
    }
}

impl Pending {
    /// An event to record, used before or new.
    pub(crate) fn event(&mut self, driver: &impl Driver) -> DriverResult<Event> {
        match self.spare.pop() {
            Some(event) => Ok(event),
            None => driver.event_create(),
        }
    }

    /// Records what the stream has been given so far. Called with the lock held, so that the order is the streams' own.
    pub(crate) fn record(&mut self, driver: &impl Driver, stream: Stream) -> DriverResult<Recorded> {
        let event = self.event(driver)?;
        if let Err(error) = driver.event_record(event, stream) {
            self.spare.push(event);
            return Err(error);
        }
        self.recorded += 1;
        Ok(Recorded {
            event,
            order: self.recorded,
        })
    }

    /// An event that nothing waits for.
    pub(crate) fn put_back(&mut self, event: Event) {
        self.spare.push(event);
    }

    /// Adds a block with the events that were recorded for it on each stream.
    pub(crate) fn add(&mut self, block: u32, events: &[(StreamKey, Recorded)]) {
        self.begun += 1;
        let left = Left {
            events: events.len() as u32,
            began: self.begun,
        };
        self.left.insert(block, left);
        for &(key, recorded) in events {
            let queue = self.queues.entry(key).or_default();
            // Nearly always the end: blocks are mostly freed in the order of their last uses.
            let place = queue.partition_point(|waiting| waiting.recorded.order < recorded.order);
            queue.insert(place, Waiting { recorded, block });
        }
    }

    /// Adds a block of so many bytes that waits for the context.
    pub(crate) fn add_aside(&mut self, block: u32, bytes: u64) {
        self.begun += 1;
        self.aside.push(Aside {
            block,
            bytes,
            began: self.begun,
        });
    }

    /// The bytes of the blocks that wait for the context.
    pub(crate) fn aside_bytes(&self) -> u64 {
        self.aside.iter().map(|aside| aside.bytes).sum()
    }

    /// The blocks that wait.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u32> {
        let aside = self.aside.iter().map(|aside| aside.block);
        self.left.keys().copied().chain(aside)
    }

    /// How many blocks wait.
    #[cfg(feature = "check")]
    pub(crate) fn len(&self) -> usize {
        self.left.len() + self.aside.len()
    }

    /// Calls `done` with each block whose events are complete.
    ///
    /// # Errors
    /// The driver's, after what was complete before was handed over.
    pub(crate) fn poll(&mut self, driver: &impl Driver, mut done: impl FnMut(u32)) -> DriverResult<()> {
        let mut result = Ok(());
        let (left, spare) = (&mut self.left, &mut self.spare);
        self.queues.retain(|_, queue| {
            while let Some(&Waiting { recorded, block }) = queue.front() {
                let event = recorded.event;
                match driver.event_query(event) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
                queue.pop_front();
                spare.push(event);
                if finish(left, block) {
                    done(block);
                }
            }
            !queue.is_empty()
        });
        result
    }

    /// The block for which `only` holds whose events were recorded first.
    pub(crate) fn nearest(&self, only: impl Fn(u32) -> bool) -> Option<u32> {
        let places = self.queues.values().flat_map(|queue| queue.iter().enumerate());
        let wanted = places.filter(|(_, waiting)| only(waiting.block));
        wanted.min_by_key(|&(place, _)| place).map(|(_, waiting)| waiting.block)
    }

    /// The events that a block still waits for.
    pub(crate) fn events_of(&self, block: u32) -> Vec<Event> {
        let all = self.queues.values().flatten();
        all.filter(|waiting| waiting.block == block)
            .map(|waiting| waiting.recorded.event)
            .collect()
    }

    /// Blocks that together have `bytes`, of those whose size `ours` tells: the one recorded first that is enough, otherwise those
    /// recorded first. With `behind` only such as have another one behind them in each queue: there is more work after theirs.
    pub(crate) fn earliest(&self, bytes: u64, behind: bool, ours: impl Fn(u32) -> Option<u64>) -> Vec<u32> {
        let last: Vec<u32> = match behind {
            true => self
                .queues
                .values()
                .filter_map(|queue| Some(queue.back()?.block))
                .collect(),
            false => Vec::new(),
        };
        let ours = |block| ours(block).filter(|_| !last.contains(&block));
        if let Some(enough) = self.nearest(|block| ours(block) >= Some(bytes)) {
            return vec![enough];
        }
        let longest = self.queues.values().map(VecDeque::len).max().unwrap_or(0);
        let places = (0..longest).flat_map(|place| self.queues.values().filter_map(move |queue| queue.get(place)));
        let mut found = Vec::new();
        let mut have = 0;
        for waiting in places {
            if have >= bytes {
                break;
            }
            if let Some(size) = ours(waiting.block).filter(|_| !found.contains(&waiting.block)) {
                found.push(waiting.block);
                have += size;
            }
        }
        found
    }

    /// Makes later work of `stream` wait for what the blocks wait for: for work of that stream they are ready then. Returns how many waits that took.
    ///
    /// # Errors
    /// The driver's. Nothing was taken then, and a wait that was made does no harm.
    pub(crate) fn order(&mut self, driver: &impl Driver, stream: Stream, blocks: &[u32]) -> DriverResult<u64> {
        let mut waits = 0;
        for queue in self.queues.values() {
            // Earlier events of the queue complete before the last.
            if let Some(last) = queue.iter().rfind(|waiting| blocks.contains(&waiting.block)) {
                driver.stream_wait(stream, last.recorded.event)?;
                waits += 1;
            }
        }
        for block in blocks {
            self.left.remove(block);
        }
        // A wait is for what was recorded when it was made: the events may be recorded again.
        self.drop_events();
        Ok(waits)
    }

    /// What waits now, for [`Self::finish`] once the context was synchronised.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.begun)
    }

    /// The context was synchronised since the mark was made: what waited then, and waits still, is done.
    pub(crate) fn finish(&mut self, mark: Mark) -> Vec<u32> {
        let done = self.left.extract_if(|_, left| left.began <= mark.0);
        let mut done: Vec<u32> = done.map(|(block, _)| block).collect();
        self.drop_events();
        let aside = self.aside.extract_if(.., |aside| aside.began <= mark.0);
        done.extend(aside.map(|aside| aside.block));
        done
    }

    /// Makes the events of blocks that wait no more spare.
    fn drop_events(&mut self) {
        let (left, spare) = (&self.left, &mut self.spare);
        self.queues.retain(|_, queue| {
            queue.retain(|waiting| {
                let waits = left.contains_key(&waiting.block);
                if !waits {
                    spare.push(waiting.recorded.event);
                }
                waits
            });
            !queue.is_empty()
        });
    }

    /// Destroys the spare events.
    pub(crate) fn destroy(&mut self, driver: &impl Driver) {
        for event in self.spare.drain(..) {
            // The driver is going away with us; an event that it will not destroy is lost with it.
            let _ = driver.event_destroy(event);
        }
    }
}

/// What waited at some time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark(u64);

/// One event less for a block; whether it was the last.
fn finish(left: &mut FxHashMap<u32, Left>, block: u32) -> bool {
    let Some(waits) = left.get_mut(&block) else {
        return false;
    };
    waits.events -= 1;
    if waits.events > 0 {
        return false;
    }
    left.remove(&block);
    true
}
