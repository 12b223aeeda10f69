//! Functions that the real libraries do not have: a test in the same process counts calls, makes them fail, holds streams and
//! moves the clock.

use std::ffi::{CStr, c_char, c_int};

use flagstone::driver::Stream;
use flagstone::driver::sim::{Code, CuResult, Device};

use crate::calls::{self, Fault};
use crate::runtime_api::idle_kernels;
use crate::state::machine;
use crate::timing;

pub fn on_device(ordinal: c_int, body: impl FnOnce(&Device) -> CuResult) -> u32 {
    let done = machine().and_then(|machine| machine.device(ordinal)).and_then(body);
    done.map_or_else(|code| code.0, |()| 0)
}

/// Copies as much of a text as there is room for, with a zero at its end. Its whole bytes, without the zero.
///
/// # Safety
/// `out` is valid for writes of `room` bytes.
pub unsafe fn give(text: &str, out: *mut c_char, room: usize) -> usize {
    if let Some(most) = room.checked_sub(1) {
        let bytes = text.len().min(most);
        // SAFETY: at most `room` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, bytes);
            out.add(bytes).write(0);
        }
    }
    text.len()
}

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

/// Makes every call that a device is asked for fail with `code` from now on, as after an illegal access.
#[unsafe(no_mangle)]
extern "C" fn simcuda_break(ordinal: c_int, code: u32) -> u32 {
    on_device(ordinal, |device| {
        device.break_with(Code(code));
        Ok(())
    })
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

/// Every function that was called and how often, one on a line. The text's bytes; as many as there is room for are copied.
///
/// # Safety
/// `out` is valid for writes of `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn simcuda_counts(out: *mut c_char, room: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { give(&calls::list(), out, room) }
}

/// As `simcuda_counts`: the kernels that were launched and have no effect in the simulation.
///
/// # Safety
/// `out` is valid for writes of `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn simcuda_idle_kernels(out: *mut c_char, room: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { give(&idle_kernels(), out, room) }
}

/// As `simcuda_counts`: what the devices found that would be wrong data, an illegal address or a hang on real ones.
///
/// # Safety
/// `out` is valid for writes of `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn simcuda_violations(out: *mut c_char, room: usize) -> usize {
    let mut text = String::new();
    if let Ok(machine) = machine() {
        for ordinal in 0..machine.count() {
            let found = machine.device(ordinal).map_or_else(|_| Vec::new(), Device::violations);
            text.extend(found.iter().map(|violation| format!("device {ordinal}: {violation}\n")));
        }
    }
    // SAFETY: the caller's promise.
    unsafe { give(&text, out, room) }
}

/// Forgets what the devices found.
#[unsafe(no_mangle)]
extern "C" fn simcuda_forgive() {
    if let Ok(machine) = machine() {
        for ordinal in 0..machine.count() {
            let _ = machine.device(ordinal).map(Device::take_violations);
        }
    }
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

/// Keeps what a stream gets from now on from being done.
#[unsafe(no_mangle)]
extern "C" fn simcuda_hold(ordinal: c_int, stream: usize) -> u32 {
    on_device(ordinal, |device| device.hold(Stream(stream)))
}

/// Ends all holds of a stream.
#[unsafe(no_mangle)]
extern "C" fn simcuda_resume(ordinal: c_int, stream: usize) -> u32 {
    on_device(ordinal, |device| device.resume(Stream(stream)))
}

/// Advances a device's clock by so many nanoseconds.
#[unsafe(no_mangle)]
extern "C" fn simcuda_advance(ordinal: c_int, ns: u64) -> u32 {
    on_device(ordinal, |device| {
        device.advance(ns);
        Ok(())
    })
}

/// Sets how many nanoseconds a kernel takes, and a copy or fill of a MiB, of those that are launched from now on.
#[unsafe(no_mangle)]
extern "C" fn simcuda_timing(kernel_ns: u64, copy_ns_per_mib: u64) {
    timing::set(kernel_ns, copy_ns_per_mib);
}
