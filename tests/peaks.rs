//! The peaks of several threads against those that there were: never too low, and at most 1 MiB a thread too high.

#[path = "common/worker.rs"]
mod worker;

use flagstone::Pool;
use flagstone::config::{Config, Dependencies};
use flagstone::driver::sim::{Options, Sim, StreamKind};
use flagstone::driver::{DevicePtr, Stream};
use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use worker::{Worker, next};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const THREADS: usize = 4;

/// A pool, and streams of its device that stay: one for the pool's blocks beside the default one, and one that may use them too.
struct Fixture {
    sim: Sim,
    pool: Pool<Sim>,
    own: Stream,
    side: Stream,
}

fn fixture(magazine: u64) -> Fixture {
    let sim = Sim::new(Options {
        capacity: 64 << 30,
        backed: false,
        lag_ns: 1_000_000,
        ..Options::default()
    });
    let mut config = Config::default();
    // What waits does so until the device's clock says otherwise.
    (config.magazine, config.dependencies) = (magazine, Dependencies::Off);
    let pool = Pool::new(sim.clone(), config).expect("a pool takes nothing from the driver");
    let [own, side] = [(); 2].map(|()| sim.stream_create(StreamKind::NonBlocking).expect("a stream"));
    for stream in [own, side] {
        pool.keep_stream(stream).expect("live");
    }
    Fixture { sim, pool, own, side }
}

fn assert_within(told: u64, most: u64, above: u64, what: &str) {
    assert!(
        (most..=most + above).contains(&told),
        "the peak of {what} is {told}, not {most} or at most {above} more"
    );
}

/// A block, and the bytes that were asked for.
type Block = (DevicePtr, u64);

fn sum<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> u64 {
    blocks.into_iter().map(|(_, bytes)| bytes.next_multiple_of(512)).sum()
}

/// Threads that all allocate, then all free or let blocks wait: between two such phases it is known what is live, and was at most.
struct Phases {
    fixture: Arc<Fixture>,
    workers: Vec<Worker>,
    blocks: Vec<Vec<Block>>,
    waiting: u64,
    /// The most bytes live, and live or waiting.
    most: [u64; 2],
    random: u64,
}

impl Phases {
    fn new(magazine: u64) -> Self {
        Self {
            fixture: Arc::new(fixture(magazine)),
            workers: (0..THREADS).map(|_| Worker::new()).collect(),
            blocks: vec![Vec::new(); THREADS],
            waiting: 0,
            most: [0; 2],
            random: 1,
        }
    }

    /// All threads at once: what each did.
    fn at_once<T: Send + 'static>(
        &mut self,
        job: impl Fn(&Fixture, &mut u64, Vec<Block>) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let begin = |(worker, blocks): (&Worker, &mut Vec<Block>)| {
            let (fixture, mut random, blocks, job) = (self.fixture.clone(), self.random, take(blocks), job.clone());
            next(&mut self.random);
            worker.begins(move || job(&fixture, &mut random, blocks))
        };
        let running: Vec<_> = self.workers.iter().zip(&mut self.blocks).map(begin).collect();
        running
            .into_iter()
            .map(|result| result.recv().expect("no panic"))
            .collect()
    }

    fn rise(&mut self, sizes: &'static [u64]) {
        self.blocks = self.at_once(|fixture, random, mut blocks| {
            for _ in 0..next(random) % 30 {
                let bytes = 1 + next(random) as u64 % sizes[next(random) % sizes.len()];
                let stream = [Stream::LEGACY, fixture.own][next(random) % 2];
                blocks.push((fixture.pool.alloc(bytes, stream).expect("there is room"), bytes));
            }
            blocks
        });
    }

    fn fall(&mut self) {
        let left = self.at_once(|fixture, random, mut blocks| {
            let mut waiting = 0;
            for _ in 0..(next(random) % 36).min(blocks.len()) {
                let block = blocks.swap_remove(next(random) % blocks.len());
                if next(random).is_multiple_of(8) {
                    fixture.pool.record_stream(block.0, fixture.side).expect("live");
                    waiting += sum([&block]);
                }
                fixture.pool.free(block.0).expect("live");
            }
            (blocks, waiting)
        });
        self.blocks.clear();
        for (blocks, waiting) in left {
            self.blocks.push(blocks);
            self.waiting += waiting;
        }
    }

    fn compare(&mut self, above: u64) {
        let live = sum(self.blocks.iter().flatten());
        let now = [live, live + self.waiting];
        self.most = [0, 1].map(|which| self.most[which].max(now[which]));
        let stats = self.fixture.pool.stats();
        assert_eq!([stats.allocated_bytes, stats.active_bytes], now);
        assert_within(stats.peak_allocated_bytes, self.most[0], above, "allocated bytes");
        assert_within(stats.peak_active_bytes, self.most[1], above, "active bytes");
    }
}

fn rise_and_fall(magazine: u64, sizes: &'static [u64], above: u64) {
    let mut phases = Phases::new(magazine);
    for round in 0..100 {
        phases.rise(sizes);
        phases.compare(above);
        if round % 2 == 1 {
            // Each thread frees another one's.
            phases.blocks.rotate_left(1);
        }
        phases.fall();
        phases.compare(above);
        let Fixture { sim, pool, .. } = &*phases.fixture;
        if round % 5 == 4 {
            sim.advance(2_000_000);
            pool.synchronize().expect("the device can be waited for");
            phases.waiting = 0;
        }
        if round % 7 == 6 {
            pool.reset_peak();
            phases.most = [0; 2];
        }
        phases.compare(above);
    }
    assert_eq!(phases.fixture.pool.check(), Ok(()));
    phases.workers.into_iter().for_each(Worker::end);
}

#[test]
fn peaks_of_threads_that_rise_and_fall_are_within_a_mebibyte_each() {
    for sizes in [
        &[4 * KIB][..],
        &[600, 40 * KIB, MIB],
        &[MIB],
        &[2000, 300 * KIB, MIB, 20 * MIB],
    ] {
        rise_and_fall(64 * MIB, sizes, THREADS as u64 * MIB);
    }
}

#[test]
fn without_magazines_they_are_exact() {
    rise_and_fall(0, &[600, 40 * KIB, MIB, 20 * MIB], 0);
}

#[test]
fn what_threads_free_of_others_is_not_announced_beside_what_they_free_of_their_own() {
    let fixture = Arc::new(fixture(64 * MIB));
    // A bit less than 1 MiB: not enough to be told.
    let alloc = |fixture: &Fixture| -> Vec<DevicePtr> {
        let alloc = |_| fixture.pool.alloc(2 * KIB, Stream::LEGACY).expect("there is room");
        (0..500).map(alloc).collect()
    };
    let workers: Vec<Worker> = (0..THREADS).map(|_| Worker::new()).collect();
    for worker in &workers {
        let (others, fixture) = (alloc(&fixture), fixture.clone());
        worker.does(move || {
            let own = alloc(&fixture);
            for block in others.into_iter().chain(own) {
                fixture.pool.free(block).expect("live");
            }
        });
    }
    fixture.pool.reset_peak();
    fixture.pool.alloc(64 * MIB, Stream::LEGACY).expect("there is room");
    let told = fixture.pool.stats().peak_allocated_bytes;
    // This thread has announced what it has, and each of the others as much as it may.
    assert_within(told, 64 * MIB, THREADS as u64 * MIB, "one block");
    workers.into_iter().for_each(Worker::end);
}

/// Hands blocks round: each thread frees what the one before it got, and takes one of a few places before it allocates.
fn hand_round(bytes: u64, places: usize, above: u64) {
    let Fixture { pool, side, .. } = &fixture(64 * MIB);
    let most = places as u64 * bytes;
    let (free_place, place): (Sender<()>, Receiver<()>) = channel();
    let place = Mutex::new(place);
    (0..places).for_each(|_| free_place.send(()).expect("there is a receiver"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            // Relaxed: a flag.
            while !over.load(Ordering::Relaxed) {
                let stats = pool.stats();
                assert!(stats.allocated_bytes <= stats.peak_allocated_bytes, "{stats}");
                for told in [stats.peak_allocated_bytes, stats.peak_active_bytes] {
                    assert!(told <= most + above, "{told} of at most {most}");
                }
            }
        });
        let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel::<DevicePtr>()).unzip();
        senders.rotate_left(1);
        let pass = |(thread, (sender, receiver)): (usize, (Sender<DevicePtr>, Receiver<DevicePtr>))| {
            let (place, free_place) = (&place, free_place.clone());
            scope.spawn(move || {
                for step in 0..3000 {
                    place.lock().expect("no panic").recv().expect("there is a sender");
                    let block = pool.alloc(bytes, Stream::LEGACY).expect("there is room");
                    sender.send(block).expect("the next thread is there");
                    // As many as are sent come.
                    let block = receiver.recv().expect("the thread before is there");
                    // Now and then it waits first; done before its place is another's.
                    if (step + thread).is_multiple_of(16) {
                        pool.record_stream(block, *side).expect("live");
                        pool.free(block).expect("live");
                        while pool.stats().pending_blocks > 0 {
                            pool.driver().advance(2_000_000);
                            pool.synchronize().expect("the device can be waited for");
                        }
                    } else {
                        pool.free(block).expect("live");
                    }
                    free_place.send(()).expect("there is a receiver");
                }
            })
        };
        let threads: Vec<_> = senders.into_iter().zip(receivers).enumerate().map(pass).collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        over.store(true, Ordering::Relaxed);
        reader.join().expect("no panic");
    });
    let stats = pool.stats();
    assert_eq!((stats.allocated_bytes, stats.active_bytes), (0, 0));
    assert!(stats.peak_allocated_bytes >= bytes);
    assert_eq!(pool.check(), Ok(()));
}

#[test]
fn blocks_that_threads_hand_round_are_never_counted_twice() {
    // Places for all threads: each waits for the one before it.
    hand_round(3 * MIB, THREADS, 0);
    hand_round(100 * KIB, THREADS, THREADS as u64 * MIB);
}
