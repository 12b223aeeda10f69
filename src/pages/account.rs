//! How many bytes a pool holds from the driver, within a limit.

use crate::sync::atomic::{AtomicU64, fence};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Bytes held, and the most that were. Relaxed but for the fences: numbers that nothing else is read through.
#[derive(Debug, Default)]
pub(super) struct Account {
    held: AtomicU64,
    peak: AtomicU64,
}

impl Account {
    pub(super) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// The peak so far, which begins again.
    pub(super) fn reset_peak(&self) -> u64 {
        let peak = self.peak.swap(self.held(), Relaxed);
        // SeqCst: what is taken meanwhile is seen here, or raises the peak after this; as in `raise_peak`.
        fence(SeqCst);
        self.peak.fetch_max(self.held(), Relaxed);
        peak
    }

    /// Counts bytes that are about to be taken, unless all together would be more than `most`: `None` then, and the sum
    /// otherwise. For the peak they count once they are there: [`Self::raise_peak`].
    pub(super) fn book(&self, bytes: u64, most: u64) -> Option<u64> {
        let within = |held: u64| held.checked_add(bytes).filter(|&sum| sum <= most);
        let before = self.held.fetch_update(Relaxed, Relaxed, within);
        before.ok().map(|before| before + bytes)
    }

    /// So many bytes were held at once.
    pub(super) fn raise_peak(&self, sum: u64) {
        fence(SeqCst);
        self.peak.fetch_max(sum, Relaxed);
    }

    /// Counts bytes that were given back, or not taken.
    pub(super) fn unbook(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Relaxed);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::meet;

    fn take(account: &Account, bytes: u64) -> bool {
        let booked = account.book(bytes, 3);
        booked.inspect(|&sum| account.raise_peak(sum)).is_some()
    }

    #[test]
    fn threads_that_grow_at_once_keep_to_the_limit() {
        let two = |account: &Account| take(account, 2);
        meet(Account::default, two, two, |account, mine, theirs| {
            assert_ne!(mine, theirs);
            assert_eq!((account.held(), account.peak()), (2, 2));
        });
    }

    #[test]
    fn the_peak_is_the_most_that_was_held() {
        let (one, two) = (
            |account: &Account| take(account, 1),
            |account: &Account| take(account, 2),
        );
        meet(Account::default, one, two, |account, mine, theirs| {
            assert!(mine && theirs);
            assert_eq!((account.held(), account.peak()), (3, 3));
        });
    }

    #[test]
    fn what_is_given_back_is_taken_off_once() {
        let both = || {
            let account = Account::default();
            assert!(take(&account, 3));
            account
        };
        meet(
            both,
            |account| account.unbook(1),
            |account| account.unbook(2),
            |account, (), ()| {
                assert_eq!((account.held(), account.peak()), (0, 3));
                assert_eq!((account.reset_peak(), account.peak()), (3, 0));
            },
        );
    }

    #[test]
    fn a_peak_that_begins_again_has_what_is_taken_meanwhile() {
        let one = |account: &Account| take(account, 1);
        let again = |account: &Account| account.reset_peak();
        meet(Account::default, one, again, |account, _, before| {
            assert!(before <= 1);
            assert_eq!((account.held(), account.peak()), (1, 1));
        });
    }
}
