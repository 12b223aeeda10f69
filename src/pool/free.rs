//! A free that is not just a push to the calling thread's magazine; and uses on other streams.

use super::core::{count, forked};
use super::{Core, Error, Pool, Result};
use crate::driver::{DevicePtr, Driver, Stream};
use crate::history::Action;
use crate::metadata::{Block, State};
use crate::size_class::CLASS_MAX;
use crate::stream::{Pending, Recorded, Use};
use crate::sync::lock;
use crate::thread::token;
use std::sync::atomic::Ordering::Relaxed;

/// Less than this is not worth waiting for the context, in bytes.
const UNSEEN_LEAST: u64 = 64 << 20;

/// What may use a block that is freed.
pub(super) enum Last {
    /// Its own stream, and the uses that were recorded.
    Known,
    /// Those, and what this stream, live now, has been given so far.
    On(Stream),
    /// Those, or, where none was recorded, any work of the context.
    Unknown,
}

impl<D: Driver> Pool<D> {
    /// [`Pool::free`] for what is not a hit; `size` is what the caller thinks it is, `last` what may use the block beside its
    /// own stream and the uses that were recorded.
    #[cold]
    #[inline(never)]
    pub(super) fn free_slow(&self, addr: DevicePtr, size: Option<u64>, last: Last) -> Result<()> {
        if forked() {
            return Err(Error::Forked);
        }
        let block = self.live(addr).inspect_err(|error| {
            count(match error {
                Error::DoubleFree { .. } => &self.core.events.double_frees,
                _ => &self.core.events.invalid_frees,
            });
        })?;
        let also = match last {
            Last::On(stream) => self.foreign_use(block, stream, true)?,
            Last::Known | Last::Unknown => None,
        };
        let used = block.state() == State::Used && block.change(State::Used, State::Pending);
        let arena = self.core.arena_of(block);
        let guarded = self.is_guarded(arena);
        // Blocks of captures are never plainly live.
        let by_context = guarded || (block.state() != State::Live && self.has_left_its_capture(arena));
        let waits = by_context || also.is_some() || matches!(last, Last::Unknown);
        let unused = if waits { State::Pending } else { State::Cached };
        if !used && !block.change(State::Live, unused) && !block.change(State::Recorded, unused) {
            count(&self.core.events.double_frees);
            return Err(Error::DoubleFree { addr });
        }
        self.core.compare(block.requested(), size);
        if !used && !waits {
            self.core.count_free(block);
            self.note(Action::Free, block);
            self.poison_freed(block);
            put_away(&self.core, block);
            return Ok(());
        }
        self.core.count_waiting(block);
        let mut uses = if used { self.uses.take(block) } else { Vec::new() };
        if let Some(also) = also {
            self.note_use(block, also.stream);
            // What is recorded now covers what was recorded before.
            let covered = uses.extract_if(.., |known| known.key == also.key);
            for recorded in covered.filter_map(|known| known.recorded) {
                lock(&self.pending).put_back(recorded.event);
            }
            uses.push(also);
        }
        self.note(Action::FreeWaiting, block);
        self.wait_for(block, &uses, by_context);
        if guarded {
            // Where the device cannot be waited for now it waits for the next time that it can.
            let _ = self.quiesce();
        }
        Ok(())
    }

    /// The live block that begins at `addr`.
    fn live(&self, addr: DevicePtr) -> Result<&Block> {
        let block = self.core.metadata.find(addr).ok_or(Error::UnknownPointer { addr })?;
        if block.state().is_given_out() {
            Ok(block)
        } else {
            Err(Error::DoubleFree { addr })
        }
    }

    /// As [`Self::live`], and counts what is not one, for a use that is to be recorded.
    fn live_to_record(&self, addr: DevicePtr) -> Result<&Block> {
        self.live(addr)
            .inspect_err(|_| count(&self.core.events.invalid_records))
    }

    /// The use of a block by a stream, unless that is the block's own. `now` says that the free itself passes the handle.
    fn foreign_use(&self, block: &Block, stream: Stream, now: bool) -> Result<Option<Use>> {
        let key = self.known(stream)?.key;
        if self.core.arena_of(block).key().stream == key {
            return Ok(None);
        }
        Ok(Some(Use {
            key,
            stream,
            usable: now || self.is_durable(key),
            recorded: None,
        }))
    }

    /// [`Pool::record_stream`].
    pub(super) fn add_use(&self, addr: DevicePtr, stream: Stream) -> Result<()> {
        let block = self.live_to_record(addr)?;
        if let Some(new) = self.foreign_use(block, stream, false)? {
            self.add_to_uses(block, new);
            self.note_use(block, stream);
        }
        Ok(())
    }

    /// [`Pool::record_work`].
    pub(super) fn add_use_so_far(&self, addr: DevicePtr, stream: Stream) -> Result<()> {
        let block = self.live_to_record(addr)?;
        if let Some(mut new) = self.foreign_use(block, stream, true)? {
            new.recorded = self.record_use(&mut lock(&self.pending), &new);
            // The handle is live in this call only.
            new.usable = false;
            self.add_to_uses(block, new);
            self.note_use(block, stream);
        }
        Ok(())
    }

    /// Whether as much waits for a synchronisation of the context as is in use otherwise, 64 MiB at least: then that is worth
    /// more than to grow.
    pub(crate) fn is_much_unseen(&self) -> bool {
        let unseen = self.unseen_bytes();
        unseen >= UNSEEN_LEAST && unseen >= self.pages.reserved() / 2
    }

    fn add_to_uses(&self, block: &Block, new: Use) {
        if let Some(event) = self.uses.add(block, new) {
            lock(&self.pending).put_back(event);
        }
    }

    /// The event of a use: the one that it has, or one recorded now. `None` where none can be recorded: the handle may be
    /// dead, the stream is capturing, or the driver failed.
    fn record_use(&self, pending: &mut Pending, used: &Use) -> Option<Recorded> {
        if used.recorded.is_some() {
            return used.recorded;
        }
        // Asked of the legacy stream too: while a blocking stream captures, an event on it would end that capture,
        // and the answer is an error, which does not.
        if !used.usable || self.driver.is_capturing(used.stream) != Ok(false) {
            return None;
        }
        let recorded = pending.record(&self.driver, used.stream).ok()?;
        count(&self.core.events.recorded);
        Some(recorded)
    }

    /// Lets the block wait for the events of its uses. Without one of them, or without any, and where nothing less will do
    /// (`by_context`), it is put aside until the context was synchronised.
    fn wait_for(&self, block: &Block, uses: &[Use], by_context: bool) {
        let arena = self.core.arena_of(block);
        if self.driver.is_host(arena.stream()) {
            arena.patience.note_free(token());
        }
        self.waiting.fetch_add(1, Relaxed);
        let mut pending = lock(&self.pending);
        let recorded = if by_context { &[] } else { uses };
        let events: Vec<_> = recorded
            .iter()
            .map_while(|used| Some((used.key, self.record_use(&mut pending, used)?)))
            .collect();
        if events.len() == uses.len() && !uses.is_empty() {
            pending.add(block.index(), &events);
            return;
        }
        // Synchronising covers the events too. Those after the missing one were not looked at.
        let later = uses.iter().skip(events.len()).filter_map(|used| used.recorded);
        for recorded in events.into_iter().map(|(_, recorded)| recorded).chain(later) {
            pending.put_back(recorded.event);
        }
        pending.add_aside(block.index(), block.bytes());
    }
}

/// A cached block that the calling thread took from the user: to its owner's list if it has one, otherwise back
/// to its arena.
pub(super) fn put_away(core: &Core, block: &Block) {
    let cache = block.cache.load(Relaxed);
    if cache != 0 {
        let cache = core.caches.get(cache);
        if cache.is_mine() {
            // SAFETY: records and caches are both the pool's.
            if !unsafe { cache.push(block, block.units()) } {
                core.overflow(block);
            }
            return;
        }
        // Large blocks go straight to the arena: a thread that only frees could hold gigabytes for one that is idle.
        // So does what came from a thread that has ended: nobody would look at its list.
        let remote = cache.is_anothers() && block.units() <= CLASS_MAX;
        if remote && cache.push_remote(&core.metadata.blocks, block) {
            return;
        }
    }
    core.put_back(block);
}
