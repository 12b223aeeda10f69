//! The settings that find wrong uses of memory: `poison` fills it, `guard` gives each block pages of its own.

use flagstone::config::Config;
use flagstone::driver::pinned::Pinned;
use flagstone::driver::sim::{Call, CaptureMode, Code, Fault, Options, Sim, StreamKind, Violation, Work};
use flagstone::driver::{Driver, Stream};
use flagstone::{AddressState, Error, Pool};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 64 * MIB;
const LEGACY: Stream = Stream::LEGACY;

fn sim() -> Sim {
    Sim::new(Options {
        capacity: CAPACITY,
        ..Options::default()
    })
}

fn pool(sim: &Sim, settings: &str) -> Pool<Sim> {
    Pool::new(sim.clone(), Config::parse(settings).expect("good settings")).expect("a pool")
}

fn stream(sim: &Sim) -> Stream {
    sim.stream_create(StreamKind::NonBlocking).expect("a stream")
}

fn bytes(sim: &Sim, addr: u64, count: u64) -> Vec<u8> {
    let mut data = vec![0; count as usize];
    sim.read(addr, &mut data).expect("readable");
    data
}

#[track_caller]
fn holds(sim: &Sim, addr: u64, count: u64, value: u8) {
    assert!(bytes(sim, addr, count).iter().all(|&byte| byte == value), "{addr:#x}");
}

#[track_caller]
fn sound(sim: &Sim, pool: &Pool<Sim>) {
    pool.check().unwrap_or_else(|fault| panic!("{fault}\n{}", pool.stats()));
    assert_eq!(sim.violations(), []);
}

#[test]
fn memory_is_filled_when_it_is_given_out_and_when_it_is_freed() {
    for source in ["virtual_memory", "slabs", "driver_pool"] {
        let sim = sim();
        let pool = pool(&sim, &format!("poison:0xa5,source:{source}"));
        for count in [1000, 100 * KIB, 5 * MIB] {
            let block = pool.alloc(count, LEGACY).expect("room");
            sim.launch(LEGACY, Work::new().fills(block, count, 7).takes(1000))
                .expect("live");
            pool.free(block).expect("live");
            sim.ctx_synchronize().expect("no capture");
            holds(&sim, block, count, 0xa5);
            // Whoever writes to it all the same does not reach its next user.
            sim.write(block, &vec![9; count as usize]).expect("mapped");
            let again = pool.alloc(count, LEGACY).expect("room");
            sim.ctx_synchronize().expect("no capture");
            holds(&sim, again, count, 0xa5);
            pool.free(again).expect("live");
        }
        sound(&sim, &pool);
    }
}

#[test]
fn filling_is_in_the_order_of_the_streams() {
    let sim = sim();
    let pool = pool(&sim, "poison:0");
    let (own, other) = (stream(&sim), stream(&sim));
    pool.keep_stream(own).expect("live");
    pool.keep_stream(other).expect("live");
    let block = pool.alloc(MIB, own).expect("room");
    sim.launch(own, Work::new().fills(block, MIB, 1).takes(50_000))
        .expect("live");
    sim.ctx_synchronize().expect("no capture");
    sim.launch(other, Work::new().reads(block, MIB).takes(90_000))
        .expect("live");
    pool.record_stream(block, other).expect("live");
    pool.free(block).expect("live");
    holds(&sim, block, MIB, 1);
    sim.advance(100_000);
    // The wait for the other stream is over, and a miss looks at it.
    let next = pool.alloc(MIB + 512, own).expect("room");
    sim.advance(100_000);
    holds(&sim, block, MIB, 0);
    pool.free(next).expect("live");
    sound(&sim, &pool);
}

#[test]
fn what_cannot_be_filled_at_its_free_is_filled_for_its_next_user() {
    let sim = sim();
    let pool = pool(&sim, "poison:3");
    let dead = stream(&sim);
    let block = pool.alloc(MIB, dead).expect("room");
    sim.launch(dead, Work::new().fills(block, MIB, 1)).expect("live");
    sim.ctx_synchronize().expect("no capture");
    sim.stream_destroy(dead).expect("live");
    pool.free(block).expect("live");
    holds(&sim, block, MIB, 1);
    pool.trim(0).expect("no capture");
    let next = pool.alloc(MIB, LEGACY).expect("room");
    sim.ctx_synchronize().expect("no capture");
    holds(&sim, next, MIB, 3);
    pool.free(next).expect("live");
    sound(&sim, &pool);
}

#[test]
fn the_default_stream_of_another_thread_is_not_filled_in_ours() {
    let sim = sim();
    let pool = pool(&sim, "poison:3");
    let block = std::thread::scope(|scope| {
        let theirs = || {
            let block = pool.alloc(MIB, Stream::PER_THREAD).expect("room");
            let work = Work::new().fills(block, MIB, 1).takes(1_000_000);
            sim.launch(Stream::PER_THREAD, work).expect("live");
            block
        };
        scope.spawn(theirs).join().expect("no panic")
    });
    pool.free(block).expect("live");
    sim.ctx_synchronize().expect("no capture");
    holds(&sim, block, MIB, 1);
    sound(&sim, &pool);
}

#[test]
fn a_capture_is_not_filled_into() {
    let sim = sim();
    let pool = pool(&sim, "poison:3");
    let captured = stream(&sim);
    pool.begin_private((1, 0), move |stream| stream == captured);
    sim.stream_begin_capture(captured, CaptureMode::Global).expect("none");
    let before = sim.counts().get(Call::MemsetD8Async);
    let block = pool.alloc(MIB, captured).expect("room");
    pool.free(block).expect("live");
    assert_eq!(sim.counts().get(Call::MemsetD8Async), before);
    pool.end_private((1, 0));
    sim.stream_end_capture(captured).expect("nobody ended it");
    sound(&sim, &pool);
}

#[test]
fn pinned_memory_is_filled_by_the_host() {
    let sim = sim();
    let config = Config::parse("poison:0x5a").expect("good settings");
    let pool = Pool::new(Pinned::new(sim.clone(), CAPACITY), config).expect("a pool");
    let alloc = || pool.alloc(100 * KIB, pool.driver().home()).expect("room");
    let block = alloc();
    holds(&sim, block, 100 * KIB, 0x5a);
    sim.write(block, &[1; 100]).expect("pinned");
    pool.free(block).expect("live");
    holds(&sim, block, 100 * KIB, 0x5a);
    assert_eq!(sim.counts().get(Call::MemsetD8Async), 0);
}

#[test]
fn a_fill_that_fails_fails_the_request_alone() {
    let sim = sim();
    let pool = pool(&sim, "poison:3");
    sim.fail(Fault::nth(Call::MemsetD8Async, 1, Code::UNKNOWN));
    assert!(matches!(pool.alloc(MIB, LEGACY), Err(Error::Driver(error)) if error.call == "cuMemsetD8Async"));
    sound(&sim, &pool);
    assert_eq!(pool.stats().live_blocks, 0);
    let block = pool.alloc(MIB, LEGACY).expect("the device works again");
    sim.fail(Fault::nth(Call::MemsetD8Async, 1, Code::UNKNOWN));
    pool.free(block).expect("a free never fails");
    assert_eq!(pool.stats().driver_error_count, 1);
    sound(&sim, &pool);
}

#[test]
fn a_guarded_block_ends_where_its_memory_ends() {
    let sim = sim();
    let pool = pool(&sim, "guard:1GiB");
    for count in [1, 512, 1000, 16 * KIB, 100 * KIB, 2 * MIB, 5 * MIB + 1] {
        let block = pool.alloc(count, LEGACY).expect("room");
        let rounded = count.next_multiple_of(512);
        assert_eq!(block % 512, 0);
        sim.write(block, &vec![1; rounded as usize]).expect("mapped");
        assert_eq!(sim.write(block + rounded, &[1]), Err(Code::ILLEGAL_ADDRESS), "{count}");
        let info = pool.describe(block + rounded).expect("near a block");
        assert_eq!((info.block.addr, info.block.requested), (block, count));
        assert_eq!((info.state, info.offset), (AddressState::Live, rounded as i64));
        sound(&sim, &pool);
        pool.free(block).expect("live");
    }
    assert_eq!(pool.stats().live_blocks, 0);
}

#[test]
fn the_memory_of_a_freed_block_is_gone_and_its_addresses_are_nobodys() {
    let sim = sim();
    let pool = pool(&sim, "guard:1GiB");
    let side = stream(&sim);
    let mut seen = Vec::new();
    for _ in 0..20 {
        let block = pool.alloc(3 * MIB, side).expect("room");
        assert!(!seen.contains(&block), "{block:#x} was given out again");
        seen.push(block);
        sim.launch(side, Work::new().fills(block, 3 * MIB, 1).takes(1_000_000))
            .expect("live");
        pool.free(block).expect("live");
        assert_eq!(sim.read(block, &mut [0]), Err(Code::ILLEGAL_ADDRESS));
        assert!(matches!(pool.free(block), Err(Error::DoubleFree { .. })));
        let info = pool.describe(block + 100).expect("freed a moment ago");
        assert_eq!(
            (info.block.addr, info.block.bytes, info.block.stream),
            (block, 3 * MIB, side)
        );
        assert_eq!((info.state, info.offset), (AddressState::Freed, 100));
    }
    sound(&sim, &pool);
    // Its pages served all of them.
    assert_eq!(pool.stats().taken_bytes, 4 * MIB);
    // A kernel that uses one of them all the same.
    sim.launch(side, Work::new().reads(seen[3], 512)).expect("launched");
    sim.advance(1);
    assert!(matches!(sim.take_violations()[..], [Violation::IllegalAddress { .. }]));
    let broken = pool.alloc(9 * MIB, LEGACY).expect_err("the device has failed");
    assert!(broken.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{broken}");
}

#[test]
fn as_many_addresses_are_kept_as_the_setting_says() {
    let sim = sim();
    // Each block of a page has a guard of another.
    let pool = pool(&sim, "guard:12MiB");
    let blocks: Vec<u64> = (0..6).map(|_| pool.alloc(1000, LEGACY).expect("room")).collect();
    for &block in &blocks {
        pool.free(block).expect("live");
        assert!(sim.usage().reserved_bytes <= 24 * MIB);
    }
    assert_eq!(sim.usage().reserved_bytes, 12 * MIB);
    let state = |block| pool.describe(block).map(|info| info.state);
    assert_eq!(state(blocks[2]), None);
    assert_eq!(state(blocks[3]), Some(AddressState::Freed));
    assert!(matches!(pool.free(blocks[2]), Err(Error::UnknownPointer { .. })));
    sound(&sim, &pool);
    pool.trim(0).expect("no capture");
    assert_eq!(pool.stats().reserved_bytes, 0);
    drop(pool);
    assert_eq!(sim.usage().reserved_bytes, 0);
}

#[test]
fn a_guarded_pool_counts_limits_and_shows_as_any_other() {
    let sim = sim();
    let pool = pool(&sim, "guard:1GiB,limit:8MiB");
    let blocks: Vec<u64> = (0..4).map(|_| pool.alloc(1000, LEGACY).expect("room")).collect();
    let stats = pool.stats();
    assert_eq!(
        (stats.live_blocks, stats.allocated_bytes, stats.reserved_bytes),
        (4, 4096, 8 * MIB)
    );
    let refused = pool.alloc(1000, LEGACY).expect_err("the limit");
    assert!(matches!(refused, Error::OutOfMemory(_)), "{refused}");
    let snapshot = pool.snapshot();
    assert_eq!(snapshot.segments.len(), 4);
    for segment in &snapshot.segments {
        assert_eq!(
            segment.blocks.iter().map(|block| block.bytes).sum::<u64>(),
            segment.bytes
        );
        assert!(blocks.contains(&segment.blocks[1].addr));
    }
    sound(&sim, &pool);
    // A freed block that a capture keeps the device from being waited for serves when the capture is over.
    let captured = sim.stream_create(StreamKind::Blocking).expect("a stream");
    sim.stream_begin_capture(captured, CaptureMode::Global).expect("none");
    pool.free(blocks[0]).expect("live");
    assert_eq!(
        pool.describe(blocks[0]).map(|info| info.state),
        Some(AddressState::Waiting)
    );
    assert!(matches!(pool.free(blocks[0]), Err(Error::DoubleFree { .. })));
    sound(&sim, &pool);
    sim.stream_end_capture(captured).expect("nobody ended it");
    let again = pool.alloc(1000, LEGACY).expect("one was freed");
    sound(&sim, &pool);
    for block in [again, blocks[1], blocks[2], blocks[3]] {
        pool.free(block).expect("live");
    }
    assert_eq!(pool.stats().pending_blocks, 0);
    sound(&sim, &pool);
}

#[test]
fn captures_have_no_guards() {
    let sim = sim();
    let pool = pool(&sim, "guard:1GiB");
    let captured = stream(&sim);
    pool.begin_private((1, 0), move |stream| stream == captured);
    sim.stream_begin_capture(captured, CaptureMode::Global).expect("none");
    let block = pool.alloc(1000, captured).expect("room");
    pool.free(block).expect("live");
    assert_eq!(pool.alloc(1000, captured).expect("room"), block, "as without guards");
    pool.end_private((1, 0));
    sim.stream_end_capture(captured).expect("nobody ended it");
    pool.free(block).expect("live");
    sound(&sim, &pool);
}

#[test]
fn guards_need_virtual_memory() {
    let refused = Pool::new(sim(), Config::parse("guard:1GiB,source:slabs").expect("good settings"));
    assert!(matches!(refused, Err(Error::Config(error)) if error.key == "guard"));
}

#[test]
fn threads_share_a_guarded_pool() {
    let sim = sim();
    let pool = pool(&sim, "guard:64MiB,poison:1");
    std::thread::scope(|scope| {
        let spawn = |thread: u64| {
            let (sim, pool) = (&sim, &pool);
            scope.spawn(move || {
                let own = stream(sim);
                for step in 0..50 {
                    let count = 1 + (thread * 977 + step * 4099) % (3 * MIB);
                    let (first, second) = (pool.alloc(count, own), pool.alloc(count, LEGACY));
                    let (first, second) = (first.expect("room"), second.expect("room"));
                    pool.record_stream(second, own).expect("live");
                    sim.launch(own, Work::new().fills(first, count, 2)).expect("mapped");
                    pool.free(second).expect("live");
                    pool.free(first).expect("live");
                }
            })
        };
        // The end of a scope does not wait for what threads do after their closure; this does.
        for thread in (0..4).map(spawn).collect::<Vec<_>>() {
            thread.join().expect("no panic");
        }
    });
    sound(&sim, &pool);
    pool.trim(0).expect("no capture");
    let stats = pool.stats();
    assert_eq!(
        (stats.live_blocks, stats.reserved_bytes, stats.double_free_count),
        (0, 0, 0)
    );
}

#[test]
fn whose_an_address_is_can_be_asked_of_any_pool() {
    let sim = sim();
    let pool = pool(&sim, "");
    let (early, side) = (pool.alloc(3 * MIB, LEGACY).expect("room"), stream(&sim));
    pool.start_history(1000, false);
    let block = pool.alloc(1000, side).expect("room");
    let describe = |addr| {
        pool.describe(addr)
            .map(|info| (info.block.addr, info.state, info.offset))
    };
    assert_eq!(describe(block + 999), Some((block, AddressState::Live, 999)));
    assert_eq!(describe(early + MIB), Some((early, AddressState::Live, MIB as i64)));
    pool.free(block).expect("live");
    pool.free(early).expect("live");
    assert_eq!(describe(block + 1), Some((block, AddressState::Freed, 1)));
    assert_eq!(describe(early), None, "it was given out before the history began");
    let history = pool.history();
    let (alloc, free) = history.last_use(block);
    assert!(alloc.is_some_and(|event| event.stream == side) && free.is_some());
    assert!(matches!(history.last_use(early), (None, Some(_))));
}
