//! Private pools: memory that graph captures were given stays theirs for as long as the graphs may be replayed.
//!
//! A private pool is a set of arenas, one for each stream that allocated into it, beside the streams' own. While it has
//! holders nothing of it is unmapped or given to anyone else. Once the last has gone its idle memory is like any other: it is only
//! taken after the context was synchronised.

use super::{Known, Pool, Result};
use crate::arena::{Arena, ArenaKey, Owner, StreamKey};
use crate::driver::{Driver, Stream};
use crate::sync::lock;
use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// A private pool's name, as PyTorch's `MempoolId_t`.
pub type PrivateId = (u64, u64);

/// First half of the ids that the pool itself gives to captures that nobody announced; the second is the capture's.
const UNANNOUNCED: u64 = u64::MAX;

/// Decides for a stream, in the thread that allocates, whether its requests go to a private pool.
type Filter = Box<dyn Fn(Stream) -> bool + Send>;

/// What a [`Pool::begin_private`] began.
struct Open {
    id: PrivateId,
    filter: Filter,
    /// Whether it has served a stream that does not capture: then it is a pool of the user's choice, and no capture.
    plain: bool,
}

/// Which requests go where.
#[derive(Default)]
pub(super) struct Routes {
    open: Vec<Open>,
    holders: HashMap<PrivateId, u32>,
}

impl Routes {
    /// Ends everything that was begun.
    pub(super) fn close(&mut self) {
        self.open.clear();
    }
}

impl<D: Driver> Pool<D> {
    /// From now to [`Self::end_private`] requests for which `filter` holds come from the private pool `id`; it has one
    /// holder more. The filter is called in the allocating thread, never after `end_private` has returned, and must not
    /// call the pool. Where another thread waits for the device, which would end a capture, that wait comes first.
    pub fn begin_private(&self, id: PrivateId, filter: impl Fn(Stream) -> bool + Send + 'static) {
        let _nobody_waits = self.announcing.write().unwrap_or_else(PoisonError::into_inner);
        let mut routes = lock(&self.routes);
        routes.open.push(Open {
            id,
            filter: Box::new(filter),
            plain: false,
        });
        *routes.holders.entry(id).or_default() += 1;
        self.set_holders(&routes, id);
        self.core.watch();
    }

    /// Ends what the last [`Self::begin_private`] with this id began. Unknown ids are ignored.
    pub fn end_private(&self, id: PrivateId) {
        let mut routes = lock(&self.routes);
        if let Some(place) = routes.open.iter().rposition(|open| open.id == id) {
            drop(routes.open.remove(place));
            self.core.unwatch();
        }
    }

    /// One holder less. Unknown ids are ignored.
    pub fn release_private(&self, id: PrivateId) {
        let mut routes = lock(&self.routes);
        if let Some(holders) = routes.holders.get_mut(&id) {
            *holders = holders.saturating_sub(1);
            self.set_holders(&routes, id);
        }
        routes.holders.retain(|_, holders| *holders > 0);
    }

    /// One holder more, for as long as somebody's object names the pool.
    pub fn hold_private(&self, id: PrivateId) {
        let mut routes = lock(&self.routes);
        *routes.holders.entry(id).or_default() += 1;
        self.set_holders(&routes, id);
    }

    /// The bytes that each private pool holds from the driver, of those that hold any.
    pub fn private_pools(&self) -> BTreeMap<PrivateId, u64> {
        let mut pools = BTreeMap::new();
        self.core.each_owned(|key, arena| {
            let held = arena.lock(&self.core.metadata).held();
            if let (Some(id), 1..) = (key.private, held) {
                *pools.entry(id).or_default() += held;
            }
        });
        pools
    }

    /// Whether the arena is that of a stream which was known by its handle alone, as it captured, and the capture is over. Then
    /// nobody can tell whether the handle is that stream's still, which may have been given work with the arena's blocks since.
    pub(super) fn has_left_its_capture(&self, arena: &Arena) -> bool {
        match arena.key() {
            ArenaKey {
                stream: StreamKey::Capturing(_),
                private: Some(id),
            } => id.0 != UNANNOUNCED && lock(&self.routes).open.iter().all(|open| open.id != id),
            _ => false,
        }
    }

    fn set_holders(&self, routes: &Routes, id: PrivateId) {
        let holders = routes.holders.get(&id).copied().unwrap_or(0);
        self.core.each_owned(|key, arena| {
            if key.private == Some(id) {
                arena.holders.store(holders, Relaxed);
            }
        });
    }

    /// Whether a capture may be under way, which a wait for the device would end. Those that nobody announced are seen
    /// when their streams are blocking or kept ones.
    pub(crate) fn may_capture(&self) -> bool {
        let capturing = |stream| self.driver.is_capturing(stream) != Ok(false);
        let unannounced = |arena: &Arena| {
            let Owner { key, stream } = arena.owner();
            key.private.is_some_and(|(first, _)| first == UNANNOUNCED)
                && self.is_durable(key.stream)
                && capturing(stream)
        };
        lock(&self.routes).open.iter().any(|open| !open.plain)
            || capturing(Stream::LEGACY)
            || self.core.arenas.iter().any(unannounced)
    }

    /// The private pool that a request goes to, if any; its arena is made here so that it has its holders from the start.
    pub(super) fn route(&self, known: &Known, stream: Stream) -> Result<Option<PrivateId>> {
        let key = known.key;
        let announced = if !self.core.is_watched() {
            None
        } else {
            let mut routes = lock(&self.routes);
            // The last one begun decides, as nested contexts expect.
            let found = routes.open.iter_mut().rev().find(|open| (open.filter)(stream));
            let captures = || {
                known
                    .capturing
                    .unwrap_or_else(|| self.driver.is_capturing(stream) != Ok(false))
            };
            let found = found.map(|open| {
                open.plain = open.plain || !captures();
                open.id
            });
            if let Some(id) = found {
                // Until it has its holders nobody may take it for empty.
                let _visit = self.arena_for(
                    ArenaKey {
                        stream: key,
                        private: Some(id),
                    },
                    stream,
                )?;
                self.set_holders(&routes, id);
            }
            found
        };
        if announced.is_some() || known.capturing != Some(true) {
            return Ok(announced);
        }
        // A capture by a library that tells us nothing: its graph may be replayed for ever, and beside every other.
        let private = (UNANNOUNCED, self.driver.capture_id(stream)?);
        let visit = self.arena_for(
            ArenaKey {
                stream: key,
                private: Some(private),
            },
            stream,
        )?;
        visit.arena().holders.store(1, Relaxed);
        Ok(Some(private))
    }
}
