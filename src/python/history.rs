//! Histories as the classes of `flagstone.history`.

use std::ffi::CStr;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyModule, PyString, PyTuple};

use super::block::PoolRef;
use super::pool::BasePool;
use super::{ending, stacks, stats};
use crate::driver::DevicePtr;
use crate::history::{Event, Frame, History};
use crate::registry::process;
use crate::stats::{AddressInfo, BlockInfo, Snapshot};

/// What follows stacks for the pools that want them.
const FOLLOWER: &CStr = c"flagstone.history._stacks";

/// `BasePool.start_history`.
pub fn start(object: &Bound<'_, BasePool>, most: i64, stacks: bool) -> PyResult<()> {
    let (py, pool) = (object.py(), object.get().pool());
    let most = capacity(most)?;
    let follower = ending::import(py, FOLLOWER)?;
    if stacks {
        // The process's pools outlive the objects that stand for them.
        let lasts =
            process::existing(pool.device()).is_some_and(|kept| std::ptr::from_ref(kept).addr() == pool.address());
        let args = (pool.address(), (!lasts).then_some(object)).into_pyobject(py)?;
        ending::call(&follower.getattr("start")?, &args, None)?;
    } else {
        ending::call(&follower.getattr("stop")?, &(pool.address(),).into_pyobject(py)?, None)?;
    }
    py.detach(|| pool.start_history(most, stacks));
    Ok(())
}

/// A number of events to keep.
pub fn capacity(most: i64) -> PyResult<usize> {
    let kept = usize::try_from(most).ok().filter(|&most| most > 0);
    kept.ok_or_else(|| PyValueError::new_err(format!("max_events is 1 or more, not {most}")))
}

/// `BasePool.stop_history`.
pub fn stop(py: Python<'_>, pool: &PoolRef) -> PyResult<()> {
    py.detach(|| pool.stop_history());
    let stop = ending::import(py, FOLLOWER)?.getattr("stop")?;
    ending::call(&stop, &(pool.address(),).into_pyobject(py)?, None)?;
    Ok(())
}

/// `BasePool.history`.
pub fn get<'py>(py: Python<'py>, pool: &PoolRef) -> PyResult<Bound<'py, PyAny>> {
    let (history, snapshot) = py.detach(|| (pool.history(), pool.snapshot()));
    object(py, pool.device(), history, &snapshot)
}

/// A history as `flagstone.history.History`.
pub fn object<'py>(py: Python<'py>, device: i32, history: History, snapshot: &Snapshot) -> PyResult<Bound<'py, PyAny>> {
    let History {
        events,
        dropped,
        stacks,
    } = history;
    let module = ending::import(py, c"flagstone.history")?;
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
    fields.set_item("device", device)?;
    fields.set_item("events", PyList::new(py, events)?)?;
    fields.set_item("dropped", dropped)?;
    fields.set_item("stacks", resolve(&module, stacks)?)?;
    fields.set_item("snapshot", stats::snapshot(py, snapshot)?)?;
    ending::call(&module.getattr("History")?, &PyTuple::empty(py), Some(&fields))
}

/// Stacks of code objects as stacks of frames.
fn resolve<'py>(module: &Bound<'py, PyModule>, stacks: Vec<Bound<'py, PyTuple>>) -> PyResult<Bound<'py, PyAny>> {
    let py = module.py();
    let args = (PyList::new(py, stacks)?,).into_pyobject(py)?;
    ending::call(&module.getattr("_resolve")?, &args, None)
}

/// `BasePool.describe`.
pub fn describe<'py>(py: Python<'py>, pool: &PoolRef, addr: DevicePtr) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (info, history) = py.detach(|| (pool.describe(addr), pool.history()));
    let Some(AddressInfo { block, state, offset }) = info else {
        return Ok(None);
    };
    let (alloc, free) = history.last_use(block.addr);
    let frames = |event: Option<&Event>| event.and_then(|event| history.stacks.get(event.stack as usize));
    let stacks = [alloc, free].map(|event| frames(event).map_or(&[][..], |frames| &frames[..]));
    let stacks = stacks.map(|frames| stack(py, frames));
    let stacks = stacks.into_iter().collect::<PyResult<Vec<_>>>()?;
    let module = ending::import(py, c"flagstone.history")?;
    let stacks = resolve(&module, stacks)?;
    let BlockInfo {
        addr,
        bytes,
        requested,
        stream,
    } = block;
    let fields = (
        addr,
        bytes,
        requested,
        stream.0,
        state.name(),
        offset,
        stacks.get_item(0)?,
        stacks.get_item(1)?,
    );
    ending::call(&module.getattr("AddressInfo")?, &fields.into_pyobject(py)?, None).map(Some)
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
    let fields = (time, action, thread, addr, bytes, requested, stream.0, reserved, stack);
    ending::call(class, &fields.into_pyobject(class.py())?, None)
}

/// The frames of one stack: a code object and a place within it, each.
fn stack<'py>(py: Python<'py>, frames: &[Frame]) -> PyResult<Bound<'py, PyTuple>> {
    let frames = frames.iter().map(|frame| (stacks::code(py, frame.code), frame.at));
    PyTuple::new(py, frames.collect::<Vec<_>>())
}
