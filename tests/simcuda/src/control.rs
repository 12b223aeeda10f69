//! Functions that the real library does not have: a test in the same process counts calls and makes them fail.

use std::ffi::{CStr, c_char, c_int};

use crate::calls::{self, Fault};
use crate::state::machine;

/// Makes the `nth` next call (from 1) of the named function fail with `code`.
///
/// # Safety
/// `call` is a string that ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn simcuda_fail(call: *const c_char, nth: u64, code: u32) {
    // SAFETY: the caller's promise.
    let call = unsafe { CStr::from_ptr(call) }.to_string_lossy().into_owned();
    calls::fail(Fault {
        call,
        nth: nth.max(1),
        code,
    });
}

/// How often the named function was called.
///
/// # Safety
/// `call` is a string that ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn simcuda_calls(call: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    calls::count(&unsafe { CStr::from_ptr(call) }.to_string_lossy())
}

/// Sets all counts to 0 and drops the failures to come.
#[unsafe(no_mangle)]
extern "C" fn simcuda_reset() {
    calls::reset();
}

/// Lets other processes hold all but so many bytes of a device's memory.
#[unsafe(no_mangle)]
extern "C" fn simcuda_leave(ordinal: c_int, bytes: u64) {
    if let Ok(device) = machine().and_then(|machine| machine.device(ordinal)) {
        device.set_used_by_others(device.properties().total_bytes.saturating_sub(bytes));
    }
}
