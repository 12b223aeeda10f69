//! A list that any thread pushes to and that is taken whole (the cross-thread list of mimalloc, MSR-TR-2019-18).
//!
//! There is no pop of one, so there is no ABA: a push only needs the head to be what it linked to.

use super::Links;
use crate::sync::atomic::{AtomicU32, Ordering};

/// A list of indices: one compare-and-swap to push, one swap to take everything.
#[derive(Debug, Default)]
pub(crate) struct TakeAll {
    head: AtomicU32,
}

impl TakeAll {
    /// Whether there is nothing on it (a moment ago).
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a hint, nothing is read through it.
        self.head.load(Ordering::Relaxed) == 0
    }

    /// Pushes one record, which the caller owns.
    #[inline]
    pub(crate) fn push(&self, links: &impl Links, index: u32) {
        // Relaxed: only the number is used; the compare-and-swap confirms it.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the release below.
            links.link(index).store(head, Ordering::Relaxed);
            // Release: whoever takes the list sees the link and all that was written to the record.
            match self
                .head
                .compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
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
        self.head.swap(0, Ordering::Acquire)
    }
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
