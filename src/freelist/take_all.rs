//! A list that any thread pushes to and that is taken whole (the cross-thread list of mimalloc, MSR-TR-2019-18).
//!
//! There is no pop of one, so there is no ABA: a push only needs the head to be what it linked to. What is on the list has a
//! weight, kept in the same word: a push that keeps to a bound is still one compare-and-swap.

use super::Links;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A list of indices: one compare-and-swap to push, one swap to take everything.
#[derive(Debug, Default)]
pub(crate) struct TakeAll {
    /// The sum of the weights in the upper half, the first index in the lower.
    head: AtomicU64,
}

impl TakeAll {
    /// Whether there is nothing on it (a moment ago).
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a hint, nothing is read through it.
        self.head.load(Ordering::Relaxed) == 0
    }

    /// The sum of the weights (a moment ago).
    #[inline]
    pub(crate) fn weight(&self) -> u32 {
        // Relaxed: as in `is_empty`.
        weight(self.head.load(Ordering::Relaxed))
    }

    /// Pushes one record, which the caller owns, without a weight.
    #[inline]
    pub(crate) fn push(&self, links: &impl Links, index: u32) {
        self.push_within(links, index, 0, u32::MAX);
    }

    /// Pushes one record, which the caller owns, unless the list would weigh more than `most`: then `false`, and the caller
    /// owns it still.
    #[inline]
    pub(crate) fn push_within(&self, links: &impl Links, index: u32, added: u32, most: u32) -> bool {
        // Relaxed: only the numbers are used; the compare-and-swap confirms them.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let sum = u64::from(weight(head)) + u64::from(added);
            if sum > u64::from(most) {
                return false;
            }
            // Relaxed: published by the release below.
            links.link(index).store(first(head), Ordering::Relaxed);
            let new = sum << u32::BITS | u64::from(index);
            // Release: whoever takes the list sees the link and all that was written to the record.
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
    }

    /// Takes everything: the first index of the chain, or 0.
    #[inline]
    pub(crate) fn take(&self) -> u32 {
        if self.is_empty() {
            return 0;
        }
        // Acquire: the chain's records are read afterwards.
        first(self.head.swap(0, Ordering::Acquire))
    }

    /// What is on it, until `each` has seen enough. Only while all threads are quiet.
    #[cfg(feature = "check")]
    pub(crate) fn walk(&self, links: &impl Links, each: impl FnMut(u32) -> bool) {
        // Relaxed: nobody changes it.
        super::walk(links, first(self.head.load(Ordering::Relaxed)), each);
    }
}

const fn first(head: u64) -> u32 {
    head as u32
}

const fn weight(head: u64) -> u32 {
    (head >> u32::BITS) as u32
}

#[cfg(all(test, loom))]
mod models {
    use super::super::testing::Records;
    use super::*;
    use crate::sync::{meet, model};
    use loom::sync::Arc;
    use loom::thread;

    type Shared = (TakeAll, Records);

    fn push((list, records): &Shared, index: u32) {
        records.write(index, index * 11);
        list.push(records, index);
    }

    /// What is on the list: each with the contents that it was pushed with.
    fn take((list, records): &Shared) -> Vec<u32> {
        let mut seen = Vec::new();
        let mut index = list.take();
        while index != 0 {
            assert_eq!(records.read(index), index * 11);
            seen.push(index);
            index = records.link(index).load(Ordering::Relaxed);
        }
        seen
    }

    /// Pushes with a weight of 2, where at most 3 are allowed.
    fn push_within((list, records): &Shared, index: u32) -> bool {
        records.write(index, index * 11);
        list.push_within(records, index, 2, 3)
    }

    #[test]
    fn of_two_pushers_one_finds_room() {
        meet(
            Shared::default,
            |shared| push_within(shared, 1),
            |shared| push_within(shared, 2),
            |shared, mine, theirs| {
                assert_ne!(mine, theirs);
                assert_eq!(shared.0.weight(), 2);
                assert_eq!(take(shared), [if mine { 1 } else { 2 }]);
            },
        );
    }

    #[test]
    fn a_list_that_was_taken_weighs_nothing() {
        let full = || {
            let shared = Shared::default();
            assert!(push_within(&shared, 1));
            shared
        };
        meet(
            full,
            |shared| push_within(shared, 2),
            take,
            |shared, pushed, taken| {
                assert_eq!(taken, [1]);
                assert_eq!(shared.0.weight(), if pushed { 2 } else { 0 });
                assert_eq!(take(shared).len(), usize::from(pushed));
            },
        );
    }

    #[test]
    fn two_pushers_and_a_taker_lose_nothing() {
        model(|| {
            let shared = Arc::new(Shared::default());
            let handles = [1, 2].map(|index| {
                let shared = shared.clone();
                thread::spawn(move || push(&shared, index))
            });
            let mut seen = take(&shared);
            handles.map(|handle| handle.join().unwrap());
            seen.extend(take(&shared));
            seen.sort_unstable();
            assert_eq!(seen, [1, 2]);
        });
    }

    #[test]
    fn a_pusher_and_a_taker_lose_nothing() {
        let one = || {
            let shared = Shared::default();
            push(&shared, 1);
            shared
        };
        meet(
            one,
            |shared| push(shared, 2),
            take,
            |shared, (), mut seen| {
                seen.extend(take(shared));
                seen.sort_unstable();
                assert_eq!(seen, [1, 2]);
            },
        );
    }
}
