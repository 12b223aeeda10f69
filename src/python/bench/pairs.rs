//! Times pairs of alloc and free.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::allocator::{Allocator, Block};

/// The time of `count` pairs of `size` bytes in each of `threads` threads, from the first start to the last end.
///
/// None where an allocation failed.
pub fn pairs(allocator: impl Allocator, size: usize, count: u64, threads: usize) -> Option<Duration> {
    let run = || (0..count).try_for_each(|_| allocator.alloc(size).map(|block| allocator.free(block)));
    if threads <= 1 {
        // One pair first: the first takes memory from the device.
        allocator.free(allocator.alloc(size)?);
        let start = Instant::now();
        return run().map(|()| start.elapsed());
    }
    let barrier = Barrier::new(threads);
    let spans: Vec<Option<(Instant, Instant)>> = thread::scope(|scope| {
        let worker = || {
            let warm = allocator.alloc(size).map(|block| allocator.free(block));
            barrier.wait();
            let start = Instant::now();
            warm.and_then(|()| run()).map(|()| (start, Instant::now()))
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().ok().flatten()).collect()
    });
    let spans = spans.into_iter().collect::<Option<Vec<_>>>()?;
    let start = spans.iter().map(|(start, _)| *start).min()?;
    let end = spans.iter().map(|(_, end)| *end).max()?;
    Some(end - start)
}

/// The time of `count` pairs of `size` bytes behind `holes` free blocks of the same size that have no free neighbour.
///
/// None where an allocation failed.
pub fn pairs_behind_holes(allocator: impl Allocator, size: usize, count: u64, holes: usize) -> Option<Duration> {
    let mut blocks = Vec::with_capacity(2 * holes + 1);
    let filled = (0..=2 * holes).try_for_each(|_| allocator.alloc(size).map(|block| blocks.push(block)));
    // Every second block goes, so each hole has a live block on both sides.
    let kept = free_every_second(allocator, blocks);
    let time = filled.and_then(|()| pairs(allocator, size, count, 1));
    kept.into_iter().for_each(|block| allocator.free(block));
    time
}

fn free_every_second(allocator: impl Allocator, blocks: Vec<Block>) -> Vec<Block> {
    let (mut kept, mut index) = (Vec::with_capacity(blocks.len() / 2 + 1), 0);
    for block in blocks {
        if index % 2 == 0 {
            kept.push(block)
        } else {
            allocator.free(block)
        }
        index += 1;
    }
    kept
}
