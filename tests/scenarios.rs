//! Every way that memory takes through a pool, with each driver call on it failing once, and from it on: the request that meets the
//! failure fails alone, the accounts balance after every step, no live block loses a byte, and once the device works again nothing was
//! lost. And a device that has failed for good, at each call: every error says so, and nothing hangs.
//!
//! `cargo test --test scenarios -- --nocapture` prints how many failures were tried.
#![allow(clippy::print_stdout, reason = "it reports")]

use flagstone::config::{Config, Source};
use flagstone::driver::pinned::Pinned;
use flagstone::driver::sim::{CaptureMode, Code, Fault, Options, Sim, StreamKind, Work};
use flagstone::driver::{Driver, DriverResult, Stream};
use flagstone::{Error, Pool};
use std::cell::Cell;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 64 * MIB;
/// How much of each end of a block is written and compared.
const STAMP: u64 = 256;
const PRIVATE: (u64, u64) = (7, 0);

/// How the device fails in a run.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Failure {
    None,
    /// This many calls, with this code.
    Calls(u64, Code),
    /// Every call from then on, also those of the test, as after a kernel that went wrong.
    Sticky(Code),
}

const FAILURES: [Failure; 6] = [
    Failure::Calls(1, Code::OUT_OF_MEMORY),
    Failure::Calls(1, Code::UNKNOWN),
    Failure::Calls(u64::MAX, Code::OUT_OF_MEMORY),
    Failure::Calls(u64::MAX, Code::UNKNOWN),
    Failure::Sticky(Code::ILLEGAL_ADDRESS),
    Failure::Sticky(Code::LAUNCH_FAILED),
];

struct Live {
    addr: u64,
    bytes: u64,
    stamp: u8,
    stream: Stream,
}

/// A pool of some kind, and what a run has of it.
struct Run<D: Driver> {
    sim: Sim,
    pool: Pool<D>,
    streams: [Stream; 3],
    live: Vec<Live>,
    failure: Failure,
    /// Whether a request is meant to fail, or may: then it need not succeed on a device that works either.
    lenient: Cell<bool>,
    /// Whether a capture that nobody announced has memory, which stays as long as the pool.
    keeps: bool,
}

impl<D: Driver> Run<D> {
    fn new(kind: &Kind<D>, failure: Failure) -> Self {
        let sim = Sim::new(Options {
            capacity: CAPACITY,
            lag_ns: 1000,
            ..Options::default()
        });
        let config = Config::parse(kind.settings).expect("good settings");
        let pool = Pool::new((kind.driver)(&sim), config).expect("the device works");
        let stream = || sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        let streams = [pool.driver().home(), stream(), stream()];
        pool.keep_stream(streams[1]).expect("live");
        Self {
            sim,
            pool,
            streams,
            live: Vec::new(),
            failure,
            lenient: Cell::new(false),
            keeps: false,
        }
    }

    /// An error must be what was made to fail, or the shortage that it led to.
    #[track_caller]
    fn expect(&self, error: &Error) {
        match (self.failure, error) {
            (Failure::None, _) => assert!(self.lenient.get(), "{error}"),
            (Failure::Calls(..), Error::OutOfMemory(_) | Error::Driver(_)) => {}
            (Failure::Sticky(code), Error::Driver(driver)) => {
                // A wait may have been refused, for a capture, just before the device failed.
                assert!(driver.code == code.0 || driver.code == 900, "{error}");
            }
            // And so may there have been too little memory.
            (Failure::Sticky(_), Error::OutOfMemory(_)) if self.lenient.get() => {}
            _ => panic!("{error}"),
        }
    }

    #[track_caller]
    fn done<T>(&self, result: Result<T, Error>) {
        if let Err(error) = result {
            self.expect(&error);
        }
        self.verify();
    }

    #[track_caller]
    fn alloc(&mut self, bytes: u64, stream: usize) {
        match self.pool.alloc(bytes, self.streams[stream]) {
            Ok(addr) => {
                let stamp = (addr >> 9) as u8 ^ bytes as u8 | 1;
                if self.pool.config().poison.is_some() {
                    // The fill is over.
                    self.sim.advance(100_000);
                }
                for place in ends(addr, bytes) {
                    self.sim.write(place.0, &vec![stamp; place.1 as usize]).expect("mapped");
                }
                self.live.push(Live {
                    addr,
                    bytes,
                    stamp,
                    stream: self.streams[stream],
                });
            }
            Err(error) => self.expect(&error),
        }
        self.verify();
    }

    /// Frees the block that was allocated `back` allocations before the last.
    #[track_caller]
    fn free(&mut self, back: usize) {
        if let Some(place) = self.live.len().checked_sub(back + 1) {
            self.pool
                .free(self.live.remove(place).addr)
                .expect("a free never fails");
            self.verify();
        }
    }

    /// As [`Self::free`], in use on another stream.
    fn free_used(&mut self, back: usize, stream: usize) {
        let Some(place) = self.live.len().checked_sub(back + 1) else {
            return;
        };
        let Live {
            addr,
            bytes,
            stream: own,
            ..
        } = self.live[place];
        // One that was refused because its stream could not be asked for is not used there.
        if self.pool.record_stream(addr, self.streams[stream]).is_ok() && self.follow(own, self.streams[stream]).is_ok()
        {
            let work = Work::new().reads(addr, bytes).takes(3000);
            let _ = self.sim.launch(self.streams[stream], work);
        }
        self.free(back);
    }

    /// Orders what `other` does from now on after what `own` has to do.
    fn follow(&self, own: Stream, other: Stream) -> DriverResult<()> {
        if self.pool.driver().is_host(own) {
            return Ok(());
        }
        let event = self.sim.event_create()?;
        let ordered = self.sim.event_record(event, own);
        let ordered = ordered.and_then(|()| self.sim.stream_wait(other, event));
        let _ = self.sim.event_destroy(event);
        ordered
    }

    #[track_caller]
    fn verify(&self) {
        if let Err(fault) = self.pool.check() {
            panic!("{fault}\n{}", self.pool.stats());
        }
        let stats = self.pool.stats();
        assert_eq!(stats.live_blocks as usize, self.live.len());
        for &Live { addr, bytes, stamp, .. } in &self.live {
            for (at, count) in ends(addr, bytes) {
                let mut data = vec![0; count as usize];
                self.sim.read(at, &mut data).expect("a live block is mapped");
                assert!(data.iter().all(|&byte| byte == stamp), "{addr:#x} lost its contents");
            }
        }
    }

    fn free_all(&mut self) {
        while !self.live.is_empty() {
            self.free(0);
        }
    }
}

/// First addresses and lengths of what is stamped of a block.
fn ends(addr: u64, bytes: u64) -> [(u64, u64); 2] {
    let count = bytes.min(STAMP);
    [(addr, count), (addr + bytes - count, count)]
}

/// A kind of pool.
struct Kind<D> {
    settings: &'static str,
    driver: fn(&Sim) -> D,
}

/// A pool of device memory with these settings.
fn device(settings: &'static str) -> Kind<Sim> {
    Kind {
        settings,
        driver: Sim::clone,
    }
}

/// Runs a scenario for each driver call that it makes, with that one failing in each way. Prints how many those were.
#[track_caller]
fn fail_everywhere<D: Driver>(name: &str, kind: &Kind<D>, scenario: impl Fn(&mut Run<D>)) {
    let mut smooth = Run::new(kind, Failure::None);
    smooth.sim.reset_counts();
    scenario(&mut smooth);
    let calls = smooth.sim.counts().total();
    assert!(calls >= 8, "{name} makes only {calls} calls");
    finish(smooth, &scenario);
    for failure in FAILURES {
        for first in 1..=calls {
            let mut run = Run::new(kind, failure);
            let (times, code) = match failure {
                Failure::Calls(times, code) => (times, code),
                Failure::Sticky(code) => (u64::MAX, code),
                Failure::None => continue,
            };
            run.sim.fail(Fault {
                times,
                ..Fault::any(first, code)
            });
            scenario(&mut run);
            // What is left of a device that has failed for good is dropped as it is, and a pool too.
            if first % 2 == 0 && matches!(failure, Failure::Sticky(_)) {
                drop(run.pool);
            } else {
                finish(run, &scenario);
            }
        }
    }
    println!("{name}: {} failures at {calls} calls", calls * FAILURES.len() as u64);
}

/// The device works again: the scenario succeeds, and nothing was lost.
fn finish<D: Driver>(mut run: Run<D>, scenario: &impl Fn(&mut Run<D>)) {
    run.sim.clear_faults();
    run.failure = Failure::None;
    end_capture(&run);
    run.free_all();
    if run.pool.config().source != Source::VirtualMemory {
        // Without virtual memory it is not to be had for other sizes and streams where any of a slab is in use.
        run.pool.trim(0).expect("no call fails any more");
    }
    scenario(&mut run);
    end_capture(&run);
    run.free_all();
    run.pool.release_private(PRIVATE);
    run.pool.trim(0).expect("no call fails any more");
    run.verify();
    assert!(
        run.keeps || run.pool.stats().reserved_bytes == 0,
        "memory was lost\n{}\n{:?}",
        run.pool.stats(),
        run.pool.private_pools()
    );
    assert_eq!(run.sim.violations(), []);
    let sim = run.sim;
    drop(run.pool);
    let usage = sim.usage();
    assert_eq!(
        (usage.physical_bytes, usage.handles, usage.allocations, usage.host_bytes),
        (0, 0, 0, 0)
    );
    assert_eq!(sim.violations(), []);
}

/// Ends what a failure left begun.
fn end_capture<D: Driver>(run: &Run<D>) {
    let _ = run.sim.stream_end_capture(run.streams[2]);
    run.pool.end_private(PRIVATE);
}

#[test]
fn growth() {
    for settings in ["source:virtual_memory", "source:slabs", "growth:8MiB", "headroom:4MiB"] {
        fail_everywhere(&format!("growth, {settings}"), &device(settings), |run| {
            for (bytes, stream) in [
                (1000, 0),
                (100 * KIB, 0),
                (3 * MIB, 0),
                (5 * MIB, 1),
                (17 * KIB, 2),
                (7 * MIB, 2),
            ] {
                run.alloc(bytes, stream);
            }
            run.free_all();
        });
    }
}

#[test]
fn remap() {
    fail_everywhere("remap", &device("source:virtual_memory,magazine:0"), |run| {
        for _ in 0..5 {
            run.alloc(4 * MIB, 1);
        }
        for back in [3, 1] {
            run.free(back);
        }
        // Holes of the same stream, at once; then those of another one, when it is done.
        run.alloc(7 * MIB, 1);
        run.free(1);
        run.free(0);
        run.sim.advance(10_000);
        run.alloc(9 * MIB, 0);
        run.alloc(14 * MIB, 0);
        run.free_all();
    });
}

/// Memory that is mapped at several addresses: used at one and at another, by one stream and by two, and given back.
#[test]
fn aliases() {
    for settings in [
        "source:virtual_memory,magazine:0",
        "source:virtual_memory,magazine:0,dependencies:growth",
    ] {
        let twice = Cell::new(0);
        fail_everywhere(&format!("aliases, {settings}"), &device(settings), |run| {
            for _ in 0..4 {
                run.alloc(4 * MIB, 1);
            }
            run.free(3);
            run.free(1);
            // The holes as one block, and where they were.
            run.alloc(8 * MIB, 1);
            run.free(0);
            run.alloc(4 * MIB, 1);
            run.free(0);
            // The same for another stream, and back.
            run.sim.advance(10_000);
            run.alloc(8 * MIB, 0);
            run.free(0);
            run.sim.advance(10_000);
            run.alloc(6 * MIB, 1);
            run.free(0);
            run.alloc(7 * MIB, 0);
            let usage = run.sim.usage();
            twice.set(twice.get() + u64::from(usage.mapped_bytes > usage.physical_bytes));
            let trimmed = run.pool.trim(0).map(drop);
            run.done(trimmed);
            run.alloc(8 * MIB, 1);
            run.free_all();
        });
        assert!(twice.get() > 100, "mapped twice in {} runs", twice.get());
    }
}

#[test]
fn trim() {
    for settings in [
        "source:virtual_memory",
        "source:slabs",
        "cache:4MiB,release_after:0,wait:0.001",
    ] {
        fail_everywhere(&format!("trim, {settings}"), &device(settings), |run| {
            for (bytes, stream) in [(2000, 0), (9 * MIB, 0), (6 * MIB, 1), (200 * KIB, 1)] {
                run.alloc(bytes, stream);
            }
            run.free(2);
            run.free_used(1, 2);
            let trimmed = run.pool.trim(8 * MIB).map(drop);
            run.lenient.set(true);
            run.done(trimmed);
            let released = run.pool.release_idle().map(drop);
            run.done(released);
            run.lenient.set(false);
            run.free_all();
            run.alloc(5 * MIB, 2);
            run.free_all();
        });
    }
}

#[test]
fn capture() {
    for announced in [true, false] {
        fail_everywhere(&format!("capture, announced: {announced}"), &device(""), |run| {
            let captured = run.streams[2];
            run.alloc(3 * MIB, 2);
            run.alloc(2 * MIB, 0);
            if announced {
                run.pool.begin_private(PRIVATE, move |stream| stream == captured);
            }
            let begun = run.sim.stream_begin_capture(captured, CaptureMode::Global).is_ok();
            run.alloc(MIB, 2);
            run.alloc(4000, 2);
            run.free_used(2, 1);
            run.free(0);
            run.alloc(2 * MIB, 0);
            run.pool.end_private(PRIVATE);
            let graph = begun.then(|| run.sim.stream_end_capture(captured));
            // Nobody has announced one either that a failure keeps open.
            run.keeps |= !announced || !matches!(graph, Some(Ok(_)));
            if run.failure == Failure::None {
                assert!(matches!(graph, Some(Ok(_))), "the capture was ended");
            }
            run.free_all();
            if announced {
                run.pool.release_private(PRIVATE);
            }
            run.alloc(6 * MIB, 2);
            run.free_all();
        });
    }
}

#[test]
fn record_stream() {
    for settings in ["dependencies:pressure", "source:slabs,dependencies:off"] {
        fail_everywhere(&format!("record_stream, {settings}"), &device(settings), |run| {
            for bytes in [1000, 2 * MIB, 5 * MIB] {
                run.alloc(bytes, 0);
                run.alloc(bytes, 1);
                run.free_used(0, 0);
                run.free_used(0, 1);
                run.alloc(bytes, 1);
            }
            let work = run
                .live
                .last()
                .map(|block| run.pool.record_work(block.addr, run.streams[2]));
            if let Some(work) = work {
                run.done(work);
            }
            run.sim.advance(20_000);
            run.free_all();
            let waited = run.pool.synchronize();
            run.done(waited);
        });
    }
}

#[test]
fn poison() {
    fail_everywhere("poison", &device("poison:7"), |run| {
        for bytes in [1000, 100 * KIB] {
            run.alloc(bytes, 0);
            run.alloc(bytes, 1);
            run.free_used(0, 2);
            run.free_used(0, 1);
        }
        run.alloc(50 * KIB, 2);
        run.free_all();
    });
}

#[test]
fn pinned() {
    let kind = Kind {
        settings: "",
        driver: |sim| Pinned::new(sim.clone(), CAPACITY),
    };
    fail_everywhere("pinned", &kind, |run| {
        run.alloc(3 * MIB, 0);
        run.alloc(1000, 0);
        run.alloc(100 * KIB, 0);
        run.free_used(1, 1);
        run.free_used(1, 2);
        if let Some(block) = run.live.pop() {
            run.pool.free_unseen(block.addr).expect("a free never fails");
        }
        run.alloc(9 * MIB, 0);
        let waited = run.pool.synchronize();
        run.done(waited);
        run.free_all();
        let trimmed = run.pool.trim(0);
        run.done(trimmed);
    });
}

#[test]
fn driver_pool() {
    let kind = device("source:driver_pool,release_threshold:32MiB");
    fail_everywhere("driver_pool", &kind, |run| {
        run.alloc(3 * MIB, 0);
        run.alloc(12 * MIB, 1);
        run.alloc(1000, 2);
        run.free_used(1, 2);
        run.alloc(20 * MIB, 2);
        run.free_all();
        let trimmed = run.pool.trim(4 * MIB);
        run.done(trimmed);
        run.alloc(15 * MIB, 1);
        run.free_all();
    });
}

#[test]
fn slabs_between_kinds_and_streams() {
    fail_everywhere("slabs", &device("source:slabs,limit:24MiB"), |run| {
        run.alloc(20 * MIB, 0);
        run.free(0);
        // The slab of the large ones serves small ones, and then another stream, by the driver.
        run.alloc(900 * KIB, 0);
        run.alloc(16 * KIB, 0);
        run.free_all();
        run.alloc(22 * MIB, 1);
        run.free_all();
    });
}

#[test]
fn reserve() {
    for settings in ["source:virtual_memory", "source:slabs"] {
        fail_everywhere(&format!("reserve, {settings}"), &device(settings), |run| {
            let reserved = run.pool.reserve(24 * MIB);
            run.done(reserved);
            run.alloc(10 * MIB, 0);
            run.alloc(500, 1);
            let reserved = run.pool.reserve(40 * MIB);
            run.done(reserved);
            run.free_all();
            let trimmed = run.pool.trim(0);
            run.done(trimmed);
        });
    }
}

#[test]
fn private_pools() {
    fail_everywhere("private pools", &device(""), |run| {
        run.pool.begin_private(PRIVATE, |_| true);
        run.alloc(3 * MIB, 0);
        run.alloc(1000, 1);
        run.free(1);
        run.alloc(5 * MIB, 1);
        run.pool.end_private(PRIVATE);
        run.alloc(30 * MIB, 1);
        run.free_all();
        run.pool.release_private(PRIVATE);
        run.alloc(50 * MIB, 0);
        run.free_all();
    });
}

#[test]
fn dependencies() {
    for settings in [
        "dependencies:growth,magazine:0",
        "dependencies:pressure,limit:32MiB",
        "source:slabs,limit:32MiB",
    ] {
        fail_everywhere(&format!("dependencies, {settings}"), &device(settings), |run| {
            run.alloc(14 * MIB, 1);
            run.alloc(14 * MIB, 0);
            run.free_used(1, 2);
            run.alloc(12 * MIB, 1);
            run.free_used(1, 1);
            run.alloc(10 * MIB, 0);
            run.free_all();
        });
    }
}

#[test]
fn short_of_memory() {
    for settings in ["source:virtual_memory", "source:slabs", "source:driver_pool"] {
        fail_everywhere(&format!("shortage, {settings}"), &device(settings), |run| {
            run.alloc(20 * MIB, 0);
            run.alloc(12 * MIB, 1);
            run.alloc(8 * MIB, 2);
            run.free_used(2, 1);
            run.free_used(1, 2);
            run.free(0);
            // Everything that waits, and everything idle, of all streams; and one that cannot be met.
            run.alloc(50 * MIB, 2);
            run.lenient.set(true);
            run.alloc(40 * MIB, 0);
            run.lenient.set(false);
            run.free_all();
        });
    }
}

#[test]
fn guarded() {
    fail_everywhere("guarded", &device("guard:8MiB,poison:1"), |run| {
        run.alloc(1000, 0);
        run.alloc(5 * MIB, 1);
        run.free_used(1, 1);
        run.alloc(2 * MIB, 2);
        run.free(1);
        run.free(0);
        run.alloc(3 * MIB, 0);
        run.free_all();
    });
}

#[test]
fn teardown() {
    for settings in ["", "source:slabs", "source:driver_pool", "guard:1GiB"] {
        // A call that fails while the pool is dropped leaves nothing behind that a later pool of the device could not do without.
        let start = || {
            let mut run = Run::new(&device(settings), Failure::None);
            for (bytes, stream) in [(1000, 0), (3 * MIB, 0), (9 * MIB, 1), (200 * KIB, 2)] {
                run.alloc(bytes, stream);
            }
            run.free_used(0, 1);
            run.free_all();
            run.sim.reset_counts();
            run
        };
        let smooth = start();
        let sim = smooth.sim.clone();
        drop(smooth.pool);
        let calls = sim.counts().total();
        assert!(calls >= 3, "{settings}: {calls}");
        for code in [Code::UNKNOWN, Code::ILLEGAL_ADDRESS] {
            for first in 1..=calls {
                for times in [1, u64::MAX] {
                    let run = start();
                    run.sim.fail(Fault {
                        times,
                        ..Fault::any(first, code)
                    });
                    drop(run.pool);
                    run.sim.clear_faults();
                    assert_eq!(run.sim.violations(), []);
                    let next = Pool::new(run.sim.clone(), Config::default()).expect("the device works again");
                    let block = next.alloc(MIB, Stream::LEGACY).expect("room");
                    next.free(block).expect("live");
                }
            }
        }
        println!("teardown, {settings}: {} failures at {calls} calls", calls * 4);
    }
}

#[test]
fn a_device_that_has_failed_is_named_whatever_is_asked_of_it() {
    for code in [
        Code::ILLEGAL_ADDRESS,
        Code::LAUNCH_FAILED,
        Code::LAUNCH_TIMEOUT,
        Code::CONTEXT_IS_DESTROYED,
    ] {
        for settings in [
            "limit:32MiB",
            "limit:32MiB,source:slabs",
            "limit:32MiB,source:driver_pool",
            "limit:32MiB,guard:1GiB",
        ] {
            let mut run = Run::new(&device(settings), Failure::None);
            run.alloc(14 * MIB, 0);
            run.alloc(14 * MIB, 1);
            run.free_used(0, 2);
            run.sim.break_with(code);
            let named = |result: Result<(), Error>| {
                let error = result.expect_err("the device has failed").to_string();
                assert!(error.contains(code.name()), "{settings}: {error}");
                assert!(error.contains("start"), "what to do: {error}");
            };
            // More than the limit leaves: every step is taken, and none can help.
            for stream in run.streams {
                named(run.pool.alloc(20 * MIB, stream).map(drop));
            }
            named(run.pool.synchronize());
            named(run.pool.trim(0).map(drop));
            named(run.pool.reserve(30 * MIB));
            named(run.pool.keep_stream(run.streams[1]));
            let live = run.live[0].addr;
            named(run.pool.record_stream(live, run.streams[1]));
            run.pool.free(live).expect("a free never fails");
            assert_eq!(run.pool.check(), Ok(()));
            drop(run.pool);
        }
    }
}
