//! Histories as the classes of `flagstone.history`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::block::PoolRef;
use super::pool::BasePool;
use super::{stacks, stats};
use crate::history::{Event, Frame, History};
use crate::registry::process;

/// What follows stacks for the pools that want them.
const FOLLOWER: &str = "flagstone.history._stacks";

/// `BasePool.start_history`.
pub fn start(object: &Bound<'_, BasePool>, most: usize, stacks: bool) -> PyResult<()> {
    let (py, pool) = (object.py(), object.get().pool());
    if most == 0 {
        return Err(PyValueError::new_err("max_events is 1 or more, not 0"));
    }
    let follower = py.import(FOLLOWER)?;
    if stacks {
        // The process's pools outlive the objects that stand for them.
        let lasts =
            process::existing(pool.device()).is_some_and(|kept| std::ptr::from_ref(kept).addr() == pool.address());
        follower.call_method1("start", (pool.address(), (!lasts).then_some(object)))?;
    } else {
        follower.call_method1("stop", (pool.address(),))?;
    }
    py.detach(|| pool.start_history(most, stacks));
    Ok(())
}

/// `BasePool.stop_history`.
pub fn stop(py: Python<'_>, pool: &PoolRef) -> PyResult<()> {
    py.detach(|| pool.stop_history());
    py.import(FOLLOWER)?.call_method1("stop", (pool.address(),))?;
    Ok(())
}

/// `BasePool.history`.
pub fn get<'py>(py: Python<'py>, pool: &PoolRef) -> PyResult<Bound<'py, PyAny>> {
    let (
        History {
            events,
            dropped,
            stacks,
        },
        snapshot,
    ) = py.detach(|| (pool.history(), pool.snapshot()));
    let module = py.import("flagstone.history")?;
    let class = module.getattr("Event")?;
    let events = events
        .iter()
        .map(|info| event(&class, info))
        .collect::<PyResult<Vec<_>>>()?;
    let stacks = stacks
        .iter()
        .map(|frames| stack(py, frames))
        .collect::<PyResult<Vec<_>>>()?;
    let fields = PyDict::new(py);
    fields.set_item("device", pool.device())?;
    fields.set_item("events", PyList::new(py, events)?)?;
    fields.set_item("dropped", dropped)?;
    fields.set_item(
        "stacks",
        module.getattr("_resolve")?.call1((PyList::new(py, stacks)?,))?,
    )?;
    fields.set_item("snapshot", stats::snapshot(py, &snapshot)?)?;
    module.getattr("History")?.call((), Some(&fields))
}

fn event<'py>(class: &Bound<'py, PyAny>, event: &Event) -> PyResult<Bound<'py, PyAny>> {
    let Event {
        time,
        action,
        thread,
        addr,
        bytes,
        requested,
        stream,
        reserved,
        stack,
    } = *event;
    // Interned: a history has millions.
    let action = PyString::intern(class.py(), action.name());
    class.call1((time, action, thread, addr, bytes, requested, stream.0, reserved, stack))
}

/// The frames of one stack: a code object and a place within it, each.
fn stack<'py>(py: Python<'py>, frames: &[Frame]) -> PyResult<Bound<'py, PyTuple>> {
    let frames = frames.iter().map(|frame| (stacks::code(py, frame.code), frame.at));
    PyTuple::new(py, frames.collect::<Vec<_>>())
}
