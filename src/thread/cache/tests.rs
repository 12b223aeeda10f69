//! One cache: what it holds, within which bounds, and what a taker gets of it.

use super::*;
use crate::freelist::Links;
use crate::metadata::State;
use std::sync::atomic::AtomicBool;

fn block(blocks: &Blocks, units: u32) -> u32 {
    let index = blocks.take(1);
    let block = blocks.get(index);
    block.set_index(index);
    block.units.store(units, Relaxed);
    block.set_state(State::Cached);
    index
}

fn push_remote(cache: &Cache, blocks: &Blocks, units: u32) -> bool {
    cache.push_remote(blocks, blocks.get(block(blocks, units)))
}

fn pop(cache: &Cache, units: u64) -> u32 {
    let pop = if units <= CLASS_MAX.into() {
        Busy::pop_small
    } else {
        Busy::pop_large
    };
    let popped = cache
        .enter()
        .and_then(|busy| pop(busy, units, units * size_class::UNIT));
    popped.map_or(0, |(block, _)| block.index())
}

fn push(cache: &Cache, blocks: &Blocks, index: u32) -> bool {
    let block = blocks.get(index);
    // SAFETY: the tests drop the cache first, or at least do not use it any more.
    unsafe { cache.push(block, block.units()) }
}

#[test]
fn gives_back_the_last_of_exactly_that_size() {
    let (blocks, cache) = (Blocks::new(), Cache::new(1, 1, 0, 1 << 30));
    cache.keep_large(true);
    let (a, b, c) = (block(&blocks, 3), block(&blocks, 3), block(&blocks, 5000));
    for index in [a, b, c] {
        assert!(push(&cache, &blocks, index));
    }
    assert_eq!(cache.bytes(), 512 * (3 + 3 + 5000));
    assert_eq!(pop(&cache, 4), 0);
    assert_eq!([pop(&cache, 3), pop(&cache, 3), pop(&cache, 3)], [b, a, 0]);
    assert_eq!([pop(&cache, 5000), pop(&cache, 5000)], [c, 0]);
    assert_eq!(cache.bytes(), 0);
}

#[test]
fn holds_at_most_the_bound() {
    let all = 10 * SMALL_PART as u32;
    let (blocks, cache) = (Blocks::new(), Cache::new(1, 1, 0, size_class::bytes(all)));
    assert!(push(&cache, &blocks, block(&blocks, 6)));
    assert!(!push(&cache, &blocks, block(&blocks, 5)), "11 units in a cache for 10");
    assert!(push(&cache, &blocks, block(&blocks, 4)));
    cache.keep_large(true);
    assert!(!push(&cache, &blocks, block(&blocks, 3000)), "more than half of all");
    assert!(push_remote(&cache, &blocks, all));
    assert!(!push_remote(&cache, &blocks, 1));
    assert_ne!(cache.take_remote(), 0);
    assert!(push_remote(&cache, &blocks, 1));
}

#[test]
fn a_taker_gets_everything_also_while_the_owner_works() {
    let (blocks, cache) = (Blocks::new(), Cache::new(1, 1, 0, 1 << 30));
    let mine: Vec<u32> = (0..8).map(|i| block(&blocks, 1 + i % 3)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let mut held = mine.clone();
            let mut rounds = 0u64;
            // Relaxed: a flag.
            while !stop.load(Relaxed) || rounds < 1000 {
                held.retain(|&index| !push(&cache, &blocks, index));
                for units in 1..=3 {
                    match pop(&cache, units) {
                        0 => {}
                        index => held.push(index),
                    }
                }
                rounds += 1;
            }
            held
        });
        let mut taken = Vec::new();
        for _ in 0..200 {
            let mut index = cache.take_anyone();
            while index != 0 {
                taken.push(index);
                index = blocks.link(index).load(Relaxed);
            }
        }
        stop.store(true, Relaxed);
        let mut all = owner.join().expect("the owner panicked");
        let mut index = cache.take_own();
        while index != 0 {
            all.push(index);
            index = blocks.link(index).load(Relaxed);
        }
        all.append(&mut taken);
        all.sort_unstable();
        assert_eq!(all, mine, "each block is in one place");
    });
}
