//! What this build is and which devices it finds.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::attributes::set_fields;
use crate::config::{Config, KEYS};
use crate::driver::Properties;
use crate::driver::sim::{Call, Prices};
use crate::error::Error;
use crate::registry::{self, Backend};

/// How the extension was built: `version`, `profile` ("release" or "debug") and `features`; the `settings` that a pool can have,
/// each with what is allowed; and their `defaults`.
#[pyfunction]
pub fn build_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let features = [
        ("cuda", cfg!(feature = "cuda")),
        ("trace", cfg!(feature = "trace")),
        ("check", cfg!(feature = "check")),
    ];
    let features: Vec<_> = features
        .into_iter()
        .filter_map(|(name, on)| on.then_some(name))
        .collect();
    let info = PyDict::new(py);
    info.set_item("version", env!("CARGO_PKG_VERSION"))?;
    info.set_item("profile", if cfg!(debug_assertions) { "debug" } else { "release" })?;
    info.set_item("features", features)?;
    info.set_item("settings", BTreeMap::from(KEYS))?;
    let defaults = Config::default();
    info.set_item(
        "defaults",
        BTreeMap::from(KEYS.map(|(key, _)| (key, defaults.value(key)))),
    )?;
    Ok(info)
}

/// What each driver call costs on a simulated device: `source`, in words, and `prices`, a dictionary of pairs by function:
/// nanoseconds for a call, and for each MiB that it is about.
#[pyfunction]
pub fn simulated_prices(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let prices = Prices::default();
    let list = PyDict::new(py);
    for &call in Call::ALL {
        let price = prices.get(call);
        list.set_item(call.name(), (price.base_ns, price.per_mib_ns))?;
    }
    let result = PyDict::new(py);
    result.set_item("source", prices.source())?;
    result.set_item("prices", list)?;
    Ok(result)
}

/// How many CUDA devices there are. `CudaUnavailableError` says why there are none.
#[pyfunction]
pub fn cuda_device_count(py: Python<'_>) -> PyResult<i32> {
    Ok(py.detach(registry::cuda_devices)?)
}

/// The properties of every device of a backend; "auto" is the one that a pool would take.
#[pyfunction]
#[pyo3(signature = (backend = "auto"))]
pub fn devices<'py>(py: Python<'py>, backend: &str) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let backend: Backend = backend.parse().map_err(Error::from)?;
    let devices = py.detach(|| registry::devices(backend))?;
    devices
        .into_iter()
        .map(|device| properties(py, backend.resolve(), device))
        .collect()
}

fn properties(py: Python<'_>, backend: Backend, device: Properties) -> PyResult<Bound<'_, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("backend", backend.name())?;
    set_fields!(fields, device => Properties {
        ordinal,
        name,
        total_bytes,
        granularity,
        virtual_memory,
        memory_pools,
    });
    Ok(fields)
}
