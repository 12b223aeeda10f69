//! Patterns that users of other allocators reported as waste, each with the most that may be held.
//!
//! Numbers in brackets are what PyTorch's native allocator holds, as its issues say.

use flagstone::config::{Config, Source};
use flagstone::driver::Stream;
use flagstone::driver::sim::{Options, Sim, StreamKind, Work};
use flagstone::{Error, Pool};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const LEGACY: Stream = Stream::LEGACY;

fn device(capacity: u64) -> (Sim, Pool<Sim>) {
    let sim = Sim::new(Options {
        capacity,
        backed: false,
        ..Options::default()
    });
    let mut config = Config::default();
    config.source = Source::VirtualMemory;
    let pool = Pool::new(sim.clone(), config).expect("a pool takes nothing from the driver");
    (sim, pool)
}

fn kept_stream(sim: &Sim, pool: &Pool<Sim>) -> Stream {
    let stream = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
    pool.keep_stream(stream).expect("live");
    stream
}

fn blocks(pool: &Pool<Sim>, count: usize, bytes: u64) -> Vec<u64> {
    (0..count).map(|_| pool.alloc(bytes, LEGACY).expect("room")).collect()
}

fn free(pool: &Pool<Sim>, blocks: impl IntoIterator<Item = u64>) {
    for addr in blocks {
        pool.free(addr).expect("live");
    }
}

#[track_caller]
fn holds_at_most(sim: &Sim, pool: &Pool<Sim>, bytes: u64) {
    let stats = pool.stats();
    assert!(
        stats.peak_reserved_bytes <= bytes,
        "{} MiB held, {} allowed",
        stats.peak_reserved_bytes / MIB,
        bytes / MIB
    );
    assert_eq!(pool.check(), Ok(()));
    assert_eq!(sim.violations(), []);
}

#[test]
fn the_order_of_sizes_does_not_matter() {
    for sizes in [[16, 32], [32, 16]] {
        let (sim, pool) = device(GIB);
        for size in sizes {
            let all = blocks(&pool, 128 / size, size as u64 * MIB);
            free(&pool, all);
        }
        // [256 MiB for small ones first]
        holds_at_most(&sim, &pool, 128 * MIB);
    }
}

#[test]
fn holes_of_half_the_size_are_enough_together() {
    let (sim, pool) = device(GIB);
    let all = blocks(&pool, 4, 16 * MIB);
    free(&pool, [all[0], all[2]]);
    blocks(&pool, 1, 32 * MIB);
    // [96 MiB]
    holds_at_most(&sim, &pool, 64 * MIB);
}

#[test]
fn a_small_block_beside_a_large_one_takes_no_large_segment() {
    let (sim, pool) = device(GIB);
    blocks(&pool, 1, 2 * MIB);
    blocks(&pool, 1, MIB / 2);
    // [22 MiB]
    holds_at_most(&sim, &pool, 4 * MIB);
}

#[test]
fn weights_loaded_through_temporaries_strand_nothing() {
    let (sim, pool) = device(16 * GIB);
    for _ in 0..10 {
        let temporaries = blocks(&pool, 2, 530 * MIB);
        free(&pool, temporaries);
        blocks(&pool, 1, 270 * MIB);
    }
    // The last round has 9 weights and two temporaries. [5,830 MiB]
    holds_at_most(&sim, &pool, (9 * 270 + 2 * 530) * MIB * 102 / 100);
}

#[test]
fn what_is_kept_between_large_temporaries_does_not_let_memory_grow_without_bound() {
    let (sim, pool) = device(64 * GIB);
    for _ in 0..100 {
        let temporaries = [91 * MIB, 91 * MIB / 2].map(|bytes| pool.alloc(bytes, LEGACY).expect("room"));
        blocks(&pool, 1, 2 * MIB);
        free(&pool, temporaries);
    }
    // [14,060 MiB with expandable segments and a bound on splitting]
    holds_at_most(&sim, &pool, (200 + 137) * MIB * 105 / 100);
}

#[test]
fn a_new_stream_at_each_step_gets_what_the_last_one_left() {
    let (sim, pool) = device(16 * GIB);
    for _ in 0..40 {
        let stream = kept_stream(&sim, &pool);
        let pair = [(); 2].map(|()| pool.alloc(64 * MIB, stream).expect("room"));
        sim.launch(stream, Work::new().writes(pair[0], 64 * MIB).takes(1000))
            .expect("live");
        free(&pool, pair);
        sim.stream_synchronize(stream).expect("live");
    }
    // What a stream freed is known to be done with an event later than that. [4,096 MiB]
    holds_at_most(&sim, &pool, 3 * 128 * MIB);
}

#[test]
fn the_same_size_on_another_stream_needs_no_new_memory() {
    let (sim, pool) = device(GIB);
    let [one, two] = [(); 2].map(|()| kept_stream(&sim, &pool));
    let first = pool.alloc(100 * MIB, one).expect("room");
    free(&pool, [first]);
    // It becomes known that the device is done when memory is wanted.
    pool.alloc(2 * MIB, two).expect("room");
    sim.advance(10_000_000);
    pool.alloc(100 * MIB, two).expect("room");
    holds_at_most(&sim, &pool, 102 * MIB);
}

#[test]
fn a_stream_that_hangs_holds_up_no_blocks_of_others() {
    let (sim, pool) = device(GIB);
    let [slow, fast] = [(); 2].map(|()| kept_stream(&sim, &pool));
    sim.hold(slow).expect("live");
    let use_on = |stream, bytes| {
        let addr = pool.alloc(bytes, LEGACY).expect("room");
        sim.launch(stream, Work::new().reads(addr, bytes).takes(1000))
            .expect("live");
        pool.record_stream(addr, stream).expect("live");
        free(&pool, [addr]);
    };
    use_on(slow, 20 * MIB);
    for _ in 0..100 {
        use_on(fast, 10 * MIB);
        sim.advance(10_000_000);
    }
    holds_at_most(&sim, &pool, 42 * MIB);
    sim.resume(slow).expect("held");
}

#[test]
fn a_larger_block_fits_where_a_smaller_one_was() {
    let (sim, pool) = device(80 * MIB);
    let first = blocks(&pool, 1, 60 * MIB);
    free(&pool, first);
    let last = blocks(&pool, 1, 70 * MIB);
    // [out of memory in a `MemPool`]
    holds_at_most(&sim, &pool, 80 * MIB);
    free(&pool, last);
    blocks(&pool, 8, 10 * MIB);
    assert!(matches!(pool.alloc(2 * MIB, LEGACY), Err(Error::OutOfMemory(_))));
    holds_at_most(&sim, &pool, 80 * MIB);
}

#[test]
fn a_request_that_failed_leaves_room_for_a_smaller_one() {
    let (sim, pool) = device(GIB);
    let kept = blocks(&pool, 1, 300 * MIB);
    assert!(matches!(pool.alloc(800 * MIB, LEGACY), Err(Error::OutOfMemory(_))));
    blocks(&pool, 1, 720 * MIB);
    free(&pool, kept);
    holds_at_most(&sim, &pool, GIB);
}
