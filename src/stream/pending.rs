//! Freed blocks that wait for events of other streams.
//!
//! Each stream has a queue of events in the order in which they were recorded, which is the order in which they complete:
//! only the front is asked. An unready stream never holds up another one's blocks.
//!
//! Blocks one of whose uses could get no event (its stream was capturing, or its handle may be dead) are put aside until
//! the context was synchronised.

use crate::arena::StreamKey;
use crate::driver::{Driver, DriverResult, Event, Stream};
use std::collections::{HashMap, VecDeque};

/// An event that a block waits for.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    event: Event,
    block: u32,
}

/// All waiting blocks of a pool.
#[derive(Default)]
pub(crate) struct Pending {
    queues: HashMap<StreamKey, VecDeque<Waiting>>,
    /// How many events each block still waits for.
    left: HashMap<u32, u32>,
    aside: Vec<u32>,
    /// Events that may be recorded again.
    spare: Vec<Event>,
}

impl Pending {
    /// An event to record, used before or new.
    pub(crate) fn event(&mut self, driver: &impl Driver) -> DriverResult<Event> {
        match self.spare.pop() {
            Some(event) => Ok(event),
            None => driver.event_create(),
        }
    }

    /// An event that was not recorded after all.
    pub(crate) fn put_back(&mut self, event: Event) {
        self.spare.push(event);
    }

    /// Adds a block with the events that were recorded for it on each stream.
    pub(crate) fn add(&mut self, block: u32, events: &[(StreamKey, Event)]) {
        self.left.insert(block, events.len() as u32);
        for &(key, event) in events {
            self.queues.entry(key).or_default().push_back(Waiting { event, block });
        }
    }

    /// Adds a block that waits for the context.
    pub(crate) fn add_aside(&mut self, block: u32) {
        self.aside.push(block);
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
            while let Some(&Waiting { event, block }) = queue.front() {
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
            .map(|waiting| waiting.event)
            .collect()
    }

    /// Blocks that together have `bytes`, of those whose size `ours` tells: the one recorded first that is enough, otherwise those
    /// recorded first.
    pub(crate) fn earliest(&self, bytes: u64, ours: impl Fn(u32) -> Option<u64>) -> Vec<u32> {
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

    /// Makes later work of `stream` wait for what the blocks for which `only` holds wait for: for work of that stream they
    /// are ready then. Returns how many waits that took.
    ///
    /// # Errors
    /// The driver's. Nothing was taken then, and a wait that was made does no harm.
    pub(crate) fn order(&mut self, driver: &impl Driver, stream: Stream, blocks: &[u32]) -> DriverResult<u64> {
        let mut waits = 0;
        for queue in self.queues.values() {
            // Earlier events of the queue complete before the last.
            if let Some(last) = queue.iter().rfind(|waiting| blocks.contains(&waiting.block)) {
                driver.stream_wait(stream, last.event)?;
                waits += 1;
            }
        }
        for block in blocks {
            self.left.remove(block);
        }
        let spare = &mut self.spare;
        self.queues.retain(|_, queue| {
            queue.retain(|waiting| {
                let taken = blocks.contains(&waiting.block);
                if taken {
                    // A wait is for what was recorded when it was made: the event may be recorded again.
                    spare.push(waiting.event);
                }
                !taken
            });
            !queue.is_empty()
        });
        Ok(waits)
    }

    /// Takes everything that waits, for a synchronisation of the context that begins now.
    pub(crate) fn take(&mut self) -> Self {
        let spare = std::mem::take(&mut self.spare);
        let taken = std::mem::take(self);
        self.spare = spare;
        taken
    }

    /// The context was synchronised since `taken` was taken: its blocks are done.
    pub(crate) fn finish(&mut self, taken: Self) -> Vec<u32> {
        self.spare
            .extend(taken.queues.into_values().flatten().map(|waiting| waiting.event));
        let mut done: Vec<u32> = taken.left.into_keys().collect();
        done.extend(taken.aside);
        done
    }

    /// The context could not be synchronised: `taken` waits on, before what came meanwhile.
    pub(crate) fn restore(&mut self, taken: Self) {
        for (key, mut queue) in taken.queues {
            let newer = self.queues.remove(&key).unwrap_or_default();
            queue.extend(newer);
            self.queues.insert(key, queue);
        }
        self.left.extend(taken.left);
        self.aside.extend(taken.aside);
    }

    /// Destroys the spare events.
    pub(crate) fn destroy(&mut self, driver: &impl Driver) {
        for event in self.spare.drain(..) {
            // The driver is going away with us; an event that it will not destroy is lost with it.
            let _ = driver.event_destroy(event);
        }
    }
}

/// One event less for a block; whether it was the last.
fn finish(left: &mut HashMap<u32, u32>, block: u32) -> bool {
    let Some(count) = left.get_mut(&block) else {
        return false;
    };
    *count -= 1;
    if *count > 0 {
        return false;
    }
    left.remove(&block);
    true
}
