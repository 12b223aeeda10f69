//! Random operations of several threads, one at a time, against a naive reference: after each of them every number is what it
//! must be, by device, stream, private pool and size.

#[path = "common/worker.rs"]
mod worker;

use flagstone::config::{Config, Dependencies, Source};
use flagstone::driver::sim::{Options, Sim, StreamKind};
use flagstone::driver::{DevicePtr, Stream};
use flagstone::stats::{BlockState, LargeStats};
use flagstone::{Pool, Stats};
use std::collections::BTreeMap;
use std::sync::Arc;
use worker::{Worker, next};

const MIB: u64 = 1 << 20;
const THREADS: usize = 3;
const PRIVATE: (u64, u64) = (0, 7);

#[derive(Debug, Clone, Copy)]
struct Block {
    addr: DevicePtr,
    requested: u64,
}

impl Block {
    fn allocated(self) -> u64 {
        self.requested.next_multiple_of(512).max(512)
    }

    fn is_large(self) -> bool {
        self.allocated() > MIB
    }

    /// The size that it counts as.
    fn size(self) -> u64 {
        if self.is_large() {
            self.allocated().next_power_of_two()
        } else {
            self.allocated()
        }
    }
}

/// Blocks, their bytes as asked for, and rounded.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count {
    blocks: u64,
    requested: u64,
    allocated: u64,
}

impl Count {
    fn add(&mut self, block: Block) {
        self.blocks += 1;
        self.requested += block.requested;
        self.allocated += block.allocated();
    }
}

fn count<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Count {
    let mut sum = Count::default();
    blocks.into_iter().for_each(|&block| sum.add(block));
    sum
}

/// A stream, a private pool and a size.
type Key = (Stream, Option<(u64, u64)>, u64);

struct Reference {
    pool: Arc<Pool<Sim>>,
    streams: Vec<Stream>,
    side: Stream,
    workers: Vec<Worker>,
    live: Vec<Block>,
    /// Freed so far: all, and above 1 MiB.
    freed: [Count; 2],
    /// By stream, private pool and size.
    given: BTreeMap<Key, Count>,
    peaks: [u64; 2],
    filling: bool,
}

impl Reference {
    fn new(source: Source, magazine: u64, threads: usize) -> Self {
        let sim = Sim::new(Options {
            capacity: 16 << 30,
            backed: false,
            lag_ns: 1000,
            ..Options::default()
        });
        let mut config = Config::default();
        (config.source, config.magazine, config.dependencies) = (source, magazine, Dependencies::Off);
        let pool = Arc::new(Pool::new(sim.clone(), config).expect("a pool takes nothing from the driver"));
        let [own, side] = [(); 2].map(|()| sim.stream_create(StreamKind::NonBlocking).expect("a stream"));
        for stream in [own, side] {
            pool.keep_stream(stream).expect("live");
        }
        Self {
            pool,
            streams: vec![Stream::LEGACY, Stream::PER_THREAD, own],
            side,
            workers: (0..threads).map(|_| Worker::new()).collect(),
            live: Vec::new(),
            freed: Default::default(),
            given: BTreeMap::new(),
            peaks: [0; 2],
            filling: false,
        }
    }

    fn alloc(&mut self, worker: usize, random: &mut u64) {
        let most = [3000, 40_000, MIB, 2 * MIB, 9 * MIB][next(random) % 5];
        let (requested, stream) = (next(random) as u64 % most, self.streams[next(random) % 3]);
        let pool = self.pool.clone();
        let addr = self.workers[worker].does(move || pool.alloc(requested, stream).expect("there is room"));
        let block = Block { addr, requested };
        self.live.push(block);
        let private = (self.filling && stream == Stream::LEGACY).then_some(PRIVATE);
        self.given
            .entry((stream, private, block.size()))
            .or_default()
            .add(block);
    }

    fn free(&mut self, worker: usize, random: &mut u64) {
        let Some(last) = self.live.len().checked_sub(1) else {
            return;
        };
        let block = self.live.swap_remove(next(random) % (last + 1));
        let (pool, side, used) = (self.pool.clone(), self.side, next(random).is_multiple_of(4));
        self.workers[worker].does(move || {
            if used {
                pool.record_stream(block.addr, side).expect("live");
            }
            pool.free(block.addr).expect("live");
        });
        self.freed[0].add(block);
        if block.is_large() {
            self.freed[1].add(block);
        }
    }

    fn step(&mut self, random: &mut u64) {
        let worker = next(random) % self.workers.len();
        match next(random) % 100 {
            0 => {
                let old = std::mem::replace(&mut self.workers[worker], Worker::new());
                old.end();
            }
            // Nothing is waited for while a capture may be under way.
            1 if !self.filling => {
                let pool = self.pool.clone();
                self.workers[worker].does(move || pool.trim(0).expect("the device can be waited for"));
            }
            2 => self.pool.driver().advance(2000),
            3 if !self.filling => self.pool.synchronize().expect("the device can be waited for"),
            4 => {
                let pool = self.pool.clone();
                self.workers[worker].does(move || pool.reset_peak());
                self.peaks = [0; 2];
            }
            5 if self.filling => {
                self.filling = false;
                self.pool.end_private(PRIVATE);
            }
            5 => {
                self.filling = true;
                self.pool.begin_private(PRIVATE, |stream| stream == Stream::LEGACY);
            }
            6 if self.pool.is_recording() => self.pool.stop_history(),
            6 => self.pool.start_history(100, false),
            // The number of live blocks rises and falls.
            choice if choice > self.live.len() => self.alloc(worker, random),
            _ => self.free(worker, random),
        }
    }

    /// What waits for other streams, as the snapshot has it: all, and above 1 MiB.
    fn waiting(&self) -> [Count; 2] {
        let mut waiting: [Count; 2] = Default::default();
        let segments = self.pool.snapshot().segments;
        for block in segments.iter().flat_map(|segment| &segment.blocks) {
            if block.state == BlockState::ActivePendingFree {
                for (part, _) in waiting.iter_mut().zip([true, block.bytes > MIB]).filter(|(_, is)| *is) {
                    part.blocks += 1;
                    part.allocated += block.bytes;
                }
            }
        }
        waiting
    }

    fn compare(&mut self) {
        let stats = self.pool.stats();
        let live = [
            count(&self.live),
            count(self.live.iter().filter(|block| block.is_large())),
        ];
        let waiting = self.waiting();
        assert_eq!(
            [of_all(&stats), of_large(&stats.large)],
            [0, 1].map(|part| Numbers {
                live: live[part],
                waiting: waiting[part].blocks,
                active: live[part].allocated + waiting[part].allocated,
                given: live[part].blocks + self.freed[part].blocks,
                freed: self.freed[part],
            })
        );
        assert_eq!(stats.cached_bytes, stats.reserved_bytes - stats.active_bytes);
        assert_eq!(stats.reserved_bytes, stats.taken_bytes - stats.given_bytes);
        self.compare_totals();
        self.compare_peaks(&stats);
    }

    fn compare_totals(&self) {
        let mut totals: BTreeMap<_, Count> = BTreeMap::new();
        for row in self.pool.totals().given_out {
            let stream = row.stream.expect("no stream is gone");
            let sum = totals.entry((stream, row.private, row.size)).or_default();
            sum.blocks += row.alloc_count;
            sum.requested += row.requested_bytes;
            sum.allocated += row.allocated_bytes;
        }
        assert_eq!(totals, self.given);
    }

    fn compare_peaks(&mut self, stats: &Stats) {
        // Exact in one thread, where the numbers are those of before or of after the last operation.
        let now = [stats.allocated_bytes, stats.active_bytes];
        self.peaks = [0, 1].map(|which| self.peaks[which].max(now[which]));
        let above = if self.workers.len() == 1 {
            0
        } else {
            self.workers.len() as u64 * MIB
        };
        for (told, most) in [stats.peak_allocated_bytes, stats.peak_active_bytes]
            .into_iter()
            .zip(self.peaks)
        {
            assert!(
                (most..=most + above).contains(&told),
                "a peak is {told}, not {most}: {stats}"
            );
        }
    }
}

/// The numbers of all blocks, or of those above 1 MiB.
#[derive(Debug, PartialEq, Eq)]
struct Numbers {
    live: Count,
    waiting: u64,
    active: u64,
    given: u64,
    freed: Count,
}

fn of_all(stats: &Stats) -> Numbers {
    Numbers {
        live: Count {
            blocks: stats.live_blocks,
            requested: stats.requested_bytes,
            allocated: stats.allocated_bytes,
        },
        waiting: stats.pending_blocks,
        active: stats.active_bytes,
        given: stats.alloc_count,
        freed: Count {
            blocks: stats.free_count,
            requested: stats.freed_requested_bytes,
            allocated: stats.freed_bytes,
        },
    }
}

fn of_large(stats: &LargeStats) -> Numbers {
    Numbers {
        live: Count {
            blocks: stats.live_blocks,
            requested: stats.requested_bytes,
            allocated: stats.allocated_bytes,
        },
        waiting: stats.pending_blocks,
        active: stats.active_bytes,
        given: stats.alloc_count,
        freed: Count {
            blocks: stats.free_count,
            requested: stats.freed_requested_bytes,
            allocated: stats.freed_bytes,
        },
    }
}

fn run(source: Source, magazine: u64, threads: usize) {
    for seed in 1..5 {
        let mut reference = Reference::new(source, magazine, threads);
        let mut random = seed;
        for _ in 0..1500 {
            reference.step(&mut random);
            reference.compare();
        }
        while !reference.live.is_empty() {
            reference.free(0, &mut random);
            reference.compare();
        }
        let Reference {
            pool,
            workers,
            filling,
            given,
            ..
        } = reference;
        workers.into_iter().for_each(Worker::end);
        if filling {
            pool.end_private(PRIVATE);
        }
        assert_eq!(pool.check(), Ok(()));
        let rows = pool.totals().given_out;
        let allocs: u64 = rows.iter().map(|row| row.alloc_count).sum();
        assert_eq!(
            allocs,
            given.values().map(|count| count.blocks).sum::<u64>(),
            "threads that have ended count"
        );
    }
}

#[test]
fn every_number_of_one_thread_is_exact() {
    run(Source::VirtualMemory, 64 << 20, 1);
    run(Source::Slabs, 1 << 20, 1);
}

#[test]
fn every_number_of_several_threads_is_exact_when_quiet() {
    for (source, magazine) in [
        (Source::VirtualMemory, 64 << 20),
        (Source::VirtualMemory, 1 << 20),
        (Source::Slabs, 64 << 20),
        (Source::VirtualMemory, 0),
    ] {
        run(source, magazine, THREADS);
    }
}
