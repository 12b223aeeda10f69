//! Everything at once, for as long as it is told: threads that come and go, streams, cross-thread frees, shortage, failing driver
//! calls, captures, under the simulated device's checker. `make soak` runs it.
//!
//! `cargo bench --bench soak -- SECONDS [checked] [json FILE]`. Every live block has a stamp at both its ends, compared when it is freed:
//! so no two live blocks overlap, and none loses its memory. One operation in some hundreds is also work of the device, whose order
//! the checker knows; after each round every invariant of the pool is walked, and nothing may be lost. `checked` has every block
//! written and compared whole, in stream order, and asked of the checker. Any violation ends it with status 1.
#![allow(clippy::print_stdout, reason = "it reports")]

use flagstone::config::Config;
use flagstone::driver::sim::{Call, CaptureMode, Code, Fault, Options, Sim, StreamKind, Work};
use flagstone::driver::{Driver, Stream};
use flagstone::{Error, Pool, PrivateId};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 256 * MIB;
const THREADS: u64 = 4;
/// Blocks that each thread holds, at most.
const HELD: usize = 64;
/// How long a round lasts: then all threads end, and everything is looked at.
const ROUND: Duration = Duration::from_millis(1500);

/// What the rounds have in turn.
const SETTINGS: [&str; 8] = [
    "",
    "source:slabs",
    "dependencies:growth,limit:96MiB",
    "magazine:256KiB,cache:16MiB,release_after:0",
    "source:driver_pool,release_threshold:32MiB",
    "dependencies:off,limit:64MiB,wait:0.000001",
    "source:slabs,limit:96MiB,headroom:16MiB",
    "guard:256MiB",
];

/// What was done, over all rounds.
#[derive(Default)]
struct Totals {
    operations: AtomicU64,
    refused: AtomicU64,
    handed_over: AtomicU64,
    faults: AtomicU64,
    captures: AtomicU64,
    launches: AtomicU64,
    asked: AtomicU64,
    violations: AtomicU64,
}

/// One round: a device, a pool, and what its threads share.
struct Round<'a> {
    sim: Sim,
    pool: Pool<Sim>,
    kept: [Stream; 2],
    checked: bool,
    /// Blocks that one thread allocated and another frees.
    handed_over: Mutex<Vec<Block>>,
    stop: AtomicBool,
    totals: &'a Totals,
}

#[derive(Clone, Copy)]
struct Block {
    addr: u64,
    bytes: u64,
    stamp: u64,
    stream: Stream,
}

/// A generator that is fast, and the same in every run (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 8
    }

    /// One time in so many.
    fn once_in(&mut self, times: u64) -> bool {
        self.next().is_multiple_of(times)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.next() as usize % all.len()]
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|text| text != "--bench").collect();
    let seconds = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(5);
    let checked = arguments.iter().any(|text| text == "checked");
    let file = arguments.iter().position(|text| text == "json");
    let file = file.and_then(|place| arguments.get(place + 1));
    let (began, totals) = (Instant::now(), Totals::default());
    for number in 0.. {
        let left = Duration::from_secs(seconds).saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        round(number, left.min(ROUND), checked, &totals);
    }
    let read = |counter: &AtomicU64| counter.load(Relaxed);
    let figures = [
        ("seconds", began.elapsed().as_secs()),
        ("operations", read(&totals.operations)),
        ("refused", read(&totals.refused)),
        ("freed_by_other_threads", read(&totals.handed_over)),
        ("faults_injected", read(&totals.faults)),
        ("captures", read(&totals.captures)),
        ("launches", read(&totals.launches)),
        ("handouts_asked_of_the_checker", read(&totals.asked)),
        ("violations", read(&totals.violations)),
    ];
    for (name, figure) in figures {
        println!("{name:<30} {figure:>15}");
    }
    if let Some(file) = file {
        let fields = figures.map(|(name, figure)| format!("\"{name}\": {figure}"));
        let text = format!("{{\"checked\": {checked}, {}}}\n", fields.join(", "));
        if let Err(error) = std::fs::write(file, text) {
            println!("{file}: {error}");
            return ExitCode::FAILURE;
        }
    }
    if read(&totals.violations) == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn round(number: usize, lasts: Duration, checked: bool, totals: &Totals) {
    let sim = Sim::new(Options {
        capacity: CAPACITY,
        lag_ns: 2000,
        ..Options::default()
    });
    let settings = SETTINGS[number % SETTINGS.len()];
    let config = Config::parse(settings).expect("good settings");
    let pool = Pool::new(sim.clone(), config).expect("the device works");
    let stream = || sim.stream_create(StreamKind::NonBlocking).expect("a stream");
    let kept = [stream(), stream()];
    for stream in kept {
        pool.keep_stream(stream).expect("live");
    }
    let round = Round {
        sim,
        pool,
        kept,
        checked,
        handed_over: Mutex::default(),
        stop: AtomicBool::new(false),
        totals,
    };
    // Joined, each of them: the end of a scope does not wait for what threads give back after their closure.
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let round = &round;
            scope.spawn(move || {
                let mut random = Random((number as u64) << 8 | thread << 1 | 1);
                let mut generation = 0;
                while !round.stop.load(Relaxed) {
                    // A thread of its own, which ends with its blocks handed over or freed.
                    generation += 1;
                    let seed = random.next() ^ generation;
                    std::thread::scope(|scope| {
                        let worker = scope.spawn(|| round.work(Random(seed | 1), thread));
                        worker.join().expect("no panic");
                    });
                }
            });
        }
        let trouble = scope.spawn(|| round.trouble(Random(number as u64 + 0x9E37_79B9)));
        std::thread::sleep(lasts);
        round.stop.store(true, Relaxed);
        trouble.join().expect("no panic");
    });
    round.finish(settings);
}

impl Round<'_> {
    /// Reports what must not be.
    fn violation(&self, what: std::fmt::Arguments<'_>) {
        // The first few say it all.
        if self.totals.violations.fetch_add(1, Relaxed) < 20 {
            println!("VIOLATION: {what}");
        }
    }

    fn alloc(&self, random: &mut Random, bytes: u64, stream: Stream) -> Option<Block> {
        match self.pool.alloc(bytes, stream) {
            Ok(addr) => {
                let block = Block {
                    addr,
                    bytes,
                    stamp: random.next() | 1,
                    stream,
                };
                self.stamp(&block, random);
                Some(block)
            }
            Err(Error::OutOfMemory(_) | Error::Driver(_) | Error::InvalidStream { .. }) => {
                self.totals.refused.fetch_add(1, Relaxed);
                None
            }
            Err(error) => {
                self.violation(format_args!("{bytes} bytes: {error}"));
                None
            }
        }
    }

    fn stamp(&self, block: &Block, random: &mut Random) {
        if self.checked || random.once_in(256) {
            self.totals.asked.fetch_add(1, Relaxed);
            if let Err(violation) = self.sim.check_handout(block.addr, block.bytes, block.stream) {
                self.violation(format_args!("{violation}"));
            }
        }
        if self.checked {
            // Whole, and by the device, which a failure may keep from it: then the host does it when the device is done.
            let fill = Work::new().fills(block.addr, block.bytes, block.stamp as u8).takes(50);
            if self.sim.launch(block.stream, fill).is_ok() {
                self.totals.launches.fetch_add(1, Relaxed);
                return;
            }
            self.write(block, &vec![block.stamp as u8; block.bytes as usize]);
            return;
        }
        for end in ends(block) {
            // SAFETY: memory of a device that is not strict is the host's too, and the block is ours.
            unsafe { (end as *mut u64).write_unaligned(block.stamp) };
        }
    }

    fn write(&self, block: &Block, data: &[u8]) {
        // The memory may have work before it on its stream that has not come to pass.
        while self.sim.stream_synchronize(block.stream).is_err() {}
        if let Err(code) = self.sim.write(block.addr, data) {
            self.violation(format_args!("{:#x} cannot be written: {code}", block.addr));
        }
    }

    fn compare(&self, block: &Block) {
        if self.checked {
            while self.sim.stream_synchronize(block.stream).is_err() {}
            let mut data = vec![0; block.bytes as usize];
            match self.sim.read(block.addr, &mut data) {
                Ok(()) if data.iter().all(|&byte| byte == block.stamp as u8) => {}
                Ok(()) => self.violation(format_args!("{:#x} lost its contents", block.addr)),
                Err(code) => self.violation(format_args!("{:#x} cannot be read: {code}", block.addr)),
            }
            return;
        }
        for end in ends(block) {
            // SAFETY: as in `stamp`.
            let found = unsafe { (end as *const u64).read_unaligned() };
            if found != block.stamp {
                self.violation(format_args!("{end:#x} has {found:#x} and not {:#x}", block.stamp));
            }
        }
    }

    fn free(&self, block: &Block) {
        self.compare(block);
        if let Err(error) = self.pool.free(block.addr) {
            self.violation(format_args!("{error}"));
        }
    }

    /// As [`Self::free`], while another stream reads the block.
    fn free_used(&self, block: &Block, other: Stream) {
        let recorded = self.pool.record_stream(block.addr, other);
        if recorded.is_ok() && self.follow(block.stream, other) {
            let work = Work::new().reads(block.addr, block.bytes).takes(5000);
            if self.sim.launch(other, work).is_ok() {
                self.totals.launches.fetch_add(1, Relaxed);
            }
        }
        self.free(block);
    }

    /// Orders what `other` does from now on after what `own` has to do; whether that could be.
    fn follow(&self, own: Stream, other: Stream) -> bool {
        let Ok(event) = self.sim.event_create() else {
            return false;
        };
        let recorded = self.sim.event_record(event, own).is_ok();
        let ordered = recorded && self.sim.stream_wait(other, event).is_ok();
        let _ = self.sim.event_destroy(event);
        ordered
    }

    /// What one thread does until it ends.
    fn work(&self, mut random: Random, thread: u64) {
        let mut live: Vec<Block> = Vec::with_capacity(HELD);
        // Only the thread itself can wait for its own default stream, so such blocks stay with it.
        let stream = if thread.is_multiple_of(2) {
            Stream::LEGACY
        } else {
            Stream::PER_THREAD
        };
        let steps = if self.checked { 2000 } else { 400_000 };
        let mut operations = 0;
        for _ in 0..steps {
            if self.stop.load(Relaxed) {
                break;
            }
            if random.once_in(if self.checked { 8 } else { 512 }) {
                operations += self.rare(&mut random, &mut live);
                continue;
            }
            if live.len() == HELD || (live.len() > HELD / 2 && random.once_in(2)) {
                let place = random.next() as usize % live.len();
                self.free(&live.swap_remove(place));
            } else {
                let bytes = 1 + random.next() % random.of(&[512, 2 * KIB, 8 * KIB, 16 * KIB]);
                live.extend(self.alloc(&mut random, bytes.max(16), stream));
            }
            operations += 1;
        }
        for block in live {
            if block.stream != Stream::PER_THREAD && random.once_in(2) {
                lock(&self.handed_over).push(block);
            } else {
                self.free(&block);
            }
            operations += 1;
        }
        self.totals.operations.fetch_add(operations, Relaxed);
    }

    /// Something that is not done all the time; how many operations of the pool it was.
    fn rare(&self, random: &mut Random, live: &mut Vec<Block>) -> u64 {
        match random.next() % 12 {
            // Larger blocks, on a stream that is no default one.
            0..=3 => {
                let bytes = 1 + random.next() % random.of(&[64 * KIB, MIB, 4 * MIB, 24 * MIB]);
                let stream = random.of(&self.kept);
                let Some(block) = self.alloc(random, bytes.max(16), stream) else {
                    return 1;
                };
                if random.once_in(2) {
                    self.free(&block);
                } else {
                    self.free_used(&block, random.of(&[Stream::LEGACY, self.kept[0], self.kept[1]]));
                }
                2
            }
            // From one thread to another.
            4..=6 => {
                let mut shared = lock(&self.handed_over);
                let theirs = shared.pop();
                let place = live.iter().position(|block| block.stream != Stream::PER_THREAD);
                shared.extend(place.map(|place| live.swap_remove(place)));
                drop(shared);
                if let Some(block) = theirs {
                    self.totals.handed_over.fetch_add(1, Relaxed);
                    self.free(&block);
                }
                1
            }
            7 | 8 => {
                let Some(block) = live.pop() else { return 0 };
                self.free_used(&block, random.of(&self.kept));
                1
            }
            // A stream that lives for one block, and is gone when it is freed.
            9 => {
                let Ok(stream) = self.sim.stream_create(StreamKind::NonBlocking) else {
                    return 0;
                };
                let bytes = 1 + random.next() % MIB;
                let block = self.alloc(random, bytes.max(16), stream);
                if let Some(block) = &block {
                    self.compare(block);
                }
                while self.sim.stream_destroy(stream).is_err() {}
                if let Some(block) = block
                    && let Err(error) = self.pool.free(block.addr)
                {
                    self.violation(format_args!("{error}"));
                }
                2
            }
            10 => {
                self.sim.advance(10_000);
                0
            }
            _ => self.capture(random),
        }
    }

    /// A capture with a private pool, on a stream of its own.
    fn capture(&self, random: &mut Random) -> u64 {
        let Ok(stream) = self.sim.stream_create(StreamKind::NonBlocking) else {
            return 0;
        };
        let id: PrivateId = (random.next() | 1, 0);
        self.pool.begin_private(id, move |asked| asked == stream);
        let begun = self.sim.stream_begin_capture(stream, CaptureMode::Relaxed).is_ok();
        let mut operations = 0;
        for _ in 0..8 {
            let bytes = 16 + random.next() % (256 * KIB);
            if let Ok(addr) = self.pool.alloc(bytes, stream) {
                operations += 2;
                if let Err(error) = self.pool.free(addr) {
                    self.violation(format_args!("{error}"));
                }
            }
        }
        if begun {
            // A failure that was injected leaves it open: once more.
            let mut ended = self.sim.stream_end_capture(stream);
            while let Err(code) = &ended {
                if *code != Code::UNKNOWN && *code != Code::OUT_OF_MEMORY {
                    self.violation(format_args!("a capture was ended: {code}"));
                    break;
                }
                ended = self.sim.stream_end_capture(stream);
            }
            self.totals.captures.fetch_add(1, Relaxed);
        }
        self.pool.end_private(id);
        self.pool.release_private(id);
        while self.sim.stream_destroy(stream).is_err() {}
        operations
    }

    /// What others do to a pool at any time.
    fn trouble(&self, mut random: Random) {
        let calls = [
            Call::MemCreate,
            Call::MemMap,
            Call::MemSetAccess,
            Call::MemUnmap,
            Call::MemRelease,
            Call::MemAlloc,
            Call::MemFree,
            Call::MemAllocFromPoolAsync,
            Call::EventCreate,
            Call::EventRecord,
            Call::EventQuery,
            Call::StreamWaitEvent,
            Call::CtxSynchronize,
            Call::MemAddressReserve,
        ];
        let limit = self.pool.limit();
        while !self.stop.load(Relaxed) {
            match random.next() % 8 {
                0..=2 => {
                    self.sim.clear_faults();
                    let times = 1 + random.next() % 3;
                    self.sim.fail(Fault {
                        call: Some(random.of(&calls)),
                        first: 1 + random.next() % 20,
                        times,
                        code: random.of(&[Code::OUT_OF_MEMORY, Code::UNKNOWN]),
                    });
                    self.totals.faults.fetch_add(times, Relaxed);
                }
                3 => drop(self.pool.trim(random.next() % CAPACITY)),
                4 => self.pool.set_limit(Some(32 * MIB + random.next() % CAPACITY)),
                5 => self.pool.set_limit(limit),
                6 => drop((self.pool.stats(), self.pool.snapshot(), self.pool.release_idle())),
                _ => {
                    self.pool.start_history(1000, false);
                    std::thread::sleep(Duration::from_millis(1));
                    self.pool.stop_history();
                }
            }
            self.sim.advance(20_000);
            std::thread::sleep(Duration::from_millis(if self.checked { 1 } else { 5 }));
        }
    }

    /// All threads have ended: everything is freed, and nothing is lost.
    fn finish(self, settings: &str) {
        self.sim.clear_faults();
        self.sim.advance(1_000_000_000);
        let left = std::mem::take(&mut *lock(&self.handed_over));
        left.iter().for_each(|block| self.free(block));
        self.sim.advance(1_000_000_000);
        if let Err(fault) = self.pool.check() {
            self.violation(format_args!("{settings}: {fault}"));
        }
        if let Err(error) = self.pool.trim(0) {
            self.violation(format_args!("{settings}: {error}"));
        }
        let stats = self.pool.stats();
        let wrong = stats.invalid_free_count + stats.double_free_count + stats.wrong_size_free_count;
        if (stats.live_blocks, stats.pending_blocks, stats.reserved_bytes, wrong) != (0, 0, 0, 0) {
            self.violation(format_args!("{settings}: left behind\n{stats}"));
        }
        drop(self.pool);
        let usage = self.sim.usage();
        if (usage.physical_bytes, usage.handles, usage.allocations) != (0, 0, 0) {
            self.totals.violations.fetch_add(1, Relaxed);
            println!("VIOLATION: {settings}: the device still has {usage:?}");
        }
        for violation in self.sim.take_violations() {
            self.totals.violations.fetch_add(1, Relaxed);
            println!("VIOLATION: {settings}: {violation}");
        }
    }
}

/// Where a block's stamps are.
const fn ends(block: &Block) -> [u64; 2] {
    [block.addr, block.addr + block.bytes - 8]
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
