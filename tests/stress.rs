//! Threads that meet: what is enough for all of them is enough for each.

use flagstone::Pool;
use flagstone::config::{Config, Source};
use flagstone::driver::Stream;
use flagstone::driver::sim::{Options, Sim, StreamKind};
use std::sync::{Barrier, Mutex};

const MIB: u64 = 1 << 20;

fn device(source: Source) -> (Sim, Pool<Sim>) {
    let sim = Sim::new(Options {
        capacity: 256 * MIB,
        backed: false,
        ..Options::default()
    });
    let mut config = Config::default();
    config.source = source;
    let pool = Pool::new(sim.clone(), config).expect("a pool takes nothing from the driver");
    (sim, pool)
}

/// Runs `body` on several threads at once, with the number of each.
fn together(threads: usize, body: impl Fn(usize) + Sync) {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let spawn = |thread| {
            let (barrier, body) = (&barrier, &body);
            scope.spawn(move || {
                barrier.wait();
                body(thread);
            })
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        // The end of a scope does not wait for what threads do after their closure; this does.
        for thread in running {
            thread.join().expect("no panic");
        }
    });
}

fn next(random: &mut u64) -> usize {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) as usize
}

#[test]
fn nobody_fails_while_there_is_enough_for_all() {
    for threads in [2, 4] {
        let (sim, pool) = device(Source::VirtualMemory);
        pool.set_limit(Some(64 * MIB));
        let streams: Vec<Stream> = (0..3)
            .map(|_| sim.stream_create(StreamKind::NonBlocking).expect("a stream"))
            .collect();
        together(threads, |thread| {
            let mut random = thread as u64 + 1;
            for _ in 0..2000 {
                // What is idle belongs to another stream most of the time, and the other threads are after it too.
                let stream = streams[next(&mut random) % streams.len()];
                match pool.alloc(64 * MIB / threads as u64, stream) {
                    Ok(block) => pool.free(block).expect("live"),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        assert_eq!(pool.check(), Ok(()));
        assert!(pool.stats().peak_reserved_bytes <= 64 * MIB);
    }
}

#[test]
fn blocks_of_random_sizes_in_a_shared_table_are_all_accounted_for() {
    for most in [10_000, 4 * MIB as usize] {
        let (sim, pool) = device(Source::VirtualMemory);
        let table: Mutex<Vec<(u64, u64)>> = Mutex::default();
        together(4, |thread| {
            let mut random = thread as u64 + 1;
            for _ in 0..20_000 {
                let mut blocks = table.lock().expect("no panic");
                if next(&mut random).is_multiple_of(2) && blocks.len() < 40 {
                    drop(blocks);
                    let bytes = (100 + next(&mut random) % most) as u64;
                    let block = pool.alloc(bytes, Stream::LEGACY).expect("there is room");
                    sim.check_handout(block, bytes, Stream::LEGACY).expect("nobody else's");
                    table.lock().expect("no panic").push((block, bytes));
                } else if !blocks.is_empty() {
                    // Whoever allocated it, and whether that thread has ended meanwhile.
                    let place = next(&mut random) % blocks.len();
                    let (block, bytes) = blocks.swap_remove(place);
                    drop(blocks);
                    pool.free_sized(block, bytes).expect("live");
                }
            }
        });
        for (block, bytes) in table.into_inner().expect("no panic") {
            pool.free_sized(block, bytes).expect("live");
        }
        assert_eq!(pool.check(), Ok(()));
        let stats = pool.stats();
        assert_eq!(
            (stats.allocated_bytes, stats.live_blocks, stats.pending_blocks),
            (0, 0, 0)
        );
        assert_eq!((stats.invalid_free_count, stats.double_free_count), (0, 0));
        pool.trim(0).expect("the device can be waited for");
        assert_eq!(pool.stats().reserved_bytes, 0);
        assert_eq!(pool.check(), Ok(()));
        assert_eq!(sim.violations(), []);
    }
}

#[test]
fn reserving_beside_others_takes_what_is_missing() {
    let (_, pool) = device(Source::VirtualMemory);
    together(3, |_| {
        for step in 0..1000 {
            pool.reserve((1 + step % 20) * 2 * MIB).expect("there is room");
            if step % 20 == 19 {
                pool.trim(0).expect("the device can be waited for");
            }
        }
    });
    assert_eq!(pool.check(), Ok(()));
}

#[test]
fn reserving_takes_more_than_the_pool_has_free() {
    for source in [Source::VirtualMemory, Source::Slabs] {
        let (_, pool) = device(source);
        let alloc = || pool.alloc(20 * MIB, Stream::LEGACY).expect("there is room");
        let (hole, rest) = (alloc(), [alloc(), alloc()]);
        pool.free(hole).expect("live");
        // The hole is as large as what is missing, and is not what is asked for.
        pool.reserve(80 * MIB).expect("there is room");
        assert!(pool.stats().reserved_bytes >= 80 * MIB);
        for block in rest {
            pool.free(block).expect("live");
        }
        assert_eq!(pool.check(), Ok(()));
    }
}

#[test]
fn a_range_that_fits_is_found_before_a_request_fails() {
    // Without virtual memory nothing can be moved: the one hole that fits lies among many that almost do.
    let (_, pool) = device(Source::Slabs);
    pool.set_limit(Some(120 * MIB));
    let alloc = |bytes| pool.alloc(bytes, Stream::LEGACY).expect("there is room");
    let (almost, fits) = (3072 * 512, 3100 * 512);
    let size = |place| if place == 5 { fits } else { almost };
    let mut blocks: Vec<(u64, u64)> = (0..70).map(|place| (alloc(size(place)), size(place))).collect();
    // What is left over is smaller than any of them.
    while pool.alloc(almost, Stream::LEGACY).is_ok() {}
    let mut holes = vec![blocks[5].0];
    blocks.sort_unstable();
    for around in blocks.windows(3) {
        let side_by_side = around.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0);
        if side_by_side && around.iter().all(|(block, _)| !holes.contains(block)) {
            holes.push(around[1].0);
        }
    }
    assert!(holes.len() > 17, "one more than a search looks at");
    // The last to come back is looked at first.
    for &hole in holes.iter().rev() {
        pool.free(hole).expect("live");
    }
    assert_eq!(alloc(fits), holes[0]);
}

#[test]
fn everybody_at_once_loses_nothing() {
    for source in [Source::VirtualMemory, Source::Slabs] {
        let (sim, pool) = device(source);
        let side = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        pool.keep_stream(side).expect("live");
        together(4, |thread| {
            let mut random = thread as u64 + 1;
            let mut live = Vec::new();
            for step in 0..1500 {
                let choice = next(&mut random);
                let stream = [Stream::LEGACY, side, Stream::PER_THREAD][choice % 3];
                let bytes = 1 + next(&mut random) as u64 % [2000, 50_000, MIB, 8 * MIB][choice / 3 % 4];
                // Refused now and then, when the others have everything.
                if let Ok(block) = pool.alloc(bytes, stream) {
                    live.push(block);
                }
                while live.len() > choice / 12 % 16 {
                    let block = live.swap_remove(next(&mut random) % live.len());
                    if (choice / 192).is_multiple_of(4) {
                        pool.record_stream(block, side).expect("live");
                    }
                    pool.free(block).expect("live");
                }
                match (thread, step % 50) {
                    (0, 0) => pool.trim(64 * MIB).map(drop).expect("the device can be waited for"),
                    (1, 0) => pool.set_limit((step % 100 == 0).then_some(48 * MIB)),
                    (2, 0) => drop((pool.stats(), pool.snapshot())),
                    (3, 0) => sim.advance(1000),
                    _ => {}
                }
            }
            for block in live {
                pool.free(block).expect("live");
            }
        });
        assert_eq!(pool.check(), Ok(()));
        pool.trim(0).expect("the device can be waited for");
        let stats = pool.stats();
        assert_eq!(
            (stats.live_blocks, stats.allocated_bytes, stats.reserved_bytes),
            (0, 0, 0)
        );
        assert_eq!(sim.violations(), []);
    }
}

#[test]
fn streams_come_and_go_under_requests() {
    let (sim, pool) = device(Source::VirtualMemory);
    together(4, |thread| {
        for step in 0..400 {
            let stream = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
            let bytes = [1000, 100_000, 3 * MIB][(thread + step) % 3];
            let first = pool.alloc(bytes, stream).expect("idle memory serves");
            if step % 7 == thread {
                pool.trim(0).expect("the device can be waited for");
            }
            let second = pool.alloc(bytes, stream).expect("idle memory serves");
            for block in [first, second] {
                assert_eq!(pool.block(block).map(|info| info.stream), Some(stream));
                sim.check_handout(block, bytes, stream).expect("nobody else's");
                pool.free(block).expect("live");
            }
            sim.stream_destroy(stream).expect("live");
        }
    });
    assert_eq!(pool.check(), Ok(()));
    assert_eq!(sim.violations(), []);
}

#[test]
fn nobody_fails_while_another_waits_for_the_device() {
    let (sim, pool) = device(Source::VirtualMemory);
    pool.set_limit(Some(32 * MIB));
    let stream = || sim.stream_create(StreamKind::NonBlocking).expect("a stream");
    let (own, other) = (stream(), stream());
    pool.keep_stream(own).expect("live");
    pool.keep_stream(other).expect("live");
    together(3, |thread| {
        for _ in 0..2000 {
            if thread > 0 {
                pool.synchronize().expect("the device can be waited for");
                continue;
            }
            let block = pool.alloc(32 * MIB, own).expect("only its last use is in the way");
            pool.record_stream(block, other).expect("live");
            pool.free(block).expect("live");
        }
    });
    assert_eq!(pool.check(), Ok(()));
}
