//! Whose an arena is.
//!
//! Nobody hears when a stream is destroyed, and streams may come and go for as long as a process runs. So an arena outlives its stream, and
//! is given to another one when it is empty.
//!
//! Invariant: an arena changes its owner only while it has no segment, so that there is no block of it anywhere, and while no request
//! is under way that was told to use it.

use super::Arena;
use crate::driver::Stream;
use crate::sync::atomic::AtomicU32;
use crate::sync::lock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Whose memory an arena holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum StreamKey {
    /// The legacy default stream.
    Legacy,
    /// The default stream of the thread with this number.
    PerThread(u64),
    /// The stream with this identity.
    Id(u64),
    /// A stream with this handle that captured, and whose identity the driver did not tell: only in private pools, whose
    /// captures it outlives.
    Capturing(usize),
}

impl StreamKey {
    /// Whether it is a default stream, which is never destroyed.
    pub(crate) fn is_default(self) -> bool {
        matches!(self, Self::Legacy | Self::PerThread(_))
    }
}

/// Which arena: a stream's own, or a private pool's for that stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ArenaKey {
    pub(crate) stream: StreamKey,
    /// The private pool's id; `None` outside captures.
    pub(crate) private: Option<(u64, u64)>,
}

/// Whose an arena is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) key: ArenaKey,
    /// The stream's handle as it was first passed.
    pub(crate) stream: Stream,
}

/// How many requests under way use an arena.
#[derive(Default)]
pub(super) struct Visits(AtomicU32);

/// A request that uses an arena.
pub(crate) struct Visit<'a>(&'a Arena);

impl<'a> Visit<'a> {
    /// The arena, for as long as the request is under way.
    pub(crate) fn arena(&self) -> &'a Arena {
        self.0
    }

    /// Goes on until [`Arena::end_visit`].
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.end_visit();
    }
}

impl Arena {
    /// Whose it is. It stays so while the caller is on a [`Visit`], or has a block of it.
    pub(crate) fn owner(&self) -> Owner {
        *lock(&self.owner)
    }

    /// The stream's key, and the private pool's id.
    pub(crate) fn key(&self) -> ArenaKey {
        self.owner().key
    }

    /// The stream's handle as it was first passed.
    pub(crate) fn stream(&self) -> Stream {
        self.owner().stream
    }

    /// A request that uses the arena, until it is dropped. Under the lock under which arenas change their owners.
    pub(crate) fn visit(&self) -> Visit<'_> {
        // Relaxed: ordered by that lock.
        self.visits.0.fetch_add(1, Relaxed);
        Visit(self)
    }

    /// Ends what [`Visit::keep`] kept.
    pub(crate) fn end_visit(&self) {
        // Release: pairs with the load in `is_vacant`.
        self.visits.0.fetch_sub(1, Release);
    }

    /// Whether nobody has a block of the arena, or uses it. Under the lock under which arenas change their owners.
    pub(crate) fn is_vacant(&self) -> bool {
        // Acquire: what the last request did to the arena comes before what the next owner does.
        self.visits.0.load(Acquire) == 0 && !self.is_in_use() && self.holders.load(Relaxed) == 0
    }

    /// The thread whose default stream's memory this is gives its cache back: it ends.
    pub(crate) fn end_thread(&self) {
        if matches!(self.key().stream, StreamKey::PerThread(_)) {
            // Relaxed: the arena is looked at again whenever this was not seen yet.
            self.ended.store(true, Relaxed);
        }
    }

    /// Whether [`Self::end_thread`] was called since the arena has its owner.
    pub(crate) fn thread_has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Gives a vacant arena to another owner. Under the lock under which arenas change their owners.
    pub(crate) fn change_owner(&self, owner: Owner) {
        *lock(&self.owner) = owner;
        // Relaxed: ordered by the lock under which arenas change their owners.
        self.ended.store(false, Relaxed);
        self.unsettle();
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::{Mutex, meet};
    use loom::cell::UnsafeCell;

    struct Shared {
        /// The lock under which arenas change their owners.
        owners: Mutex<()>,
        arena: Arena,
        /// What requests do to the arena.
        contents: UnsafeCell<u32>,
    }

    fn owner(id: u64) -> Owner {
        let stream = StreamKey::Id(id);
        Owner {
            key: ArenaKey { stream, private: None },
            stream: Stream(id as usize),
        }
    }

    fn owned() -> Shared {
        let Owner { key, stream } = owner(1);
        Shared {
            owners: Mutex::new(()),
            arena: Arena::new(1, key, stream, false),
            contents: UnsafeCell::new(0),
        }
    }

    impl Shared {
        fn touch(&self) {
            // SAFETY: loom reports a concurrent access.
            self.contents.with_mut(|contents| unsafe { *contents += 1 });
        }

        fn change_if_vacant(&self) -> bool {
            let _owners = lock(&self.owners);
            let vacant = self.arena.is_vacant();
            if vacant {
                self.touch();
                self.arena.change_owner(owner(2));
            }
            vacant
        }
    }

    fn request(shared: &Shared) {
        let visit = {
            let _owners = lock(&shared.owners);
            // Gone to the other stream meanwhile: the request would get another arena.
            (shared.arena.key() == owner(1).key).then(|| shared.arena.visit())
        };
        if let Some(visit) = visit {
            assert_eq!(visit.arena().key(), owner(1).key);
            shared.touch();
        }
    }

    #[test]
    fn an_arena_keeps_its_owner_while_a_request_uses_it() {
        meet(owned, request, Shared::change_if_vacant, |shared, (), changed| {
            assert!(changed || shared.change_if_vacant());
        });
    }
}
