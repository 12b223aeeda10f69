//! Replaying traces: what a pool, a simulated device and the models of other allocators report.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[path = "common/random_trace.rs"]
mod random_trace;

use std::time::Duration;

use flagstone::config::Dependencies;
use flagstone::driver::Stream;
use flagstone::driver::sim::{Call, Options as SimOptions, Prices, Sim};
use flagstone::replay::{Model, Options, Report, replay, simulated_device};
use flagstone::trace::{Builder, Trace};
use flagstone::{Config, Pool};
use proptest::prelude::*;
use random_trace::trace;

const MIB: u64 = 1 << 20;

fn run_on(device: Sim, trace: &Trace, options: &Options) -> Report {
    let pool = Pool::new(device, Config::default()).unwrap();
    replay(&pool, trace, options, &mut |_, _| {}).unwrap()
}

fn run(trace: &Trace, options: &Options) -> Report {
    run_on(simulated_device(), trace, options)
}

/// Blocks of a copy stream that the default stream still reads after they were freed.
fn prefetch() -> Trace {
    let mut builder = Builder::new();
    for step in 0..50 {
        let time = 1000 * step;
        let batch = builder.alloc(8 * MIB, 9, time).unwrap();
        builder.use_on(batch, 0, time + 100).unwrap();
        let activation = builder.alloc(12 * MIB, 0, time + 200).unwrap();
        builder.free(batch, 9, time + 300).unwrap();
        builder.free(activation, 0, time + 400).unwrap();
        builder.use_done(batch, 0, time + 900).unwrap();
    }
    builder.finish("prefetch", true)
}

#[test]
fn every_number_of_a_small_replay() {
    let mut builder = Builder::new();
    let kept = builder.live(3 * MIB, 0).unwrap();
    let freed = builder.alloc(5 * MIB, 0, 10).unwrap();
    builder.free(freed, 0, 20).unwrap();
    builder.alloc(5 * MIB, 0, 30).unwrap();
    builder.free(kept, 0, 40).unwrap();
    let trace = builder.finish("small", true);

    let mut told = Vec::new();
    let pool = Pool::new(simulated_device(), Config::default()).unwrap();
    let options = Options {
        passes: 2,
        ..Options::default()
    };
    let report = replay(&pool, &trace, &options, &mut |done, total| told.push((done, total))).unwrap();
    assert_eq!(
        (report.trace.as_str(), report.allocator, report.backend),
        ("small", "flagstone", "sim")
    );
    assert_eq!((report.passes, report.allocations, report.errors), (2, 6, 0));
    assert_eq!((report.peak_live_bytes, report.peak_active_bytes), (8 * MIB, 8 * MIB));
    assert!(
        (8 * MIB..=10 * MIB).contains(&report.peak_reserved_bytes),
        "{}",
        report.peak_reserved_bytes
    );
    assert_eq!(report.utilisation, 8.0 * MIB as f64 / report.peak_reserved_bytes as f64);
    let counted = pool.driver().counts();
    let calls = counted.iter().filter(|(name, _)| *name != "cuLaunchKernel").collect();
    assert_eq!(
        report.driver_calls, calls,
        "without the work that the replay gives the device"
    );
    assert_eq!(
        report.driver_calls_last_pass.values().sum::<u64>(),
        0,
        "the second pass needs nothing new"
    );
    assert!(report.driver_time_us.unwrap() > 0.0);
    // Three allocations and their frees in each pass.
    assert_eq!((report.series.len(), told.last()), (12, Some(&(12, 12))));
    assert_eq!(
        report.series.iter().map(|sample| sample.live_bytes).max(),
        Some(8 * MIB)
    );
    assert_eq!(pool.stats().live_blocks, 0, "what was live at the end is freed");
}

#[test]
fn lag_and_the_end_of_uses_delay_reuse() {
    let trace = prefetch();
    let reserved = |lag, dependencies| {
        let mut config = Config::default();
        config.dependencies = dependencies;
        let pool = Pool::new(simulated_device(), config).expect("a pool");
        let options = Options {
            lag: Duration::from_micros(lag),
            ..Options::default()
        };
        let report = replay(&pool, &trace, &options, &mut |_, _| {}).expect("a replay");
        assert_eq!((report.errors, report.first_error), (0, None));
        assert_eq!(report.peak_active_bytes, 20 * MIB);
        report.peak_reserved_bytes
    };
    // Each batch is in use for 600 us after its free, and the next comes 700 us after the free.
    let (pressure, overlap) = (Dependencies::Pressure, Dependencies::Overlap);
    assert!(reserved(0, pressure) < 30 * MIB);
    assert!(
        reserved(5000, pressure) > reserved(0, pressure) + 30 * MIB,
        "five batches wait for their events"
    );
    assert!(
        reserved(5000, overlap) + 16 * MIB <= reserved(5000, pressure),
        "the copies wait for older reads"
    );
}

#[test]
fn frees_from_other_threads_give_the_same_memory() {
    let trace = prefetch();
    let reports = [1, 4].map(|threads| {
        run(
            &trace,
            &Options {
                threads,
                passes: 2,
                ..Options::default()
            },
        )
    });
    for report in &reports {
        assert_eq!((report.errors, report.allocations), (0, 200));
    }
    let [one, four] = reports.map(|report| report.peak_reserved_bytes);
    assert!(four <= one + 16 * MIB, "{four} bytes with 4 threads, {one} with one");
}

#[test]
fn failures_are_counted_and_the_rest_goes_on() {
    let mut builder = Builder::new();
    let large = builder.alloc(900 * MIB, 0, 0).unwrap();
    let small = builder.alloc(MIB, 5, 1).unwrap();
    builder.use_on(large, 5, 2).unwrap();
    builder.use_done(large, 5, 3).unwrap();
    builder.free(large, 0, 4).unwrap();
    builder.free(small, 5, 5).unwrap();
    let device = Sim::new(SimOptions {
        capacity: 64 * MIB,
        backed: false,
        ..SimOptions::default()
    });
    let report = run_on(device, &builder.finish("large", true), &Options::default());
    assert_eq!(report.errors, 1);
    assert!(report.first_error.unwrap().contains("out of memory"));
}

#[test]
fn faults_that_the_device_finds_are_errors() {
    let device = simulated_device();
    let _ = device.check_handout(0x1000, 512, Stream::LEGACY);
    let report = run_on(device, &prefetch(), &Options::default());
    assert_eq!(report.errors, 1);
    assert!(report.first_error.unwrap().contains("0x1000"));
}

#[test]
fn models_are_paid_by_the_price_list() {
    let trace = prefetch();
    let options = Options {
        passes: 2,
        ..Options::default()
    };
    let [direct, native, expandable] = Model::ALL.map(|model| model.run(&trace, &options, &Prices::default()));
    assert_eq!(
        (direct.driver_calls["cuMemAlloc"], direct.driver_calls["cuMemFree"]),
        (200, 200)
    );
    assert_eq!(direct.driver_calls_last_pass["cuMemAlloc"], 100);
    assert_eq!((direct.peak_reserved_bytes, direct.utilisation), (20 * MIB, 1.0));
    // 8 MiB in segments of 20 MiB: two batches in each, six waiting at most, and one segment of 12 MiB activations.
    assert_eq!(native.driver_calls["cuEventRecord"], 100);
    assert_eq!(native.driver_calls_last_pass.get("cuMemAlloc"), None);
    assert_eq!(native.peak_reserved_bytes % (4 * MIB), 0);
    assert!(expandable.driver_calls["cuMemMap"] >= 4);
    for report in [&direct, &native, &expandable] {
        assert_eq!((report.backend, report.errors, report.ns_per_op), ("model", 0, None));
        assert!(report.peak_reserved_bytes >= report.peak_live_bytes);
    }
    assert!(native.driver_time_us < direct.driver_time_us);
}

#[test]
fn no_size_or_time_overflows() {
    let most = i64::MAX as u64;
    let mut builder = Builder::new();
    for stream in 0..8 {
        for size in [most / 2, most / 2 + (1 << 50)] {
            let pin = builder.alloc(MIB, stream, 0).unwrap();
            let block = builder.alloc(size, stream, 1 << 50).unwrap();
            builder.use_on(block, stream + 1, 1 << 50).unwrap();
            builder.free(block, stream, 1 << 50).unwrap();
            builder.free(pin, stream, 1 << 50).unwrap();
        }
    }
    let trace = builder.finish("huge", true);
    let options = Options {
        passes: 20,
        lag: Duration::MAX,
        ..Options::default()
    };
    for model in Model::ALL {
        assert!(model.run(&trace, &options, &Prices::default()).peak_reserved_bytes > most / 2);
    }
    assert_eq!(run(&trace, &options).errors, 20 * 16, "no device has so much memory");
}

proptest! {
    /// Whatever is allocated, used on other streams and freed, and however late the device is: no block is given out or
    /// unmapped while a stream may still use it, and all memory is accounted for.
    #[test]
    fn any_trace_replays_without_errors(trace in trace(), lag in 0..200_u64, threads in 0..3_usize, slabs in any::<bool>()) {
        let options = Options { passes: 2, lag: Duration::from_micros(lag), threads, verify: true };
        let config = Config::parse(if slabs { "source:slabs" } else { "" }).unwrap();
        let pool = Pool::new(simulated_device(), config).unwrap();
        let report = replay(&pool, &trace, &options, &mut |_, _| {}).unwrap();
        prop_assert_eq!((report.errors, report.first_error), (0, None));
        prop_assert_eq!(pool.stats().live_blocks, 0);
        for model in Model::ALL {
            let modelled = model.run(&trace, &options, &Prices::default());
            prop_assert!(modelled.peak_reserved_bytes >= report.peak_live_bytes);
        }
    }
}

#[test]
fn the_recorded_model_replays_without_errors() {
    let trace = Trace::open(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/benches/traces/gpt_variable_length.csv.gz"
    ))
    .unwrap();
    let options = Options {
        passes: 3,
        ..Options::default()
    };
    let report = run(&trace, &options);
    assert_eq!((report.errors, report.first_error), (0, None));
    let native = Model::TorchNative.run(&trace, &options, &Prices::default());
    assert!(report.utilisation > native.utilisation);
    // Nothing is taken from the driver any more, and nothing given back: what is free is mapped where it is wanted.
    for call in [
        Call::MemCreate,
        Call::MemRelease,
        Call::MemAlloc,
        Call::MemFree,
        Call::MemAddressReserve,
    ] {
        assert_eq!(report.driver_calls_last_pass.get(call.name()), None, "{call:?}");
    }
}
