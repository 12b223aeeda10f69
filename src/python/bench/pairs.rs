//! Times pairs of alloc and free.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::allocator::{Allocator, Block};

/// The time of `count` pairs of `size` bytes in each of `threads` threads, from the first start to the last end. Where there are
/// several each is bound to a processor.
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
    let worker = |number| {
        bind(number);
        let warm = allocator.alloc(size).map(|block| allocator.free(block));
        barrier.wait();
        let start = Instant::now();
        warm.and_then(|()| run()).map(|()| (start, Instant::now()))
    };
    let spans: Vec<Option<(Instant, Instant)>> = thread::scope(|scope| {
        let worker = &worker;
        let workers: Vec<_> = (0..threads).map(|number| scope.spawn(move || worker(number))).collect();
        workers.into_iter().map(|worker| worker.join().ok().flatten()).collect()
    });
    let spans = spans.into_iter().collect::<Option<Vec<_>>>()?;
    let start = spans.iter().map(|(start, _)| *start).min()?;
    let end = spans.iter().map(|(_, end)| *end).max()?;
    Some(end - start)
}

/// Binds the calling thread to one of the processors that it may run on, in turn by its number: threads that begin together may share
/// one for tens of milliseconds before the system moves them. Where that is refused it runs where it did.
fn bind(number: usize) {
    // SAFETY: a set of processors is plain numbers, 0 is the calling thread, and both calls are told the set's size.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed) != 0 {
            return;
        }
        let all = (0..libc::CPU_SETSIZE as usize).filter(|&processor| libc::CPU_ISSET(processor, &allowed));
        let Some(processor) = all.clone().nth(number % all.count().max(1)) else {
            return;
        };
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut one);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const one);
    }
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
