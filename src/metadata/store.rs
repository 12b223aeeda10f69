//! Records that are found by a 32-bit index and keep their address until the store is dropped.
//!
//! Records come in chunks that are added and never taken away, so a stale index still reads a record: the lock-free
//! lists rest on that. Index 0 is never given out and means "none".

use super::zeroed::{Zeroed, drop_array, make_array};
use crate::sync::atomic::{AtomicPtr, Ordering};
use crate::sync::{Mutex, lock};

/// A growing array of records in chunks of `2^BITS`, at most `CHUNKS` of them.
pub(crate) struct Store<T: Zeroed + Sync, const BITS: u32, const CHUNKS: usize> {
    chunks: Box<[AtomicPtr<T>]>,
    vacant: Mutex<Vacant>,
}

/// Indices that are not in use: `runs[n]` starts runs of `n` records that were given back; above `next` all is new.
#[derive(Default)]
struct Vacant {
    next: u32,
    runs: Vec<Vec<u32>>,
}

impl<T: Zeroed + Sync, const BITS: u32, const CHUNKS: usize> Store<T, BITS, CHUNKS> {
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
            let chunk = make_array::<T>(Self::CHUNK as usize);
            if chunk.is_null() {
                return 0;
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
        chunks * u64::from(Self::CHUNK) * size_of::<T>() as u64
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

impl<T: Zeroed + Sync, const BITS: u32, const CHUNKS: usize> Drop for Store<T, BITS, CHUNKS> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            // Relaxed: we have the store to ourselves.
            let chunk = chunk.load(Ordering::Relaxed);
            if !chunk.is_null() {
                // SAFETY: made by `take` with this length; nobody else has the store.
                unsafe { drop_array(chunk, Self::CHUNK as usize) };
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
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

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::atomic::AtomicU32;
    use crate::sync::meet;

    struct Record(AtomicU32);

    // SAFETY: an atomic number, no drop.
    unsafe impl Zeroed for Record {
        fn zeroed() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    type Shared = (Store<Record, 1, 4>, AtomicU32);

    fn empty() -> Shared {
        (Store::new(), AtomicU32::new(0))
    }

    fn take_two((store, _): &Shared) -> u32 {
        let first = store.take(2);
        assert_ne!(first, 0);
        for index in [first, first + 1] {
            // Loom reports a chunk that is read before it was made.
            let users = store.get(index).0.fetch_add(1, Ordering::Relaxed);
            assert_eq!(users, 0, "record {index} has two users");
        }
        first
    }

    #[test]
    fn runs_taken_at_once_are_disjoint_and_their_chunks_whole() {
        meet(empty, take_two, take_two, |_, mine, theirs| assert_ne!(mine, theirs));
    }

    #[test]
    fn an_index_that_is_passed_on_leads_to_a_whole_chunk() {
        let pass = |(store, passed): &Shared| {
            // Relaxed: indices lie in records, read by whoever meets them.
            passed.store(store.take(1), Ordering::Relaxed);
        };
        let follow = |(store, passed): &Shared| {
            let index = passed.load(Ordering::Relaxed);
            let chunk = &store.chunks[(index >> 1) as usize];
            if index != 0 && !chunk.load(Ordering::Relaxed).is_null() {
                assert_eq!(store.get(index).0.load(Ordering::Relaxed), 0);
            }
        };
        meet(empty, pass, follow, |_, (), ()| {});
    }

    #[test]
    fn what_is_given_back_is_taken_once() {
        let given_back = || {
            let shared = empty();
            shared.0.give(shared.0.take(1), 1);
            shared
        };
        let take = |(store, _): &Shared| store.take(1);
        meet(given_back, take, take, |_, mine, theirs| {
            assert!(mine != theirs && (mine == 1 || theirs == 1));
        });
    }
}
