//! Views: memory of other libraries as Python objects.

use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::args::{Address, Size, StreamArg};
use super::dlpack::{self, Taken};
use super::pool::BasePool;
use crate::driver::{DevicePtr, Stream};

/// What keeps another library's memory.
enum Hold {
    /// The object that it is memory of.
    Owner(Py<PyAny>),
    /// What its library gave away through `DLPack`.
    Taken { _structure: Taken },
}

/// Memory of another library, as bytes: what `flagstone.as_buffer` and `flagstone.from_dlpack` return. The library keeps it for
/// as long as this object lives.
///
/// Offers its bytes on as `__cuda_array_interface__`, or `__array_interface__` where it is memory of the host.
#[pyclass(module = "flagstone", frozen, weakref)]
pub struct BufferView {
    ptr: DevicePtr,
    nbytes: u64,
    device: Option<i32>,
    readonly: bool,
    stream: Option<Stream>,
    hold: Hold,
}

impl BufferView {
    pub fn address(&self) -> DevicePtr {
        self.ptr
    }

    /// What the two array interfaces share.
    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        // An empty array has address 0.
        let address = if self.nbytes == 0 { 0 } else { self.ptr };
        interface.set_item("shape", (self.nbytes,))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (address, self.readonly))?;
        interface.set_item("strides", py.None())?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}

#[pymethods]
impl BufferView {
    /// The address.
    #[getter]
    fn ptr(&self) -> u64 {
        self.ptr
    }

    /// The size in bytes.
    #[getter]
    pub fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// The CUDA device's ordinal; None for memory of the host.
    #[getter]
    fn device(&self) -> Option<i32> {
        self.device
    }

    /// Whether the library asks that nobody writes to it.
    #[getter]
    fn readonly(&self) -> bool {
        self.readonly
    }

    /// The handle of the stream whose later work comes after what the library did to the memory; None where nothing was waited for.
    #[getter]
    fn stream(&self) -> Option<usize> {
        self.stream.map(|stream| stream.0)
    }

    /// The CUDA array interface, version 3: one dimension of unsigned bytes. Memory of the host has none.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.device.is_none() {
            return Err(PyAttributeError::new_err(
                "memory of the host has no CUDA array interface",
            ));
        }
        let interface = self.interface(py)?;
        // 1 names the legacy default stream here, and 0 is not allowed.
        let stream = self.stream.map(|stream| if stream.is_legacy() { 1 } else { stream.0 });
        interface.set_item("stream", stream)?;
        Ok(interface)
    }

    /// `NumPy`'s array interface, version 3: one dimension of unsigned bytes. Memory of a device has none.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match self.device {
            None => self.interface(py),
            Some(device) => Err(PyAttributeError::new_err(format!(
                "memory of device {device} has no array interface of the host"
            ))),
        }
    }

    fn __repr__(&self) -> String {
        let (place, access) = (
            self.device
                .map_or_else(|| "the host".to_owned(), |device| format!("device {device}")),
            if self.readonly { ", read-only" } else { "" },
        );
        format!(
            "<flagstone.BufferView {:#x}, {} bytes on {place}{access}>",
            self.ptr, self.nbytes
        )
    }

    #[expect(clippy::needless_pass_by_value, reason = "the signature is PyO3's")]
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match &self.hold {
            Hold::Owner(owner) => visit.call(owner),
            Hold::Taken { .. } => Ok(()),
        }
    }
}

/// A view of what a `DLPack` capsule gives away. `stream` is the one that the producer was told, None where none was.
///
/// `BufferError` for an array that is not in one piece in C order, or on a device of another kind.
#[pyfunction]
pub fn view_capsule(capsule: &Bound<'_, PyAny>, stream: Option<StreamArg>) -> PyResult<BufferView> {
    let memory = dlpack::take(capsule)?;
    Ok(BufferView {
        ptr: memory.ptr,
        nbytes: memory.nbytes,
        device: memory.device,
        readonly: memory.readonly,
        stream: stream.filter(|_| memory.device.is_some()).map(|stream| stream.0),
        hold: Hold::Taken {
            _structure: memory.hold,
        },
    })
}

/// A view of memory of a device that `owner` keeps. `stream` is the one that waits for the owner's, None where none does.
#[pyfunction]
pub fn view_memory(
    owner: Py<PyAny>,
    ptr: Address,
    nbytes: Size,
    device: i32,
    readonly: bool,
    stream: Option<StreamArg>,
) -> BufferView {
    BufferView {
        ptr: ptr.0,
        nbytes: nbytes.0,
        device: Some(device),
        readonly,
        stream: stream.map(|stream| stream.0),
        hold: Hold::Owner(owner),
    }
}

/// The handle of a stream of any library.
#[pyfunction]
pub fn stream_handle(stream: StreamArg) -> usize {
    stream.0.0
}

/// Makes later work of `consumer` wait for the work that `producer` has so far, on the pool's device.
///
/// `BufferError` where one of them captures, `StreamError` where one does not exist.
#[pyfunction]
pub fn order_streams(
    py: Python<'_>,
    pool: &Bound<'_, BasePool>,
    producer: StreamArg,
    consumer: StreamArg,
) -> PyResult<()> {
    let (pool, producer, consumer) = (pool.get().pool(), producer.0, consumer.0);
    if py.detach(|| pool.order_streams(producer, consumer))? {
        return Ok(());
    }
    Err(PyBufferError::new_err(format!(
        "stream {:#x} or {:#x} is capturing and cannot be ordered; take the array before the capture, or pass stream=-1",
        producer.0, consumer.0
    )))
}
