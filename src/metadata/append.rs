//! A list that only grows, read without a lock: the arenas and the thread caches of a pool.

use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// How many items a list can have.
const CAPACITY: usize = 1 << 16;

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
