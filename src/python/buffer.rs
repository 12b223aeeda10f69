//! Buffers: blocks of memory as Python objects, which free themselves.

use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::args::StreamArg;
use super::block::{Block, Detached};
use super::dlpack::{self, DeviceType};
use super::errors;
use crate::driver::{DevicePtr, Stream};

/// A block of memory from a pool: what `Buffer` and `PinnedBuffer` share.
#[pyclass(module = "flagstone", frozen, subclass, weakref)]
pub struct BaseBuffer {
    block: Detached<Arc<Block>>,
    kind: DeviceType,
}

impl BaseBuffer {
    fn new(block: Block, kind: DeviceType) -> Self {
        Self {
            block: Detached::new(Arc::new(block)),
            kind,
        }
    }

    /// The block, or an error that says that it was freed.
    fn live(&self, py: Python<'_>) -> PyResult<&Arc<Block>> {
        if self.block.is_freed() {
            Err(errors::freed_buffer(py, self.block.ptr))
        } else {
            Ok(&self.block)
        }
    }

    pub fn live_address(&self, py: Python<'_>) -> PyResult<DevicePtr> {
        self.live(py).map(|block| block.ptr)
    }
}

#[pymethods]
impl BaseBuffer {
    /// The address. `InvalidPointerError` after `free`.
    #[getter]
    fn ptr(&self, py: Python<'_>) -> PyResult<u64> {
        let block = self.live(py)?;
        block.hand_out();
        Ok(block.ptr)
    }

    /// The size that was asked for, in bytes.
    #[getter]
    pub fn nbytes(&self) -> u64 {
        self.block.nbytes
    }

    /// The device's ordinal.
    #[getter]
    fn device(&self) -> i32 {
        self.block.pool.device()
    }

    /// The handle of the stream that the memory was allocated on (0: the legacy default stream).
    #[getter]
    fn stream(&self) -> usize {
        self.block.stream.0
    }

    /// Whether the memory was given back.
    #[getter]
    fn freed(&self) -> bool {
        self.block.is_freed()
    }

    /// Gives the memory back now, ordered on its own stream and, if given, on `stream` too.
    ///
    /// `DoubleFreeError` the second time; `BufferError` while an object made through `DLPack` lives.
    #[pyo3(signature = (stream = None))]
    fn free(&self, py: Python<'_>, stream: Option<StreamArg>) -> PyResult<()> {
        self.block.free(py, stream.map(|stream| stream.0))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: Bound<'_, PyAny>) -> PyResult<()> {
        if self.block.is_freed() {
            Ok(())
        } else {
            self.block.free(py, None)
        }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (self.kind as i32, self.kind.ordinal(self.device()))
    }

    /// A `DLPack` capsule over the memory, as one-dimensional unsigned bytes.
    ///
    /// `stream` is the consumer's: 1 or None the legacy default stream, 2 the per-thread one, -1 for no ordering, else
    /// a handle. Work that the buffer's own stream has so far is done before later work of that stream.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "a buffer is exported without a copy; pass copy=None or copy=False",
            ));
        }
        let own = self.__dlpack_device__();
        if let Some(wanted) = dl_device
            && wanted != own
        {
            return Err(PyBufferError::new_err(format!(
                "the buffer is on DLPack device {own:?} and cannot be exported to {wanted:?}; copy it there first"
            )));
        }
        let block = self.live(py)?;
        match (self.kind, consumer_stream(stream)?) {
            (DeviceType::Cuda, Some(consumer)) => block.share_with(py, consumer)?,
            // Host code waits by itself.
            (DeviceType::Cpu, _) | (DeviceType::Cuda, None) => {}
        }
        block.hand_out();
        dlpack::capsule(py, block, self.kind, max_version.is_some_and(|(major, _)| major >= 1))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let block = &slf.get().block;
        let name = slf.get_type().name()?;
        let (nbytes, device) = (block.nbytes, block.pool.device());
        Ok(if block.is_freed() {
            format!("<flagstone.{name} freed, {nbytes} bytes on device {device}>")
        } else {
            format!(
                "<flagstone.{name} {:#x}, {nbytes} bytes on device {device}, stream {:#x}>",
                block.ptr, block.stream.0
            )
        })
    }
}

/// The consumer's stream of a `DLPack` export; None for no ordering.
fn consumer_stream(stream: Option<i64>) -> PyResult<Option<Stream>> {
    match stream {
        None => Ok(Some(Stream::LEGACY)),
        Some(-1) => Ok(None),
        Some(0) => Err(PyValueError::new_err(
            "stream 0 is ambiguous in DLPack; pass 1 for the legacy default stream, 2 for the per-thread one",
        )),
        Some(handle) => usize::try_from(handle)
            .map(|handle| Some(Stream(handle)))
            .map_err(|_| PyValueError::new_err(format!("stream is -1, 1, 2 or a handle, not {handle}"))),
    }
}

/// Device memory of a pool. Frees itself when it is dropped, or at the end of a `with` block.
///
/// Offers its bytes through `__cuda_array_interface__` (version 3) and `DLPack`. It may be freed and dropped in any
/// thread.
#[pyclass(module = "flagstone", extends = BaseBuffer, frozen)]
pub struct Buffer;

impl Buffer {
    pub fn build(py: Python<'_>, block: Block) -> PyResult<Py<Self>> {
        Py::new(
            py,
            PyClassInitializer::from(BaseBuffer::new(block, DeviceType::Cuda)).add_subclass(Self),
        )
    }
}

#[pymethods]
impl Buffer {
    /// The CUDA array interface, version 3: one dimension of unsigned bytes.
    #[getter]
    fn __cuda_array_interface__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let block = slf.as_super().get().live(slf.py())?;
        let interface = array_interface(slf.py(), block)?;
        // 1 names the legacy default stream here, and 0 is not allowed.
        interface.set_item("stream", if block.stream.is_legacy() { 1 } else { block.stream.0 })?;
        Ok(interface)
    }
}

/// Pinned host memory of a pool. Frees itself when it is dropped, or at the end of a `with` block.
///
/// Offers its bytes to `NumPy` through `__array_interface__` and `DLPack`, without a copy.
#[pyclass(module = "flagstone", extends = BaseBuffer, frozen)]
pub struct PinnedBuffer;

impl PinnedBuffer {
    pub fn build(py: Python<'_>, block: Block) -> PyResult<Py<Self>> {
        Py::new(
            py,
            PyClassInitializer::from(BaseBuffer::new(block, DeviceType::Cpu)).add_subclass(Self),
        )
    }
}

#[pymethods]
impl PinnedBuffer {
    /// `NumPy`'s array interface, version 3: one dimension of unsigned bytes.
    #[getter]
    fn __array_interface__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let block = slf.as_super().get().live(slf.py())?;
        block.hand_out();
        array_interface(slf.py(), block)
    }

    /// Says that what `stream` has been given so far copies from or to the memory: after its free it is not given out again
    /// before that is done. Call it after each asynchronous copy; the stream's handle is used in this call only.
    ///
    /// Memory whose address was handed out (`ptr`, NumPy's interface, `DLPack`) and that is freed with no use recorded and no
    /// stream named waits until the pool has synchronised the context.
    fn record(slf: &Bound<'_, Self>, stream: StreamArg) -> PyResult<()> {
        let block = slf.as_super().get().live(slf.py())?;
        Ok(slf.py().detach(|| block.pool.record_work(block.ptr, stream.0))?)
    }
}

/// What the two array interfaces share.
fn array_interface<'py>(py: Python<'py>, block: &Block) -> PyResult<Bound<'py, PyDict>> {
    let interface = PyDict::new(py);
    // An empty array has address 0.
    let address = if block.nbytes == 0 { 0 } else { block.ptr };
    interface.set_item("shape", (block.nbytes,))?;
    interface.set_item("typestr", "|u1")?;
    interface.set_item("data", (address, false))?;
    interface.set_item("strides", py.None())?;
    interface.set_item("version", 3)?;
    Ok(interface)
}
