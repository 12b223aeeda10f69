//! The hit path: what a request and a free do where the calling thread has what they need. No lock, no driver call.

use super::core::{Core, count};
use crate::driver::{DevicePtr, Stream};
use crate::error::Result;
use crate::metadata::{Block, State};
use crate::size_class::{self, CLASS_MAX};
use crate::sync::atomic::Ordering::Relaxed;
use crate::thread::{Busy, Cache, Current};
use std::ffi::c_void;
use std::ptr;
use std::time::Instant;

/// What a request on the hit path got.
pub(crate) enum Hit<'a> {
    /// Nothing.
    Miss,
    /// A block, given out.
    Block(DevicePtr),
    /// A block, given out, about which there is something to do.
    Rest(Rest<'a>),
}

/// A block that was given out, and the cache that it is from.
pub(crate) struct Rest<'a> {
    core: &'a Core,
    cache: &'a Cache,
    block: &'a Block,
}

impl Rest<'_> {
    /// Does it; the block's address, as the C functions return it. In last place of a hit it needs no stack frame.
    #[inline(always)]
    pub(crate) fn finish(self) -> *mut c_void {
        self.core.finish_alloc(self.cache, self.block)
    }

    /// Does it, for the functions that return a result: in last place as above.
    #[inline(always)]
    pub(crate) fn result(self) -> Result<DevicePtr> {
        self.core.finish_result(self.cache, self.block)
    }
}

impl Hit<'_> {
    /// The block, if there is one.
    #[inline(always)]
    pub(crate) fn addr(self) -> Option<DevicePtr> {
        match self {
            Self::Miss => None,
            Self::Block(addr) => Some(addr),
            Self::Rest(rest) => Some(rest.finish().addr() as u64),
        }
    }
}

/// An address as the C functions return it.
pub(crate) fn pointer(addr: DevicePtr) -> *mut c_void {
    ptr::with_exposed_provenance_mut(addr as usize)
}

/// Gives a held block to the user.
#[inline(always)]
pub(super) fn hand_out(block: &Block, requested: u64) {
    block.set_requested(requested);
    block.set_state(State::Live);
}

impl Core {
    /// A block from the calling thread's magazine, if it has one: no lock, no driver call, and no write to what other threads
    /// use. Not for a forked child.
    #[inline(always)]
    pub(crate) fn alloc_hit(&self, bytes: u64, stream: Stream) -> Hit<'_> {
        match self.own.enter(stream.0) {
            Some(busy) => self.pop(busy, size_class::hit_units(bytes), bytes),
            None => Hit::Miss,
        }
    }

    /// A block from the calling thread's magazines, if it has one of so many units.
    #[inline(always)]
    pub(crate) fn pop<'a>(&'a self, busy: Busy<'a>, units: u64, requested: u64) -> Hit<'a> {
        let cache = busy.cache();
        // Two ways from here to the end, so that nobody asks for the kind twice.
        if units <= CLASS_MAX.into() {
            let Some((block, more)) = busy.pop_small(units, requested) else {
                return Hit::Miss;
            };
            hand_out(block, requested);
            self.handed_out(cache, block, more)
        } else {
            let Some((block, more)) = busy.pop_large(units, requested) else {
                return Hit::Miss;
            };
            hand_out(block, requested);
            self.handed_out(cache, block, more)
        }
    }

    #[inline(always)]
    fn handed_out<'a>(&'a self, cache: &'a Cache, block: &'a Block, more: bool) -> Hit<'a> {
        if more {
            let core = self;
            Hit::Rest(Rest { core, cache, block })
        } else {
            Hit::Block(block.addr())
        }
    }

    /// Takes a block back into the calling thread's magazine, if that is where it belongs; `false`, with nothing done, for
    /// any other pointer. A `size` that is not what was asked for is counted. Not for a forked child.
    #[inline(always)]
    pub(crate) fn free_hit(&self, addr: DevicePtr, size: Option<u64>) -> bool {
        let Some(block) = self.metadata.find(addr) else {
            return false;
        };
        // Relaxed: whoever set it gave the pointer on to us by means that order the store.
        let cache = self.caches.get(block.cache.load(Relaxed));
        if !cache.is_mine() || !block.change(State::Live, State::Cached) {
            return false;
        }
        let (requested, units) = (block.requested(), block.units());
        self.compare(requested, size);
        // SAFETY: records and caches are both ours.
        let taken = unsafe {
            if units <= CLASS_MAX {
                cache.take_small(block, units, requested)
            } else {
                cache.take_large(block, units, requested)
            }
        };
        if !taken {
            self.finish_free(cache, block);
        }
        true
    }

    /// The rare rest of a free: one that the magazine did not take at once. A call in last place, and one that cannot unwind,
    /// leaves the hit path without a stack frame.
    #[cold]
    #[inline(never)]
    extern "C" fn finish_free(&self, cache: &Cache, block: &Block) {
        cache.count_free(&self.totals, block.units(), block.requested());
        // SAFETY: records and caches are both ours.
        if !unsafe { cache.push(block, block.units()) } {
            self.overflow(block);
        }
    }

    /// The rare rest of an allocation: there is something to tell, a new peak to look for, or a hit to be timed. As
    /// [`Self::finish_free`].
    #[cold]
    #[inline(never)]
    extern "C" fn finish_alloc(&self, cache: &Cache, block: &Block) -> *mut c_void {
        self.settle(cache);
        if cache.samples_next() {
            self.own.forget(cache);
            Current::sample_next(self.number, cache.index);
        }
        pointer(block.addr())
    }

    /// What an allocation may ask for, of a cache of the calling thread.
    pub(super) fn settle(&self, cache: &Cache) {
        if cache.settle(&self.totals, self.owners()) {
            let mine = self.caches.iter().filter(|other| other.is_mine());
            mine.for_each(Cache::open);
        }
    }

    /// As [`Self::finish_alloc`]; the address as a result.
    #[cold]
    #[inline(never)]
    fn finish_result(&self, cache: &Cache, block: &Block) -> Result<DevicePtr> {
        self.finish_alloc(cache, block);
        Ok(block.addr())
    }

    /// A hit that is timed, as this cache said. A stream that is not a default one gets none.
    pub(crate) fn timed_hit(&self, cache: u32, bytes: u64, stream: Stream) -> Option<DevicePtr> {
        let cache = Some(self.caches.get(cache)).filter(|cache| cache.is_mine() && cache.is_default())?;
        // SAFETY: caches and the table are both ours.
        unsafe { self.own.remember(cache) };
        let began = Instant::now();
        let addr = self.alloc_hit(bytes, stream).addr()?;
        self.events.hit_times.add(began.elapsed());
        Some(addr)
    }

    /// Counts a free whose size is not the block's.
    #[inline(always)]
    pub(crate) fn compare(&self, requested: u64, size: Option<u64>) {
        if size.is_some_and(|size| size != requested) {
            count(&self.events.wrong_size_frees);
        }
    }

    /// A cached block found no room in its magazine. As [`Self::finish_free`].
    #[cold]
    #[inline(never)]
    pub(crate) extern "C" fn overflow(&self, block: &Block) {
        let cache = self.caches.get(block.cache.load(Relaxed));
        // For small blocks all of the magazines make room, so that what fills them need not be what is used now. Large
        // ones have the room that they have.
        if block.units() <= CLASS_MAX {
            self.share(self.arena_of(block), cache.take_own());
            // SAFETY: records and caches are both ours.
            if unsafe { cache.push(block, block.units()) } {
                return;
            }
        }
        self.put_back(block);
    }
}
