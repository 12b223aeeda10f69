//! Waits that end: the driver's own have no bound, so a bounded one is made in a thread of its own.

use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::result::{self, OPERATING_SYSTEM};
use crate::driver::{DriverResult, Event};
use crate::sync::lock;

/// How many threads may wait for a device at once. A device that keeps so many waiting hangs: more would only pile up.
const MOST: usize = 8;

/// What even the shortest wait gives a call, once its thread runs: a call with nothing to wait for takes time as well.
const LEAST: Duration = Duration::from_millis(10);

/// The waits of one device.
#[derive(Default)]
pub(super) struct Waits {
    places: Arc<Places>,
}

#[derive(Default)]
struct Places {
    /// What each thread that waits waits for, an event or the device, among them those that nobody listens to any more.
    taken: Mutex<Vec<Option<Event>>>,
    /// Told when one ends.
    freed: Condvar,
}

/// The place of one thread among the [`MOST`], for as long as it lives.
struct Place {
    places: Arc<Places>,
    event: Option<Event>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.taken);
        if let Some(index) = taken.iter().position(|&event| event == self.event) {
            taken.swap_remove(index);
        }
        drop(taken);
        self.places.freed.notify_one();
    }
}

impl Waits {
    /// A place for one more thread, where there is one by the deadline.
    fn place(&self, event: Option<Event>, most: Duration) -> Option<Place> {
        let taken = lock(&self.places.taken);
        let full = |taken: &mut Vec<_>| taken.len() >= MOST;
        let waited = self.places.freed.wait_timeout_while(taken, most, full);
        let (mut taken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        taken.push(event);
        drop(taken);
        let places = Arc::clone(&self.places);
        Some(Place { places, event })
    }

    /// Whether a thread waits for the event, or is about to. It may be left from a wait that has reached its bound.
    pub(super) fn uses(&self, event: Event) -> bool {
        lock(&self.places.taken).contains(&Some(event))
    }

    /// Runs a call that blocks, on the event or on the device, and listens to it for at most so long, but at least for
    /// [`LEAST`]. The time in which all threads are taken counts. Whether the call returned by then. Where it did not, its
    /// thread stays until the device is done, and ends without a trace.
    pub(super) fn within(
        &self,
        call: &'static str,
        event: Option<Event>,
        most: Duration,
        wait: impl FnOnce() -> DriverResult<()> + Send + 'static,
    ) -> DriverResult<bool> {
        if most == Duration::MAX {
            return wait().map(|()| true);
        }
        let entered = Instant::now();
        let Some(place) = self.place(event, most.max(LEAST)) else {
            return Ok(false);
        };
        let (sender, receiver) = mpsc::channel();
        let body = move || {
            // Where nobody listens any more there is nobody to tell.
            let _ = sender.send(None);
            let result = wait();
            drop(place);
            let _ = sender.send(Some(result));
        };
        if thread::Builder::new()
            .name("flagstone-wait".to_owned())
            .spawn(body)
            .is_err()
        {
            return Err(result::error(call, OPERATING_SYSTEM));
        }
        // The thread runs. How long it took to get there says nothing about the device.
        let _ = receiver.recv();
        let left = most.saturating_sub(entered.elapsed()).max(LEAST);
        match receiver.recv_timeout(left) {
            Ok(Some(result)) => result.map(|()| true),
            Ok(None) | Err(_) => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT_READY: u32 = result::NOT_READY;

    fn count(waits: &Waits) -> usize {
        lock(&waits.places.taken).len()
    }

    /// A wait for the event that reaches its bound; its thread stays until the sender is dropped.
    fn left_behind(waits: &Waits, event: Option<Event>) -> mpsc::Sender<()> {
        let (hold, held) = mpsc::channel::<()>();
        let blocked = waits.within("call", event, Duration::from_millis(1), move || {
            let _ = held.recv();
            Ok(())
        });
        assert_eq!(blocked, Ok(false));
        hold
    }

    #[test]
    fn a_wait_gives_its_result_or_ends_at_its_bound() {
        let waits = Waits::default();
        let long = Duration::from_secs(600);
        for most in [long, Duration::MAX] {
            assert_eq!(waits.within("call", None, most, || Ok(())), Ok(true));
            let failed = waits.within("call", None, most, || Err(result::error("call", NOT_READY)));
            assert_eq!(failed.map_err(|error| error.code), Err(NOT_READY));
        }
        let hold = left_behind(&waits, None);
        assert_eq!(count(&waits), 1);
        drop(hold);
    }

    #[test]
    fn a_call_with_nothing_to_wait_for_succeeds_in_no_time() {
        let waits = Waits::default();
        assert_eq!(waits.within("call", None, Duration::ZERO, || Ok(())), Ok(true));
    }

    #[test]
    fn a_device_that_hangs_keeps_only_so_many_threads() {
        let waits = Waits::default();
        let holds: Vec<_> = (0..MOST).map(|_| left_behind(&waits, None)).collect();
        let unreached = || panic!("a thread too many");
        assert_eq!(waits.within("call", None, Duration::ZERO, unreached), Ok(false));
        assert_eq!(count(&waits), MOST);
        drop(holds);
    }

    #[test]
    fn one_more_waits_for_a_thread_that_ends() {
        let waits = Waits::default();
        let mut holds: Vec<_> = (0..MOST).map(|_| left_behind(&waits, None)).collect();
        thread::scope(|scope| {
            let one_more = scope.spawn(|| waits.within("call", None, Duration::from_secs(600), || Ok(())));
            // It finds them all taken, unless it is late; then it finds a place at once.
            thread::sleep(Duration::from_millis(5));
            holds.pop();
            assert_eq!(one_more.join().ok(), Some(Ok(true)));
        });
    }

    #[test]
    fn an_event_is_in_use_until_its_thread_has_ended() {
        let waits = Waits::default();
        let (ours, other) = (Event(1), Event(2));
        let hold = left_behind(&waits, Some(ours));
        assert_eq!((waits.uses(ours), waits.uses(other)), (true, false));
        drop(hold);
        while waits.uses(ours) {
            thread::yield_now();
        }
    }
}
