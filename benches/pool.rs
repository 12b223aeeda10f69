//! Times of the pool's operations through the Rust API, on a simulated device: `cargo bench --bench pool`.

use std::hint::black_box;
use std::sync::mpsc::sync_channel;

use divan::Bencher;
use divan::counter::ItemsCount;
use flagstone::driver::sim::{Options, Sim};
use flagstone::driver::{DevicePtr, Stream};
use flagstone::{Config, Pool};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// A slab's slot, a small range, a large range.
const SIZES: [u64; 3] = [512, 64 * KIB, 16 * MIB];
const BATCH: usize = 1000;

fn main() {
    divan::main();
}

/// A pool on a device that is large, and whose memory has addresses only.
fn pool(config: &str) -> Pool<Sim> {
    let device = Options {
        capacity: 1 << 40,
        backed: false,
        ..Options::default()
    };
    Pool::new(Sim::new(device), Config::parse(config).expect("known keys")).expect("the device has the memory")
}

fn alloc(pool: &Pool<Sim>, bytes: u64) -> DevicePtr {
    pool.alloc(black_box(bytes), Stream::LEGACY)
        .expect("the device has the memory")
}

fn free(pool: &Pool<Sim>, block: DevicePtr) {
    pool.free(black_box(block)).expect("the block is live");
}

/// A warm pair: the thread's own magazine answers.
#[divan::bench(args = SIZES, threads = [1, 2], sample_size = 10_000)]
fn pair(bencher: Bencher<'_, '_>, bytes: u64) {
    let pool = pool("");
    bencher.bench(|| free(&pool, alloc(&pool, bytes)));
}

/// A pair without magazines: the arena answers, behind free ranges that are too small for the request.
#[divan::bench(args = [0, 4096, 65536], sample_size = 10_000)]
fn pair_behind_holes(bencher: Bencher<'_, '_>, holes: usize) {
    let pool = pool("magazine:0");
    let blocks: Vec<DevicePtr> = (0..2 * holes).map(|_| alloc(&pool, 20 * KIB)).collect();
    blocks.iter().step_by(2).for_each(|block| free(&pool, *block));
    bencher.bench(|| free(&pool, alloc(&pool, 40 * KIB)));
}

/// Blocks that one thread allocates and another frees.
#[divan::bench(args = SIZES, sample_size = 100, sample_count = 20)]
fn handed_over(bencher: Bencher<'_, '_>, bytes: u64) {
    let pool = pool("");
    std::thread::scope(|scope| {
        let (batches, received) = sync_channel::<Vec<DevicePtr>>(1);
        let pool = &pool;
        scope.spawn(move || received.iter().flatten().for_each(|block| free(pool, block)));
        bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
            let batch = (0..BATCH).map(|_| alloc(pool, bytes)).collect();
            batches
                .send(batch)
                .expect("the other thread receives until this end is dropped");
        });
        drop(batches);
    });
}
