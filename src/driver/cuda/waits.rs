//! Waits that end: the driver's own have no bound, so a bounded one is made in a thread of its own.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::result::{self, OPERATING_SYSTEM};
use crate::driver::DriverResult;

/// How many threads may wait for a device at once. A device that keeps so many waiting hangs: more would only pile up.
const MOST: usize = 8;

/// The waits of one device.
#[derive(Default)]
pub(super) struct Waits {
    /// Threads that wait, among them those that nobody listens to any more.
    threads: Arc<AtomicUsize>,
}

impl Waits {
    /// Runs a call that blocks, and listens to it for at most so long. Whether it returned by then. Where it did not, its
    /// thread stays until the device is done, and ends without a trace.
    pub(super) fn within(
        &self,
        call: &'static str,
        most: Duration,
        wait: impl FnOnce() -> DriverResult<()> + Send + 'static,
    ) -> DriverResult<bool> {
        if most == Duration::MAX {
            return wait().map(|()| true);
        }
        // Relaxed, here and below: a number, and a bound that may be passed by one.
        if self.threads.load(Relaxed) >= MOST {
            return Ok(false);
        }
        let (sender, receiver) = mpsc::channel();
        let threads = Arc::clone(&self.threads);
        threads.fetch_add(1, Relaxed);
        let body = move || {
            let result = wait();
            threads.fetch_sub(1, Relaxed);
            // Where nobody listens any more there is nobody to tell.
            let _ = sender.send(result);
        };
        if thread::Builder::new()
            .name("flagstone-wait".to_owned())
            .spawn(body)
            .is_err()
        {
            self.threads.fetch_sub(1, Relaxed);
            return Err(result::error(call, OPERATING_SYSTEM));
        }
        match receiver.recv_timeout(most) {
            Ok(result) => result.map(|()| true),
            Err(_) => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT_READY: u32 = result::NOT_READY;

    #[test]
    fn a_wait_gives_its_result_or_ends_at_its_bound() {
        let waits = Waits::default();
        let long = Duration::from_secs(600);
        for most in [long, Duration::MAX] {
            assert_eq!(waits.within("call", most, || Ok(())), Ok(true));
            let failed = waits.within("call", most, || Err(result::error("call", NOT_READY)));
            assert_eq!(failed.map_err(|error| error.code), Err(NOT_READY));
        }
        let (hold, held) = mpsc::channel::<()>();
        let short = Duration::from_millis(1);
        let blocked = waits.within("call", short, move || {
            // Until the sender is dropped.
            let _ = held.recv();
            Ok(())
        });
        assert_eq!((blocked, waits.threads.load(Relaxed)), (Ok(false), 1));
        drop(hold);
    }

    #[test]
    fn a_device_that_hangs_keeps_only_so_many_threads() {
        let waits = Waits::default();
        let mut holds = Vec::new();
        for _ in 0..MOST + 2 {
            let (hold, held) = mpsc::channel::<()>();
            holds.push(hold);
            let blocked = waits.within("call", Duration::from_millis(1), move || {
                let _ = held.recv();
                Ok(())
            });
            assert_eq!(blocked, Ok(false));
        }
        assert_eq!(waits.threads.load(Relaxed), MOST);
    }
}
