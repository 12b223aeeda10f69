//! The Python extension `flagstone._core`.
//!
//! Classes are frozen: what changes is inside the pool, which any thread may use. The interpreter is released around
//! whatever may reach the driver, and no lock is held while Python runs.

mod args;
mod attributes;
mod bench;
mod block;
mod buffer;
mod callbacks;
mod dlpack;
mod ending;
mod errors;
mod exports;
mod history;
mod info;
mod pool;
mod prewarm;
mod process;
mod replay;
mod settings;
mod sim;
mod stacks;
mod stats;
mod view;

use pyo3::pymodule;

/// The compiled part of flagstone. Use it through the package.
#[pymodule(gil_used = false)]
mod _core {
    use pyo3::exceptions::PyImportError;
    use pyo3::prelude::*;

    /// Pools, and the classes of what they return, are of the process, and so of one interpreter.
    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        // SAFETY: the thread has an interpreter.
        let number = unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) };
        if number == 0 {
            return Ok(());
        }
        Err(PyImportError::new_err(format!(
            "flagstone works in the main interpreter only, and this is sub-interpreter {number}; use threads or processes"
        )))
    }

    #[pymodule_export]
    use super::bench::{
        plain_functions, time_driver, time_handed_over, time_handing_over, time_machine, time_object_handed_over,
        time_object_pairs, time_object_random_shared, time_pairs, time_pairs_behind_holes, time_random,
        time_random_shared,
    };
    #[pymodule_export]
    use super::buffer::{BaseBuffer, Buffer, PinnedBuffer};
    #[pymodule_export]
    use super::info::{build_info, cuda_device_count, devices, simulated_prices};
    #[pymodule_export]
    use super::pool::{BasePool, PinnedPool, Pool};
    #[pymodule_export]
    use super::prewarm::Prewarm;
    #[pymodule_export]
    use super::process::{
        c_functions, configure, find_process_pool, hold_private_pool, last_error, private_pools, process_pool,
        process_pools, record_later, release_private_pool, torch_error,
    };
    #[pymodule_export]
    use super::replay::{Trace, model, replay};
    #[pymodule_export]
    use super::sim::SimulatedDevice;
    #[pymodule_export]
    use super::stacks::{follow_stack, forget_stacks};
    #[pymodule_export]
    use super::view::{BufferView, order_streams, stream_handle, view_capsule, view_memory};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
