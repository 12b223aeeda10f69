//! Takes memory of another library, and gives it back when it is used no more.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use super::{Deleter, DeviceType, Managed, ManagedVersioned, PLAIN, Tensor, VERSIONED};
use crate::driver::DevicePtr;
use crate::python::ending::outlast;

/// What a capsule's name becomes when its structure is taken: its destructor then leaves that alone.
const USED_PLAIN: &CStr = c"used_dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

/// The newest layout that is known; a higher major version has another one.
const MAJOR: u32 = 1;
/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;
/// `kDLCUDAHost` and `kDLCUDAManaged`: pinned memory, and memory that moves by itself.
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

/// Memory that was taken, and what holds it.
pub struct Memory {
    pub ptr: DevicePtr,
    pub nbytes: u64,
    /// The CUDA device's ordinal; none for memory of the host.
    pub device: Option<i32>,
    pub readonly: bool,
    pub hold: Taken,
}

/// A structure that was taken out of its capsule: its producer keeps the memory until this is dropped.
pub struct Taken(Structure);

enum Structure {
    Plain(NonNull<Managed>),
    Versioned(NonNull<ManagedVersioned>),
}

// SAFETY: a structure belongs to who took it, and its deleter may be called in any thread (DLPack's Python specification).
unsafe impl Send for Structure {}
// SAFETY: nothing is done with it by a shared reference.
unsafe impl Sync for Structure {}

impl Drop for Taken {
    fn drop(&mut self) {
        // At exit nothing is torn down: the deleter may be Python's.
        Python::try_attach(|py| {
            // Objects are dropped while errors are on their way up, and the deleter may run Python code.
            let raised = Raised::take(py);
            // It takes the interpreter if it needs it, and may have to wait for the device.
            py.detach(|| self.0.delete());
            raised.put_back();
        });
    }
}

impl Structure {
    /// Gives it back to its producer, as its only end.
    fn delete(&mut self) {
        match self {
            // SAFETY: the structure is ours, and is not used again.
            Self::Plain(managed) => unsafe { delete(managed.as_ptr(), managed.as_ref().deleter) },
            // SAFETY: as above.
            Self::Versioned(managed) => unsafe { delete(managed.as_ptr(), managed.as_ref().deleter) },
        }
    }
}

/// # Safety
/// The deleter is that of the structure, which is not used again.
unsafe fn delete<M>(managed: *mut M, deleter: Option<Deleter<M>>) {
    if let Some(deleter) = deleter {
        // SAFETY: the caller's.
        outlast(|| unsafe { deleter(managed) });
    }
}

/// The error that the thread has set, taken out: its type, value and traceback, or nothing.
struct Raised<'py>([*mut ffi::PyObject; 3], PhantomData<Python<'py>>);

impl<'py> Raised<'py> {
    fn take(_py: Python<'py>) -> Self {
        let [mut kind, mut value, mut traceback] = [ptr::null_mut(); 3];
        // SAFETY: the thread is attached; the references are written to locals.
        unsafe { ffi::PyErr_Fetch(&raw mut kind, &raw mut value, &raw mut traceback) };
        Self([kind, value, traceback], PhantomData)
    }

    fn put_back(self) {
        let [kind, value, traceback] = self.0;
        // SAFETY: the thread is attached, as `'py` says, and the references are those that were taken.
        unsafe { ffi::PyErr_Restore(kind, value, traceback) };
    }
}

/// Takes the structure out of a capsule. What cannot be used is left there, for the capsule to delete.
pub fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Memory> {
    if let Some(managed) = structure::<ManagedVersioned>(capsule, VERSIONED) {
        // SAFETY: a capsule of this name holds such a structure; the version is at its beginning in every version.
        let version = unsafe { (*managed.as_ptr()).version };
        if version.major > MAJOR {
            return Err(PyBufferError::new_err(format!(
                "the array is exported as DLPack {}.{}, and versions up to {MAJOR} are known",
                version.major, version.minor
            )));
        }
        // SAFETY: as above, and of a version that is known.
        let (tensor, flags) = unsafe { (&(*managed.as_ptr()).tensor, (*managed.as_ptr()).flags) };
        memory(
            capsule,
            tensor,
            flags & READ_ONLY != 0,
            USED_VERSIONED,
            Structure::Versioned,
            managed,
        )
    } else if let Some(managed) = structure::<Managed>(capsule, PLAIN) {
        // SAFETY: a capsule of this name holds such a structure.
        let tensor = unsafe { &(*managed.as_ptr()).tensor };
        memory(capsule, tensor, false, USED_PLAIN, Structure::Plain, managed)
    } else {
        Err(unusable(capsule))
    }
}

/// The pointer of a capsule that has this name.
fn structure<M>(capsule: &Bound<'_, PyAny>, name: &CStr) -> Option<NonNull<M>> {
    // SAFETY: the object is live and the thread attached; the pointer is asked for only under the name that it has.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 1 {
            NonNull::new(ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()).cast())
        } else {
            None
        }
    }
}

fn unusable(capsule: &Bound<'_, PyAny>) -> PyErr {
    for used in [USED_PLAIN, USED_VERSIONED] {
        if structure::<u8>(capsule, used).is_some() {
            return PyValueError::new_err("the DLPack capsule was used already; ask the array for another one");
        }
    }
    match capsule.get_type().name() {
        Ok(name) => PyTypeError::new_err(format!("a DLPack capsule is needed, not {name}")),
        Err(error) => error,
    }
}

/// Checks what the structure says, and takes it.
fn memory<M>(
    capsule: &Bound<'_, PyAny>,
    tensor: &Tensor,
    readonly: bool,
    used: &'static CStr,
    hold: impl FnOnce(NonNull<M>) -> Structure,
    managed: NonNull<M>,
) -> PyResult<Memory> {
    let device = device(tensor)?;
    let nbytes = contiguous_bytes(tensor)?;
    let ptr = address(tensor, nbytes)?;
    // SAFETY: the capsule is live and valid, and the name is a constant.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
        return Err(PyErr::fetch(capsule.py()));
    }
    Ok(Memory {
        ptr,
        nbytes,
        device,
        readonly,
        hold: Taken(hold(managed)),
    })
}

fn device(tensor: &Tensor) -> PyResult<Option<i32>> {
    const CPU: i32 = DeviceType::Cpu as i32;
    const CUDA: i32 = DeviceType::Cuda as i32;
    match tensor.device.kind {
        CPU | CUDA_HOST => Ok(None),
        CUDA | CUDA_MANAGED => Ok(Some(tensor.device.ordinal)),
        other => Err(PyBufferError::new_err(format!(
            "the array is on DLPack device ({other}, {}), which is neither a CUDA device nor the host",
            tensor.device.ordinal
        ))),
    }
}

/// The bytes of an array that lies in one piece, in C order.
fn contiguous_bytes(tensor: &Tensor) -> PyResult<u64> {
    let bits = u64::from(tensor.dtype.bits) * u64::from(tensor.dtype.lanes);
    if !bits.is_multiple_of(8) {
        return Err(PyBufferError::new_err(format!(
            "the array has elements of {bits} bits, and a buffer is of whole bytes"
        )));
    }
    let shape = numbers(tensor.shape, tensor.ndim)?;
    let mut elements = 1_u64;
    let mut whole = true;
    if !tensor.strides.is_null() {
        let strides = numbers(tensor.strides, tensor.ndim)?;
        let mut expected = 1_i64;
        for (&length, &stride) in shape.iter().zip(strides).rev() {
            whole &= length == 1 || stride == expected;
            expected = expected.saturating_mul(length);
        }
    }
    for &length in shape {
        elements = u64::try_from(length)
            .ok()
            .and_then(|length| elements.checked_mul(length))
            .ok_or_else(|| impossible(shape))?;
    }
    if !whole && elements > 0 {
        let strides = numbers(tensor.strides, tensor.ndim)?;
        return Err(PyBufferError::new_err(format!(
            "an array of shape {shape:?} with strides {strides:?} does not lie in one piece in C order; copy it to one that does"
        )));
    }
    elements.checked_mul(bits / 8).ok_or_else(|| impossible(shape))
}

fn impossible(shape: &[i64]) -> PyErr {
    PyBufferError::new_err(format!("an array has no shape {shape:?}"))
}

/// The lengths or strides that a structure points to.
fn numbers<'a>(first: *const i64, count: i32) -> PyResult<&'a [i64]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: by the protocol so many numbers are there, for as long as the structure is.
        Ok(count) if !first.is_null() => Ok(unsafe { slice::from_raw_parts(first, count) }),
        _ => Err(PyBufferError::new_err(format!(
            "an array has no {count} dimensions without a shape"
        ))),
    }
}

fn address(tensor: &Tensor, nbytes: u64) -> PyResult<DevicePtr> {
    let base = tensor.data.expose_provenance() as u64;
    if nbytes == 0 {
        return Ok(base);
    }
    base.checked_add(tensor.byte_offset)
        .filter(|address| base != 0 && address.checked_add(nbytes).is_some())
        .ok_or_else(|| PyBufferError::new_err(format!("an array of {nbytes} bytes is not at {base:#x}")))
}
