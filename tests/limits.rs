//! What a pool may hold, and what it gives back: limits, trimming, memory taken ahead, ceilings and ages of idle memory.

use flagstone::config::Config;
use flagstone::driver::Stream;
use flagstone::driver::sim::{Call, Options, Sim, StreamKind, Work};
use flagstone::{Error, Pool};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LEGACY: Stream = Stream::LEGACY;

fn device(capacity: u64, settings: &str) -> (Sim, Pool<Sim>) {
    let sim = Sim::new(Options {
        capacity,
        backed: false,
        ..Options::default()
    });
    let config = Config::parse(settings).expect("good settings");
    let pool = Pool::new(sim.clone(), config).expect("a pool");
    (sim, pool)
}

fn sound(sim: &Sim, pool: &Pool<Sim>) {
    assert_eq!(pool.check(), Ok(()));
    assert_eq!(sim.violations(), []);
}

fn reserved(pool: &Pool<Sim>) -> u64 {
    pool.stats().reserved_bytes
}

/// Blocks of these sizes, allocated one after the other.
fn blocks(pool: &Pool<Sim>, sizes: &[u64]) -> Vec<u64> {
    sizes
        .iter()
        .map(|&bytes| pool.alloc(bytes, LEGACY).expect("room"))
        .collect()
}

fn free(pool: &Pool<Sim>, blocks: Vec<u64>) {
    blocks.into_iter().for_each(|addr| pool.free(addr).expect("live"));
}

#[test]
fn trimming_comes_as_near_to_its_target_as_the_pages_allow() {
    let sizes: Vec<u64> = [60 * MIB, 20 * MIB].into_iter().chain([2 * MIB; 24]).collect();
    for pages in 0..64 {
        let target = pages * 2 * MIB;
        let (sim, pool) = device(1 << 30, "");
        let held = blocks(&pool, &sizes);
        let total = reserved(&pool);
        free(&pool, held);
        assert_eq!(pool.trim(target).expect("nothing works"), total - target);
        assert_eq!(reserved(&pool), target);
        // What is left is good for use.
        let kept = (target > 0).then(|| pool.alloc(2 * MIB, LEGACY).expect("room"));
        assert_eq!(reserved(&pool), target, "it was ready");
        sound(&sim, &pool);
        free(&pool, kept.into_iter().collect());
        // A second time, from handles that are mapped nowhere.
        pool.trim(target / 4).expect("nothing works");
        assert!(reserved(&pool) <= target / 4 && target / 4 - reserved(&pool) < 20 * MIB);
        sound(&sim, &pool);
    }
}

#[test]
fn trimming_waits_for_the_device() {
    for settings in ["", "source:slabs", "source:driver_pool"] {
        let (sim, pool) = device(1 << 30, settings);
        let block = pool.alloc(40 * MIB, LEGACY).expect("room");
        sim.launch(LEGACY, Work::new().writes(block, 40 * MIB).takes(1_000_000_000))
            .expect("live");
        pool.free(block).expect("live");
        pool.trim(0).expect("the device can be waited for");
        assert_eq!(reserved(&pool), 0);
        sound(&sim, &pool);
    }
}

#[test]
fn the_largest_piece_of_memory_is_a_setting() {
    for (settings, pieces) in [
        ("", 1),
        ("handle:0", 1),
        ("handle:20MiB", 3),
        ("handle:3MiB", 15),
        ("handle:1", 30),
    ] {
        let (sim, pool) = device(1 << 30, &format!("source:virtual_memory,{settings}"));
        let held = blocks(&pool, &[60 * MIB]);
        assert_eq!(sim.counts().get(Call::MemCreate), pieces, "{settings:?}");
        free(&pool, held);
        sound(&sim, &pool);
    }
    for (handle, most) in [("2MiB", 62), ("64MiB", 120)] {
        let (sim, pool) = device(1 << 30, &format!("source:virtual_memory,handle:{handle},reserve:60MiB"));
        let held = blocks(&pool, &[60 * MIB]);
        free(&pool, held);
        // What lives in the first piece keeps no more than that from another stream.
        blocks(&pool, &[2 * MIB]);
        let stream = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        pool.alloc(2 * MIB, stream).expect("room");
        sim.advance(10_000_000);
        pool.alloc(56 * MIB, stream).expect("room");
        assert!(reserved(&pool) <= most * MIB, "handle:{handle}: {}", reserved(&pool));
        sound(&sim, &pool);
    }
}

#[test]
fn what_streams_may_pass_on_is_taken_in_smaller_pieces() {
    let (sim, pool) = device(1 << 30, "source:virtual_memory");
    blocks(&pool, &[64 * MIB]);
    let alone = sim.counts().get(Call::MemCreate);
    let stream = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
    pool.keep_stream(stream).expect("live");
    pool.alloc(64 * MIB, stream).expect("room");
    assert!(sim.counts().get(Call::MemCreate) - alone > alone);
    sound(&sim, &pool);
}

#[test]
fn trimming_takes_the_slabs_that_are_nearest() {
    let (sim, pool) = device(1 << 30, "source:slabs");
    let held = blocks(&pool, &[100 * MIB, 40 * MIB, 30 * MIB, 60 * MIB]);
    free(&pool, held);
    for (target, expected) in [(205, 200), (199, 160), (110, 100), (100, 100), (99, 0)] {
        pool.trim(target * MIB).expect("nothing works");
        assert_eq!(reserved(&pool), expected * MIB, "target {target} MiB");
        sound(&sim, &pool);
    }
}

#[test]
fn a_lower_limit_and_a_trim_shrink_the_pool_around_live_blocks() {
    for source in ["virtual_memory", "slabs"] {
        let (sim, pool) = device(1 << 30, &format!("source:{source}"));
        let held = blocks(&pool, &[30 * MIB; 8]);
        let (live, idle): (Vec<_>, Vec<_>) = held.into_iter().enumerate().partition(|(place, _)| place % 3 == 0);
        free(&pool, idle.into_iter().map(|(_, addr)| addr).collect());
        pool.set_limit(Some(120 * MIB));
        assert!(reserved(&pool) >= 240 * MIB, "nothing is given back by itself");
        pool.trim(120 * MIB).expect("nothing works");
        assert!(
            (90 * MIB..=120 * MIB).contains(&reserved(&pool)),
            "{source}: {}",
            reserved(&pool)
        );
        assert!(live.iter().all(|&(_, addr)| pool.block(addr).is_some()));
        let more = pool.alloc(30 * MIB, LEGACY).expect("there is room below the limit");
        assert!(matches!(pool.alloc(30 * MIB, LEGACY), Err(Error::OutOfMemory(_))));
        assert!(reserved(&pool) <= 120 * MIB);
        pool.free(more).expect("live");
        sound(&sim, &pool);
    }
}

#[test]
fn what_is_reserved_serves_every_size_and_stream() {
    let (sim, pool) = device(1 << 30, "reserve:128MiB");
    assert_eq!(reserved(&pool), 128 * MIB);
    let side = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
    sim.reset_counts();
    for (bytes, stream, count) in [
        (1000, LEGACY, 100),
        (100_000, LEGACY, 20),
        (3 * MIB, side, 10),
        (10_000, side, 30),
        (50 * MIB, LEGACY, 1),
    ] {
        for _ in 0..count {
            pool.alloc(bytes, stream).expect("room");
        }
    }
    assert_eq!((reserved(&pool), sim.counts().get(Call::MemCreate)), (128 * MIB, 0));
    sound(&sim, &pool);
}

#[test]
fn reserved_slabs_serve_small_blocks_once_no_more_can_be_had() {
    let (sim, pool) = device(1 << 30, "reserve:64MiB,limit:64MiB,source:slabs");
    let work = Work::new().takes(1000);
    sim.launch(LEGACY, work).expect("a launch");
    let held = blocks(&pool, &[1000; 2000]);
    assert_eq!(
        (reserved(&pool), sim.now_ns()),
        (64 * MIB, 0),
        "the device is not waited for"
    );
    free(&pool, held);
    let whole = pool.alloc(60 * MIB, LEGACY).expect("and large ones again");
    pool.free(whole).expect("live");
    sound(&sim, &pool);
}

#[test]
fn all_that_the_limit_allows_can_be_reserved() {
    // A number of bytes that is no whole number of pages, nor of units.
    for bytes in [100 * MIB + 31, 100_000_000] {
        for source in ["virtual_memory", "slabs", "driver_pool"] {
            let (sim, pool) = device(1 << 30, &format!("source:{source},limit:{bytes},reserve:{bytes}"));
            pool.reserve(bytes).expect("it is there");
            assert!(
                (bytes - 2 * MIB..=bytes).contains(&reserved(&pool)),
                "{source}: {} of {bytes}",
                reserved(&pool)
            );
            pool.alloc(bytes - 2 * MIB - 512, LEGACY).expect("and is had");
            sound(&sim, &pool);
        }
    }
}

#[test]
fn a_ceiling_bounds_what_is_idle() {
    let (sim, pool) = device(1 << 30, "cache:20MiB");
    let idle = |pool: &Pool<Sim>| pool.stats().cached_bytes;
    let held = blocks(&pool, &[2 * MIB; 60]);
    sim.launch(LEGACY, Work::new().writes(held[0], 2 * MIB).takes(1000))
        .expect("a launch");
    free(&pool, held);
    // The device works on it: a request that no magazine has finds nothing to give back, and does not wait.
    let mut small = blocks(&pool, &[1000]);
    assert!(idle(&pool) > 100 * MIB && sim.now_ns() == 0);
    sim.advance(2000);
    small.extend(blocks(&pool, &[20_000, 40_000, 60_000]));
    assert!(
        (16 * MIB..=20 * MIB).contains(&idle(&pool)),
        "no more than it takes: {}",
        idle(&pool)
    );
    sound(&sim, &pool);
    free(&pool, small);
}

#[test]
fn what_the_device_still_works_on_stays_also_above_the_ceiling() {
    let (sim, pool) = device(1 << 30, "cache:0");
    pool.alloc(500, LEGACY).expect("room");
    let block = pool.alloc(40 * MIB, LEGACY).expect("room");
    sim.launch(LEGACY, Work::new().writes(block, 40 * MIB).takes(1_000_000_000))
        .expect("live");
    pool.free(block).expect("live");
    let held = reserved(&pool);
    for bytes in [1000, 2000, 3000] {
        // Each is a miss, which looks at what is idle.
        pool.alloc(bytes, LEGACY).expect("room");
        assert_eq!(reserved(&pool), held);
        sound(&sim, &pool);
    }
    sim.ctx_synchronize().expect("no capture");
    for bytes in [4000, 5000] {
        pool.alloc(bytes, LEGACY).expect("room");
    }
    assert_eq!(reserved(&pool), held - 40 * MIB);
    sound(&sim, &pool);
}

#[test]
fn idle_slabs_above_the_ceiling_go_back_when_more_is_taken_or_when_asked() {
    let (sim, pool) = device(1 << 30, "cache:50MiB,source:slabs");
    let held = blocks(&pool, &[40 * MIB, 50 * MIB, 60 * MIB]);
    free(&pool, held);
    assert!(pool.stats().cached_bytes > 100 * MIB);
    let larger = pool.alloc(70 * MIB, LEGACY).expect("room");
    assert_eq!(pool.stats().cached_bytes, 50 * MIB);
    pool.free(larger).expect("live");
    assert_eq!(pool.release_idle().expect("nothing works"), 70 * MIB);
    assert_eq!(pool.stats().cached_bytes, 50 * MIB);
    sound(&sim, &pool);
}

#[test]
fn memory_that_was_idle_for_long_goes_back_and_what_is_reserved_stays() {
    for source in ["virtual_memory", "slabs"] {
        let (sim, pool) = device(1 << 30, &format!("release_after:0.02,source:{source},reserve:10MiB"));
        let mut held = blocks(&pool, &[30 * MIB; 4]);
        let live = held.split_off(3);
        free(&pool, held);
        // Nothing, unless the machine was busy with something else just now.
        let at_once = pool.release_idle().expect("nothing works");
        std::thread::sleep(Duration::from_millis(25));
        // Slabs that were taken ahead were never used.
        let given = at_once + pool.release_idle().expect("nothing works");
        assert!(
            given == 90 * MIB || (source == "slabs" && given == 100 * MIB),
            "{source}: {given}"
        );
        assert!(pool.block(live[0]).is_some());
        free(&pool, live);
        pool.release_idle().expect("nothing works");
        std::thread::sleep(Duration::from_millis(25));
        pool.release_idle().expect("nothing works");
        assert!(
            (10 * MIB..=40 * MIB).contains(&reserved(&pool)),
            "{source}: {}",
            reserved(&pool)
        );
        sound(&sim, &pool);
    }
}

#[test]
fn memory_that_was_not_idle_for_so_long_stays() {
    for source in ["virtual_memory", "slabs"] {
        let (sim, pool) = device(1 << 30, &format!("release_after:1000,source:{source}"));
        free(&pool, blocks(&pool, &[30 * MIB; 4]));
        let before = reserved(&pool);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(pool.release_idle().expect("nothing works"), 0, "{source}");
        assert_eq!(reserved(&pool), before);
        sound(&sim, &pool);
    }
}

#[test]
fn requests_give_old_memory_back_by_themselves() {
    let (sim, pool) = device(1 << 30, "release_after:0.01");
    let held = blocks(&pool, &[30 * MIB; 4]);
    free(&pool, held);
    let mut small = blocks(&pool, &[1000]);
    for size in 1..20 {
        std::thread::sleep(Duration::from_millis(4));
        small.extend(blocks(&pool, &[size * 20_000]));
    }
    assert!(reserved(&pool) < 30 * MIB, "{}", reserved(&pool));
    assert_eq!(sim.counts().get(Call::CtxSynchronize), 0, "nothing was waited for");
    sound(&sim, &pool);
}

#[test]
fn headroom_stays_free_for_others() {
    for source in ["virtual_memory", "slabs"] {
        let (sim, pool) = device(100 * MIB, &format!("headroom:25%,source:{source}"));
        let first = pool.alloc(40 * MIB, LEGACY).expect("room");
        sim.set_used_by_others(20 * MIB);
        let failed = pool.alloc(30 * MIB, LEGACY);
        assert!(matches!(failed, Err(Error::OutOfMemory(numbers)) if numbers.device_free == Some(40 * MIB)));
        let second = pool.alloc(14 * MIB, LEGACY).expect("above the headroom");
        free(&pool, vec![first, second]);
        // Others take more: the pool makes room when it is asked to.
        sim.set_used_by_others(40 * MIB);
        assert!(pool.release_idle().expect("nothing works") >= 18 * MIB);
        let (free, _) = sim.mem_get_info().expect("it works");
        assert!((25 * MIB..=46 * MIB).contains(&free), "{source}: {free}");
        sound(&sim, &pool);
    }
}

#[test]
fn without_settings_nothing_idle_is_released() {
    let (sim, pool) = device(1 << 30, "");
    let held = blocks(&pool, &[30 * MIB; 4]);
    free(&pool, held);
    sim.reset_counts();
    assert_eq!(pool.release_idle().expect("nothing to do"), 0);
    assert_eq!(sim.counts().total(), 0);
}

#[test]
fn without_remapping_free_memory_stays_where_it_is_until_there_is_no_more() {
    for (remap, more) in [("on", 0), ("off", 20 * MIB)] {
        let (sim, pool) = device(100 * MIB, &format!("remap:{remap}"));
        let held = blocks(&pool, &[10 * MIB; 8]);
        let (kept, holes): (Vec<_>, Vec<_>) = held.into_iter().enumerate().partition(|(place, _)| place % 2 == 1);
        free(&pool, holes.into_iter().map(|(_, addr)| addr).collect());
        let before = reserved(&pool);
        let whole = pool.alloc(20 * MIB, LEGACY).expect("room");
        assert_eq!(reserved(&pool) - before, more, "remap:{remap}");
        let larger = pool
            .alloc(30 * MIB, LEGACY)
            .expect("what is free is enough, however it lies");
        free(
            &pool,
            kept.into_iter().map(|(_, addr)| addr).chain([whole, larger]).collect(),
        );
        sound(&sim, &pool);
    }
}
