//! What `flagstone bench` times: compiled loops over an allocator's two functions, with no Python in them; and a driver's calls.

mod allocator;
mod driver;
mod handed_over;
mod machine;
mod pairs;
mod plain;
mod random;

use std::time::Duration;

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use allocator::{Functions, Nothing, Object};
use machine::Machine;

use crate::driver::Driver;
use crate::driver::cuda::Cuda;
use crate::error::Error;

/// The allocator of two function addresses.
fn allocator((alloc, free): (usize, usize), device: i32, stream: usize) -> PyResult<Functions> {
    // SAFETY: the caller of a function that takes addresses vouches for them, as with ctypes.
    unsafe { Functions::from_addresses(alloc, free, device, stream) }
        .ok_or_else(|| PyValueError::new_err("a function address is 0; pass the addresses of alloc and free"))
}

/// The C++ object at an address, with the addresses of its methods.
fn object(this: usize, (alloc, free): (usize, usize)) -> PyResult<Object> {
    // SAFETY: the caller of a function that takes addresses vouches for them, as with ctypes.
    unsafe { Object::from_addresses(this, alloc, free) }
        .ok_or_else(|| PyValueError::new_err("an address is 0; pass the object's and those of its methods"))
}

fn nanoseconds(time: Option<Duration>) -> PyResult<u64> {
    let time = time.ok_or_else(|| PyMemoryError::new_err("an allocation of the measured allocator failed"))?;
    Ok(u64::try_from(time.as_nanos())?)
}

/// Nanoseconds of `count` pairs of alloc and free of `nbytes` in each of `threads` threads, from first start to last end. Several
/// are bound to the processors in turn; the calling thread stays as it is.
///
/// `functions` are the addresses of `void* alloc(size_t, int device, void* stream)` and
/// `void free(void*, size_t, int device, void* stream)`.
#[pyfunction]
#[pyo3(signature = (functions, nbytes, count, *, threads = 1, device = 0, stream = 0))]
pub fn time_pairs(
    py: Python<'_>,
    functions: (usize, usize),
    nbytes: usize,
    count: u64,
    threads: usize,
    device: i32,
    stream: usize,
) -> PyResult<u64> {
    let allocator = allocator(functions, device, stream)?;
    nanoseconds(py.detach(|| pairs::pairs(allocator, nbytes, count, threads)))
}

/// As `time_pairs`, of a C++ object: torch's allocator in use.
///
/// `methods` are the addresses of its `void* alloc(size_t)` and `void free(void*)`. An exception that one throws ends the
/// process.
#[pyfunction]
#[pyo3(signature = (this, methods, nbytes, count, *, threads = 1))]
pub fn time_object_pairs(
    py: Python<'_>,
    this: usize,
    methods: (usize, usize),
    nbytes: usize,
    count: u64,
    threads: usize,
) -> PyResult<u64> {
    let object = object(this, methods)?;
    nanoseconds(py.detach(|| pairs::pairs(object, nbytes, count, threads)))
}

/// Nanoseconds of `count` blocks of `nbytes` that one thread allocates and another frees, some hundred of them live at once.
#[pyfunction]
#[pyo3(signature = (functions, nbytes, count, *, device = 0, stream = 0))]
pub fn time_handed_over(
    py: Python<'_>,
    functions: (usize, usize),
    nbytes: usize,
    count: u64,
    device: i32,
    stream: usize,
) -> PyResult<u64> {
    let allocator = allocator(functions, device, stream)?;
    nanoseconds(py.detach(|| handed_over::handed_over(allocator, nbytes, count)))
}

/// As `time_handed_over`, of a C++ object as for `time_object_pairs`.
#[pyfunction]
pub fn time_object_handed_over(
    py: Python<'_>,
    this: usize,
    methods: (usize, usize),
    nbytes: usize,
    count: u64,
) -> PyResult<u64> {
    let object = object(this, methods)?;
    nanoseconds(py.detach(|| handed_over::handed_over(object, nbytes, count)))
}

/// Nanoseconds of `count` steps in each of `threads` threads, which allocate 100 to 10,000 bytes or free any block of a table that
/// all share. All is freed at the end.
#[pyfunction]
#[pyo3(signature = (functions, count, *, threads, device = 0, stream = 0))]
pub fn time_random_shared(
    py: Python<'_>,
    functions: (usize, usize),
    count: u64,
    threads: usize,
    device: i32,
    stream: usize,
) -> PyResult<u64> {
    let allocator = allocator(functions, device, stream)?;
    nanoseconds(py.detach(|| random::random_shared(allocator, count, threads)))
}

/// As `time_random_shared`, of a C++ object as for `time_object_pairs`.
#[pyfunction]
#[pyo3(signature = (this, methods, count, *, threads))]
pub fn time_object_random_shared(
    py: Python<'_>,
    this: usize,
    methods: (usize, usize),
    count: u64,
    threads: usize,
) -> PyResult<u64> {
    let object = object(this, methods)?;
    nanoseconds(py.detach(|| random::random_shared(object, count, threads)))
}

/// As `time_handed_over` without an allocator: what handing over takes by itself.
#[pyfunction]
pub fn time_handing_over(py: Python<'_>, count: u64) -> PyResult<u64> {
    nanoseconds(py.detach(|| handed_over::handed_over(Nothing, 1, count)))
}

/// As `time_pairs` without an allocator: each call adds to numbers that only its thread has. What the machine does with threads that
/// share nothing.
#[pyfunction]
#[pyo3(signature = (count, *, threads = 1))]
pub fn time_machine(py: Python<'_>, count: u64, threads: usize) -> PyResult<u64> {
    nanoseconds(py.detach(|| pairs::pairs(Machine, 1, count, threads)))
}

/// The addresses of an alloc and a free for torch that pass each call on to `cudaMalloc` and `cudaFree`, given by address.
#[pyfunction]
pub fn plain_functions(malloc: usize, free: usize) -> PyResult<(usize, usize)> {
    // SAFETY: the caller of a function that takes addresses vouches for them, as with ctypes.
    unsafe { plain::functions(malloc, free) }
        .ok_or_else(|| PyValueError::new_err("a function address is 0; pass the addresses of cudaMalloc and cudaFree"))
}

/// Nanoseconds of `count` pairs of alloc and free behind `holes` free blocks of the same size without free neighbours.
#[pyfunction]
#[pyo3(signature = (functions, nbytes, count, *, holes, device = 0, stream = 0))]
pub fn time_pairs_behind_holes(
    py: Python<'_>,
    functions: (usize, usize),
    nbytes: usize,
    count: u64,
    holes: usize,
    device: i32,
    stream: usize,
) -> PyResult<u64> {
    let allocator = allocator(functions, device, stream)?;
    nanoseconds(py.detach(|| pairs::pairs_behind_holes(allocator, nbytes, count, holes)))
}

/// One run of RMM's random_allocations: `2 * count` steps with blocks of 1 byte to `most_mib` MiB.
///
/// Returns `nanoseconds`, `allocations`, `failures` and `peak_live_bytes`.
#[pyfunction]
#[pyo3(signature = (functions, count, most_mib, *, device = 0, stream = 0))]
pub fn time_random<'py>(
    py: Python<'py>,
    functions: (usize, usize),
    count: usize,
    most_mib: u64,
    device: i32,
    stream: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let allocator = allocator(functions, device, stream)?;
    let run = py.detach(|| random::random(allocator, count, most_mib));
    let result = PyDict::new(py);
    result.set_item("nanoseconds", nanoseconds(Some(run.time))?)?;
    result.set_item("allocations", run.allocations)?;
    result.set_item("failures", run.failures)?;
    result.set_item("peak_live_bytes", run.peak_live)?;
    Ok(result)
}

/// Nanoseconds of each call of the CUDA driver, timed `rounds` times on a device.
///
/// Each dictionary has `call`, `nbytes` that it is about, the `mappings` that it is about, and `nanoseconds`, a list. Raises
/// `CudaUnavailableError` where there is no device, and `DriverError` where a call fails.
#[pyfunction]
#[pyo3(signature = (device = 0, *, rounds = 20))]
pub fn time_driver(py: Python<'_>, device: i32, rounds: usize) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let timings = py.detach(|| {
        let cuda = Cuda::new(device)?;
        let stream = cuda.new_stream()?;
        driver::time(&cuda, stream, rounds).map_err(Error::from)
    })?;
    let row = |((call, bytes, mappings), nanoseconds): (driver::Case, Vec<u64>)| {
        let row = PyDict::new(py);
        row.set_item("call", call.name())?;
        row.set_item("nbytes", bytes)?;
        row.set_item("mappings", mappings)?;
        row.set_item("nanoseconds", nanoseconds)?;
        Ok(row)
    };
    timings.into_iter().map(row).collect()
}
