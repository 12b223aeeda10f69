//! What comes and goes beside a pool: threads, streams, and pools themselves.

use flagstone::config::{Config, Source};
use flagstone::driver::Stream;
use flagstone::driver::sim::{Options, Sim, StreamKind, Usage, Work};
use flagstone::{Error, Pool};
use std::cell::RefCell;
use std::sync::{Arc, Barrier};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const LEGACY: Stream = Stream::LEGACY;

fn device(capacity: u64) -> (Sim, Pool<Sim>) {
    let sim = Sim::new(Options {
        capacity,
        backed: false,
        ..Options::default()
    });
    let pool = Pool::new(sim.clone(), Config::default()).expect("a pool takes nothing from the driver");
    (sim, pool)
}

fn pair(pool: &Pool<Sim>, bytes: u64, stream: Stream) {
    let block = pool.alloc(bytes, stream).expect("there is room");
    pool.free(block).expect("live");
}

/// A stream that is never destroyed.
fn kept(sim: &Sim, pool: &Pool<Sim>) -> Stream {
    let stream = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
    pool.keep_stream(stream).expect("live");
    stream
}

/// Runs on a thread that has ended when this returns, its thread-local storage included.
fn on_a_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(body).join().expect("no panic"))
}

#[test]
fn streams_come_and_go() {
    // Each stream reserves addresses for the whole of the device: those of a process, 128 TiB, end after some 90.
    let (sim, pool) = device(1024 * GIB);
    for _ in 0..150 {
        let stream = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        for bytes in [1000, 100_000, 3 * MIB] {
            pair(&pool, bytes, stream);
        }
        sim.stream_destroy(stream).expect("live");
    }
    assert_eq!(pool.check(), Ok(()));
    pool.trim(0).expect("the device can be waited for");
    assert_eq!(sim.usage(), Usage::default(), "an idle pool keeps addresses");
    pair(&pool, 3 * MIB, LEGACY);
}

#[test]
fn a_new_stream_at_every_step_leaves_nothing_behind() {
    for source in [Source::VirtualMemory, Source::Slabs] {
        let sim = Sim::new(Options {
            capacity: 256 * MIB,
            backed: false,
            ..Options::default()
        });
        let mut config = Config::default();
        config.source = source;
        let pool = Pool::new(sim.clone(), config).expect("a pool");
        let steps = |count: u32| {
            for _ in 0..count {
                let stream = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
                let blocks =
                    [1000, 200_000, 20 * MIB].map(|bytes| pool.alloc(bytes, stream).expect("idle memory serves"));
                for block in blocks {
                    pool.free(block).expect("live");
                }
                sim.stream_destroy(stream).expect("live");
            }
        };
        steps(300);
        let (host, pressure) = (pool.stats().host_bytes, pool.stats().pressure_count);
        steps(900);
        // Records are reused, and a wait for the device serves many steps.
        assert!(
            pool.stats().host_bytes <= host,
            "{source:?}: {} bytes",
            pool.stats().host_bytes
        );
        let waits = pool.stats().pressure_count - pressure;
        assert!(waits <= 900 / 5, "{source:?}: {waits} requests were short of memory");
        assert_eq!(pool.check(), Ok(()));
        assert_eq!(sim.violations(), []);
    }
}

#[test]
fn threads_with_streams_of_their_own_leave_nothing_behind() {
    let (sim, pool) = device(64 * MIB);
    let threads = |count: u32| {
        for _ in 0..count {
            on_a_thread(|| pair(&pool, 1000, Stream::PER_THREAD));
        }
    };
    threads(300);
    let host = pool.stats().host_bytes;
    threads(900);
    assert!(pool.stats().host_bytes <= host, "{} bytes", pool.stats().host_bytes);
    assert_eq!(pool.check(), Ok(()));
    assert_eq!(sim.violations(), []);
}

#[test]
fn the_default_streams_of_two_threads_share_no_block_that_is_in_use() {
    for bytes in [40_000, MIB, 5 * MIB] {
        let (sim, pool) = device(GIB);
        let freed = Barrier::new(2);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                let block = pool.alloc(bytes, Stream::PER_THREAD).expect("room");
                let work = Work::new().writes(block, bytes).takes(1000);
                sim.launch(Stream::PER_THREAD, work).expect("live");
                pool.free(block).expect("live");
                freed.wait();
            });
            freed.wait();
            // The handle is the same, and names another stream here.
            for _ in 0..20 {
                let block = pool.alloc(bytes, Stream::PER_THREAD).expect("room");
                sim.check_handout(block, bytes, Stream::PER_THREAD)
                    .expect("the other thread's stream still works");
            }
            first.join().expect("no panic");
        });
        assert_eq!(pool.check(), Ok(()));
        assert_eq!(sim.violations(), []);
    }
}

#[test]
fn a_stream_that_others_took_for_gone_is_served_again() {
    let (sim, pool) = device(GIB);
    let stream = || sim.stream_create(StreamKind::NonBlocking).expect("a stream");
    let old = stream();
    pair(&pool, 1000, old);
    // Its memory goes, so that its place may be another's; the thread still has its cache.
    pool.trim(0).expect("the device can be waited for");
    let others: Vec<Stream> = (0..200)
        .map(|_| {
            let other = stream();
            pair(&pool, 1000, other);
            pool.trim(0).expect("the device can be waited for");
            other
        })
        .collect();
    let mut blocks = Vec::new();
    for stream in others.into_iter().chain([old]) {
        let block = pool.alloc(1000, stream).expect("there is room");
        sim.check_handout(block, 1000, stream).expect("nobody else's");
        assert_eq!(pool.block(block).map(|info| info.stream), Some(stream));
        blocks.push(block);
    }
    for block in blocks {
        pool.free(block).expect("live");
    }
    assert_eq!(pool.check(), Ok(()));
}

#[test]
fn memory_of_a_stream_that_may_be_gone_stays_with_it() {
    let (sim, pool) = device(GIB);
    let mut live = Vec::new();
    // More streams than arenas are made before those of nobody are looked for.
    for number in 0..200 {
        let stream = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        let [kept, freed] = [(); 2].map(|()| pool.alloc(2 * MIB, stream).expect("there is room"));
        for block in [kept, freed] {
            sim.check_handout(block, 2 * MIB, stream).expect("nobody else's");
            sim.launch(stream, Work::new().writes(block, 2 * MIB).takes(1_000_000_000))
                .expect("live");
        }
        pool.free(freed).expect("live");
        if number % 2 == 0 {
            pool.free(kept).expect("live");
        } else {
            live.push((kept, stream));
        }
    }
    for (block, stream) in live {
        assert_eq!(pool.block(block).map(|info| info.stream), Some(stream));
        pool.free(block).expect("live");
    }
    assert_eq!(pool.check(), Ok(()));
    assert_eq!(sim.violations(), []);
}

#[test]
fn both_handles_of_the_legacy_stream_are_one() {
    let (_, pool) = device(GIB);
    let block = pool.alloc(1000, Stream(1)).expect("there is room");
    // The handle that most requests pass, so that they are hits.
    assert_eq!(pool.block(block).map(|info| info.stream), Some(LEGACY));
    pool.free(block).expect("live");
    assert_eq!(pool.alloc(1000, LEGACY).expect("there is room"), block);
}

#[test]
fn what_an_ended_thread_allocated_serves_others() {
    let (_, pool) = device(GIB);
    // This thread has a cache of its own, and does not take over the other's.
    pair(&pool, 1000, LEGACY);
    let alloc = || {
        (0..50)
            .map(|_| pool.alloc(MIB, LEGACY).expect("there is room"))
            .collect()
    };
    let blocks: Vec<u64> = on_a_thread(alloc);
    for block in blocks {
        pool.free(block).expect("live");
    }
    let reserved = pool.stats().reserved_bytes;
    let blocks: Vec<u64> = alloc();
    assert_eq!(
        pool.stats().reserved_bytes,
        reserved,
        "grew beside {reserved} idle bytes"
    );
    for block in blocks {
        pool.free(block).expect("live");
    }
    assert_eq!(pool.check(), Ok(()));
}

/// Runs `body` in a forked child; whether it said that all was well.
fn in_a_forked_child(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls only what is tested, and ends without a destructor.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let well = body();
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!well)) };
    }
    let mut status = -1;
    // SAFETY: the status is a variable of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

#[test]
fn a_forked_child_gives_and_takes_nothing() {
    let (_, pool) = device(GIB);
    let alloc = |bytes| pool.alloc(bytes, LEGACY).expect("there is room");
    let blocks = [alloc(1000), alloc(3 * MIB)];
    // What would be hits.
    pair(&pool, 1000, LEGACY);
    pair(&pool, 3 * MIB, LEGACY);
    let forked = |result: Result<(), Error>| matches!(result, Err(Error::Forked));
    assert!(in_a_forked_child(|| {
        let allocs = [1000, 3 * MIB].map(|bytes| pool.alloc(bytes, LEGACY).map(drop));
        let frees = blocks.map(|block| {
            [
                pool.free(block),
                pool.free_sized(block, 1000),
                pool.free_on(block, LEGACY),
            ]
        });
        let others = [
            pool.record_stream(blocks[0], Stream::PER_THREAD),
            pool.reserve(MIB),
            pool.trim(0).map(drop),
            pool.synchronize(),
        ];
        // Also from a thread that the child begins.
        let other = on_a_thread(|| pool.alloc(1000, LEGACY).map(drop));
        let all = allocs
            .into_iter()
            .chain(frees.into_iter().flatten())
            .chain(others)
            .chain([other]);
        all.into_iter().all(forked)
    }));
    for block in blocks {
        pool.free(block).expect("the child freed nothing of ours");
    }
    assert_eq!((pool.check(), pool.stats().live_blocks), (Ok(()), 0));
}

/// Allocates and frees when its thread has almost ended.
struct Last {
    pool: Arc<Pool<Sim>>,
    block: Option<u64>,
}

impl Drop for Last {
    fn drop(&mut self) {
        for bytes in [0, 1000, 100_000, 3 * MIB] {
            pair(&self.pool, bytes, LEGACY);
        }
        if let Some(block) = self.block {
            self.pool.free(block).expect("live");
        }
    }
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

#[test]
fn destructors_of_a_thread_may_allocate_and_free() {
    let pool = Arc::new(device(GIB).1);
    // Destroyed after the pool's own thread-local, then before it, then without there having been one.
    for (before, after) in [(true, false), (false, true), (false, false)] {
        let shared = pool.clone();
        on_a_thread(move || {
            let alloc = |yes: bool| yes.then(|| shared.alloc(5000, LEGACY).expect("there is room"));
            let set = |block| {
                let pool = shared.clone();
                LAST.with_borrow_mut(|last| *last = Some(Last { pool, block }));
            };
            if before {
                set(None);
                let block = alloc(true);
                LAST.with_borrow_mut(|last| last.iter_mut().for_each(|last| last.block = block));
            } else {
                let block = alloc(after);
                set(block);
            }
        });
    }
    assert_eq!(pool.check(), Ok(()));
    pool.trim(0).expect("the device can be waited for");
    assert_eq!((pool.stats().live_blocks, pool.stats().reserved_bytes), (0, 0));
}

#[test]
fn a_pool_may_go_while_threads_that_used_it_end() {
    for _ in 0..100 {
        let (sim, pool) = device(GIB);
        // A scope does not wait for the thread-local storage of its threads.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for bytes in [1000, 100_000, 3 * MIB, 1000, 20_000] {
                        pair(&pool, bytes, LEGACY);
                    }
                });
            }
        });
        drop(pool);
        assert_eq!(sim.usage(), Usage::default());
    }
}

#[test]
fn pools_come_and_go() {
    let (sim, other) = device(GIB);
    for _ in 0..200 {
        let pool = Pool::new(sim.clone(), Config::default()).expect("a pool takes nothing from the driver");
        let block = pool.alloc(3 * MIB, LEGACY).expect("there is room");
        assert!(other.free(block).is_err(), "it is another pool's");
        pair(&pool, 1000, LEGACY);
        pool.free(block).expect("live");
        // On another stream, so that events are used too.
        pair(&pool, 3 * MIB, kept(&sim, &pool));
        pair(&other, 1000, LEGACY);
    }
    assert_eq!((other.check(), other.stats().live_blocks), (Ok(()), 0));
    drop(other);
    assert_eq!((sim.usage(), sim.event_count()), (Usage::default(), 0));
}
