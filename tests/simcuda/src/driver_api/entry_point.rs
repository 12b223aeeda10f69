//! The driver's functions by name. What the simulated driver lacks is not found.

use std::ffi::{CStr, CString, c_char, c_int, c_ulonglong, c_void};
use std::ptr::null_mut;

use flagstone::driver::sim::{Code, CuResult};

use super::write;
use crate::calls::{export, missing};

/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`
const NOT_FOUND: u32 = 1;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`: its functions are not here.
const PER_THREAD: c_ulonglong = 2;

/// Forms of functions with the driver in which they came, as far as that is later than all that ask here.
const SINCE: &[(&str, c_int)] = &[
    ("cuCtxGetDevice_v2", 13_000),
    ("cuCtxSynchronize_v2", 13_000),
    ("cuEventElapsedTime_v2", 12_080),
    ("cuMemAdvise_v2", 12_020),
    ("cuMemPrefetchAsync_v2", 12_020),
    ("cuStreamGetCaptureInfo_v2", 11_030),
    ("cuStreamGetCaptureInfo_v3", 12_030),
    ("cuStreamGetCtx_v2", 12_050),
];

/// The driver function of that name in the newest form that a driver of that version has.
fn find(name: &str, version: c_int) -> *mut c_void {
    for suffix in ["_v4", "_v3", "_v2", ""] {
        let form = format!("{name}{suffix}");
        if SINCE.iter().any(|&(late, since)| late == form && since > version) {
            continue;
        }
        let Ok(symbol) = CString::new(form) else { continue };
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
pub unsafe fn write_entry_point(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    status: *mut u32,
) -> CuResult<bool> {
    if name.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: by the contract.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let found = find(&name, version);
    if found.is_null() {
        missing(&name);
    }
    // SAFETY: by the contract.
    unsafe {
        let _ = write(status, if found.is_null() { NOT_FOUND } else { 0 });
        write(function, found)?;
    }
    Ok(!found.is_null())
}

export! {
    fn cuGetProcAddress_v2(
        name: *const c_char,
        function: *mut *mut c_void,
        version: c_int,
        flags: c_ulonglong,
        status: *mut u32,
    ) {
        if flags & PER_THREAD != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: the caller's promises. Where the status is asked for it says what is missing.
        let found = unsafe { write_entry_point(name, function, version, status) }?;
        if found || !status.is_null() { Ok(()) } else { Err(Code::NOT_FOUND) }
    }
}
