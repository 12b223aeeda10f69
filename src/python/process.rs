//! The process's pools, which the exported C functions use, as Python sees them.

use std::collections::BTreeMap;

use pyo3::prelude::*;

use super::history;
use super::pool::{BasePool, Pool};
use crate::capi::{self, Throws};
use crate::config::Config;
use crate::error::Error;
use crate::registry::{AnyPool, Backend, held, process};

/// Sets what the process's pools are made with: `backend` as for `Pool`, `conf` as `key:value,key:value` over what
/// `FLAGSTONE_CONF` says. Without it they are of the real device. The same settings may be set again.
///
/// Raises `ConfigError` when other settings are in force.
#[pyfunction]
#[pyo3(signature = (backend = "auto", conf = ""))]
pub fn configure(backend: &str, conf: &str) -> PyResult<()> {
    let backend: Backend = backend.parse().map_err(Error::from)?;
    let mut config = Config::from_env().map_err(Error::from)?;
    config.update(conf).map_err(Error::from)?;
    Ok(process::configure(process::Settings {
        backend: backend.resolve(),
        config,
    })?)
}

/// The process's pool of a device: what the exported C functions allocate from. Made if there is none; never dropped.
#[pyfunction]
#[pyo3(signature = (device = 0))]
pub fn process_pool(py: Python<'_>, device: i32) -> PyResult<Py<Pool>> {
    let pool = py.detach(|| process::shared(device))?;
    Py::new(py, (Pool, BasePool::of(pool)))
}

/// The process's pool of a device, or None where none was made.
#[pyfunction]
pub fn find_process_pool(py: Python<'_>, device: i32) -> PyResult<Option<Py<Pool>>> {
    if process::existing(device).is_none() {
        return Ok(None);
    }
    process_pool(py, device).map(Some)
}

/// The process's pools, by device, as far as there are any; none is made.
#[pyfunction]
pub fn process_pools(py: Python<'_>) -> PyResult<Vec<Py<Pool>>> {
    process::all().map(|pool| process_pool(py, pool.device())).collect()
}

/// Lets every pool of the process that is made from now on record its history, as `start_history` would; None ends that. Whoever
/// asks for stacks sees to it that they are followed.
#[pyfunction]
#[pyo3(signature = (max_events, *, stacks = false))]
pub fn record_later(py: Python<'_>, max_events: Option<i64>, stacks: bool) -> PyResult<()> {
    let most = max_events.map(history::capacity).transpose()?;
    Ok(py.detach(|| process::record_later(most.map(|most| process::Recorded { most, stacks })))?)
}

/// The bytes that each private pool of a device holds, by its id; empty where there is no pool.
#[pyfunction]
pub fn private_pools(py: Python<'_>, device: i32) -> BTreeMap<(u64, u64), u64> {
    py.detach(|| process::existing(device).map_or_else(BTreeMap::new, AnyPool::private_pools))
}

/// Holds a private pool, on every device, until `release_private_pool`: memory that went there is given to nothing else.
#[pyfunction]
pub fn hold_private_pool(py: Python<'_>, name: (u64, u64)) {
    py.detach(|| held::hold(name));
}

/// Ends what `hold_private_pool` began; ids that are not held are ignored.
#[pyfunction]
pub fn release_private_pool(py: Python<'_>, name: (u64, u64)) {
    py.detach(|| held::release(name));
}

/// What failed last in an exported C function that this thread called, as an exception, taken out; None if nothing did.
#[pyfunction]
pub fn last_error(py: Python<'_>) -> Option<PyErr> {
    py.detach(capi::last_error).map(PyErr::from)
}

/// What a failed allocation in torch becomes in this process: "OutOfMemoryError", "RuntimeError", or None while torch is
/// not loaded.
#[pyfunction]
pub fn torch_error() -> Option<&'static str> {
    match capi::throws() {
        Throws::OutOfMemoryError => Some("OutOfMemoryError"),
        Throws::RuntimeError => Some("RuntimeError"),
        Throws::Nothing => None,
    }
}

/// The addresses of the exported C functions, by name without `flagstone_`.
#[pyfunction]
pub fn c_functions() -> BTreeMap<&'static str, usize> {
    BTreeMap::from([
        ("alloc", capi::flagstone_alloc as *const () as usize),
        ("torch_alloc", capi::flagstone_torch_alloc as *const () as usize),
        ("free", capi::flagstone_free as *const () as usize),
        ("init", capi::flagstone_init as *const () as usize),
        ("reset", capi::flagstone_reset as *const () as usize),
        ("memory_fraction", capi::flagstone_memory_fraction as *const () as usize),
        ("base_alloc", capi::flagstone_base_alloc as *const () as usize),
        ("record_stream", capi::flagstone_record_stream as *const () as usize),
        (
            "begin_allocate_to_pool",
            capi::flagstone_begin_allocate_to_pool as *const () as usize,
        ),
        (
            "end_allocate_to_pool",
            capi::flagstone_end_allocate_to_pool as *const () as usize,
        ),
        ("release_pool", capi::flagstone_release_pool as *const () as usize),
    ])
}
