//! Lifetimes that fit into a known amount of memory without a gap, met one after the other, without knowledge of what comes.

use flagstone::Pool;
use flagstone::config::Config;
use flagstone::driver::Stream;
use flagstone::replay::{Options, Report, replay, simulated_device};
use flagstone::trace::{Builder, Trace};

/// What all lifetimes fit into: 512 pages of 2 MiB.
const OPTIMUM: u64 = 1 << 30;
const BLOCKS: usize = 400;

/// Numbers below a bound that look random (Marsaglia's xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A rectangle of time and bytes, cut into smaller ones again and again: each is a block's lifetime.
fn cut(seed: u64) -> Trace {
    cut_into(seed, OPTIMUM, 512)
}

/// The same of so many bytes, into pieces of `least` or more.
fn cut_into(seed: u64, optimum: u64, least: u64) -> Trace {
    let mut numbers = Numbers(seed);
    let mut boxes = vec![(0, 1 << 20, optimum)];
    while boxes.len() < BLOCKS {
        let place = numbers.below(boxes.len() as u64) as usize;
        let (begin, end, bytes) = boxes[place];
        if numbers.below(2) == 0 && end - begin > 8 {
            let middle = begin + 1 + numbers.below(end - begin - 1);
            boxes[place] = (begin, middle, bytes);
            boxes.push((middle, end, bytes));
        } else if bytes > 1 << 20 && bytes > 2 * least {
            let part = least + 512 * numbers.below((bytes - 2 * least) / 512 + 1);
            boxes[place] = (begin, end, part);
            boxes.push((begin, end, bytes - part));
        }
    }
    let ends = boxes
        .iter()
        .enumerate()
        .map(|(number, &(_, end, _))| (end, false, number));
    let begins = boxes
        .iter()
        .enumerate()
        .map(|(number, &(begin, _, _))| (begin, true, number));
    let mut steps: Vec<_> = ends.chain(begins).collect();
    // What ends at a moment ends before anything begins.
    steps.sort_unstable();
    let mut builder = Builder::new();
    let mut blocks = vec![None; boxes.len()];
    for (time, begins, number) in steps {
        if begins {
            blocks[number] = Some(builder.alloc(boxes[number].2, 0, time).expect("in order"));
        } else if let Some(block) = blocks[number] {
            builder.free(block, 0, time).expect("live");
        }
    }
    builder.finish("cut", true)
}

fn run(trace: &Trace, settings: &str, threads: usize) -> Report {
    run_passes(trace, settings, threads, 1)
}

fn run_passes(trace: &Trace, settings: &str, threads: usize, passes: u32) -> Report {
    let config = Config::parse(settings).expect("good settings");
    let pool = Pool::new(simulated_device(), config).expect("a pool");
    let options = Options {
        threads,
        passes,
        ..Options::default()
    };
    let report = replay(&pool, trace, &options, &mut |_, _| {}).expect("a replay");
    assert_eq!((report.errors, &report.first_error), (0, &None));
    report
}

#[test]
fn pieces_of_a_page_pack_within_a_tenth_of_the_optimum() {
    for seed in 1..=8 {
        let trace = cut(seed);
        for threads in [1, 2] {
            let report = run(&trace, "source:virtual_memory,handle:2MiB", threads);
            assert_eq!(report.peak_live_bytes, OPTIMUM);
            let held = report.peak_reserved_bytes as f64 / OPTIMUM as f64;
            assert!(held <= 1.10, "seed {seed}, {threads} threads: {held:.3} of the optimum");
        }
    }
}

#[test]
fn remapping_holds_less_than_placement_alone() {
    let held = |settings: &str| -> u64 {
        (1..=8)
            .map(|seed| run(&cut(seed), settings, 1).peak_reserved_bytes)
            .sum()
    };
    let (remapped, placed) = (held("remap:on"), held("remap:off"));
    assert!(remapped < placed, "{remapped} bytes with remapping, {placed} without");
}

/// Calls that create, map or give back memory.
const MEMORY_CALLS: [&str; 5] = [
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
];

#[test]
fn a_step_that_comes_again_makes_no_memory_calls_and_holds_no_more() {
    for seed in 1..=8 {
        let trace = cut_into(seed, 16 << 30, 2 << 20);
        let run = |passes: u32| {
            let report = run_passes(&trace, "source:virtual_memory", 1, passes);
            let calls = MEMORY_CALLS.map(|name| report.driver_calls_last_pass.get(name).copied().unwrap_or(0));
            (calls.iter().sum::<u64>(), report.peak_reserved_bytes)
        };
        let (calls, held) = run(1);
        assert!(calls > 0);
        for passes in 3..=5 {
            let (calls, held_since) = run(passes);
            assert_eq!(calls, 0, "seed {seed}, pass {passes}");
            assert!(
                held_since <= held + held / 100,
                "seed {seed}: {held} bytes, then {held_since}"
            );
        }
    }
}

/// Layers of large blocks of many sizes, each with small ones beside it that live longer or shorter: what small blocks have is little.
fn layers(seed: u64) -> Trace {
    let mut numbers = Numbers(seed);
    let mut builder = Builder::new();
    let mut live = std::collections::VecDeque::new();
    for time in 0..1500 {
        let bytes = (2 << 20) + 512 * numbers.below(256 << 11);
        live.push_back(builder.alloc(bytes, 0, time).expect("in order"));
        for _ in 0..numbers.below(3) {
            let bytes = (20 << 10) + numbers.below(200 << 10);
            live.push_back(builder.alloc(bytes, 0, time).expect("in order"));
        }
        while live.len() > 60 {
            let oldest = live.len() - 60 + numbers.below(40) as usize;
            let block = live.swap_remove_back(oldest).expect("as many as that");
            builder.free(block, 0, time).expect("live");
        }
    }
    builder.finish("layers", true)
}

#[test]
fn small_blocks_beside_large_ones_do_not_upset_a_step_that_comes_again() {
    let calls = |passes: u32| -> u64 {
        let reports = (1..=6).map(|seed| run_passes(&layers(seed), "source:virtual_memory", 1, passes));
        let calls = |report: Report| {
            let last = MEMORY_CALLS.map(|name| report.driver_calls_last_pass.get(name).copied().unwrap_or(0));
            last.iter().sum::<u64>()
        };
        reports.map(calls).sum()
    };
    let (first, third) = (calls(1), calls(3));
    assert!(
        third * 50 <= first,
        "{first} calls in the first pass, {third} in the third"
    );
}

/// Blocks that come and go in the order of a queue, in sizes that differ each time.
#[test]
fn blocks_that_nobody_keeps_ready_are_put_together_before_memory_is_taken() {
    // No magazines, so that freed blocks go to the lists that all threads share.
    let config = Config::parse("source:slabs,growth:2MiB,magazine:0").expect("known settings");
    let pool = Pool::new(simulated_device(), config).expect("a pool takes nothing from the driver");
    let mut numbers = Numbers(7);
    let mut queue = std::collections::VecDeque::new();
    for _ in 0..2000 {
        let bytes = (100 << 10) + numbers.below(900 << 10);
        queue.push_back(pool.alloc(bytes, Stream::LEGACY).expect("there is room"));
        if queue.len() > 8 {
            pool.free(queue.pop_front().expect("not empty")).expect("live");
        }
    }
    // At most nine blocks of a MiB.
    assert!(pool.stats().peak_reserved_bytes <= 16 << 20);
}
