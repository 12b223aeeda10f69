//! What every kind of pool must do, whatever its driver and its source of memory: one function for each rule.

#![allow(clippy::unwrap_used)] // in a test a panic is the report

use flagstone::config::{Config, Source};
use flagstone::driver::{Driver, Stream};
use flagstone::{BlockState, Error, Pool};
use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::mpsc;

/// A kind of pool to hold the rules against.
pub trait Kind {
    /// Its driver.
    type Driver: Driver;
    /// A driver of a fresh device with this much memory.
    fn driver(&self, capacity: u64) -> Self::Driver;
    /// Where its memory comes from.
    fn source(&self) -> Source;
    /// A stream that is not a default one, live as long as the driver.
    fn stream(&self, driver: &Self::Driver) -> Stream;
    /// A stream that was destroyed.
    fn dead_stream(&self, driver: &Self::Driver) -> Stream;
    /// Lets the device finish everything that it was given.
    fn finish(&self, driver: &Self::Driver);
    /// Runs a test, here or in a process of its own.
    fn run<F: FnOnce()>(&self, test: F) {
        test();
    }

    /// The configuration for this kind.
    fn config(&self) -> Config {
        let mut config = Config::default();
        config.source = self.source();
        config
    }

    /// A pool on a fresh device.
    fn pool(&self, capacity: u64) -> Pool<Self::Driver> {
        Pool::new(self.driver(capacity), self.config()).expect("a pool takes nothing from the driver")
    }
}

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const LEGACY: Stream = Stream::LEGACY;

/// Sizes on both sides of every boundary: none, unit, slot, class, segment.
const SIZES: [u64; 16] = [
    0,
    1,
    511,
    512,
    513,
    8192,
    16 << 10,
    (16 << 10) + 1,
    100_000,
    MIB - 1,
    MIB,
    MIB + 1,
    2 * MIB,
    10 * MIB,
    33 * MIB + 5,
    100 * MIB,
];

fn sound<D: Driver>(pool: &Pool<D>) {
    if let Err(fault) = pool.check() {
        panic!("{fault}\n{}", pool.stats());
    }
}

/// Blocks are aligned, large enough, distinct, and found by their address.
pub fn gives_distinct_aligned_blocks(kind: &impl Kind) {
    let pool = kind.pool(4 * GIB);
    let mut spans = Vec::new();
    for round in 0..3 {
        for bytes in SIZES {
            let addr = pool.alloc(bytes, LEGACY).unwrap();
            assert!(addr != 0 && addr.is_multiple_of(512), "{addr:#x}");
            let info = pool.block(addr).expect("live");
            assert_eq!((info.addr, info.requested), (addr, bytes));
            assert!(
                info.bytes >= bytes.max(1) && info.bytes < bytes + 512 + u64::from(bytes == 0),
                "round {round}"
            );
            spans.push((addr, addr + info.bytes));
        }
    }
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "blocks overlap");
    let stats = pool.stats();
    assert_eq!(stats.live_blocks, spans.len() as u64);
    assert_eq!(stats.requested_bytes, 3 * SIZES.iter().sum::<u64>());
    assert_eq!(
        stats.allocated_bytes,
        spans.iter().map(|(from, to)| to - from).sum::<u64>()
    );
    sound(&pool);
    for (addr, _) in spans {
        pool.free(addr).unwrap();
        assert!(pool.block(addr).is_none());
    }
    sound(&pool);
    assert_eq!(
        (
            pool.stats().live_blocks,
            pool.stats().allocated_bytes,
            pool.stats().requested_bytes
        ),
        (0, 0, 0)
    );
}

/// A freed block is given out again on its stream without asking the driver.
pub fn reuses_without_growing(kind: &impl Kind) {
    let pool = kind.pool(4 * GIB);
    for bytes in SIZES {
        let first = pool.alloc(bytes, LEGACY).unwrap();
        pool.free(first).unwrap();
        let (reserved, growths) = (pool.stats().reserved_bytes, pool.stats().growth_count);
        for _ in 0..10 {
            let again = pool.alloc(bytes, LEGACY).unwrap();
            assert_eq!(again, first, "{bytes} bytes");
            pool.free(again).unwrap();
        }
        assert_eq!(
            (pool.stats().reserved_bytes, pool.stats().growth_count),
            (reserved, growths)
        );
    }
    sound(&pool);
}

/// Neighbours that are free become one range: a large block fits where small ones were.
pub fn puts_neighbours_together(kind: &impl Kind) {
    let pool = kind.pool(GIB);
    let small: Vec<u64> = (0..32).map(|_| pool.alloc(2 * MIB, LEGACY).unwrap()).collect();
    for addr in small {
        pool.free(addr).unwrap();
    }
    let reserved = pool.stats().reserved_bytes;
    let large = pool.alloc(18 * MIB, LEGACY).unwrap();
    assert_eq!(
        pool.stats().reserved_bytes,
        reserved,
        "grew beside {reserved} free bytes"
    );
    pool.free(large).unwrap();
    sound(&pool);
}

/// Wrong pointers are typed errors, counted, and change nothing.
pub fn refuses_wrong_pointers(kind: &impl Kind) {
    let pool = kind.pool(GIB);
    let other = kind.pool(GIB);
    let block = pool.alloc(4096, LEGACY).unwrap();
    let large = pool.alloc(5 * MIB, LEGACY).unwrap();
    let foreign = other.alloc(4096, LEGACY).unwrap();
    let before = pool.stats();
    let unknown = [
        0,
        1,
        512,
        block + 1,
        block + 512,
        block + 4095,
        large + 512,
        large + 2 * MIB,
        foreign,
        u64::MAX,
        !511,
    ];
    for addr in unknown {
        assert!(
            matches!(pool.free(addr), Err(Error::UnknownPointer { addr: named }) if named == addr),
            "{addr:#x}"
        );
        assert!(
            matches!(pool.record_stream(addr, LEGACY), Err(Error::UnknownPointer { .. })),
            "{addr:#x}"
        );
        assert!(pool.block(addr).is_none());
    }
    let after = pool.stats();
    assert_eq!(
        [after.invalid_free_count, after.invalid_record_count],
        [unknown.len() as u64; 2]
    );
    assert_eq!(
        (after.live_blocks, after.allocated_bytes),
        (before.live_blocks, before.allocated_bytes)
    );
    for addr in [block, large] {
        pool.free(addr).unwrap();
        let again = pool.free(addr);
        assert!(
            matches!(again, Err(Error::DoubleFree { .. } | Error::UnknownPointer { .. })),
            "{again:?}"
        );
    }
    assert_eq!(pool.stats().live_blocks, 0);
    sound(&pool);
    other.free(foreign).unwrap();
}

/// A wrong size at free is counted; the block is freed by its own.
pub fn ignores_a_wrong_size(kind: &impl Kind) {
    let pool = kind.pool(GIB);
    let block = pool.alloc(1000, LEGACY).unwrap();
    pool.free_sized(block, 5 * MIB).unwrap();
    let stats = pool.stats();
    assert_eq!(
        (stats.wrong_size_free_count, stats.live_blocks, stats.allocated_bytes),
        (1, 0, 0)
    );
    let block = pool.alloc(1000, LEGACY).unwrap();
    pool.free_sized(block, 1000).unwrap();
    assert_eq!(pool.stats().wrong_size_free_count, 1);
    sound(&pool);
}

/// Sizes that cannot be are refused at once, with the numbers, and nothing is lost.
pub fn refuses_impossible_sizes(kind: &impl Kind) {
    let pool = kind.pool(GIB);
    let kept = pool.alloc(MIB, LEGACY).unwrap();
    for bytes in [u64::MAX, u64::MAX - 511, 1 << 63, 1 << 48] {
        assert!(matches!(pool.alloc(bytes, LEGACY), Err(Error::TooLarge { requested, .. }) if requested == bytes));
    }
    for bytes in [GIB + 1, 1 << 40] {
        match pool.alloc(bytes, LEGACY) {
            Err(Error::OutOfMemory(numbers)) => {
                assert_eq!(
                    (numbers.requested, numbers.allocated, numbers.device),
                    (bytes, MIB, pool.device())
                );
                assert!(numbers.to_string().contains(&bytes.to_string()));
            }
            other => panic!("{bytes}: {other:?}"),
        }
    }
    assert_eq!(pool.stats().out_of_memory_count, 2);
    assert!(pool.block(kept).is_some());
    sound(&pool);
    pool.free(kept).unwrap();
}

/// The limit holds for what is taken from the driver; below it everything works, above it nothing is lost.
pub fn keeps_the_limit(kind: &impl Kind) {
    let pool = kind.pool(GIB);
    pool.set_limit(Some(64 * MIB));
    let a = pool.alloc(40 * MIB, LEGACY).unwrap();
    let failed = pool.alloc(40 * MIB, LEGACY).unwrap_err();
    match &failed {
        Error::OutOfMemory(numbers) => assert_eq!((numbers.limit, numbers.allocated), (Some(64 * MIB), 40 * MIB)),
        other => panic!("{other:?}"),
    }
    assert!(pool.stats().reserved_bytes <= 64 * MIB);
    sound(&pool);
    pool.free(a).unwrap();
    let b = pool.alloc(60 * MIB, LEGACY).expect("there is room again");
    pool.set_limit(None);
    let c = pool.alloc(100 * MIB, LEGACY).expect("no limit any more");
    pool.free(b).unwrap();
    pool.free(c).unwrap();
    assert_eq!(
        pool.stats().peak_reserved_bytes.max(100 * MIB),
        pool.stats().peak_reserved_bytes
    );
    sound(&pool);
}

/// Idle memory of other sizes and streams is taken before a request fails.
pub fn gives_idle_memory_back_before_failing(kind: &impl Kind) {
    let driver = kind.driver(GIB);
    let stream = kind.stream(&driver);
    let pool = Pool::new(driver, kind.config()).unwrap();
    pool.set_limit(Some(128 * MIB));
    for (bytes, count) in [(4096, 100), (100_000, 100), (20 * MIB, 4)] {
        let blocks: Vec<u64> = (0..count).map(|_| pool.alloc(bytes, stream).unwrap()).collect();
        for addr in blocks {
            pool.free(addr).unwrap();
        }
    }
    let whole = pool.alloc(120 * MIB, LEGACY).expect("everything is idle");
    assert!(pool.stats().reserved_bytes <= 128 * MIB);
    sound(&pool);
    pool.free(whole).unwrap();
}

/// `trim` gives back what is idle and keeps what is live.
pub fn trims_to_what_is_live(kind: &impl Kind) {
    let pool = kind.pool(GIB);
    let kept: Vec<u64> = [4096, 100_000, 5 * MIB]
        .map(|bytes| pool.alloc(bytes, LEGACY).unwrap())
        .to_vec();
    let freed: Vec<u64> = (0..10).map(|_| pool.alloc(24 * MIB, LEGACY).unwrap()).collect();
    for addr in freed {
        pool.free(addr).unwrap();
    }
    let before = pool.stats().reserved_bytes;
    let given = pool.trim(0).unwrap();
    let after = pool.stats().reserved_bytes;
    assert_eq!(before - after, given);
    assert!(after <= 48 * MIB, "{after} bytes are still held for 5 MiB");
    assert!(kept.iter().all(|&addr| pool.block(addr).is_some()));
    sound(&pool);
    for addr in kept {
        pool.free(addr).unwrap();
    }
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved_bytes, 0);
    assert_eq!(pool.trim(0).unwrap(), 0);
    sound(&pool);
    let again = pool.alloc(30 * MIB, LEGACY).expect("a trimmed pool goes on");
    pool.free(again).unwrap();
}

/// `reserve` takes memory ahead; requests that fit take no more.
pub fn reserves_ahead(kind: &impl Kind) {
    let pool = kind.pool(GIB);
    pool.reserve(100 * MIB).unwrap();
    let reserved = pool.stats().reserved_bytes;
    assert!(reserved >= 100 * MIB);
    let block = pool.alloc(90 * MIB, pool.driver().home()).unwrap();
    assert_eq!(pool.stats().reserved_bytes, reserved);
    pool.free(block).unwrap();
    assert!(matches!(pool.reserve(2 * GIB), Err(Error::OutOfMemory(_))));
    sound(&pool);
}

/// A block of one stream is not given to another as long as that is not safe; pools of streams do not mix.
pub fn keeps_streams_apart(kind: &impl Kind) {
    let driver = kind.driver(GIB);
    let (one, two) = (kind.stream(&driver), kind.stream(&driver));
    let pool = Pool::new(driver, kind.config()).unwrap();
    for bytes in [1000, 100_000, 5 * MIB] {
        let a = pool.alloc(bytes, one).unwrap();
        pool.free(a).unwrap();
        let b = pool.alloc(bytes, two).unwrap();
        let c = pool.alloc(bytes, LEGACY).unwrap();
        assert!(
            a != b && a != c && b != c,
            "{bytes} bytes went to another stream at once"
        );
        let again = pool.alloc(bytes, one).unwrap();
        assert_eq!(again, a, "{bytes} bytes of the stream's own");
        assert_eq!(pool.block(again).map(|info| info.stream), Some(one));
        for addr in [again, b, c] {
            pool.free(addr).unwrap();
        }
    }
    sound(&pool);
}

/// A recorded use keeps a freed block back until that stream has done its work.
pub fn waits_for_recorded_uses(kind: &impl Kind) {
    let driver = kind.driver(GIB);
    let side = kind.stream(&driver);
    let pool = Pool::new(driver, kind.config()).unwrap();
    pool.keep_stream(side).unwrap();
    for bytes in [1000, 100_000, 5 * MIB] {
        let block = pool.alloc(bytes, LEGACY).unwrap();
        pool.record_stream(block, LEGACY).unwrap();
        pool.record_stream(block, side).unwrap();
        pool.record_stream(block, side).unwrap();
        pool.free(block).unwrap();
        let stats = pool.stats();
        assert_eq!(
            stats.pending_blocks, 1,
            "the own stream counts for nothing, twice counts once"
        );
        assert!(stats.active_bytes >= bytes && stats.allocated_bytes == 0);
        assert!(pool.free(block).is_err(), "it is not the user's any more");
        sound(&pool);
        kind.finish(pool.driver());
        // A request that no magazine can meet looks at the events.
        let mut taken = Vec::new();
        while !taken.contains(&block) {
            assert!(taken.len() < 5000, "{bytes} bytes never came back");
            taken.push(pool.alloc(bytes, LEGACY).unwrap());
        }
        assert_eq!(pool.stats().pending_blocks, 0);
        for addr in taken {
            pool.free(addr).unwrap();
        }
    }
    assert_eq!(pool.stats().event_count, 3, "one event for each recorded use");
    sound(&pool);
}

/// A use on a stream whose handle may die puts the block aside; memory is found again when it is needed.
pub fn puts_aside_what_can_get_no_event(kind: &impl Kind) {
    let driver = kind.driver(GIB);
    let side = kind.stream(&driver);
    let pool = Pool::new(driver, kind.config()).unwrap();
    pool.set_limit(Some(32 * MIB));
    let block = pool.alloc(20 * MIB, LEGACY).unwrap();
    pool.record_stream(block, side).unwrap();
    pool.free(block).unwrap();
    assert_eq!((pool.stats().pending_blocks, pool.stats().event_count), (1, 0));
    kind.finish(pool.driver());
    let again = pool.alloc(20 * MIB, LEGACY).expect("the context can be waited for");
    assert_eq!(pool.stats().pending_blocks, 0);
    pool.free(again).unwrap();
    // A free that names the stream may use its handle: that gets an event.
    let block = pool.alloc(MIB, LEGACY).unwrap();
    pool.free_on(block, side).unwrap();
    assert_eq!((pool.stats().pending_blocks, pool.stats().event_count), (1, 1));
    kind.finish(pool.driver());
    sound(&pool);
}

/// Work that was recorded has its event at once, also where the stream's handle is not kept; a block that nobody knows the
/// uses of waits for the context; and a synchronisation makes all of them ready.
pub fn waits_for_recorded_work_and_for_unseen(kind: &impl Kind) {
    let driver = kind.driver(GIB);
    let side = kind.stream(&driver);
    let pool = Pool::new(driver, kind.config()).unwrap();
    let [recorded, unseen, both] = [MIB, 2 * MIB, 4 * MIB].map(|bytes| pool.alloc(bytes, LEGACY).unwrap());
    for block in [recorded, both] {
        pool.record_work(block, side).unwrap();
        pool.record_work(block, side).unwrap();
    }
    assert_eq!(pool.stats().event_count, 4);
    pool.free(recorded).unwrap();
    pool.free_unseen(unseen).unwrap();
    pool.free_unseen(both).unwrap();
    assert_eq!(pool.stats().event_count, 4, "the free needs no event more");
    assert_eq!(pool.unseen_bytes(), 2 * MIB, "a use that was recorded is known");
    assert!(matches!(pool.free_unseen(unseen), Err(Error::DoubleFree { .. })));
    assert_eq!(pool.stats().pending_blocks, 3);
    sound(&pool);
    kind.finish(pool.driver());
    pool.synchronize().unwrap();
    assert_eq!((pool.stats().pending_blocks, pool.unseen_bytes()), (0, 0));
    // One that is live when the pool goes has an event too.
    let kept = pool.alloc(MIB, LEGACY).unwrap();
    pool.record_work(kept, side).unwrap();
    sound(&pool);
}

/// A destroyed stream is refused, in every call that takes one, and nothing is changed.
pub fn refuses_dead_streams(kind: &impl Kind) {
    let driver = kind.driver(GIB);
    let dead = kind.dead_stream(&driver);
    let pool = Pool::new(driver, kind.config()).unwrap();
    let block = pool.alloc(1000, LEGACY).unwrap();
    assert!(matches!(pool.alloc(1000, dead), Err(Error::InvalidStream { .. })));
    assert!(matches!(
        pool.record_stream(block, dead),
        Err(Error::InvalidStream { .. })
    ));
    assert!(matches!(pool.free_on(block, dead), Err(Error::InvalidStream { .. })));
    assert!(matches!(pool.keep_stream(dead), Err(Error::InvalidStream { .. })));
    let stats = pool.stats();
    assert_eq!((stats.live_blocks, stats.pending_blocks, stats.free_count), (1, 0, 0));
    pool.free(block).unwrap();
    sound(&pool);
}

/// Each pair of threads frees the other's blocks; at the end nothing is lost and nothing is held twice.
pub fn survives_threads(kind: &(impl Kind + Sync)) {
    let pool = kind.pool(4 * GIB);
    let threads = 4;
    let rounds = 2000;
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel::<u64>()).unzip();
        let mut running = Vec::new();
        for (me, receiver) in receivers.into_iter().enumerate() {
            let next = senders[(me + 1) % threads].clone();
            let (pool, barrier) = (&pool, &barrier);
            running.push(scope.spawn(move || {
                barrier.wait();
                let mut random = me as u64 + 1;
                for _ in 0..rounds {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let bytes = 1 + (random >> 33) % [2000, 60_000, 300_000, 3 * MIB][(random >> 20) as usize % 4];
                    next.send(pool.alloc(bytes, LEGACY).unwrap()).unwrap();
                    for addr in receiver.try_iter() {
                        pool.free(addr).unwrap();
                    }
                }
                drop(next);
                barrier.wait();
                for addr in receiver.try_iter() {
                    pool.free(addr).unwrap();
                }
            }));
        }
        // The end of a scope does not wait for what threads do after their closure; this does.
        for thread in running {
            thread.join().unwrap();
        }
    });
    let stats = pool.stats();
    assert_eq!((stats.live_blocks, stats.allocated_bytes), (0, 0));
    assert_eq!((stats.alloc_count, stats.free_count), (8000, 8000));
    sound(&pool);
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved_bytes, 0, "memory was lost");
}

/// Of two threads that free the same block one succeeds.
pub fn one_of_two_frees_wins(kind: &(impl Kind + Sync)) {
    let pool = kind.pool(GIB);
    for _ in 0..200 {
        let block = pool.alloc(5000, LEGACY).unwrap();
        let barrier = Barrier::new(2);
        let wins: usize = std::thread::scope(|scope| {
            let free = || {
                barrier.wait();
                usize::from(pool.free(block).is_ok())
            };
            let other = scope.spawn(free);
            free() + other.join().unwrap()
        });
        assert_eq!(wins, 1);
    }
    assert_eq!(pool.stats().live_blocks, 0);
    sound(&pool);
}

/// Threads that come and go leave nothing behind: what they held serves the next.
pub fn threads_leave_nothing_behind(kind: &(impl Kind + Sync)) {
    let pool = kind.pool(GIB);
    let mut reserved = HashSet::new();
    for _ in 0..50 {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let blocks: Vec<u64> = SIZES[..13]
                    .iter()
                    .map(|&bytes| pool.alloc(bytes, LEGACY).unwrap())
                    .collect();
                for addr in blocks {
                    pool.free(addr).unwrap();
                }
            });
            // The end of a scope does not wait for what threads do after their closure; this does.
            thread.join().unwrap();
        });
        reserved.insert(pool.stats().reserved_bytes);
        assert_eq!(pool.stats().magazine_bytes, 0, "a thread that ended holds magazines");
    }
    assert_eq!(reserved.len(), 1, "memory grew from thread to thread: {reserved:?}");
    sound(&pool);
}

/// Memory in the magazine of a thread that sleeps is had when it is needed.
pub fn takes_magazines_under_pressure(kind: &(impl Kind + Sync)) {
    let pool = kind.pool(GIB);
    pool.set_limit(Some(40 * MIB));
    let (ready, done) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let block = pool.alloc(30 * MIB, LEGACY).unwrap();
            pool.free(block).unwrap();
            ready.wait();
            done.wait();
        });
        ready.wait();
        let block = pool
            .alloc(31 * MIB, LEGACY)
            .expect("the sleeping thread has what is needed");
        pool.free(block).unwrap();
        done.wait();
        sleeper.join().unwrap();
    });
    sound(&pool);
}

/// A snapshot covers what is held, block by block, side by side.
pub fn snapshots_cover_everything(kind: &impl Kind) {
    let pool = kind.pool(GIB);
    let live: Vec<u64> = SIZES[..14]
        .iter()
        .map(|&bytes| pool.alloc(bytes, LEGACY).unwrap())
        .collect();
    for addr in live.iter().step_by(3) {
        pool.free(*addr).unwrap();
    }
    let snapshot = pool.snapshot();
    let stats = pool.stats();
    let mut seen = 0;
    for segment in &snapshot.segments {
        let mut at = segment.addr;
        for block in &segment.blocks {
            assert_eq!(block.addr, at);
            at += block.bytes;
            if block.state == BlockState::ActiveAllocated {
                seen += 1;
                assert_eq!(pool.block(block.addr).map(|info| info.requested), Some(block.requested));
            }
        }
        assert_eq!(at, segment.addr + segment.bytes);
    }
    assert_eq!(seen, stats.live_blocks);
    assert_eq!(snapshot.segments.len() as u64, stats.segments);
    assert_eq!(
        snapshot.segments.iter().map(|segment| segment.bytes).sum::<u64>(),
        stats.reserved_bytes
    );
}

/// Requests of a private pool come from it, and its memory goes to nobody else while it has holders.
pub fn keeps_private_pools_private(kind: &impl Kind) {
    let pool = kind.pool(GIB);
    let free = pool.alloc(MIB, LEGACY).unwrap();
    pool.free(free).unwrap();
    pool.begin_private((1, 0), |_| true);
    let inside = pool.alloc(MIB, LEGACY).unwrap();
    assert_ne!(inside, free, "a private pool begins empty");
    pool.end_private((1, 0));
    pool.free(inside).unwrap();
    for _ in 0..20 {
        assert_ne!(pool.alloc(MIB, LEGACY).unwrap(), inside, "the graph may be replayed");
    }
    pool.trim(0).unwrap();
    pool.begin_private((1, 0), |_| true);
    assert_eq!(pool.alloc(MIB, LEGACY).unwrap(), inside, "it is the pool's own");
    pool.end_private((1, 0));
    pool.free(inside).unwrap();
    let reserved = pool.stats().reserved_bytes;
    pool.release_private((1, 0));
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved_bytes, reserved, "one holder is left");
    pool.release_private((1, 0));
    pool.trim(0).unwrap();
    assert!(pool.stats().reserved_bytes < reserved, "its memory is idle now");
    sound(&pool);
}

/// Runs every rule as a test of its own for one kind; with `live streams`, those that use no destroyed stream, which a real driver
/// may answer with a crash.
#[macro_export]
macro_rules! contract {
    ($kind:expr; $($rule:ident),* $(,)?) => {
        $(#[test] fn $rule() { $kind.run(|| contract::$rule(&$kind)); })*
    };
    ($kind:expr, live streams) => {
        contract!($kind; gives_distinct_aligned_blocks, reuses_without_growing, puts_neighbours_together,
            refuses_wrong_pointers, ignores_a_wrong_size, refuses_impossible_sizes, keeps_the_limit,
            gives_idle_memory_back_before_failing, trims_to_what_is_live, reserves_ahead, keeps_streams_apart,
            waits_for_recorded_uses, puts_aside_what_can_get_no_event,
            waits_for_recorded_work_and_for_unseen, survives_threads, one_of_two_frees_wins,
            threads_leave_nothing_behind, takes_magazines_under_pressure, snapshots_cover_everything,
            keeps_private_pools_private);
    };
    ($kind:expr) => {
        contract!($kind, live streams);
        contract!($kind; refuses_dead_streams);
    };
}
