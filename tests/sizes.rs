//! Sizes up to the end of 64 bits, at every entry that takes one: each is served, or refused by a typed error, and the pool is as before.

use flagstone::config::Config;
use flagstone::driver::pinned::Pinned;
use flagstone::driver::sim::{Options, Sim, StreamKind};
use flagstone::driver::{Driver, Stream};
use flagstone::size_class::{BYTES_MAX, UNIT};
use flagstone::{Error, Pool};

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 64 * MIB;

/// Numbers around every power of two from 2^31 on, and around the most that a block may have.
fn sizes() -> Vec<u64> {
    let powers = (31..64).map(|power| 1_u64 << power);
    let around = powers.chain([BYTES_MAX, CAPACITY, u64::MAX]);
    let steps = [0, 1, UNIT - 1, UNIT, UNIT + 1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1];
    let near = around.flat_map(|size| steps.map(|step| [size.wrapping_add(step), size.wrapping_sub(step)]));
    near.flatten().filter(|&size| size > CAPACITY).collect()
}

fn sim() -> Sim {
    Sim::new(Options {
        capacity: CAPACITY,
        backed: false,
        ..Options::default()
    })
}

fn config(settings: &str) -> Config {
    Config::parse(settings).expect("good settings")
}

fn refuses<D: Driver>(pool: &Pool<D>, streams: &[Stream]) {
    for size in sizes() {
        for &stream in streams {
            let refused = pool.alloc(size, stream).expect_err("more than the device has");
            assert!(
                matches!(refused, Error::OutOfMemory(_) | Error::TooLarge { .. }),
                "{size}: {refused}"
            );
        }
        let refused = pool.reserve(size).expect_err("more than the device has");
        assert!(matches!(refused, Error::OutOfMemory(_)), "{size}: {refused}");
        assert_eq!(pool.trim(size).expect("nothing to give back"), 0);
        assert_eq!(pool.check(), Ok(()), "{size}");
    }
    let stats = pool.stats();
    assert_eq!((stats.reserved_bytes, stats.live_blocks), (0, 0));
}

#[test]
fn no_size_is_too_large_to_be_refused() {
    for settings in [
        "source:virtual_memory",
        "source:slabs",
        "source:driver_pool",
        "guard:1GiB",
        "poison:1",
        "growth:18446744073709551615",
        "headroom:18446744073709551615",
        "magazine:18446744073709551615,cache:18446744073709551615",
        "guard:18446744073709551615",
    ] {
        let sim = sim();
        let pool = Pool::new(sim.clone(), config(settings)).expect("a pool");
        let stream = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        refuses(&pool, &[Stream::LEGACY, Stream::PER_THREAD, stream]);
        assert_eq!(sim.violations(), []);
    }
    let pool = Pool::new(Pinned::new(sim(), CAPACITY), config("")).expect("a pool");
    refuses(&pool, &[pool.driver().home()]);
}

#[test]
fn any_limit_and_any_size_of_a_free_do_no_harm() {
    let pool = Pool::new(sim(), config("")).expect("a pool");
    let mut wrong = 0;
    for size in sizes() {
        pool.set_limit(Some(size));
        let block = pool.alloc(1000, Stream::LEGACY).expect("room");
        pool.free_sized(block, size).expect("live");
        wrong += 1;
        pool.start_history(usize::try_from(size).expect("64 bits"), false);
        pool.stop_history();
    }
    assert_eq!(pool.stats().wrong_size_free_count, wrong);
    assert_eq!(pool.stats().live_blocks, 0);
    assert_eq!(pool.check(), Ok(()));
}

#[test]
fn no_address_is_taken_for_a_block() {
    for settings in ["", "guard:1GiB"] {
        let pool = Pool::new(sim(), config(settings)).expect("a pool");
        let block = pool.alloc(3 * MIB, Stream::LEGACY).expect("room");
        // The table has 48 bits: addresses above them are no aliases of those below.
        let aliases = (48..64).map(|bit| block | 1 << bit);
        for addr in sizes()
            .into_iter()
            .chain(aliases)
            .chain([0, 1, block + 1, block - 1, !block])
        {
            assert!(
                matches!(pool.free(addr), Err(Error::UnknownPointer { .. })),
                "{addr:#x}"
            );
            assert!(pool.record_stream(addr, Stream::LEGACY).is_err(), "{addr:#x}");
            assert!(!pool.owns(addr), "{addr:#x}");
            assert_eq!(pool.block(addr), None, "{addr:#x}");
        }
        pool.free(block).expect("live");
        assert_eq!(pool.check(), Ok(()));
    }
}

#[test]
fn what_a_device_could_have_is_served() {
    // Of a device as large as the address space almost all can be one block.
    let sim = Sim::new(Options {
        capacity: 4 << 40,
        backed: false,
        ..Options::default()
    });
    let pool = Pool::new(sim, config("")).expect("a pool");
    let block = pool.alloc(1 << 40, Stream::LEGACY).expect("room");
    assert_eq!(pool.stats().allocated_bytes, 1 << 40);
    pool.free(block).expect("live");
    pool.trim(0).expect("no capture");
    assert_eq!((pool.stats().reserved_bytes, pool.check()), (0, Ok(())));
}
