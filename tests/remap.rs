//! Free memory is mapped where it is wanted: without new physical memory, without waiting, and without harm to what is live.

use flagstone::config::{Config, Dependencies, Source};
use flagstone::driver::Stream;
use flagstone::driver::sim::{Call, Code, Fault, Options, Sim, StreamKind, Work};
use flagstone::{Error, Pool};

const MIB: u64 = 1 << 20;
/// One of the blocks whose neighbours are freed.
const TOOTH: u64 = 4 * MIB;
const LEGACY: Stream = Stream::LEGACY;

fn pool(sim: &Sim) -> Pool<Sim> {
    let mut config = Config::default();
    (config.source, config.magazine) = (Source::VirtualMemory, 0);
    Pool::new(sim.clone(), config).expect("a pool")
}

fn sim() -> Sim {
    Sim::new(Options {
        capacity: 512 * MIB,
        lag_ns: 1_000_000,
        ..Options::default()
    })
}

/// Fills a block by work on its stream that takes a while.
fn stamp(sim: &Sim, addr: u64, bytes: u64, value: u8, stream: Stream) {
    sim.launch(stream, Work::new().fills(addr, bytes, value).takes(100_000))
        .expect("launched");
}

fn assert_stamp(sim: &Sim, addr: u64, bytes: u64, value: u8) {
    let mut data = vec![0; bytes as usize];
    sim.read(addr, &mut data).expect("readable");
    assert!(data.iter().all(|&byte| byte == value), "{addr:#x} lost its contents");
}

/// Nine blocks on a stream, of which every second was freed while its work goes on; the live ones.
fn comb(sim: &Sim, pool: &Pool<Sim>, stream: Stream) -> Vec<u64> {
    let blocks: Vec<u64> = (0..9).map(|_| pool.alloc(TOOTH, stream).expect("room")).collect();
    for (tooth, &addr) in blocks.iter().enumerate() {
        stamp(sim, addr, TOOTH, tooth as u8 + 1, stream);
    }
    let (live, freed): (Vec<_>, Vec<_>) = blocks.iter().enumerate().partition(|(tooth, _)| tooth % 2 == 0);
    for (_, &addr) in freed {
        pool.free(addr).expect("live");
    }
    live.into_iter().map(|(_, &addr)| addr).collect()
}

fn sound(sim: &Sim, pool: &Pool<Sim>) {
    pool.check().unwrap_or_else(|fault| panic!("{fault}\n{}", pool.stats()));
    assert!(sim.violations().is_empty(), "{:?}", sim.violations());
}

fn all_live(sim: &Sim, live: &[u64]) {
    sim.advance(1_000_000_000);
    for (tooth, &addr) in live.iter().enumerate() {
        assert_stamp(sim, addr, TOOTH, 2 * tooth as u8 + 1);
    }
}

#[test]
fn the_same_stream_gets_its_holes_as_one_block_at_once() {
    let sim = sim();
    let pool = pool(&sim);
    let live = comb(&sim, &pool, LEGACY);
    let (reserved, created) = (pool.stats().reserved_bytes, sim.counts().get(Call::MemCreate));
    let unmapped = sim.counts().get(Call::MemUnmap);
    let large = pool.alloc(15 * MIB, LEGACY).unwrap();
    assert_eq!(pool.stats().reserved_bytes, reserved, "16 MiB were free");
    assert_eq!(sim.counts().get(Call::MemCreate), created);
    assert_eq!(
        sim.counts().get(Call::MemUnmap),
        unmapped,
        "the work on the freed blocks goes on"
    );
    sound(&sim, &pool);
    stamp(&sim, large, 15 * MIB, 99, LEGACY);
    all_live(&sim, &live);
    assert_stamp(&sim, large, 15 * MIB, 99);
}

#[test]
fn memory_goes_back_to_where_it_is_still_mapped_without_a_call() {
    let sim = sim();
    let pool = pool(&sim);
    let live = comb(&sim, &pool, LEGACY);
    // The four holes are one block now; then all but the last tooth go, and the holes are wanted between them again.
    let moved = pool.alloc(16 * MIB, LEGACY).unwrap();
    stamp(&sim, moved, 16 * MIB, 99, LEGACY);
    pool.free(moved).unwrap();
    for &addr in &live[..4] {
        pool.free(addr).unwrap();
    }
    let (calls, reserved) = (memory_calls(&sim), pool.stats().reserved_bytes);
    let large = pool.alloc(28 * MIB, LEGACY).unwrap();
    stamp(&sim, large, 28 * MIB, 50, LEGACY);
    sound(&sim, &pool);
    // What is mapped twice is given out once.
    pool.alloc(4 * MIB, LEGACY).unwrap();
    sound(&sim, &pool);
    pool.free(large).unwrap();
    let again = pool.alloc(16 * MIB, LEGACY).unwrap();
    stamp(&sim, again, 16 * MIB, 51, LEGACY);
    assert_eq!((memory_calls(&sim), pool.stats().reserved_bytes), (calls, reserved));
    sound(&sim, &pool);
    sim.advance(1_000_000_000);
    assert_stamp(&sim, live[4], TOOTH, 9);
    assert_stamp(&sim, again, 16 * MIB, 51);
}

#[test]
fn memory_that_streams_use_in_turn_is_mapped_once_for_each() {
    let sim = sim();
    let mut config = Config::default();
    (config.source, config.magazine, config.dependencies) = (Source::VirtualMemory, 0, Dependencies::Growth);
    let pool = Pool::new(sim.clone(), config).expect("a pool");
    let streams = [(); 2].map(|()| sim.stream_create(StreamKind::NonBlocking).expect("a stream"));
    for stream in streams {
        pool.keep_stream(stream).unwrap();
    }
    let mut calls = 0;
    for round in 0..6 {
        if round == 2 {
            calls = memory_calls(&sim);
        }
        for stream in streams {
            let addr = pool.alloc(24 * MIB, stream).unwrap();
            sim.check_handout(addr, 24 * MIB, stream).unwrap();
            stamp(&sim, addr, 24 * MIB, round, stream);
            pool.free(addr).unwrap();
            sound(&sim, &pool);
        }
    }
    assert_eq!(memory_calls(&sim), calls, "from the third round on");
    assert_eq!(pool.stats().reserved_bytes, 24 * MIB);
    pool.trim(0).unwrap();
    sound(&sim, &pool);
}

#[test]
fn old_addresses_keep_no_memory_that_is_given_back() {
    let sim = sim();
    let pool = pool(&sim);
    let live = comb(&sim, &pool, LEGACY);
    let large = pool.alloc(15 * MIB, LEGACY).unwrap();
    for addr in live.into_iter().chain([large]) {
        pool.free(addr).unwrap();
    }
    sim.advance(10_000_000);
    pool.trim(16 * MIB).unwrap();
    let reserved = pool.stats().reserved_bytes;
    assert!(reserved <= 16 * MIB);
    assert_eq!(sim.usage().physical_bytes, reserved, "given back and still mapped");
    sound(&sim, &pool);
}

/// Calls that make, move or give back memory.
fn memory_calls(sim: &Sim) -> u64 {
    let calls = [
        Call::MemCreate,
        Call::MemRelease,
        Call::MemMap,
        Call::MemUnmap,
        Call::MemSetAccess,
    ];
    calls.map(|call| sim.counts().get(call)).iter().sum()
}

#[test]
fn another_stream_gets_them_when_the_device_is_done() {
    let sim = sim();
    let pool = pool(&sim);
    let (one, two) = (StreamKind::NonBlocking, StreamKind::NonBlocking);
    let (one, two) = (sim.stream_create(one).unwrap(), sim.stream_create(two).unwrap());
    pool.keep_stream(one).unwrap();
    pool.keep_stream(two).unwrap();
    let live = comb(&sim, &pool, one);
    let reserved = pool.stats().reserved_bytes;
    let first = pool.alloc(TOOTH, two).unwrap();
    assert_eq!(
        pool.stats().reserved_bytes,
        reserved + TOOTH,
        "the other stream's work goes on"
    );
    sim.advance(10_000_000);
    let second = pool.alloc(8 * MIB, two).unwrap();
    assert_eq!(
        pool.stats().reserved_bytes,
        reserved + TOOTH,
        "the other stream's work is done"
    );
    for addr in [first, second] {
        sim.check_handout(addr, TOOTH, two).unwrap();
        stamp(&sim, addr, TOOTH, 77, two);
    }
    sound(&sim, &pool);
    all_live(&sim, &live);
}

#[test]
fn a_stream_whose_handle_may_die_lends_nothing_to_others() {
    let sim = sim();
    let pool = pool(&sim);
    let stream = sim.stream_create(StreamKind::NonBlocking).unwrap();
    comb(&sim, &pool, stream);
    let reserved = pool.stats().reserved_bytes;
    sim.stream_destroy(stream).unwrap();
    sim.advance(1_000_000_000);
    pool.alloc(8 * MIB, LEGACY).unwrap();
    assert_eq!(pool.stats().reserved_bytes, reserved + 8 * MIB);
    sound(&sim, &pool);
}

#[test]
fn a_private_pool_neither_lends_nor_borrows() {
    let sim = sim();
    let pool = pool(&sim);
    pool.begin_private((7, 0), |_| true);
    let live = comb(&sim, &pool, LEGACY);
    let reserved = pool.stats().reserved_bytes;
    pool.alloc(6 * MIB, LEGACY).unwrap();
    assert_eq!(
        pool.stats().reserved_bytes,
        reserved + 6 * MIB,
        "its graph may be replayed with the old addresses"
    );
    pool.end_private((7, 0));
    sim.advance(1_000_000_000);
    pool.alloc(6 * MIB, LEGACY).unwrap();
    assert_eq!(pool.stats().reserved_bytes, reserved + 12 * MIB);
    sound(&sim, &pool);
    all_live(&sim, &live);
}

#[test]
fn a_call_that_fails_anywhere_loses_nothing() {
    let calls = [
        Call::MemMap,
        Call::MemSetAccess,
        Call::MemUnmap,
        Call::MemCreate,
        Call::EventRecord,
        Call::EventQuery,
    ];
    let mut tried = 0;
    for call in calls {
        for second in [None, Some(Call::MemUnmap)] {
            for nth in 1..=8 {
                let sim = sim();
                let pool = pool(&sim);
                let live = comb(&sim, &pool, LEGACY);
                sim.advance(5_000_000);
                sim.fail(Fault::nth(call, nth, Code::NOT_PERMITTED));
                if let Some(second) = second {
                    sim.fail(Fault::nth(second, 1, Code::NOT_PERMITTED));
                }
                for bytes in [15 * MIB, 22 * MIB] {
                    match pool.alloc(bytes, LEGACY) {
                        Ok(addr) => pool.free(addr).unwrap(),
                        Err(error) => assert!(matches!(error, Error::Driver(_)), "{error}"),
                    }
                    sound(&sim, &pool);
                }
                sim.clear_faults();
                let addr = pool.alloc(18 * MIB, LEGACY).expect("a retry succeeds");
                stamp(&sim, addr, 18 * MIB, 99, LEGACY);
                all_live(&sim, &live);
                for addr in live.into_iter().chain([addr]) {
                    pool.free(addr).unwrap();
                }
                pool.trim(0).unwrap();
                sound(&sim, &pool);
                assert_eq!(pool.stats().reserved_bytes, 0, "{call:?} {nth}: memory was lost");
                assert_eq!(
                    sim.usage().physical_bytes,
                    0,
                    "{call:?} {nth}: the device still holds memory"
                );
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 96);
}
