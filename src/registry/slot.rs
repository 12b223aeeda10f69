//! Where something that lives for ever is found without a lock, once it is there.

use crate::sync::atomic::{AtomicPtr, Ordering};
use std::ptr;

/// A place that is empty at first.
pub(super) struct Slot<T: 'static>(AtomicPtr<T>);

impl<T> Slot<T> {
    #[cfg(not(loom))]
    pub(super) const fn empty() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// As above: loom's atomics are not made at compile time.
    #[cfg(loom)]
    pub(super) fn empty() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// What is there.
    #[inline(always)]
    pub(super) fn get(&self) -> Option<&'static T> {
        // Acquire: it is read through the pointer.
        let found = self.0.load(Ordering::Acquire);
        // SAFETY: null, or what `set` was given.
        unsafe { found.as_ref() }
    }

    /// From now on it is there for every thread.
    pub(super) fn set(&self, found: &'static T) {
        // Release: whoever reads the pointer sees what it points to.
        self.0.store(ptr::from_ref(found).cast_mut(), Ordering::Release);
    }

    /// From now on there is nothing.
    pub(super) fn clear(&self) {
        // Relaxed: there is nothing to be seen through it.
        self.0.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::atomic::AtomicU32;
    use crate::sync::meet;

    type Shared = Slot<AtomicU32>;

    fn set(slot: &Shared) {
        // A model runs a few times: what it leaks is small.
        slot.set(Box::leak(Box::new(AtomicU32::new(7))));
    }

    /// Loom reports what is read before it was made.
    fn look(slot: &Shared) -> Option<u32> {
        slot.get().map(|found| found.load(Ordering::Relaxed))
    }

    #[test]
    fn what_is_found_is_whole() {
        meet(Shared::empty, set, look, |slot, (), found| {
            assert!(found.is_none_or(|found| found == 7));
            assert_eq!(look(slot), Some(7));
        });
    }

    #[test]
    fn nothing_is_found_once_it_was_cleared() {
        let clear = |slot: &Shared| {
            slot.clear();
            look(slot)
        };
        let full = || {
            let slot = Shared::empty();
            set(&slot);
            slot
        };
        meet(full, clear, look, |slot, mine, theirs| {
            assert_eq!((mine, look(slot)), (None, None));
            assert!(theirs.is_none_or(|found| found == 7));
        });
    }
}
