//! A stack of indices whose head carries a tag (Treiber, IBM RJ 5118, 1986; tags against ABA as in Michael, 2004).
//!
//! The head is `tag << 32 | index`. Every successful change of the head raises the tag, so a head that was read, popped
//! and pushed again in between is a different word. The tag wraps after 2^32 changes; a thread would have to sleep
//! through exactly that many between its load and its compare-and-swap to be fooled.

use super::Links;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A stack of indices, pushed and popped by any thread without a lock.
#[derive(Debug, Default)]
pub(crate) struct TaggedStack {
    head: AtomicU64,
}

const INDEX: u64 = 0xffff_ffff;

const fn next_head(old: u64, index: u32) -> u64 {
    ((old >> 32).wrapping_add(1) << 32) | index as u64
}

impl TaggedStack {
    /// Whether there is nothing on it (a moment ago).
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a hint, nothing is read through it.
        self.head.load(Ordering::Relaxed) & INDEX == 0
    }

    /// Pushes a chain of linked records from `first` to `last`, which the caller owns.
    pub(crate) fn push_chain(&self, links: &impl Links, first: u32, last: u32) {
        // Relaxed: only the number is used; the compare-and-swap confirms it.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the release below.
            links.link(last).store((head & INDEX) as u32, Ordering::Relaxed);
            // Release: whoever pops the chain sees its links and all that was written to its records.
            match self
                .head
                .compare_exchange_weak(head, next_head(head, first), Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Pops one index, or 0.
    pub(crate) fn pop(&self, links: &impl Links) -> u32 {
        // Acquire: the link of the head is read next.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let index = (head & INDEX) as u32;
            if index == 0 {
                return 0;
            }
            // Relaxed: may be stale when another thread popped the record; then the tag has changed and we retry.
            let next = links.link(index).load(Ordering::Relaxed);
            // Acquire on both: the popped record, or the next head's link, is read afterwards.
            match self
                .head
                .compare_exchange_weak(head, next_head(head, next), Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return index,
                Err(now) => head = now,
            }
        }
    }

    /// Takes the whole chain; its first index, or 0.
    pub(crate) fn take(&self) -> u32 {
        // Relaxed: only the number is used; the compare-and-swap confirms it.
        let mut head = self.head.load(Ordering::Relaxed);
        while head & INDEX != 0 {
            // Acquire: the chain's records are read afterwards.
            match self
                .head
                .compare_exchange_weak(head, next_head(head, 0), Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return (head & INDEX) as u32,
                Err(now) => head = now,
            }
        }
        0
    }

    /// What is on it, until `each` has seen enough. Only while all threads are quiet.
    #[cfg(feature = "check")]
    pub(crate) fn walk(&self, links: &impl Links, each: impl FnMut(u32) -> bool) {
        // Relaxed: nobody changes it.
        super::walk(links, (self.head.load(Ordering::Relaxed) & INDEX) as u32, each);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::super::testing::Records;
    use super::*;
    use crate::sync::meet;

    type Shared = (TaggedStack, Records);

    fn two() -> Shared {
        let shared = Shared::default();
        for index in [1, 2] {
            shared.0.push_chain(&shared.1, index, index);
        }
        shared
    }

    /// One that is popped is the popper's alone.
    fn pop((list, records): &Shared) -> u32 {
        let index = list.pop(records);
        if index != 0 {
            records.own(index);
        }
        index
    }

    fn pop_and_push_back((list, records): &Shared) -> u32 {
        let first = list.pop(records);
        let second = list.pop(records);
        if first != 0 {
            records.own(first);
            records.disown(first);
            list.push_chain(records, first, first);
        }
        second
    }

    #[test]
    fn two_threads_never_pop_the_same_index() {
        // Pops and pushes back: the history that fools a stack without tags.
        meet(two, pop, pop_and_push_back, |shared, mine, theirs| {
            let rest = std::iter::from_fn(|| Some(shared.0.pop(&shared.1)).filter(|&index| index != 0));
            let mut seen: Vec<u32> = rest.chain([mine, theirs]).filter(|&index| index != 0).collect();
            seen.sort_unstable();
            assert_eq!(seen, [1, 2]);
        });
    }

    fn push_two((list, records): &Shared) {
        records.write(1, 11);
        records.write(2, 22);
        records.link(1).store(2, Ordering::Relaxed);
        list.push_chain(records, 1, 2);
    }

    #[test]
    fn a_chain_is_taken_whole_with_its_contents() {
        let take = |(list, records): &Shared| {
            let taken = list.take();
            if taken != 0 {
                assert_eq!((taken, records.link(1).load(Ordering::Relaxed)), (1, 2));
                assert_eq!((records.read(1), records.read(2)), (11, 22));
            }
        };
        meet(Shared::default, push_two, take, |_, (), ()| {});
    }

    #[test]
    fn one_of_a_chain_is_popped_with_its_contents() {
        let pop = |(list, records): &Shared| {
            let popped = list.pop(records);
            assert!(popped == 0 || (popped, records.read(1)) == (1, 11));
            popped
        };
        meet(Shared::default, push_two, pop, |(list, records), (), popped| {
            let rest = [list.pop(records), list.pop(records), list.pop(records)];
            assert_eq!(rest, if popped == 0 { [1, 2, 0] } else { [2, 0, 0] });
        });
    }
}
