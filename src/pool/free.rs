//! A free that is not just a push to the calling thread's magazine; and uses on other streams.

use super::core::{count, forked};
use super::{Error, Pool, Result};
use crate::driver::{DevicePtr, Driver, Stream};
use crate::history::Action;
use crate::metadata::{Block, State};
use crate::size_class::CLASS_MAX;
use crate::stream::Use;
use crate::sync::lock;
use std::sync::atomic::Ordering::Relaxed;

impl<D: Driver> Pool<D> {
    /// [`Pool::free`] for what is not a hit; `size` is what the caller thinks it is, `also` a stream whose work so far uses
    /// the block too.
    #[cold]
    #[inline(never)]
    pub(super) fn free_slow(&self, addr: DevicePtr, size: Option<u64>, also: Option<Stream>) -> Result<()> {
        if forked() {
            return Err(Error::Forked);
        }
        let block = self.live(addr)?;
        let also = match also {
            Some(stream) => self.foreign_use(block, stream, true)?,
            None => None,
        };
        let used = block.change(State::Used, State::Pending);
        let unused = if also.is_some() { State::Pending } else { State::Cached };
        if !used && !block.change(State::Live, unused) && !block.change(State::Recorded, unused) {
            count(&self.core.events.double_frees);
            return Err(Error::DoubleFree { addr });
        }
        self.core.compare(block.requested.load(Relaxed), size);
        self.core.count_free(block);
        if !used && also.is_none() {
            self.note(Action::Free, block);
            self.put_away(block);
            return Ok(());
        }
        let mut uses = if used { self.uses.take(block) } else { Vec::new() };
        if let Some(also) = also {
            self.note_use(block, also.stream);
            uses.retain(|known| known.key != also.key);
            uses.push(also);
        }
        self.note(Action::FreeWaiting, block);
        self.wait_for(block, &uses);
        Ok(())
    }

    /// The live block that begins at `addr`; counts what is wrong otherwise.
    fn live(&self, addr: DevicePtr) -> Result<&Block> {
        let Some(block) = self.core.metadata.find(addr) else {
            count(&self.core.events.invalid_frees);
            return Err(Error::UnknownPointer { addr });
        };
        if block.state().is_given_out() {
            return Ok(block);
        }
        count(&self.core.events.double_frees);
        Err(Error::DoubleFree { addr })
    }

    /// A cached block that the calling thread took from the user: to its owner's list if it has one, otherwise back
    /// to its arena.
    fn put_away(&self, block: &Block) {
        let cache = block.cache.load(Relaxed);
        if cache != 0 {
            let cache = self.core.caches.get(cache);
            if cache.is_mine() {
                if !cache.push(block) {
                    self.core.overflow(block.index());
                }
                return;
            }
            // Large blocks go straight to the arena: a thread that only frees could hold gigabytes for one that is idle.
            // So does what came from a thread that has ended: nobody would look at its list.
            let remote = cache.is_anothers() && block.units() <= CLASS_MAX;
            if remote && cache.push_remote(&self.core.metadata.blocks, block) {
                return;
            }
        }
        self.core.put_back(block);
    }

    /// The use of a block by a stream, unless that is the block's own. `now` says that the free itself passes the handle.
    fn foreign_use(&self, block: &Block, stream: Stream, now: bool) -> Result<Option<Use>> {
        let key = self.stream_key(stream)?;
        if self.core.arena_of(block).key.stream == key {
            return Ok(None);
        }
        Ok(Some(Use {
            key,
            stream,
            usable: now || self.is_durable(key),
        }))
    }

    /// [`Pool::record_stream`].
    pub(super) fn add_use(&self, addr: DevicePtr, stream: Stream) -> Result<()> {
        let block = self.live(addr)?;
        if let Some(new) = self.foreign_use(block, stream, false)? {
            self.uses.add(block, new);
            self.note_use(block, stream);
        }
        Ok(())
    }

    /// Records an event for each use, now, and lets the block wait for them. One without an event (the handle may be
    /// dead, the stream is capturing, the driver failed) puts the block aside until the context was synchronised.
    fn wait_for(&self, block: &Block, uses: &[Use]) {
        self.core.totals.add_pending(block.bytes());
        self.waiting.fetch_add(1, Relaxed);
        let mut pending = lock(&self.pending);
        let mut events = Vec::with_capacity(uses.len());
        for used in uses {
            // Asked of the legacy stream too: while a blocking stream captures, an event on it would end that capture,
            // and the answer is an error, which does not.
            let capturing = |stream: Stream| self.driver.is_capturing(stream) != Ok(false);
            let event = (used.usable && !capturing(used.stream)).then(|| pending.event(&self.driver));
            match event {
                Some(Ok(event)) if self.driver.event_record(event, used.stream).is_ok() => {
                    count(&self.core.events.recorded);
                    events.push((used.key, event));
                }
                other => {
                    if let Some(Ok(event)) = other {
                        pending.put_back(event);
                    }
                    // The events so far are spare again: synchronising covers them.
                    events.drain(..).for_each(|(_, event)| pending.put_back(event));
                    pending.add_aside(block.index());
                    return;
                }
            }
        }
        pending.add(block.index(), &events);
    }
}
