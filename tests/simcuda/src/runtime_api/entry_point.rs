//! The driver's functions by name. What the simulated driver lacks is not found.

use std::ffi::{CStr, CString, c_char, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

use flagstone::driver::sim::{Code, CuResult};

use super::runtime;
use crate::calls::missing;
use crate::driver_api::write;

/// `cudaDriverEntryPointSymbolNotFound`
const NOT_FOUND: u32 = 1;

/// The driver function of that name in its newest form.
fn find(name: &CStr) -> *mut c_void {
    let name = name.to_string_lossy();
    for suffix in ["_v3", "_v2", ""] {
        let Ok(symbol) = CString::new(format!("{name}{suffix}")) else {
            continue;
        };
        // SAFETY: the name is a string. The libraries of the process are searched in order, this one first.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) };
        if !found.is_null() {
            return found;
        }
    }
    null_mut()
}

/// Gives the function of that name, and whether there is one.
///
/// # Safety
/// `name` is null or a string; the others are null or can be written; the status may be null.
unsafe fn write_entry_point(name: *const c_char, function: *mut *mut c_void, status: *mut u32) -> CuResult {
    if name.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: by the contract.
    let name = unsafe { CStr::from_ptr(name) };
    let found = find(name);
    if found.is_null() {
        missing(&name.to_string_lossy());
    }
    // SAFETY: by the contract.
    unsafe {
        let _ = write(status, if found.is_null() { NOT_FOUND } else { 0 });
        write(function, found)
    }
}

runtime! {
    /// That of CUDA 12.
    fn cudaGetDriverEntryPoint(
        name: *const c_char,
        function: *mut *mut c_void,
        _flags: c_ulonglong,
        status: *mut u32,
    ) {
        // SAFETY: the caller's promises.
        unsafe { write_entry_point(name, function, status) }
    }

    fn cudaGetDriverEntryPointByVersion(
        name: *const c_char,
        function: *mut *mut c_void,
        _version: c_uint,
        _flags: c_ulonglong,
        status: *mut u32,
    ) {
        // SAFETY: the caller's promises.
        unsafe { write_entry_point(name, function, status) }
    }
}
