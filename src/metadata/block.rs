//! The record of one block: a piece of device memory with one state.
//!
//! ```text
//!            carve             alloc              free
//!   (range) ------> CACHED ---------> LIVE ---------------> CACHED      on a magazine or list
//!      ^                               |  free, used on
//!      |                               |  other streams
//!      +--- FREE <--- drain --- CACHED <----- PENDING                   until the uses' events are done
//! ```
//!
//! Invariants:
//! - a block is on exactly one list when `CACHED`, in exactly one bin when `FREE`, on none otherwise;
//! - `FREE` neighbours in one segment have something else between them;
//! - the table has an entry for a block exactly while it is `CACHED`, `LIVE`, `USED`, `RECORDED` or `PENDING`;
//! - only the thread that changed the state from `LIVE`, `USED` or `RECORDED` puts the block anywhere.

use super::store::Store;
use super::zeroed::Zeroed;
use crate::freelist::Links;
use crate::size_class;
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sync::length;
use std::ptr;

/// What a block is at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// The record is not in use.
    Vacant = 0,
    /// A free range, in a bin of its arena.
    Free = 1,
    /// Ready to be given out: in a magazine, on a shared list, or a vacant slot of a slab.
    Cached = 2,
    /// Given out.
    Live = 3,
    /// Freed, and waiting for other streams' uses to finish.
    Pending = 4,
    /// A range that is cut into slots.
    Slab = 5,
    /// Addresses with no memory behind them.
    Unmapped = 6,
    /// A range whose memory is being mapped or unmapped, outside the lock.
    Busy = 7,
    /// Given out, and in use on other streams too: freed by the slow way.
    Used = 8,
    /// Given out while a history is recorded, or memory is filled or guarded: freed by the slow way.
    Recorded = 9,
}

impl State {
    pub(crate) fn from_raw(raw: u32) -> Self {
        match raw {
            1 => Self::Free,
            2 => Self::Cached,
            3 => Self::Live,
            4 => Self::Pending,
            5 => Self::Slab,
            6 => Self::Unmapped,
            7 => Self::Busy,
            8 => Self::Used,
            9 => Self::Recorded,
            _ => Self::Vacant,
        }
    }

    /// Whether a user has the block.
    pub(crate) const fn is_given_out(self) -> bool {
        matches!(self, Self::Live | Self::Used | Self::Recorded)
    }
}

/// One block, 64 bytes: what a hit touches is in one cache line.
///
/// All fields are atomic so that a stale reader is harmless. Who may write: the state by compare-and-swap from `LIVE` or
/// by whoever holds the block otherwise; `link` and `content` by the holder; the neighbour and bin links under the arena's
/// lock.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct Block {
    /// First address.
    pub(crate) addr: AtomicU64,
    /// Of a block that was given out, what the user asked for, in bytes; of one in a magazine, the next one there.
    content: AtomicPtr<Block>,
    /// Size in units.
    pub(crate) units: AtomicU32,
    state: AtomicU32,
    /// The next block on the list that this one is on.
    pub(crate) link: AtomicU32,
    /// The cache (thread and arena) that the block goes back to; 0 for none.
    pub(crate) cache: AtomicU32,
    /// The record's own index.
    index: AtomicU32,
    /// The arena whose memory this is.
    pub(crate) arena: AtomicU32,
    /// The segment, or for a slot its slab.
    pub(crate) home: AtomicU32,
    /// The block before in the segment.
    pub(crate) before: AtomicU32,
    /// The block behind in the segment.
    pub(crate) behind: AtomicU32,
    /// Neighbours in the bin.
    pub(crate) bin_prev: AtomicU32,
    pub(crate) bin_next: AtomicU32,
    /// Whether `home` is a slab (1) or a segment (0).
    pub(crate) is_slot: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Block>() == 64);

// SAFETY: only atomics, valid when zero (`State::Vacant`), no drop.
unsafe impl Zeroed for Block {
    #[cfg(loom)]
    fn zeroed() -> Self {
        Self::default()
    }
}

/// All block records of a pool: up to 64 Mi of them.
pub(crate) type Blocks = Store<Block, { length(12, 4) as u32 }, { length(1 << 14, 2) }>;

impl Links for Blocks {
    #[inline(always)]
    fn link(&self, index: u32) -> &AtomicU32 {
        &self.get(index).link
    }
}

impl Block {
    /// Size in bytes.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> u64 {
        size_class::bytes(self.units())
    }

    /// Size in units.
    #[inline(always)]
    pub(crate) fn units(&self) -> u32 {
        // Relaxed: set before the block could be reached.
        self.units.load(Ordering::Relaxed)
    }

    /// First address.
    #[inline(always)]
    pub(crate) fn addr(&self) -> u64 {
        // Relaxed: set before the block could be reached.
        self.addr.load(Ordering::Relaxed)
    }

    /// First address behind the block.
    pub(crate) fn end(&self) -> u64 {
        self.addr() + self.bytes()
    }

    /// What the user asked for, in bytes. Of a block that was given out; of others it is any number.
    #[inline(always)]
    pub(crate) fn requested(&self) -> u64 {
        // Relaxed: whoever set it gave the pointer on to us by means that order the store.
        self.content.load(Ordering::Relaxed).addr() as u64
    }

    /// Notes what the user asked for.
    #[inline(always)]
    pub(crate) fn set_requested(&self, bytes: u64) {
        // Relaxed: the user gets the pointer from us, and passes it on by means that order the store.
        let bytes = ptr::without_provenance_mut(bytes as usize);
        self.content.store(bytes, Ordering::Relaxed);
    }

    /// The next block in a magazine, for whoever has the magazine.
    #[inline(always)]
    pub(crate) fn next(&self) -> *mut Self {
        // Relaxed, both: within one thread, or ordered by what makes the magazine another one's.
        self.content.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set_next(&self, next: *mut Self) {
        self.content.store(next, Ordering::Relaxed);
    }

    pub(crate) fn state(&self) -> State {
        // Relaxed: a momentary answer; whoever acts on it holds the arena's lock or the block.
        State::from_raw(self.state.load(Ordering::Relaxed))
    }

    /// Sets the state of a block that the caller holds.
    #[inline(always)]
    pub(crate) fn set_state(&self, state: State) {
        // Relaxed: handing the block on (list, table, user) publishes it.
        self.state.store(state as u32, Ordering::Relaxed);
    }

    /// The record's own index.
    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        // Relaxed: set when the record was taken, always to the same.
        self.index.load(Ordering::Relaxed)
    }

    /// Notes the record's own index, which never changes.
    pub(crate) fn set_index(&self, index: u32) {
        // Relaxed: published with the record.
        self.index.store(index, Ordering::Relaxed);
    }

    /// Changes the state if it is `from`; `false` if not. The one exchange of a free: of two threads that free the same
    /// pointer one loses.
    #[inline(always)]
    pub(crate) fn change(&self, from: State, to: State) -> bool {
        // AcqRel: what the user's thread did to the block happens before whatever we do with it. Relaxed on failure:
        // nothing follows.
        self.state
            .compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::meet;
    use loom::cell::UnsafeCell;

    #[derive(Default)]
    struct Shared {
        block: Block,
        /// What a thread does to it that has the block.
        contents: UnsafeCell<u32>,
    }

    impl Shared {
        fn live() -> Self {
            let shared = Self::default();
            shared.block.set_state(State::Live);
            shared
        }

        /// Touches the contents: loom reports two at once.
        fn touch(&self) {
            // SAFETY: loom reports a concurrent access.
            self.contents.with_mut(|contents| unsafe { *contents += 1 });
        }

        /// Touches the contents if the block is won.
        fn change(&self, from: State, to: State) -> bool {
            let won = self.block.change(from, to);
            if won {
                self.touch();
            }
            won
        }
    }

    #[test]
    fn one_of_two_frees_wins() {
        let free = |shared: &Shared| shared.change(State::Live, State::Cached);
        meet(Shared::live, free, free, |_, mine, theirs| assert_ne!(mine, theirs));
    }

    #[test]
    fn what_was_done_before_a_change_is_seen_after_the_next() {
        let begin = |shared: &Shared| {
            shared.touch();
            assert!(shared.block.change(State::Live, State::Used));
        };
        let go_on = |shared: &Shared| shared.change(State::Used, State::Pending);
        meet(Shared::live, begin, go_on, |_, (), _| {});
    }
}
