//! Times blocks that one thread allocates and another frees.

use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use super::allocator::{Allocator, Block};

/// How many blocks are handed over at once, so that what is measured is the allocator and not the channel.
const BATCH: u64 = 256;
/// How many batches wait for the other thread.
const WAITING: usize = 2;

/// The time of `count` blocks of `size` bytes, from the first allocation to the last free. At most four batches live at once.
///
/// None where an allocation failed.
pub fn handed_over(allocator: impl Allocator, size: usize, count: u64) -> Option<Duration> {
    let start = Instant::now();
    thread::scope(|scope| {
        let (batches, received) = sync_channel::<Vec<Block>>(WAITING);
        scope.spawn(move || received.iter().flatten().for_each(|block| allocator.free(block)));
        let mut left = count;
        while left > 0 {
            let batch = left.min(BATCH);
            let blocks: Vec<Block> = (0..batch).map_while(|_| allocator.alloc(size)).collect();
            let complete = blocks.len() as u64 == batch;
            batches.send(blocks).ok()?;
            if !complete {
                return None;
            }
            left -= batch;
        }
        Some(())
    })?;
    Some(start.elapsed())
}
