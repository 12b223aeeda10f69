//! Times blocks that one thread allocates and another frees.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
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
        let (batches, received) = sync_channel(WAITING);
        scope.spawn(move || {
            while let Some(blocks) = receive(&received) {
                blocks.into_iter().for_each(|block| allocator.free(block));
            }
        });
        let mut left = count;
        while left > 0 {
            let batch = left.min(BATCH);
            let blocks: Vec<Block> = (0..batch).map_while(|_| allocator.alloc(size)).collect();
            let complete = blocks.len() as u64 == batch;
            send(&batches, blocks)?;
            if !complete {
                return None;
            }
            left -= batch;
        }
        Some(())
    })?;
    Some(start.elapsed())
}

/// Waits for room without sleeping: to wake a thread up takes as long as a hundred blocks.
fn send(batches: &SyncSender<Vec<Block>>, mut blocks: Vec<Block>) -> Option<()> {
    loop {
        match batches.try_send(blocks) {
            Ok(()) => return Some(()),
            Err(TrySendError::Full(back)) => blocks = back,
            Err(TrySendError::Disconnected(_)) => return None,
        }
        thread::yield_now();
    }
}

/// The next batch, waited for in the same way; None after the last.
fn receive(batches: &Receiver<Vec<Block>>) -> Option<Vec<Block>> {
    loop {
        match batches.try_recv() {
            Ok(blocks) => return Some(blocks),
            Err(TryRecvError::Empty) => thread::yield_now(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}
