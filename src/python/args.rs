//! Arguments as Python passes them: sizes, streams and pointers.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString, PyTuple};

use super::buffer::BaseBuffer;
use super::ending;
use super::sim::SimulatedDevice;
use super::view::BufferView;
use crate::driver::sim::Sim;
use crate::driver::{DevicePtr, Stream};

/// A number of bytes: any integer from 0 to the end of the address space.
#[derive(Clone, Copy)]
pub struct Size(pub u64);

impl<'py> FromPyObject<'_, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        unsigned(object, "a size in bytes").map(Self)
    }
}

/// A stream: None for the legacy default stream, a handle, or an object of another library that holds one.
#[derive(Clone, Copy)]
pub struct StreamArg(pub Stream);

impl StreamArg {
    /// The stream that `None` stands for.
    pub const DEFAULT: Self = Self(Stream::LEGACY);
}

impl<'py> FromPyObject<'_, 'py> for StreamArg {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_none() {
            return Ok(Self::DEFAULT);
        }
        let handle = if object.is_instance_of::<PyInt>() {
            unsigned(object, "a stream handle")?
        } else {
            stream_handle(object)?
        };
        Ok(Self(Stream(usize::try_from(handle)?)))
    }
}

/// The handle inside an object of another library: the CUDA stream protocol first, then torch's and `CuPy`'s names.
fn stream_handle(object: Borrowed<'_, '_, PyAny>) -> PyResult<u64> {
    let py = object.py();
    let handle = if let Some(protocol) = object.getattr_opt(intern!(py, "__cuda_stream__"))? {
        let (version, handle): (u32, Bound<'_, PyAny>) =
            ending::call(&protocol, &PyTuple::empty(py), None)?.extract()?;
        if version != 0 {
            return Err(PyValueError::new_err(format!(
                "__cuda_stream__ has version {version}, and only version 0 is known; pass the handle as an integer"
            )));
        }
        handle
    } else if let Some(handle) = object.getattr_opt(intern!(py, "cuda_stream"))? {
        handle
    } else if let Some(handle) = object.getattr_opt(intern!(py, "ptr"))? {
        handle
    } else {
        object.to_owned()
    };
    if !handle.hasattr(intern!(py, "__index__"))? {
        return Err(PyTypeError::new_err(format!(
            "a stream is None, an integer handle, or an object with __cuda_stream__, cuda_stream or ptr, not {}",
            object.get_type().name()?
        )));
    }
    unsigned(handle.as_borrowed(), "a stream handle")
}

/// An address, as `alloc_raw` returned it.
#[derive(Clone, Copy)]
pub struct Address(pub DevicePtr);

impl<'py> FromPyObject<'_, 'py> for Address {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        unsigned(object, "an address").map(Self)
    }
}

/// A block of memory: the address that `alloc_raw` returned, a buffer, or a view of what another library has from the pool.
pub struct Pointer(pub DevicePtr);

impl<'py> FromPyObject<'_, 'py> for Pointer {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(buffer) = object.cast::<BaseBuffer>() {
            buffer.get().live_address(object.py()).map(Self)
        } else if let Ok(view) = object.cast::<BufferView>() {
            Ok(Self(view.get().address()))
        } else {
            Address::extract(object).map(|address| Self(address.0))
        }
    }
}

/// A range of memory: a buffer, a view, or an address and a number of bytes.
pub struct Range {
    pub address: DevicePtr,
    pub nbytes: u64,
}

impl<'py> FromPyObject<'_, 'py> for Range {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let (address, nbytes) = if let Ok(buffer) = object.cast::<BaseBuffer>() {
            (buffer.get().live_address(object.py())?, buffer.get().nbytes())
        } else if let Ok(view) = object.cast::<BufferView>() {
            (view.get().address(), view.get().nbytes())
        } else {
            let (Address(address), Size(nbytes)) = object.extract()?;
            (address, nbytes)
        };
        Ok(Self { address, nbytes })
    }
}

/// A device: its ordinal, or a simulated device.
pub enum Device {
    Ordinal(i32),
    Simulated(Sim),
}

impl<'py> FromPyObject<'_, 'py> for Device {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(device) = object.cast::<SimulatedDevice>() {
            return Ok(Self::Simulated(device.get().sim()));
        }
        if object.hasattr(intern!(object.py(), "__index__"))? && !object.is_instance_of::<PyBool>() {
            return object.extract().map(Self::Ordinal);
        }
        let hint = if object.is_instance_of::<PyString>() {
            "; whose memory it is says backend="
        } else {
            ""
        };
        Err(PyTypeError::new_err(format!(
            "a device is an ordinal, 0 for the first one, or a flagstone.testing.SimulatedDevice, not {}{hint}",
            object.get_type().name()?
        )))
    }
}

/// An integer from 0 to 2^64 - 1. Other numbers are named in the error, with what they should have been.
fn unsigned(object: Borrowed<'_, '_, PyAny>, what: &str) -> PyResult<u64> {
    if object.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!("{what} is an integer, not bool")));
    }
    match object.extract::<u64>() {
        Ok(value) => Ok(value),
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
            let shown = object.str()?;
            if object.lt(0)? {
                Err(PyValueError::new_err(format!("{what} is 0 or more, not {shown}")))
            } else {
                Err(PyOverflowError::new_err(format!(
                    "{what} is at most {}, not {shown}",
                    u64::MAX
                )))
            }
        }
        Err(_) => {
            let name = object.get_type().name()?;
            Err(PyTypeError::new_err(format!("{what} is an integer, not {name}")))
        }
    }
}
