//! Streams that wait for each other on the device: memory that is free but for another stream's work serves at once, no host thread
//! waits, and nobody's data is harmed.

use flagstone::Pool;
use flagstone::config::{Config, Dependencies, Source};
use flagstone::driver::sim::{Call, CaptureMode, Code, Fault, Options, Sim, StreamKind, Work};
use flagstone::driver::{Driver, Stream};

const MIB: u64 = 1 << 20;
const SOURCES: [Source; 2] = [Source::VirtualMemory, Source::Slabs];

/// A device, a pool of it with room for 32 MiB, and two streams whose handles stay good.
fn setup(source: Source, dependencies: Dependencies) -> (Sim, Pool<Sim>, [Stream; 2]) {
    let sim = Sim::new(Options {
        capacity: 256 * MIB,
        ..Options::default()
    });
    let mut config = Config::default();
    (config.source, config.magazine, config.dependencies) = (source, 0, dependencies);
    let pool = Pool::new(sim.clone(), config).expect("a pool");
    pool.set_limit(Some(32 * MIB));
    let stream = || sim.stream_create(StreamKind::NonBlocking).expect("a stream");
    let streams = [stream(), stream()];
    for stream in streams {
        pool.keep_stream(stream).expect("live");
    }
    (sim, pool, streams)
}

fn fill(sim: &Sim, stream: Stream, addr: u64, bytes: u64, value: u8) {
    sim.launch(stream, Work::new().fills(addr, bytes, value).takes(100_000))
        .expect("launched");
}

fn host_waits(sim: &Sim) -> u64 {
    let calls = [Call::CtxSynchronize, Call::EventSynchronize, Call::StreamSynchronize];
    calls.map(|call| sim.counts().get(call)).iter().sum()
}

/// A live block of stream `one`, with data, and one that was freed while the other stream `two` reads it, for long; the rest of the
/// limit is in use.
fn freed_in_use(sim: &Sim, pool: &Pool<Sim>, [one, two]: [Stream; 2]) -> (u64, u64) {
    let alloc = || pool.alloc(16 * MIB, one).expect("room");
    let (live, freed) = (alloc(), alloc());
    fill(sim, one, live, 16 * MIB, 7);
    sim.stream_synchronize(one).expect("live");
    pool.record_stream(freed, two).expect("live");
    sim.hold(two).expect("live");
    sim.launch(two, Work::new().reads(freed, 16 * MIB).takes(1000))
        .expect("live");
    pool.free(freed).expect("live");
    assert_eq!(pool.stats().pending_blocks, 1);
    (live, freed)
}

fn sound(sim: &Sim, pool: &Pool<Sim>) {
    pool.check().unwrap_or_else(|fault| panic!("{fault}\n{}", pool.stats()));
    assert_eq!(sim.violations(), []);
}

#[test]
fn a_stream_gets_its_own_block_back_while_another_reads_it() {
    for source in SOURCES {
        let (sim, pool, streams) = setup(source, Dependencies::Pressure);
        let (live, freed) = freed_in_use(&sim, &pool, streams);
        let waits = host_waits(&sim);
        let again = pool
            .alloc(16 * MIB, streams[0])
            .expect("the block is free but for the reads");
        assert_eq!((again, host_waits(&sim)), (freed, waits));
        assert_eq!((pool.stats().stream_wait_count, pool.stats().pending_blocks), (1, 0));
        sim.check_handout(again, 16 * MIB, streams[0])
            .expect("ordered after the reads");
        fill(&sim, streams[0], again, 16 * MIB, 9);
        sim.resume(streams[1]).unwrap();
        sim.stream_synchronize(streams[0]).unwrap();
        for (addr, value) in [(live, 7), (again, 9)] {
            let mut data = vec![0; 16 * MIB as usize];
            sim.read(addr, &mut data).unwrap();
            assert!(data.iter().all(|&byte| byte == value), "{addr:#x}");
        }
        sound(&sim, &pool);
    }
}

#[test]
fn another_stream_gets_what_is_in_use_by_both() {
    let (sim, pool, streams) = setup(Source::VirtualMemory, Dependencies::Pressure);
    let (live, _) = freed_in_use(&sim, &pool, streams);
    let waits = host_waits(&sim);
    let third = sim.stream_create(StreamKind::NonBlocking).unwrap();
    let moved = pool.alloc(16 * MIB, third).expect("mapped a second time");
    assert_eq!((host_waits(&sim), pool.stats().reserved_bytes), (waits, 32 * MIB));
    assert_eq!(
        pool.stats().stream_wait_count,
        2,
        "the first for the second, the third for the first"
    );
    sim.check_handout(moved, 16 * MIB, third)
        .expect("ordered after the reads");
    fill(&sim, third, moved, 16 * MIB, 9);
    sim.resume(streams[1]).unwrap();
    sim.stream_synchronize(third).unwrap();
    for (addr, value) in [(live, 7), (moved, 9)] {
        let mut data = vec![0; 16 * MIB as usize];
        sim.read(addr, &mut data).unwrap();
        assert!(data.iter().all(|&byte| byte == value), "{addr:#x}");
    }
    sound(&sim, &pool);
    // Everything can be given back: the second mapping took nothing with it.
    pool.free(live).unwrap();
    pool.free(moved).unwrap();
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved_bytes, 0);
    sound(&sim, &pool);
}

#[test]
fn growth_comes_after_waits_only_where_that_was_asked_for() {
    for source in SOURCES {
        for (dependencies, reserved) in [(Dependencies::Pressure, 48), (Dependencies::Growth, 32)] {
            let (sim, pool, streams) = setup(source, dependencies);
            let _ = freed_in_use(&sim, &pool, streams);
            pool.set_limit(None);
            pool.alloc(16 * MIB, streams[0]).unwrap();
            let stats = pool.stats();
            assert_eq!(stats.reserved_bytes, reserved * MIB, "{source:?} {dependencies:?}");
            assert_eq!(stats.stream_wait_count > 0, dependencies == Dependencies::Growth);
            sound(&sim, &pool);
        }
    }
}

#[test]
fn by_default_two_streams_go_on_working_at_the_same_time() {
    assert_eq!(Config::default().dependencies, Dependencies::Overlap);
    for source in SOURCES {
        let (sim, pool, [copies, compute]) = setup(source, Dependencies::Overlap);
        pool.set_limit(None);
        sim.hold(compute).unwrap();
        // Each block is filled by one stream and read by the other, far ahead of the device.
        let mut given = Vec::new();
        for batch in 0..6 {
            let addr = pool.alloc(16 * MIB, copies).unwrap();
            sim.check_handout(addr, 16 * MIB, copies).expect("ordered");
            fill(&sim, copies, addr, 16 * MIB, batch);
            let filled = sim.event_create().unwrap();
            sim.event_record(filled, copies).unwrap();
            sim.stream_wait(compute, filled).unwrap();
            pool.record_stream(addr, compute).unwrap();
            sim.launch(compute, Work::new().reads(addr, 16 * MIB).takes(1000))
                .unwrap();
            pool.free(addr).unwrap();
            given.push(addr);
        }
        // Two buffers in turn: a copy never waits for the read of the batch just before it.
        assert_eq!(given[2..], [given[0], given[1], given[0], given[1]], "{source:?}");
        assert_ne!(given[0], given[1]);
        assert_eq!(pool.stats().stream_wait_count, 4);
        sim.resume(compute).unwrap();
        sound(&sim, &pool);
    }
}

#[test]
fn a_wait_that_fails_wakes_no_memory() {
    let (sim, pool, [one, two]) = setup(Source::VirtualMemory, Dependencies::Growth);
    pool.set_limit(None);
    let mut fails = 0;
    for round in 0..6_u64 {
        for stream in [one, two] {
            let addr = pool.alloc(24 * MIB, stream).unwrap();
            sim.check_handout(addr, 24 * MIB, stream).expect("ordered");
            fill(&sim, stream, addr, 24 * MIB, 1);
            pool.free(addr).unwrap();
            if round == 3 {
                sim.fail(Fault::nth(Call::StreamWaitEvent, 1, Code::INVALID_HANDLE));
                fails += 1;
            }
            sound(&sim, &pool);
        }
    }
    assert!(pool.stats().driver_error_count > 0 && fails == 2, "{}", pool.stats());
    let mut reserved = pool.stats().reserved_bytes;
    assert!(reserved <= 72 * MIB, "{reserved} bytes for one block at a time");
    pool.trim(0).unwrap();
    reserved = pool.stats().reserved_bytes;
    assert_eq!((reserved, sim.usage().physical_bytes), (0, 0));
    sound(&sim, &pool);
}

#[test]
fn where_no_stream_may_wait_the_host_does() {
    for source in SOURCES {
        // The read ends by itself here: a host that waits for a held stream would wait for ever.
        let (sim, pool, [one, two]) = setup(source, Dependencies::Off);
        let (_live, freed) = (pool.alloc(16 * MIB, one).unwrap(), pool.alloc(16 * MIB, one).unwrap());
        pool.record_stream(freed, two).unwrap();
        sim.launch(two, Work::new().reads(freed, 16 * MIB).takes(1000)).unwrap();
        pool.free(freed).unwrap();
        let waits = host_waits(&sim);
        pool.alloc(16 * MIB, one).expect("after the read");
        assert!(host_waits(&sim) > waits);
        assert_eq!(pool.stats().stream_wait_count, 0);
        sound(&sim, &pool);
    }
}

#[test]
fn a_wait_that_fails_takes_nothing() {
    for source in SOURCES {
        let (sim, pool, [one, two]) = setup(source, Dependencies::Pressure);
        let (_live, freed) = (pool.alloc(16 * MIB, one).unwrap(), pool.alloc(16 * MIB, one).unwrap());
        pool.record_stream(freed, two).unwrap();
        sim.launch(two, Work::new().reads(freed, 16 * MIB).takes(1000)).unwrap();
        pool.free(freed).unwrap();
        sim.fail(Fault::from_nth(Call::StreamWaitEvent, 1, Code::INVALID_HANDLE));
        pool.alloc(16 * MIB, one).expect("the host waits instead");
        assert_eq!(pool.stats().stream_wait_count, 0);
        sound(&sim, &pool);
    }
}

#[test]
fn a_capture_is_made_to_wait_for_nobody() {
    let (sim, pool, streams) = setup(Source::VirtualMemory, Dependencies::Growth);
    let _ = freed_in_use(&sim, &pool, streams);
    pool.set_limit(None);
    sim.stream_begin_capture(streams[0], CaptureMode::Global).unwrap();
    pool.alloc(16 * MIB, streams[0]).expect("new memory");
    assert_eq!(pool.stats().stream_wait_count, 0);
    sim.stream_end_capture(streams[0])
        .expect("a wait for work outside would have ended it");
    sound(&sim, &pool);
}

#[test]
fn what_was_borrowed_is_not_taken_for_idle() {
    let sim = Sim::new(Options {
        capacity: 256 * MIB,
        ..Options::default()
    });
    let mut config = Config::default();
    (config.dependencies, config.growth, config.magazine) = (Dependencies::Growth, 32 * MIB, 0);
    (config.source, config.reserve) = (Source::VirtualMemory, 64 * MIB);
    let pool = Pool::new(sim.clone(), config).unwrap();
    pool.set_limit(Some(128 * MIB));
    let [one, two, three] = [(); 3].map(|()| {
        let stream = sim.stream_create(StreamKind::NonBlocking).unwrap();
        pool.keep_stream(stream).unwrap();
        stream
    });
    let first = pool.alloc(32 * MIB, one).unwrap();
    // The second stream's epochs are ahead of the first one's, and done.
    for _ in 0..3 {
        pool.alloc(32 * MIB, two).unwrap();
    }
    sim.hold(one).unwrap();
    sim.launch(one, Work::new().writes(first, 32 * MIB).takes(1000))
        .unwrap();
    pool.free(first).unwrap();
    // It borrows all of the block, and leaves most of it free.
    pool.alloc(2 * MIB, two).unwrap();
    let (waits, unmapped) = (pool.stats().stream_wait_count, sim.counts().get(Call::MemUnmap));
    pool.alloc(2 * MIB, three)
        .expect("the second stream's memory is free but for the first one's work");
    assert!(
        pool.stats().stream_wait_count > waits,
        "the third stream waits for nobody"
    );
    assert_eq!(
        sim.counts().get(Call::MemUnmap),
        unmapped,
        "the first stream's work goes on"
    );
    sim.resume(one).unwrap();
    sound(&sim, &pool);
}
