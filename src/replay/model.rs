//! Models of other allocators, fed with the same trace as the pool and paid by the same price list.

use crate::driver::sim::{Call as DriverCall, Prices};
use crate::trace::Trace;

use super::bill::Bill;
use super::caching::{Caching, Growth};
use super::clock::Streams;
use super::report::{calls_since, utilisation};
use super::schedule::{Call, Schedule, Step};
use super::series::Series;
use super::{Options, Report};

/// `cudaMalloc` gives multiples of this many bytes; the rest of the page it shares with other small blocks.
const DRIVER_UNIT: u64 = 512;

/// An allocator that is modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// Every allocation is a `cudaMalloc` and every free a `cudaFree`, which waits for the device.
    CudaMalloc,
    /// PyTorch's caching allocator as it is by default.
    TorchNative,
    /// PyTorch's caching allocator with `expandable_segments:True`.
    TorchExpandable,
}

impl Model {
    /// Every model.
    pub const ALL: [Self; 3] = [Self::CudaMalloc, Self::TorchNative, Self::TorchExpandable];

    /// What the model stands for.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CudaMalloc => "cudaMalloc",
            Self::TorchNative => "torch-native",
            Self::TorchExpandable => "torch-expandable",
        }
    }

    /// Runs the model on a trace. The device has memory without end; `options.threads` and `options.verify` have no
    /// meaning here.
    #[must_use]
    pub fn run(self, trace: &Trace, options: &Options, prices: &Prices) -> Report {
        let schedule = Schedule::new(trace);
        let mut run = Run {
            allocator: match self {
                Self::CudaMalloc => Allocator::Direct { reserved: 0 },
                Self::TorchNative => Allocator::Caching(Caching::new(Growth::Segments, schedule.streams)),
                Self::TorchExpandable => Allocator::Caching(Caching::new(Growth::Expandable, schedule.streams)),
            },
            streams: Streams::new(schedule.streams, options.lag_ns()),
            blocks: vec![0; schedule.blocks],
            bill: Bill::new(prices),
            peak_reserved: 0,
        };
        let mut series = Series::new(schedule.steps.len() as u64 * u64::from(options.passes()));
        let mut before_last_pass = run.bill.calls.clone();
        for pass in 0..options.passes() {
            before_last_pass.clone_from(&run.bill.calls);
            let start = u64::from(pass).saturating_mul(schedule.period);
            for step in &schedule.steps {
                run.step(step, start);
                series.step(start.saturating_add(step.time), step.call, || run.allocator.reserved());
            }
        }
        // cudaFree waits for the device: nothing is freed and still in use.
        let active = match self {
            Self::CudaMalloc => schedule.peak_live_bytes,
            Self::TorchNative | Self::TorchExpandable => schedule.peak_active_bytes,
        };
        Report {
            trace: trace.name().to_owned(),
            format: trace.format().to_string(),
            allocator: self.name(),
            backend: "model",
            passes: options.passes(),
            allocations: schedule.allocations * u64::from(options.passes()),
            peak_live_bytes: schedule.peak_live_bytes,
            peak_reserved_bytes: run.peak_reserved,
            peak_active_bytes: active,
            utilisation: utilisation(active, run.peak_reserved),
            driver_calls_last_pass: calls_since(&run.bill.calls, &before_last_pass),
            driver_calls: run.bill.calls,
            driver_time_us: Some(run.bill.ns as f64 / 1000.0),
            price_source: prices.source(),
            ns_per_op: None,
            errors: 0,
            first_error: None,
            series: series.samples,
        }
    }
}

enum Allocator {
    /// No allocator: each block is one of the driver's.
    Direct {
        reserved: u64,
    },
    Caching(Caching),
}

impl Allocator {
    const fn reserved(&self) -> u64 {
        match self {
            Self::Direct { reserved } => *reserved,
            Self::Caching(caching) => caching.reserved,
        }
    }
}

struct Run<'a> {
    allocator: Allocator,
    streams: Streams,
    /// The caching allocator's index of each block of the trace.
    blocks: Vec<u32>,
    bill: Bill<'a>,
    peak_reserved: u64,
}

impl Run<'_> {
    fn step(&mut self, step: &Step, start: u64) {
        let Self {
            allocator,
            streams,
            blocks,
            bill,
            ..
        } = self;
        let now = start.saturating_add(step.time);
        let block = &mut blocks[step.block as usize];
        match (step.call, allocator) {
            (Call::Alloc { size }, Allocator::Caching(caching)) => {
                *block = caching.alloc(size, step.stream, now, bill);
            }
            (Call::Use { until }, Allocator::Caching(caching)) => {
                streams.work(step.stream, start.saturating_add(until));
                caching.use_on(*block, step.stream);
            }
            (Call::Free { .. }, Allocator::Caching(caching)) => {
                caching.use_on(*block, step.stream);
                caching.free(*block, |stream| streams.event(stream, now), bill);
            }
            (Call::Alloc { size }, Allocator::Direct { reserved }) => {
                bill.charge(DriverCall::MemAlloc, size);
                *reserved = reserved.saturating_add(size.next_multiple_of(DRIVER_UNIT));
            }
            (Call::Free { size }, Allocator::Direct { reserved }) => {
                bill.charge(DriverCall::MemFree, size);
                *reserved = reserved.saturating_sub(size.next_multiple_of(DRIVER_UNIT));
            }
            (Call::Use { .. }, Allocator::Direct { .. }) => {}
        }
        self.peak_reserved = self.peak_reserved.max(self.allocator.reserved());
    }
}
