//! `DLPack`: memory that goes to another library, or comes from one, without a copy.
//!
//! The structures are those of `dlpack.h` 1.0 and, for libraries that know no version, the unversioned ones before it.

mod export;
mod import;

use std::ffi::{CStr, c_void};

pub use export::capsule;
pub use import::{Taken, take};

const UNSIGNED_INTEGER: u8 = 1;

/// Names of capsules until somebody has taken the structure: without and with a version.
const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// Kinds of memory, with the numbers of `DLDeviceType`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum DeviceType {
    /// Host memory, pinned here. `DLPack` has a name for pinned memory, which torch does not take.
    Cpu = 1,
    /// Memory of a CUDA device.
    Cuda = 2,
}

impl DeviceType {
    /// The device's number among those of its kind, for memory that belongs to a CUDA device.
    pub fn ordinal(self, cuda: i32) -> i32 {
        match self {
            Self::Cpu => 0,
            Self::Cuda => cuda,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Device {
    /// One of `DLDeviceType`: of what others write not only ours.
    kind: i32,
    ordinal: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// Gives a structure back to its producer. That may be Python code, in a thread that the ending interpreter stops.
type Deleter<M> = unsafe extern "C-unwind" fn(*mut M);

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<Deleter<Self>>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: Version,
    context: *mut c_void,
    deleter: Option<Deleter<Self>>,
    flags: u64,
    tensor: Tensor,
}
