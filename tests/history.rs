//! Histories that begin and end while threads allocate and free.

use flagstone::driver::Stream;
use flagstone::driver::sim::{Options, Sim};
use flagstone::history::Action;
use flagstone::{Config, Pool};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn pool() -> Pool<Sim> {
    let device = Options {
        backed: false,
        ..Options::default()
    };
    Pool::new(Sim::new(device), Config::default()).expect("the device has the memory")
}

#[test]
fn a_history_may_begin_and_end_at_any_time() {
    let pool = pool();
    let stop = AtomicBool::new(false);
    let work = |seed: u64| {
        let mut live = Vec::new();
        // Relaxed: a flag.
        while !stop.load(Relaxed) {
            for step in 0..64 {
                let size = 100 + (seed * 7919 + step * 104_729) % 20_000;
                live.push(pool.alloc(size, Stream::LEGACY).expect("the device has the memory"));
            }
            live.drain(32..).for_each(|block| pool.free(block).expect("live"));
            live.drain(..).for_each(|block| pool.free(block).expect("live"));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|seed| scope.spawn(move || work(seed))).collect();
        for _ in 0..50 {
            pool.start_history(500, false);
            std::thread::yield_now();
            let history = pool.history();
            assert!(history.events.len() <= 500);
            assert!(history.events.is_sorted_by_key(|event| event.time));
            // What is given out again was freed before, in the order of the events.
            let mut live = HashSet::new();
            for event in &history.events {
                match event.action {
                    Action::Alloc => assert!(live.insert(event.addr), "{event:?}: live already"),
                    Action::Free => drop(live.remove(&event.addr)),
                    _ => {}
                }
            }
            pool.stop_history();
        }
        stop.store(true, Relaxed);
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
    assert!(!pool.is_recording());
    assert_eq!(pool.stats().live_blocks, 0);
    pool.check().expect("every invariant holds");
}

#[test]
fn recording_changes_nothing_but_time() {
    let addresses = |recorded: bool| {
        let pool = pool();
        if recorded {
            pool.start_history(10, false);
        }
        let mut live = Vec::new();
        let mut seen = Vec::new();
        for step in 0..4000u64 {
            let random = step.wrapping_mul(6_364_136_223_846_793_005) >> 33;
            if random % 9 < 4 && !live.is_empty() {
                let block = live.swap_remove(random as usize % live.len());
                pool.free(block).expect("live");
            } else {
                let size = 1 + random % if random % 50 == 0 { 5_000_000 } else { 50_000 };
                live.push(pool.alloc(size, Stream::LEGACY).expect("the device has the memory"));
                seen.push(live[live.len() - 1]);
            }
        }
        pool.check().expect("every invariant holds");
        let stats = pool.stats();
        // Two devices need not have the same addresses: which block is which earlier one again.
        let mut known = HashMap::new();
        let again = |(place, addr)| *known.entry(addr).or_insert(place);
        let places: Vec<usize> = seen.into_iter().enumerate().map(again).collect();
        (
            places,
            stats.peak_reserved_bytes,
            stats.miss_count,
            stats.peak_allocated_bytes,
        )
    };
    assert_eq!(addresses(false), addresses(true));
}
