//! Ready blocks of one size, the last one first: a list through the blocks' own records.

use crate::metadata::Block;
use crate::sync::atomic::AtomicPtr;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

/// One such list. It changes only within the section of its cache's owner, or while a taker has it.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct Magazine(AtomicPtr<Block>);

impl Magazine {
    /// The first block.
    #[inline(always)]
    pub(super) fn first(&self) -> Option<&Block> {
        // Relaxed, here and below: within the owner's section or a taker's.
        let first = self.0.load(Relaxed);
        // SAFETY: by the contract of `Cache::push` all blocks here outlive the cache.
        unsafe { first.as_ref() }
    }

    /// Takes the first block out.
    #[inline(always)]
    pub(super) fn get(&self, first: &Block) {
        self.0.store(first.next(), Relaxed);
    }

    /// Puts a block in front.
    #[inline(always)]
    pub(super) fn put(&self, block: &Block) {
        block.set_next(self.0.load(Relaxed));
        self.0.store(ptr::from_ref(block).cast_mut(), Relaxed);
    }

    /// Takes all blocks out, and puts them before a chain.
    pub(super) fn empty(&self, mut chain: u32) -> u32 {
        for block in self.blocks() {
            block.link.store(chain, Relaxed);
            chain = block.index();
        }
        self.0.store(ptr::null_mut(), Relaxed);
        chain
    }

    /// All blocks, the first one first.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &Block> {
        // SAFETY: as in `first`.
        std::iter::successors(self.first(), |block| unsafe { block.next().as_ref() })
    }
}
