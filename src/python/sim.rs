//! The simulated device, for tests of code that uses pools.

use std::collections::BTreeMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::args::{Address, Range, Size, StreamArg};
use crate::driver::Driver;
use crate::driver::sim::{Call, Code, CuResult, Fault, Options, Sim, StreamKind, Work};
use crate::error::Error;

/// A simulated CUDA device in this process: `Pool(device)` and `PinnedPool(device)` make pools of it.
///
/// Nothing happens by itself. Work takes effect in the order of its stream as `advance` moves the device's clock on, or
/// not before `release` where the stream is on `hold`. A checker notes what would be undefined on a real device: see
/// `violations`. Times are nanoseconds of the device's clock.
#[pyclass(module = "flagstone.testing", frozen, weakref)]
pub struct SimulatedDevice {
    sim: Sim,
}

impl SimulatedDevice {
    /// The device, for a pool.
    pub fn sim(&self) -> Sim {
        self.sim.clone()
    }
}

/// The result of a call to the device as the driver's error.
fn done<T>(call: Call, result: CuResult<T>) -> Result<T, Error> {
    result.map_err(|code| code.at(call).into())
}

#[pymethods]
impl SimulatedDevice {
    #[new]
    #[pyo3(signature = (
        *, capacity = Size(16 << 30), host_capacity = None, virtual_memory = true, backed = true, lag = 0,
    ), text_signature = "(*, capacity=17179869184, host_capacity=None, virtual_memory=True, backed=True, lag=0)")]
    fn new(capacity: Size, host_capacity: Option<Size>, virtual_memory: bool, backed: bool, lag: u64) -> Self {
        let options = Options {
            capacity: capacity.0,
            virtual_memory,
            backed,
            lag_ns: lag,
            host_capacity: host_capacity.map_or(u64::MAX, |capacity| capacity.0),
            ..Options::default()
        };
        Self { sim: Sim::new(options) }
    }

    /// The memory of the device, in bytes.
    #[getter]
    fn capacity(&self) -> u64 {
        self.sim.properties().total_bytes
    }

    /// The device's clock.
    #[getter]
    fn now(&self) -> u64 {
        self.sim.now_ns()
    }

    /// Moves the clock on; what is due by then takes effect.
    fn advance(&self, py: Python<'_>, nanoseconds: u64) {
        py.detach(|| self.sim.advance(nanoseconds));
    }

    /// Makes a stream that does not wait for the default stream, and returns its handle.
    fn create_stream(&self) -> PyResult<usize> {
        Ok(done(Call::StreamCreate, self.sim.stream_create(StreamKind::NonBlocking))?.0)
    }

    /// Destroys a stream. Its handle may come back as another stream.
    fn destroy_stream(&self, stream: StreamArg) -> PyResult<()> {
        Ok(done(Call::StreamDestroy, self.sim.stream_destroy(stream.0))?)
    }

    /// Keeps what is given to the stream from now on from being done, until `release`.
    #[pyo3(signature = (stream = StreamArg::DEFAULT), text_signature = "($self, stream=None)")]
    fn hold(&self, stream: StreamArg) -> PyResult<()> {
        Ok(done(Call::LaunchKernel, self.sim.hold(stream.0))?)
    }

    /// Ends all holds of the stream.
    #[pyo3(signature = (stream = StreamArg::DEFAULT), text_signature = "($self, stream=None)")]
    fn release(&self, stream: StreamArg) -> PyResult<()> {
        Ok(done(Call::LaunchKernel, self.sim.resume(stream.0))?)
    }

    /// Gives the stream a kernel that reads and writes memory, and takes that many nanoseconds.
    ///
    /// `reads` and `writes` are buffers, or pairs of an address and a number of bytes. No byte is changed.
    #[pyo3(signature = (stream = StreamArg::DEFAULT, *, reads = Vec::new(), writes = Vec::new(), nanoseconds = 0),
           text_signature = "($self, stream=None, *, reads=(), writes=(), nanoseconds=0)")]
    fn launch(&self, stream: StreamArg, reads: Vec<Range>, writes: Vec<Range>, nanoseconds: u64) -> PyResult<()> {
        let work = reads.iter().fold(Work::new().takes(nanoseconds), |work, range| {
            work.reads(range.address, range.nbytes)
        });
        let work = writes
            .iter()
            .fold(work, |work, range| work.writes(range.address, range.nbytes));
        Ok(done(Call::LaunchKernel, self.sim.launch(stream.0, work))?)
    }

    /// The bytes of the device's memory as they are now, in no order with any stream.
    fn read<'py>(&self, py: Python<'py>, address: Address, nbytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, nbytes, |bytes| {
            Ok(done(Call::MemGetAddressRange, self.sim.read(address.0, bytes))?)
        })
    }

    /// Changes the bytes of the device's memory now, in no order with any stream.
    fn write(&self, address: Address, data: &[u8]) -> PyResult<()> {
        Ok(done(Call::MemGetAddressRange, self.sim.write(address.0, data))?)
    }

    /// Makes calls of a driver function fail, as "cuMemCreate": the `nth` from now and `times - 1` after it.
    ///
    /// `code` is the driver's error number; 2 is out of memory.
    #[pyo3(signature = (function, *, nth = 1, times = 1, code = 2))]
    fn fail_call(&self, function: &str, nth: u64, times: u64, code: u32) -> PyResult<()> {
        let call = Call::from_name(function).ok_or_else(|| {
            let known = Call::ALL.iter().map(|call| call.name()).collect::<Vec<_>>().join(", ");
            PyValueError::new_err(format!(
                "the simulated device has no function {function}; it has {known}"
            ))
        })?;
        self.sim.fail(Fault {
            call: Some(call),
            first: nth,
            times,
            code: Code(code),
        });
        Ok(())
    }

    /// Ends what `fail_call` began.
    fn clear_faults(&self) {
        self.sim.clear_faults();
    }

    /// How often each driver function was called.
    fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.sim.counts().iter().collect()
    }

    /// Nanoseconds spent in each driver function, by the list of prices.
    fn driver_time(&self) -> BTreeMap<&'static str, u64> {
        self.sim.driver_time_ns().iter().collect()
    }

    /// Starts `counts` and `driver_time` anew.
    fn reset_counts(&self) {
        self.sim.reset_counts();
    }

    /// What the checker has found so far, in words: the first 1,000.
    fn violations(&self) -> Vec<String> {
        self.sim.violations().iter().map(ToString::to_string).collect()
    }
}
