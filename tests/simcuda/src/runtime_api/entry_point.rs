//! The driver's functions by name, asked from the runtime.

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};

use super::runtime;
use crate::driver_api::{VERSION, write_entry_point};

runtime! {
    /// That of CUDA 12.
    fn cudaGetDriverEntryPoint(
        name: *const c_char,
        function: *mut *mut c_void,
        _flags: c_ulonglong,
        status: *mut u32,
    ) {
        // SAFETY: the caller's promises.
        unsafe { write_entry_point(name, function, VERSION, status) }.map(drop)
    }

    fn cudaGetDriverEntryPointByVersion(
        name: *const c_char,
        function: *mut *mut c_void,
        version: c_uint,
        _flags: c_ulonglong,
        status: *mut u32,
    ) {
        // SAFETY: the caller's promises.
        unsafe { write_entry_point(name, function, version as i32, status) }.map(drop)
    }
}
