//! Driver calls that fail, at every position of a run: the request that met the failure fails alone, the accounts
//! balance after every step, and what was lost is nothing.

use flagstone::config::{Config, Source};
use flagstone::driver::Stream;
use flagstone::driver::pinned::Pinned;
use flagstone::driver::sim::{Call, Code, Fault, Options, Sim, StreamKind};
use flagstone::size_class::BYTES_MAX;
use flagstone::{Error, Pool};

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 64 * MIB;

/// A pool, and the blocks that a run has of it.
struct Run {
    sim: Sim,
    pool: Pool<Sim>,
    streams: [Stream; 3],
    live: Vec<u64>,
}

impl Run {
    fn new(settings: &str) -> Self {
        let sim = Sim::new(Options {
            capacity: CAPACITY,
            backed: false,
            lag_ns: 1000,
            ..Options::default()
        });
        let config = Config::parse(settings).expect("good settings");
        let pool = Pool::new(sim.clone(), config).expect("a pool takes nothing from the driver");
        let stream = || sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        let streams = [Stream::LEGACY, stream(), stream()];
        pool.keep_stream(streams[1]).expect("live");
        Self {
            sim,
            pool,
            streams,
            live: Vec::new(),
        }
    }

    fn alloc(&mut self, bytes: u64, stream: usize) {
        match self.pool.alloc(bytes, self.streams[stream]) {
            Ok(addr) => self.live.push(addr),
            Err(error) => assert!(matches!(error, Error::OutOfMemory(_) | Error::Driver(_)), "{error}"),
        }
        self.verify();
    }

    /// Frees the block that was allocated `back` allocations before the last.
    fn free(&mut self, back: usize) {
        if let Some(place) = self.live.len().checked_sub(back + 1) {
            self.pool.free(self.live.remove(place)).expect("a free never fails");
            self.verify();
        }
    }

    /// As [`Self::free`], in use on another stream.
    fn free_used(&mut self, back: usize, stream: usize) {
        let Some(place) = self.live.len().checked_sub(back + 1) else {
            return;
        };
        let addr = self.live[place];
        // A stream whose identity cannot be asked for is refused, and nothing changes.
        if self.pool.record_stream(addr, self.streams[stream]).is_ok() {
            self.free(back);
        }
        self.verify();
    }

    fn verify(&self) {
        if let Err(fault) = self.pool.check() {
            panic!("{fault}\n{}", self.pool.stats());
        }
        let stats = self.pool.stats();
        assert_eq!(stats.live_blocks as usize, self.live.len());
        assert!(stats.reserved_bytes <= CAPACITY, "{stats}");
    }

    /// Every kind of growth, every stage of a request when memory is short, and every way of giving memory back.
    fn script(&mut self) {
        for (bytes, stream) in [
            (1000, 0),
            (100_000, 0),
            (3 * MIB, 0),
            (5 * MIB, 1),
            (1000, 2),
            (7 * MIB, 2),
        ] {
            self.alloc(bytes, stream);
        }
        self.free_used(3, 1);
        self.free_used(2, 2);
        self.sim.advance(5000);
        self.free(0);
        self.alloc(20 * MIB, 0);
        self.alloc(9 * MIB, 1);
        self.free_used(1, 1);
        self.free(1);
        // Fits once the magazines, the waiting blocks and the idle memory of the others are taken.
        self.alloc(40 * MIB, 0);
        self.alloc(30 * MIB, 2);
        self.free(0);
        self.alloc(50 * MIB, 2);
        drop(self.pool.trim(8 * MIB));
        self.verify();
        drop(self.pool.reserve(24 * MIB));
        self.verify();
        self.alloc(10 * MIB, 0);
        self.free_used(0, 1);
        self.alloc(25 * MIB, 0);
        self.free(0);
        // What the settings let the pool hold no longer.
        drop(self.pool.release_idle());
        self.verify();
        self.alloc(500_000, 1);
        while !self.live.is_empty() {
            self.free(0);
        }
        drop(self.pool.trim(0));
        self.verify();
    }

    /// The device works again: nothing was lost.
    fn finish(mut self) {
        self.sim.clear_faults();
        self.script();
        self.pool.trim(0).expect("no call fails any more");
        self.verify();
        assert_eq!(self.pool.stats().reserved_bytes, 0, "memory was lost");
        assert_eq!(self.sim.violations(), []);
        let sim = self.sim;
        drop(self.pool);
        let usage = sim.usage();
        assert_eq!((usage.physical_bytes, usage.handles, usage.allocations), (0, 0, 0));
    }
}

/// Runs the script once for each call that it makes, with that call and the `times - 1` that follow it failing.
fn fail_each(settings: &str, code: Code, times: u64) {
    let mut smooth = Run::new(settings);
    smooth.sim.reset_counts();
    smooth.script();
    let calls = smooth.sim.counts().total();
    smooth.finish();
    assert!(calls > 40, "the script makes only {calls} calls");
    for first in 1..=calls {
        let mut run = Run::new(settings);
        run.sim.fail(Fault {
            times,
            ..Fault::any(first, code)
        });
        run.script();
        run.finish();
    }
}

/// Runs [`fail_each`] with every kind of failure.
fn fail_in_every_way(settings: &str) {
    for (code, times) in [
        (Code::OUT_OF_MEMORY, 1),
        (Code::UNKNOWN, 3),
        (Code::OUT_OF_MEMORY, u64::MAX),
    ] {
        fail_each(settings, code, times);
    }
}

#[test]
fn any_call_may_fail_with_virtual_memory() {
    fail_in_every_way("source:virtual_memory");
}

#[test]
fn any_call_may_fail_with_slabs() {
    fail_in_every_way("source:slabs");
}

#[test]
fn any_call_may_fail_while_idle_memory_goes_back() {
    for source in ["virtual_memory", "slabs"] {
        let settings = format!("source:{source},cache:4MiB,release_after:0,headroom:2MiB,wait:0.001");
        fail_each(&settings, Code::UNKNOWN, 1);
    }
}

#[test]
fn any_call_may_fail_with_a_pool_of_the_drivers_own() {
    fail_in_every_way("source:driver_pool");
}

#[test]
fn a_pool_of_the_drivers_own_is_made_whole_or_not_at_all() {
    let sim = sim();
    for call in [Call::StreamCreate, Call::MemPoolCreate, Call::MemPoolSetAttribute] {
        sim.fail(Fault::nth(call, 1, Code::UNKNOWN));
        let config = Config::parse("source:driver_pool").expect("good settings");
        assert!(matches!(Pool::new(sim.clone(), config), Err(Error::Driver(error)) if error.call == call.name()));
    }
    let counts = sim.counts();
    assert_eq!(counts.get(Call::StreamCreate) - 1, counts.get(Call::StreamDestroy));
    assert_eq!(counts.get(Call::MemPoolCreate) - 1, counts.get(Call::MemPoolDestroy));
}

fn sim() -> Sim {
    Sim::new(Options {
        capacity: CAPACITY,
        backed: false,
        ..Options::default()
    })
}

fn pool(sim: &Sim, source: Source) -> Pool<Sim> {
    let mut config = Config::default();
    config.source = source;
    Pool::new(sim.clone(), config).expect("a pool takes nothing from the driver")
}

#[test]
fn memory_that_was_refused_is_not_in_the_peak() {
    for source in [Source::VirtualMemory, Source::Slabs] {
        let sim = sim();
        let pool = pool(&sim, source);
        for call in [Call::MemCreate, Call::MemAlloc] {
            sim.fail(Fault::from_nth(call, 1, Code::OUT_OF_MEMORY));
        }
        assert!(matches!(
            pool.alloc(40 * MIB, Stream::LEGACY),
            Err(Error::OutOfMemory(_))
        ));
        sim.clear_faults();
        let block = pool.alloc(MIB, Stream::LEGACY).expect("the device works again");
        let stats = pool.stats();
        assert_eq!(stats.peak_reserved_bytes, stats.reserved_bytes, "{source:?}");
        pool.free(block).expect("live");
    }
}

#[test]
fn what_can_never_be_held_is_refused_without_a_driver_call() {
    for source in [Source::VirtualMemory, Source::Slabs] {
        let sim = sim();
        let pool = pool(&sim, source);
        let most = BYTES_MAX;
        sim.reset_counts();
        for bytes in [CAPACITY + 1, 1 << 40, most - MIB, most] {
            assert!(matches!(pool.alloc(bytes, Stream::LEGACY), Err(Error::OutOfMemory(_))));
        }
        assert!(matches!(pool.reserve(u64::MAX), Err(Error::OutOfMemory(_))));
        // The free memory of the device is in the error.
        assert_eq!(sim.counts().total(), sim.counts().get(Call::MemGetInfo), "{source:?}");
    }
}

#[test]
fn any_growth_step_is_taken_as_far_as_there_is_memory() {
    for source in [Source::VirtualMemory, Source::Slabs] {
        for growth in [1, 12_345, CAPACITY - 1, 1 << 50, u64::MAX - 511, u64::MAX] {
            let mut config = Config::default();
            (config.source, config.growth) = (source, growth);
            let pool = Pool::new(sim(), config).expect("a pool takes nothing from the driver");
            let block = pool.alloc(1000, Stream::LEGACY);
            pool.free(block.expect("there is memory for it")).expect("live");
            assert_eq!(pool.check(), Ok(()));
        }
    }
}

#[test]
fn a_slab_that_the_driver_will_not_have_back_is_kept() {
    let sim = sim();
    // One page that is in use elsewhere, and what follows is not aligned to a granule.
    let page = sim.mem_host_alloc(1).expect("a page");
    let pool = Pool::new(Pinned::new(sim.clone(), CAPACITY), Config::default()).expect("a pool");
    sim.fail(Fault::nth(Call::MemFreeHost, 1, Code::UNKNOWN));
    let refused = pool.alloc(20 * MIB, Stream::LEGACY);
    assert!(matches!(refused, Err(Error::Driver(_))), "{refused:?}");
    assert_eq!(pool.check(), Ok(()));
    assert_eq!(pool.stats().reserved_bytes, 20 * MIB);
    let block = pool
        .alloc(19 * MIB, Stream::LEGACY)
        .expect("it fits into what was kept");
    assert_eq!(pool.stats().reserved_bytes, 20 * MIB);
    pool.free(block).expect("live");
    pool.trim(0).expect("the driver has it back now");
    assert_eq!(pool.stats().reserved_bytes, 0);
    sim.mem_free_host(page).expect("a page");
    assert_eq!(sim.usage().host_bytes, 0);
}
