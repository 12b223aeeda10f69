//! What the machine itself does with threads that share nothing: an allocator's kind of work, on memory of the thread's own.

use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use super::allocator::{Allocator, Block};

/// How many numbers a call adds to: with them a pair takes about as many instructions as one of the pool's.
const NUMBERS: usize = 24;

/// Numbers on cache lines of their own.
#[repr(align(128))]
struct Numbers([AtomicU64; NUMBERS]);

thread_local! {
    static NUMBERS_OF_THREAD: Numbers = const { Numbers([const { AtomicU64::new(0) }; NUMBERS]) };
}

/// No allocator: a call adds to numbers that only the calling thread has, and a free exchanges one of them besides.
#[derive(Clone, Copy)]
pub struct Machine;

fn add(size: usize, exchange: bool) {
    NUMBERS_OF_THREAD.with(|Numbers(numbers)| {
        // Relaxed: nobody else has them.
        for number in numbers {
            number.store(number.load(Relaxed).wrapping_add(size as u64), Relaxed);
        }
        if exchange {
            let was = numbers[0].load(Relaxed);
            // AcqRel: what an allocator's exchange is. It cannot fail.
            let _ = numbers[0].compare_exchange(was, 0, AcqRel, Relaxed);
        }
    });
}

impl Allocator for Machine {
    #[inline]
    fn alloc(&self, size: usize) -> Option<Block> {
        add(size, false);
        Some(Block::new(ptr::without_provenance_mut(size.max(1)), size))
    }

    #[inline]
    fn free(&self, block: Block) {
        add(block.size(), true);
    }
}
