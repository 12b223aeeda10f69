//! Hands a block of memory to another library without a copy.
//!
//! Each exported structure holds the block alive until its deleter is called, from whatever thread that may be; the deleter
//! uses nothing of Python.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;

use super::{
    DataType, Device, DeviceType, Managed, ManagedVersioned, PLAIN, Tensor, UNSIGNED_INTEGER, VERSIONED, Version,
};
use crate::python::block::{Block, Export};

/// The version that we write: 1.0 has the flags and the version field, and nothing later is used.
const VERSION: Version = Version { major: 1, minor: 0 };

/// One export: the structure that the consumer sees, what it points to, and the block that it holds.
struct Exported<M> {
    managed: M,
    shape: [i64; 1],
    strides: [i64; 1],
    _hold: Export,
}

/// What differs between the two structures.
trait Layout: Sized {
    /// The capsule's name until a consumer has taken the structure.
    const NAME: &'static CStr;
    fn tensor(&mut self) -> &mut Tensor;
    fn set_context(&mut self, context: *mut c_void);
    fn context(&self) -> *mut c_void;
    fn new(tensor: Tensor) -> Self;
}

impl Layout for Managed {
    const NAME: &'static CStr = PLAIN;
    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
    fn new(tensor: Tensor) -> Self {
        Self {
            tensor,
            context: ptr::null_mut(),
            deleter: Some(delete::<Self>),
        }
    }
}

impl Layout for ManagedVersioned {
    const NAME: &'static CStr = VERSIONED;
    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
    fn new(tensor: Tensor) -> Self {
        Self {
            version: VERSION,
            context: ptr::null_mut(),
            deleter: Some(delete::<Self>),
            flags: 0,
            tensor,
        }
    }
}

/// A capsule over the block's bytes, as one-dimensional unsigned 8-bit integers.
///
/// `versioned` says which structure the consumer understands.
pub fn capsule<'py>(
    py: Python<'py>,
    block: &Arc<Block>,
    kind: DeviceType,
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let export = block.export(py)?;
    if versioned {
        build::<ManagedVersioned>(py, export, kind)
    } else {
        build::<Managed>(py, export, kind)
    }
}

fn build<M: Layout>(py: Python<'_>, hold: Export, kind: DeviceType) -> PyResult<Bound<'_, PyAny>> {
    let block = hold.block();
    let tensor = Tensor {
        // An empty tensor has no address.
        data: if block.nbytes == 0 {
            ptr::null_mut()
        } else {
            ptr::with_exposed_provenance_mut(block.ptr as usize)
        },
        device: Device {
            kind: kind as i32,
            ordinal: kind.ordinal(block.pool.device()),
        },
        ndim: 1,
        dtype: DataType {
            code: UNSIGNED_INTEGER,
            bits: 8,
            lanes: 1,
        },
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let nbytes = i64::try_from(block.nbytes)?;
    let exported = Box::into_raw(Box::new(Exported {
        managed: M::new(tensor),
        shape: [nbytes],
        strides: [1],
        _hold: hold,
    }));
    // SAFETY: `exported` was made above, nobody else has it yet, and its address stays until `delete` drops the box.
    let managed = unsafe {
        let tensor = (*exported).managed.tensor();
        tensor.shape = (&raw mut (*exported).shape).cast();
        tensor.strides = (&raw mut (*exported).strides).cast();
        (*exported).managed.set_context(exported.cast());
        &raw mut (*exported).managed
    };
    // SAFETY: the thread is attached (`py`); the name lives as long as the program; the destructor takes this layout.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(abandon::<M>)) };
    // SAFETY: a new reference, or null with the error set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.inspect_err(|_| {
        // SAFETY: no capsule took the structure, so it is still ours.
        unsafe { delete(managed) };
    })
}

/// Drops the export. Called by the consumer, on any thread.
///
/// # Safety
/// `managed` came from [`build`] and was not deleted yet.
unsafe extern "C-unwind" fn delete<M: Layout>(managed: *mut M) {
    let Some(managed) = NonNull::new(managed) else { return };
    // SAFETY: the structure is live, and its context is the box around it that `build` leaked.
    let exported: *mut Exported<M> = unsafe { managed.as_ref() }.context().cast();
    // A panic must not cross into the consumer. Whatever happens, the box is not used again.
    let _ = panic::catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the box is given up once, here. Dropping it may free the block; the pool counts a failure of that.
        drop(unsafe { Box::from_raw(exported) });
    }));
}

/// The capsule's destructor: deletes the structure if no consumer took it (a consumer renames the capsule).
unsafe extern "C" fn abandon<M: Layout>(capsule: *mut ffi::PyObject) {
    let name: *const c_char = M::NAME.as_ptr();
    // SAFETY: Python calls this with the live capsule, attached. The pointer is read only under the name that we gave.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, name).cast::<M>());
        }
    }
}
