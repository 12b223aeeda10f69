//! Records that are found by a 32-bit index and keep their address until the store is dropped.
//!
//! Records come in chunks that are added and never taken away, so a stale index still reads a record: the lock-free
//! lists rest on that. Index 0 is never given out and means "none".

use crate::sync::lock;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Types for which zeroed memory is a valid value and that need no drop.
///
/// # Safety
/// All-zero bytes must be a valid value, and dropping must be a no-op.
pub(crate) unsafe trait Zeroed: Sync {}

/// A growing array of records in chunks of `2^BITS`, at most `CHUNKS` of them.
pub(crate) struct Store<T: Zeroed, const BITS: u32, const CHUNKS: usize> {
    chunks: Box<[AtomicPtr<T>]>,
    vacant: Mutex<Vacant>,
}

/// Indices that are not in use: `runs[n]` starts runs of `n` records that were given back; above `next` all is new.
#[derive(Default)]
struct Vacant {
    next: u32,
    runs: Vec<Vec<u32>>,
}

impl<T: Zeroed, const BITS: u32, const CHUNKS: usize> Store<T, BITS, CHUNKS> {
    const CHUNK: u32 = 1 << BITS;

    pub(crate) fn new() -> Self {
        let mut chunks = Vec::with_capacity(CHUNKS);
        chunks.resize_with(CHUNKS, AtomicPtr::default);
        Self {
            chunks: chunks.into(),
            vacant: Mutex::new(Vacant {
                next: 1,
                runs: Vec::new(),
            }),
        }
    }

    fn layout() -> Option<Layout> {
        Layout::array::<T>(Self::CHUNK as usize).ok()
    }

    /// The record at an index that [`Self::take`] gave out, now or earlier.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> &T {
        debug_assert!(index != 0, "index 0 is none");
        debug_assert!(((index >> BITS) as usize) < CHUNKS, "index {index} is of no chunk");
        // SAFETY: indices are only made by `take`, which has a chunk for each.
        let chunk = unsafe { self.chunks.get_unchecked((index >> BITS) as usize) };
        // Acquire: pairs with the release in `take`, in case the index came to us by a relaxed path.
        let chunk = chunk.load(Ordering::Acquire);
        debug_assert!(!chunk.is_null(), "index {index} was never given out");
        // SAFETY: indices are only made by `take`, which made the chunk first; chunks live as long as the store, and
        // the offset is below the chunk's length.
        unsafe { &*chunk.add((index & (Self::CHUNK - 1)) as usize) }
    }

    /// `count` consecutive records, at most a chunk; their first index, or 0 when the store is full.
    ///
    /// The records hold whatever their last user left (zero at first).
    pub(crate) fn take(&self, count: u32) -> u32 {
        debug_assert!(count >= 1 && count <= Self::CHUNK);
        let mut vacant = lock(&self.vacant);
        if let Some(first) = vacant.runs.get_mut(count as usize).and_then(Vec::pop) {
            return first;
        }
        // A run lies within one chunk: what is left of the chunk before it goes to the single records.
        while (vacant.next & (Self::CHUNK - 1)) + count > Self::CHUNK {
            let single = vacant.next;
            vacant.next += 1;
            vacant.push(single, 1);
        }
        let first = vacant.next;
        let Some(slot) = self.chunks.get((first >> BITS) as usize) else {
            return 0;
        };
        // Relaxed: chunks are only added under this lock.
        if slot.load(Ordering::Relaxed).is_null() {
            let Some(layout) = Self::layout() else { return 0 };
            // SAFETY: the layout is not empty: no record type is zero-sized.
            let chunk = unsafe { alloc_zeroed(layout) }.cast::<T>();
            if chunk.is_null() {
                handle_alloc_error(layout);
            }
            // Release: the zeroed contents are visible to whoever reads the pointer.
            slot.store(chunk, Ordering::Release);
        }
        vacant.next = first + count;
        first
    }

    /// Gives back a run as it was taken.
    pub(crate) fn give(&self, first: u32, count: u32) {
        lock(&self.vacant).push(first, count);
    }

    /// Every record that was ever taken, in use or not.
    pub(crate) fn each(&self, mut each: impl FnMut(&T)) {
        let next = lock(&self.vacant).next;
        (1..next).for_each(|index| each(self.get(index)));
    }

    /// Host bytes of all chunks.
    pub(crate) fn host_bytes(&self) -> u64 {
        let chunks = u64::from(lock(&self.vacant).next).div_ceil(u64::from(Self::CHUNK));
        chunks * Self::layout().map_or(0, |layout| layout.size() as u64)
    }
}

impl Vacant {
    fn push(&mut self, first: u32, count: u32) {
        let count = count as usize;
        if self.runs.len() <= count {
            self.runs.resize_with(count + 1, Vec::new);
        }
        self.runs[count].push(first);
    }
}

impl<T: Zeroed, const BITS: u32, const CHUNKS: usize> Drop for Store<T, BITS, CHUNKS> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            // Relaxed: we have the store to ourselves.
            let chunk = chunk.load(Ordering::Relaxed);
            if let (false, Some(layout)) = (chunk.is_null(), Self::layout()) {
                // SAFETY: made by `take` with this layout; nobody else has the store, and records need no drop.
                unsafe { dealloc(chunk.cast(), layout) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::AtomicU32;

    struct Record(AtomicU32);
    // SAFETY: an atomic is valid when zero and needs no drop.
    unsafe impl Zeroed for Record {}

    #[test]
    fn runs_are_disjoint_within_a_chunk_and_used_again() {
        let store: Store<Record, 4, 8> = Store::new();
        let mut seen = HashSet::new();
        let mut runs = Vec::new();
        for count in [3, 16, 1, 5, 7, 2, 16] {
            let first = store.take(count);
            assert_ne!(first, 0);
            assert_eq!(first >> 4, (first + count - 1) >> 4, "crosses a chunk");
            for index in first..first + count {
                assert!(seen.insert(index), "{index} twice");
                store.get(index).0.store(index, Ordering::Relaxed);
            }
            runs.push((first, count));
        }
        for index in &seen {
            assert_eq!(store.get(*index).0.load(Ordering::Relaxed), *index);
        }
        let (first, count) = runs[3];
        store.give(first, count);
        assert_eq!(store.take(count), first);
    }

    #[test]
    fn a_full_store_says_so() {
        let store: Store<Record, 2, 2> = Store::new();
        let mut taken = 0;
        while store.take(1) != 0 {
            taken += 1;
        }
        assert_eq!(taken, 7, "eight records less the one that means none");
    }
}
