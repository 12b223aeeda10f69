//! Errors of the crate as Python exceptions: the one place that knows which becomes which.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::attributes::set_fields;
use super::ending;
use crate::driver::{DevicePtr, DriverError};
use crate::error::{ConfigError, Error, OutOfMemory};

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        Python::attach(|py| raise(py, error.to_string(), |numbers| describe(error, numbers)))
    }
}

/// The exception with this message whose class and attributes `describe` gives: its name in `flagstone.errors`, and
/// what it puts into the dictionary.
pub fn raise(
    py: Python<'_>,
    message: String,
    describe: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<&'static str>,
) -> PyErr {
    let raise = || {
        let attributes = PyDict::new(py);
        let class = describe(&attributes)?;
        ending::call(
            &class_named(py, class)?,
            &(message,).into_pyobject(py)?,
            Some(&attributes),
        )
    };
    raise().map_or_else(|failed| failed, PyErr::from_value)
}

/// The class of an error, with its numbers put into `numbers`.
fn describe(error: Error, numbers: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    Ok(match error {
        Error::OutOfMemory(out_of_memory) => {
            set_fields!(numbers, *out_of_memory => OutOfMemory {
                requested,
                device,
                limit,
                allocated,
                pending,
                reserved,
                cached,
                largest_free,
                device_free,
                device_total;
                steps
            });
            let steps = steps.into_iter().map(|step| (step.name, step.bytes, step.nanoseconds));
            numbers.set_item("steps", PyTuple::new(numbers.py(), steps.collect::<Vec<_>>())?)?;
            "OutOfMemoryError"
        }
        Error::Driver(error) => {
            set_fields!(numbers, error => DriverError { call, code, name });
            "DriverError"
        }
        Error::TooLarge { requested, most } => {
            numbers.set_item("requested", requested)?;
            numbers.set_item("most", most)?;
            "TooLargeError"
        }
        Error::UnknownPointer { addr } => {
            numbers.set_item("address", addr)?;
            "InvalidPointerError"
        }
        Error::DoubleFree { addr } => {
            numbers.set_item("address", addr)?;
            "DoubleFreeError"
        }
        Error::InvalidStream { stream, device } => {
            numbers.set_item("stream", stream)?;
            numbers.set_item("device", device)?;
            "StreamError"
        }
        Error::NoSuchDevice { device, count } => {
            numbers.set_item("device", device)?;
            numbers.set_item("count", count)?;
            "DeviceError"
        }
        Error::Unavailable(_) => "CudaUnavailableError",
        Error::Forked => "ForkError",
        // Not a kind of its own: nothing can be done about it but to report it.
        Error::Internal => "FlagstoneError",
        Error::TooMany { what } => {
            numbers.set_item("what", what)?;
            "TooManyError"
        }
        Error::Config(error) => {
            set_fields!(numbers, error => ConfigError { key, value, allowed });
            "ConfigError"
        }
    })
}

/// The error of a buffer that is used after it was freed.
pub fn freed_buffer(py: Python<'_>, address: DevicePtr) -> PyErr {
    let message = format!("the buffer at {address:#x} was freed; its memory may not be used any more");
    raise(py, message, |numbers| {
        numbers.set_item("address", address)?;
        Ok("InvalidPointerError")
    })
}

/// Says, once in a process, that a simulated device was taken because there is no CUDA.
pub fn warn_simulated(py: Python<'_>, reason: &Error) -> PyResult<()> {
    static SAID: AtomicBool = AtomicBool::new(false);
    // Relaxed: the flag guards nothing but itself.
    if SAID.load(Ordering::Relaxed) {
        return Ok(());
    }
    let message =
        format!("no CUDA device, so the pool's memory is simulated ({reason}); backend=\"sim\" says it is meant");
    let warn = ending::import(py, c"warnings")?.getattr("warn")?;
    let class = class_named(py, "SimulatedDeviceWarning")?;
    ending::call(&warn, &(message, class, 1).into_pyobject(py)?, None)?;
    SAID.store(true, Ordering::Relaxed);
    Ok(())
}

/// A class of `flagstone.errors`, which is imported when the first error is raised. Asked for each time: a program may have
/// loaded the package anew, and catches the classes that it has.
fn class_named<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    ending::import(py, c"flagstone.errors")?.getattr(name)
}
