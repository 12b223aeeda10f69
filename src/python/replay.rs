//! Traces, and their replay on a pool or on a model of another allocator.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::attributes::set_fields;
use super::{errors, history};
use crate::config::Config;
use crate::driver::cuda::Cuda;
use crate::driver::sim::Prices;
use crate::error::{Error, Result};
use crate::history::History;
use crate::pool::Pool;
use crate::registry::Backend;
use crate::replay::{self as replays, Metered, Model, Options, ReplayDevice, Report, Schedule, StepCall};
use crate::stats::Snapshot;
use crate::trace::{self as traces, Problem, TraceError};

/// What `Trace.example` reads: a GPT that trains on sequences of varying length. `benches/traces` says how it was made.
const EXAMPLE: (&str, &[u8]) = (
    "gpt_variable_length.csv.gz",
    include_bytes!("../../benches/traces/gpt_variable_length.csv.gz"),
);

/// A recorded sequence of allocations and frees, read from a file of any known format. Of a snapshot of several devices it is
/// the history of `device`, or without one the longest.
#[pyclass(module = "flagstone._core", frozen)]
pub struct Trace {
    trace: traces::Trace,
}

#[pymethods]
impl Trace {
    #[new]
    #[pyo3(signature = (path, device = None))]
    fn new(py: Python<'_>, path: PathBuf, device: Option<u32>) -> PyResult<Self> {
        let trace = py
            .detach(|| traces::Trace::open_device(path, device))
            .map_err(|error| trace_error(py, error))?;
        Ok(Self { trace })
    }

    /// The trace that comes with flagstone: a GPT that trains on sequences of varying length.
    #[staticmethod]
    fn example(py: Python<'_>) -> PyResult<Self> {
        let (name, bytes) = EXAMPLE;
        let trace = py
            .detach(|| traces::Trace::read(name, bytes))
            .map_err(|error| trace_error(py, error))?;
        Ok(Self { trace })
    }

    /// The file's name, without its folder.
    #[getter]
    fn name(&self) -> &str {
        self.trace.name()
    }

    /// The format that was recognised, in words.
    #[getter]
    fn format(&self) -> String {
        self.trace.format().to_string()
    }

    /// The device whose history it is; None where the format says nothing of devices.
    #[getter]
    fn device(&self) -> Option<u32> {
        match self.trace.format() {
            traces::Format::TorchSnapshot { device } => Some(device),
            _ => None,
        }
    }

    /// How many blocks are allocated.
    #[getter]
    fn blocks(&self) -> usize {
        self.trace.blocks()
    }

    /// How many streams there are, the default stream included.
    #[getter]
    fn streams(&self) -> usize {
        self.trace.streams()
    }

    /// What a replay does, for replays elsewhere: `steps`, each `(time_ns, call, block, stream, number)`, `own_steps`, after which
    /// they free what is left, `blocks`, `streams`, `period_ns`, `peak_live_bytes` and `peak_active_bytes`.
    ///
    /// A call is "alloc" or "free" with the block's bytes as number, or "use" with the time of its end. Times are
    /// nanoseconds since a pass began; passes are `period_ns` apart.
    fn schedule<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let schedule = Schedule::new(&self.trace);
        let steps = schedule.steps.iter().map(|step| {
            let (call, number) = match step.call {
                StepCall::Alloc { size } => ("alloc", size),
                StepCall::Use { until } => ("use", until),
                StepCall::Free { size } => ("free", size),
            };
            (step.time, call, step.block, step.stream, number)
        });
        let fields = PyDict::new(py);
        fields.set_item("steps", steps.collect::<Vec<_>>())?;
        fields.set_item("own_steps", schedule.own_steps)?;
        fields.set_item("blocks", schedule.blocks)?;
        fields.set_item("streams", schedule.streams)?;
        fields.set_item("period_ns", schedule.period)?;
        fields.set_item("peak_live_bytes", schedule.peak_live_bytes)?;
        fields.set_item("peak_active_bytes", schedule.peak_active_bytes)?;
        Ok(fields)
    }

    /// How much later than it was recorded an event completes in a replay if nothing is said, in milliseconds of the trace.
    #[getter]
    fn lag_ms(&self) -> f64 {
        Options::of(&self.trace).lag.as_secs_f64() * 1000.0
    }

    fn __len__(&self) -> usize {
        self.trace.events().len()
    }
}

/// The exception of a trace that cannot be read: the system's own where the file cannot, else `TraceError`.
fn trace_error(py: Python<'_>, error: TraceError) -> PyErr {
    let system = match &error.problem {
        Problem::Unreadable(system) => system.raw_os_error(),
        _ => None,
    };
    match system {
        Some(code) => match py.import("os").and_then(|os| os.call_method1("strerror", (code,))) {
            Ok(message) => PyOSError::new_err((code, message.unbind(), error.file)),
            Err(failed) => failed,
        },
        None => errors::raise(py, error.to_string(), |numbers| {
            numbers.set_item("file", error.file)?;
            Ok("TraceError")
        }),
    }
}

/// Replays a trace on a new pool and returns what it cost.
///
/// `lag_ms` is how much later than it was recorded an event completes on a simulated device: 5 ms if nothing is said, and 0
/// for a history. Calls are made by the threads that the trace names, or with `threads` the first allocates and the others
/// free. With `history`, a number of events, the pool's is in the result. `config` is `key:value,key:value`, over `FLAGSTONE_CONF`. `progress` is
/// called now and then with the steps done and all steps.
#[pyfunction]
#[pyo3(signature = (
    trace, *, backend = "sim", passes = 1, lag_ms = None, threads = 0, config = "", history = None, progress = None,
))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub fn replay<'py>(
    py: Python<'py>,
    trace: &Trace,
    backend: &str,
    passes: u32,
    lag_ms: Option<f64>,
    threads: usize,
    config: &str,
    history: Option<i64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let backend: Backend = backend.parse().map_err(Error::from)?;
    let mut settings = Config::from_env().map_err(Error::from)?;
    settings.update(config).map_err(Error::from)?;
    let options = Options {
        threads,
        ..options(&trace.trace, passes, lag_ms)?
    };
    let events = history.map(self::history::capacity).transpose()?;
    let mut failed = None;
    let mut say = |done: u64, all: u64| {
        if let Some(progress) = &progress
            && failed.is_none()
        {
            failed = Python::attach(|py| py.check_signals().and_then(|()| progress.call1(py, (done, all)))).err();
        }
    };
    let trace = &trace.trace;
    let (report, recorded) = py.detach(|| match backend.resolve() {
        Backend::Cuda => {
            let pool = Pool::new(Metered::new(Cuda::new(0)?), settings)?;
            replay_on(&pool, events, trace, &options, &mut say)
        }
        Backend::Sim | Backend::Auto => {
            let pool = Pool::new(replays::simulated_device(), settings)?;
            replay_on(&pool, events, trace, &options, &mut say)
        }
    })?;
    if let Some(failed) = failed {
        return Err(failed);
    }
    let fields = dictionary(py, report)?;
    if let Some((events, snapshot)) = recorded {
        fields.set_item("history", history::object(py, 0, events, &snapshot)?)?;
    }
    Ok(fields)
}

/// Replays, and records the pool's history where so many events of it are wanted.
fn replay_on<D: ReplayDevice>(
    pool: &Pool<D>,
    events: Option<usize>,
    trace: &traces::Trace,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Report, Option<(History, Snapshot)>)> {
    if let Some(events) = events {
        pool.start_history(events, false);
    }
    let report = replays::replay(pool, trace, options, progress)?;
    Ok((report, events.map(|_| (pool.history(), pool.snapshot()))))
}

/// Runs a model of another allocator on a trace: "cudaMalloc", "torch-native" or "torch-expandable".
#[pyfunction]
#[pyo3(signature = (trace, allocator, *, passes = 1, lag_ms = None))]
pub fn model<'py>(
    py: Python<'py>,
    trace: &Trace,
    allocator: &str,
    passes: u32,
    lag_ms: Option<f64>,
) -> PyResult<Bound<'py, PyDict>> {
    let options = options(&trace.trace, passes, lag_ms)?;
    let model = Model::ALL
        .into_iter()
        .find(|model| model.name() == allocator)
        .ok_or_else(|| {
            let known = Model::ALL.map(Model::name).join(", ");
            PyValueError::new_err(format!("there is no model of {allocator}; there are {known}"))
        })?;
    let report = py.detach(|| model.run(&trace.trace, &options, &Prices::default()));
    dictionary(py, report)
}

fn options(trace: &traces::Trace, passes: u32, lag_ms: Option<f64>) -> PyResult<Options> {
    let mut options = Options::of(trace);
    options.passes = passes;
    if let Some(lag_ms) = lag_ms {
        options.lag = Duration::try_from_secs_f64(lag_ms / 1000.0)
            .map_err(|_| PyValueError::new_err(format!("lag_ms is 0 or more, not {lag_ms}")))?;
    }
    Ok(options)
}

fn dictionary(py: Python<'_>, report: Report) -> PyResult<Bound<'_, PyDict>> {
    let fields = PyDict::new(py);
    set_fields!(fields, report => Report {
        trace,
        format,
        allocator,
        backend,
        passes,
        allocations,
        peak_live_bytes,
        peak_reserved_bytes,
        peak_active_bytes,
        utilisation,
        driver_calls,
        driver_calls_last_pass,
        driver_time_us,
        price_source,
        ns_per_op,
        errors,
        first_error;
        series
    });
    let samples = series
        .into_iter()
        .map(|sample| (sample.time_us, sample.live_bytes, sample.reserved_bytes));
    fields.set_item("series", samples.collect::<Vec<_>>())?;
    Ok(fields)
}
