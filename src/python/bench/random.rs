//! RMM's random_allocations benchmark: a mix of allocations and frees whose every step follows from the generator.
//!
//! The sequence is that of RMM's `random_allocations.cpp` compiled with libstdc++: `minstd_rand0` seeded with 1, read
//! through `uniform_int_distribution`. Blocks that are live at the end are freed outside the clock.
//!
//! And what one of its users reported as a race: threads that allocate and free random blocks of one table.

use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::allocator::{Allocator, Block};

/// Live bytes stay below this.
const MAX_LIVE: u64 = 16_000 << 20;
/// Percent of the steps that allocate.
const ALLOCATE: u64 = 73;

/// What one run did.
#[derive(Debug)]
pub struct Run {
    /// From the first step to the last.
    pub time: Duration,
    /// Allocations that succeeded.
    pub allocations: u64,
    /// Allocations that found no memory.
    pub failures: u64,
    /// The most bytes that were live at once, as asked for.
    pub peak_live: u64,
}

/// `2 * count` steps with blocks of 1 byte to `most_mib` MiB.
pub fn random(allocator: impl Allocator, count: usize, most_mib: u64) -> Run {
    let mut engine = Minstd(1);
    let mut live = Vec::with_capacity(count);
    let (mut live_bytes, mut allocations, mut failures, mut peak_live) = (0, 0, 0, 0);
    let start = Instant::now();
    for _ in 0..2 * count {
        let size = engine.uniform(1, most_mib << 20);
        let wanted = live.is_empty()
            || engine.uniform(0, 99) < ALLOCATE && allocations < count as u64 && live_bytes + size < MAX_LIVE;
        let block = if wanted { allocator.alloc(size as usize) } else { None };
        failures += u64::from(wanted && block.is_none());
        if let Some(block) = block {
            live.push((block, size));
            allocations += 1;
            live_bytes += size;
            peak_live = peak_live.max(live_bytes);
        } else if !live.is_empty() {
            let index = engine.uniform(0, count as u64 - 1) as usize % live.len();
            let (block, size) = live.swap_remove(index);
            allocator.free(block);
            live_bytes -= size;
        }
    }
    let time = start.elapsed();
    live.into_iter().for_each(|(block, _)| allocator.free(block));
    Run {
        time,
        allocations,
        failures,
        peak_live,
    }
}

/// `count` steps in each of `threads` threads, half of which allocate 100 to 10,000 bytes, while the others free any block of a
/// table that all share. The time is that from the first start to the last end; blocks that are left are freed outside it.
///
/// None where an allocation failed.
pub fn random_shared(allocator: impl Allocator, count: u64, threads: usize) -> Option<Duration> {
    let table: Mutex<Vec<Block>> = Mutex::default();
    let lock = || table.lock().unwrap_or_else(PoisonError::into_inner);
    let barrier = Barrier::new(threads);
    let run = |seed: usize| {
        let mut engine = Minstd(seed as u64 + 1);
        barrier.wait();
        let start = Instant::now();
        let mut complete = true;
        for _ in 0..count {
            if engine.uniform(0, 1) == 0 {
                let size = engine.uniform(100, 10_000) as usize;
                match allocator.alloc(size) {
                    Some(block) => lock().push(block),
                    None => complete = false,
                }
                continue;
            }
            let taken = {
                let mut blocks = lock();
                let place = engine.next() as usize % blocks.len().max(1);
                (place < blocks.len()).then(|| blocks.swap_remove(place))
            };
            if let Some(block) = taken {
                allocator.free(block);
            }
        }
        complete.then(|| (start, Instant::now()))
    };
    let spans: Vec<Option<(Instant, Instant)>> = thread::scope(|scope| {
        let run = &run;
        let workers: Vec<_> = (0..threads).map(|seed| scope.spawn(move || run(seed))).collect();
        workers.into_iter().map(|worker| worker.join().ok().flatten()).collect()
    });
    lock().drain(..).for_each(|block| allocator.free(block));
    let spans = spans.into_iter().collect::<Option<Vec<_>>>()?;
    let start = spans.iter().map(|(start, _)| *start).min()?;
    let end = spans.iter().map(|(_, end)| *end).max()?;
    Some(end - start)
}

/// `std::minstd_rand0`: gives 1 to 2^31 - 2.
struct Minstd(u64);

impl Minstd {
    const MODULUS: u64 = (1 << 31) - 1;
    /// The largest result, counted from 0.
    const RANGE: u64 = Self::MODULUS - 2;

    fn next(&mut self) -> u64 {
        self.0 = self.0 * 16_807 % Self::MODULUS;
        self.0 - 1
    }

    /// `std::uniform_int_distribution` over `low` to `high`, as libstdc++ draws it.
    fn uniform(&mut self, low: u64, high: u64) -> u64 {
        let range = high - low;
        low + if range < Self::RANGE {
            let scaling = Self::RANGE / (range + 1);
            loop {
                let drawn = self.next();
                if drawn < (range + 1) * scaling {
                    break drawn / scaling;
                }
            }
        } else if range == Self::RANGE {
            self.next()
        } else {
            let step = Self::RANGE + 1;
            loop {
                let drawn = (step * self.uniform(0, range / step)).wrapping_add(self.next());
                if drawn <= range {
                    break drawn;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Minstd;

    /// What g++ 12 prints for the same draws, in this order, from one engine.
    #[test]
    fn draws_what_libstdcxx_draws() {
        let mut engine = Minstd(1);
        let drawn: Vec<_> = (0..6)
            .map(|_| {
                // C++ evaluates the arguments of printf from the last to the first here.
                let big = engine.uniform(1, 4096 << 20);
                let size = engine.uniform(1, 1 << 20);
                let index = engine.uniform(0, 999);
                (engine.uniform(0, 99), index, size, big)
            })
            .collect();
        assert_eq!(
            drawn,
            [
                (53, 458, 792_697, 282_475_249),
                (93, 679, 712_189, 101_027_544),
                (5, 34, 871_756, 3_262_921_811),
                (6, 383, 8_077, 3_588_765_973),
                (84, 930, 617_889, 3_622_316_815),
                (70, 415, 686_019, 2_344_976_745),
            ]
        );
    }
}
