//! A list that only grows, read without a lock: the arenas and the thread caches of a pool.

use crate::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use crate::sync::{Mutex, length, lock};

/// How many items a list can have.
const CAPACITY: usize = length(1 << 16, 4);

/// An append-only list of boxed items, numbered from 1. Number 0 means none and is an item too, which [`Self::new`] is given:
/// so nobody has to ask.
pub(crate) struct Append<T: Send + Sync> {
    slots: Box<[AtomicPtr<T>]>,
    len: AtomicU32,
    growing: Mutex<()>,
}

impl<T: Send + Sync> Append<T> {
    pub(crate) fn new(none: T) -> Self {
        let mut slots = Vec::with_capacity(CAPACITY);
        slots.resize_with(CAPACITY, AtomicPtr::default);
        slots[0] = AtomicPtr::new(Box::into_raw(Box::new(none)));
        Self {
            slots: slots.into(),
            len: AtomicU32::new(0),
            growing: Mutex::new(()),
        }
    }

    /// Adds what `make` makes of its index; `None` when the list is full.
    pub(crate) fn push(&self, make: impl FnOnce(u32) -> T) -> Option<&T> {
        let _growing = lock(&self.growing);
        // Relaxed: only changed under this lock.
        let index = self.len.load(Ordering::Relaxed) + 1;
        let slot = self.slots.get(index as usize)?;
        let item = Box::into_raw(Box::new(make(index)));
        // Release, both: whoever sees the index or the pointer sees the item.
        slot.store(item, Ordering::Release);
        self.len.store(index, Ordering::Release);
        // SAFETY: just made; items live as long as the list.
        Some(unsafe { &*item })
    }

    /// The item with this index, which must have been pushed, or 0.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> &T {
        debug_assert!((index as usize) < CAPACITY, "index {index} is of no slot");
        // SAFETY: indices come from `push`, which has a slot for each.
        let slot = unsafe { self.slots.get_unchecked(index as usize) };
        // Acquire: the item is read through the pointer.
        let item = slot.load(Ordering::Acquire);
        debug_assert!(!item.is_null(), "index {index} was never pushed");
        // SAFETY: indices come from `push`, which stored the pointer first; items live as long as the list.
        unsafe { &*item }
    }

    /// All items so far.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        // Acquire: pairs with the release in `push`.
        (1..=self.len.load(Ordering::Acquire)).map(|index| self.get(index))
    }
}

impl<T: Send + Sync> Drop for Append<T> {
    fn drop(&mut self) {
        for slot in &self.slots {
            // Relaxed: we have the list to ourselves.
            let item = slot.load(Ordering::Relaxed);
            if item.is_null() {
                continue;
            }
            // SAFETY: made by `Box::into_raw` in `push`, dropped once, here.
            drop(unsafe { Box::from_raw(item) });
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::meet;

    /// Loom reports an item that is read before it was made.
    type Shared = (Append<AtomicU32>, AtomicU32);

    fn empty() -> Shared {
        (Append::new(AtomicU32::new(0)), AtomicU32::new(0))
    }

    fn push((list, passed): &Shared) -> u32 {
        let index = list.push(AtomicU32::new).expect("room").load(Ordering::Relaxed);
        // Relaxed: a cache's number gets to other threads by ways that order nothing else.
        passed.store(index, Ordering::Relaxed);
        index
    }

    #[test]
    fn items_are_seen_whole_and_numbered_once() {
        let look = |(list, _): &Shared| {
            let seen = list.iter().map(|item| item.load(Ordering::Relaxed));
            assert!(seen.enumerate().all(|(place, index)| index as usize == place + 1));
        };
        meet(empty, push, look, |_, _, ()| {});
        meet(empty, push, push, |(list, _), mine, theirs| {
            assert_ne!(mine, theirs);
            assert_eq!(list.iter().count(), 2);
        });
    }

    #[test]
    fn an_index_that_is_passed_on_leads_to_a_whole_item() {
        let follow = |(list, passed): &Shared| {
            let index = passed.load(Ordering::Relaxed);
            // Who has the index without the order that came with it: the slot gives either.
            if index != 0 && !list.slots[index as usize].load(Ordering::Relaxed).is_null() {
                assert_eq!(list.get(index).load(Ordering::Relaxed), index);
            }
        };
        meet(empty, push, follow, |_, _, ()| {});
    }
}
