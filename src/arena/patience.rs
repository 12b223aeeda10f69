//! How long requests for pinned memory wait for what is free soon, before more of it is pinned.
//!
//! Waiting costs time now, pinning costs time once and memory for ever. So an arena waits until that has taken about as long as pinning
//! would have, and a small part of all time beyond that.

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// For how long requests wait between one growth and the next, all together, and for what part of the time beyond that: 2 %.
const MOST: Duration = Duration::from_millis(100);
const PART: u32 = 50;
/// After so many requests without a growth the arena has what its program needs, or nearly.
const STEADY: u32 = 32;

/// All of it hints: each is read and written by itself, `Relaxed`, and a value that is a little old waits a little longer or shorter.
pub(crate) struct Patience {
    made: Instant,
    /// Nanoseconds from then to when the arena last grew.
    grown: AtomicU64,
    /// Nanoseconds that requests have waited since the arena last grew.
    spent: AtomicU64,
    /// Requests since then that no magazine could meet.
    requests: AtomicU32,
    /// The thread of the last one, and its size; whether sizes ever differed.
    taker: AtomicU64,
    units: AtomicU32,
    varies: AtomicBool,
    /// Whether the last block that waits for a copy was freed by another thread than that.
    others_free: AtomicBool,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            made: Instant::now(),
            grown: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            requests: AtomicU32::new(0),
            taker: AtomicU64::new(0),
            units: AtomicU32::new(0),
            varies: AtomicBool::new(false),
            others_free: AtomicBool::new(false),
        }
    }
}

impl Patience {
    /// A request of this thread that no magazine could meet.
    pub(crate) fn note_request(&self, thread: u64, units: u32) {
        let last = self.units.swap(units, Relaxed);
        if last != units && last != 0 {
            self.varies.store(true, Relaxed);
        }
        self.requests.fetch_add(1, Relaxed);
        self.taker.store(thread, Relaxed);
    }

    /// This thread freed a block.
    pub(crate) fn note_free(&self, thread: u64) {
        self.others_free.store(self.taker.load(Relaxed) != thread, Relaxed);
    }

    /// A request has waited.
    pub(crate) fn spend(&self, waited: Duration) {
        self.spent.fetch_add(nanoseconds(waited), Relaxed);
    }

    /// The arena grows.
    pub(crate) fn renew(&self) {
        self.grown.store(nanoseconds(self.made.elapsed()), Relaxed);
        self.spent.store(0, Relaxed);
        self.requests.store(0, Relaxed);
    }

    /// Whether a request may wait.
    pub(crate) fn is_left(&self) -> bool {
        let since = self
            .made
            .elapsed()
            .saturating_sub(Duration::from_nanos(self.grown.load(Relaxed)));
        Duration::from_nanos(self.spent.load(Relaxed)) < MOST + since / PART
    }

    /// Whether the arena has had what its program needs for some time.
    pub(crate) fn is_steady(&self) -> bool {
        self.requests.load(Relaxed) > STEADY
    }

    /// Whether not all requests were of one size.
    pub(crate) fn varies(&self) -> bool {
        self.varies.load(Relaxed)
    }

    /// Whether other threads free what the requesting one takes, so that it may wait for them.
    pub(crate) fn others_free(&self) -> bool {
        self.others_free.load(Relaxed)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_and_begins_anew_with_a_growth() {
        let patience = Patience::default();
        assert!(patience.is_left() && !patience.is_steady());
        patience.spend(MOST - Duration::from_nanos(1));
        assert!(patience.is_left());
        // As much as an hour of 50 is worth: the test does not take so long.
        patience.spend(Duration::from_secs(3600));
        assert!(!patience.is_left());
        (0..=STEADY).for_each(|_| patience.note_request(1, 7));
        assert!(patience.is_steady() && !patience.varies());
        patience.renew();
        assert!(patience.is_left() && !patience.is_steady());
    }

    #[test]
    fn who_frees_is_compared_with_who_takes() {
        let patience = Patience::default();
        patience.note_request(1, 7);
        patience.note_request(1, 8);
        assert!(patience.varies() && !patience.others_free());
        patience.note_free(2);
        assert!(patience.others_free());
        patience.note_free(1);
        assert!(!patience.others_free());
    }
}
