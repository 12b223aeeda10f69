//! Replays a trace on a pool.

use std::time::Duration;

use crate::driver::{DevicePtr, Stream};
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::trace::Trace;

use super::report::{calls_since, utilisation};
use super::schedule::{Call, Schedule, Step};
use super::series::Series;
use super::stopwatch::Stopwatch;
use super::workers::{Job, Workers};
use super::{Options, ReplayDevice, Report};

/// Replays a trace on a pool and reports what it cost. Calls `progress` now and then with the steps done and all steps.
///
/// The report is about the pool's and the device's whole life: give it new ones. Streams other than the default one are
/// made for the replay, and the pool is promised that they live. Calls that fail are counted as errors, and what depends
/// on them is left out.
///
/// # Errors
/// A stream cannot be made.
pub fn replay<D: ReplayDevice>(
    pool: &Pool<D>,
    trace: &Trace,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report> {
    let schedule = Schedule::new(trace);
    let device = pool.driver();
    device.set_lag(options.lag_ns());
    let mut streams = vec![Stream::LEGACY];
    while streams.len() < schedule.streams {
        let stream = device.make_stream()?;
        pool.keep_stream(stream)?;
        streams.push(stream);
    }

    std::thread::scope(|scope| {
        let mut run = Run {
            pool,
            streams: &streams,
            blocks: vec![Block::default(); schedule.blocks],
            workers: match options.threads {
                0 => Workers::recorded(scope, pool, trace.threads()),
                threads => Workers::freeing(scope, pool, threads),
            },
            stopwatch: Stopwatch::new(),
            verify: options.verify,
            failures: 0,
            first_failure: None,
        };
        let total = schedule.steps.len() as u64 * u64::from(options.passes());
        let mut series = Series::new(total);
        let mut before_last_pass = device.calls();
        let every = total.div_ceil(PROGRESS_CALLS).max(1);
        let mut done = 0;
        for pass in 0..options.passes() {
            before_last_pass = device.calls();
            let start = device.now_ns().max(u64::from(pass).saturating_mul(schedule.period));
            for step in &schedule.steps {
                run.step(step, start);
                series.step(start.saturating_add(step.time), step.call, || {
                    pool.stats().reserved_bytes
                });
                done += 1;
                if done % every == 0 || done == total {
                    progress(done, total);
                }
            }
        }
        let reserved = pool.stats().peak_reserved_bytes;
        let faults = device.faults();
        let calls = device.calls();
        Ok(Report {
            trace: trace.name().to_owned(),
            format: trace.format().to_string(),
            allocator: "flagstone",
            backend: D::BACKEND,
            passes: options.passes(),
            allocations: schedule.allocations * u64::from(options.passes()),
            peak_live_bytes: schedule.peak_live_bytes,
            peak_reserved_bytes: reserved,
            peak_active_bytes: schedule.peak_active_bytes,
            utilisation: utilisation(schedule.peak_active_bytes, reserved),
            driver_calls_last_pass: calls_since(&calls, &before_last_pass),
            driver_calls: calls,
            driver_time_us: Some(device.call_time_ns() as f64 / 1000.0),
            price_source: device.price_source(),
            ns_per_op: run.stopwatch.ns_per_call(),
            errors: run.failures + faults.len() as u64,
            first_error: run.first_failure.or_else(|| faults.into_iter().next()),
            series: series.samples,
        })
    })
}

/// How often progress is told.
const PROGRESS_CALLS: u64 = 200;

/// Where a block of the trace is; the address is 0 while it is not allocated.
#[derive(Clone, Copy, Default)]
struct Block {
    addr: DevicePtr,
    bytes: u64,
    stream: u32,
}

struct Run<'a, D: ReplayDevice> {
    pool: &'a Pool<D>,
    streams: &'a [Stream],
    blocks: Vec<Block>,
    workers: Workers,
    stopwatch: Stopwatch,
    verify: bool,
    failures: u64,
    first_failure: Option<String>,
}

impl<D: ReplayDevice> Run<'_, D> {
    fn step(&mut self, step: &Step, start: u64) {
        let device = self.pool.driver();
        let now = start.saturating_add(step.time);
        device.set_time(now);
        let stream = self.streams[step.stream as usize];
        let block = self.blocks[step.block as usize];
        match step.call {
            Call::Alloc { size } => {
                let job = Job::Alloc { bytes: size, stream };
                let (result, time) = self.workers.call(self.pool, step.thread, job);
                if let Some(addr) = self.checked(result, time).flatten() {
                    self.blocks[step.block as usize] = Block {
                        addr,
                        bytes: size,
                        stream: step.stream,
                    };
                    if self.verify {
                        device.check(addr, size, stream);
                    }
                }
            }
            _ if block.addr == 0 => {}
            Call::Use { until } => {
                let used = device.read(stream, block.addr, block.bytes, start.saturating_add(until));
                self.noted(used.map_err(Error::from));
                self.noted(self.pool.record_stream(block.addr, stream));
            }
            Call::Free { .. } => {
                if self.verify {
                    // Its last use on its own stream, which may not be done when the block is given out again.
                    let used = device.read(self.streams[block.stream as usize], block.addr, block.bytes, now);
                    self.noted(used.map_err(Error::from));
                }
                let last_used_on = (step.stream != block.stream).then_some(stream);
                let addr = block.addr;
                let (result, time) = self
                    .workers
                    .call(self.pool, step.thread, Job::Free { addr, last_used_on });
                self.checked(result, time);
                self.blocks[step.block as usize].addr = 0;
            }
        }
    }

    /// Adds the time of a call of the pool, and its failure if it failed.
    fn checked<T>(&mut self, result: Result<T>, time: Duration) -> Option<T> {
        self.stopwatch.add(time);
        self.noted(result)
    }

    fn noted<T>(&mut self, result: Result<T>) -> Option<T> {
        result
            .map_err(|error| {
                self.failures += 1;
                self.first_failure.get_or_insert_with(|| error.to_string());
            })
            .ok()
    }
}
