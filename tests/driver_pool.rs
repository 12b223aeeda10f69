//! A pool over one of the driver's own pools: what it asks the driver for, and that nothing is kept from the device.

use flagstone::config::Config;
use flagstone::driver::Stream;
use flagstone::driver::sim::{Call, CaptureMode, Options, Sim, StreamKind, Work};
use flagstone::{Error, Pool};

const MIB: u64 = 1 << 20;
const LEGACY: Stream = Stream::LEGACY;

fn device(settings: &str) -> (Sim, Pool<Sim>) {
    let sim = Sim::new(Options {
        capacity: 256 * MIB,
        backed: false,
        ..Options::default()
    });
    let config = Config::parse(&format!("source:driver_pool,{settings}")).expect("good settings");
    let pool = Pool::new(sim.clone(), config).expect("the device has pools");
    (sim, pool)
}

fn sound(sim: &Sim, pool: &Pool<Sim>) {
    assert_eq!(pool.check(), Ok(()));
    assert_eq!(sim.violations(), []);
}

#[test]
fn memory_comes_from_the_drivers_pool_and_goes_back_to_the_device() {
    let (sim, pool) = device("release_threshold:1GiB");
    let blocks = [1000, 100_000, 30 * MIB, 50 * MIB].map(|bytes| pool.alloc(bytes, LEGACY).expect("room"));
    let taken = sim.counts().get(Call::MemAllocFromPoolAsync);
    assert!(taken >= 4 && sim.counts().get(Call::MemAlloc) + sim.counts().get(Call::MemCreate) == 0);
    assert_eq!(sim.usage().physical_bytes, pool.stats().reserved_bytes);
    for addr in blocks {
        pool.free(addr).expect("live");
    }
    let again = pool.alloc(50 * MIB, LEGACY).expect("room");
    assert_eq!(
        (again, sim.counts().get(Call::MemAllocFromPoolAsync)),
        (blocks[3], taken),
        "it is kept here"
    );
    pool.free(again).expect("live");
    pool.trim(0).expect("nothing works");
    assert_eq!((pool.stats().reserved_bytes, sim.usage().physical_bytes), (0, 0));
    sound(&sim, &pool);
}

#[test]
fn a_stream_gets_what_another_gave_back_by_the_policies() {
    let off = |policies: &[&str]| {
        policies
            .iter()
            .map(|name| format!("reuse_{name}:off,"))
            .collect::<String>()
    };
    for (settings, reused) in [
        (off(&[]), true),
        (off(&["event_dependencies", "internal_dependencies"]), true),
        (off(&["event_dependencies", "opportunistic"]), true),
        // No event of the program's orders the two streams.
        (off(&["opportunistic", "internal_dependencies"]), false),
        (
            off(&["event_dependencies", "opportunistic", "internal_dependencies"]),
            false,
        ),
    ] {
        let (sim, pool) = device(&format!("cache:0,release_threshold:1GiB,{settings}"));
        let side = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        let block = pool.alloc(30 * MIB, LEGACY).expect("room");
        pool.free(block).expect("live");
        // It goes back to the driver's pool when more is taken, and stays there.
        let other = pool.alloc(40 * MIB, LEGACY).expect("room");
        assert_eq!(pool.stats().reserved_bytes, 40 * MIB);
        let again = pool.alloc(30 * MIB, side).expect("room");
        assert_eq!(again == block, reused, "{settings}");
        sim.launch(side, Work::new().writes(again, 30 * MIB)).expect("a launch");
        for addr in [other, again] {
            pool.free(addr).expect("live");
        }
        sound(&sim, &pool);
    }
}

#[test]
fn captures_are_served_and_stay_whole() {
    let (sim, pool) = device("");
    for kind in [StreamKind::NonBlocking, StreamKind::Blocking] {
        let stream = sim.stream_create(kind).expect("a stream");
        pool.keep_stream(stream).expect("live");
        sim.stream_begin_capture(stream, CaptureMode::Global)
            .expect("a capture");
        let block = pool.alloc(30 * MIB, stream).expect("room");
        sim.launch(stream, Work::new().writes(block, MIB)).expect("captured");
        let beside = pool.alloc(25 * MIB, LEGACY).expect("other streams go on");
        pool.free(beside).expect("live");
        assert!(sim.stream_end_capture(stream).is_ok(), "{kind:?}");
        pool.free(block).expect("live");
    }
    sound(&sim, &pool);
}

#[test]
fn limits_and_statistics_are_those_of_every_pool() {
    let (sim, pool) = device("limit:100MiB");
    let block = pool.alloc(60 * MIB, LEGACY).expect("room");
    assert!(matches!(pool.alloc(60 * MIB, LEGACY), Err(Error::OutOfMemory(numbers)) if numbers.reserved == 60 * MIB));
    pool.free(block).expect("live");
    let larger = pool.alloc(90 * MIB, LEGACY).expect("idle memory goes back first");
    let stats = pool.stats();
    assert_eq!((stats.reserved_bytes, stats.allocated_bytes), (90 * MIB, 90 * MIB));
    sim.ctx_synchronize().expect("nothing works");
    assert_eq!(
        sim.usage().physical_bytes,
        90 * MIB,
        "the driver keeps nothing by default"
    );
    pool.free(larger).expect("live");
    sound(&sim, &pool);
}

#[test]
fn a_dropped_pool_leaves_the_device_empty() {
    let (sim, pool) = device("release_threshold:1GiB,reserve:50MiB");
    let block = pool.alloc(40 * MIB, LEGACY).expect("room");
    sim.launch(LEGACY, Work::new().writes(block, 40 * MIB).takes(1000))
        .expect("a launch");
    pool.free(block).expect("live");
    drop(pool);
    assert_eq!((sim.usage().physical_bytes, sim.usage().allocations), (0, 0));
    let counts = sim.counts();
    assert_eq!(
        (counts.get(Call::StreamCreate), counts.get(Call::StreamDestroy)),
        (1, 1)
    );
    assert_eq!(counts.get(Call::MemPoolDestroy), 1);
    assert_eq!(sim.violations(), []);
}

#[test]
fn a_device_without_such_pools_is_refused_with_what_is_allowed() {
    let sim = Sim::new(Options {
        memory_pools: false,
        ..Options::default()
    });
    let config = Config::parse("source:driver_pool").expect("good settings");
    let refused = Pool::new(sim, config).map(drop);
    assert!(matches!(refused, Err(Error::Config(error)) if error.key == "source" && error.allowed.contains("slabs")));
}
