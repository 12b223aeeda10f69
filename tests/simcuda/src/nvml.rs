//! The little of NVML that torch asks for, so that it says how much memory others use without a warning.

use std::ffi::{c_char, c_uint};

use flagstone::driver::sim::Code;

use crate::calls::export;
use crate::driver_api::write;
use crate::state::{self, machine};

/// `NVML_ERROR_NOT_FOUND`
const NOT_FOUND: Code = Code(6);

export! {
    fn nvmlInit_v2() {
        state::start()
    }

    fn nvmlShutdown() {
        Ok(())
    }

    fn nvmlDeviceGetCount_v2(count: *mut c_uint) {
        // SAFETY: the caller's promise.
        unsafe { write(count, machine()?.count() as c_uint) }
    }

    /// A device's handle is its ordinal and 1 more.
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut usize) {
        machine()?.device(index as i32)?;
        // SAFETY: the caller's promise.
        unsafe { write(device, index as usize + 1) }
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus: *const c_char, device: *mut usize) {
        if bus.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller promises a string.
        let bus = unsafe { std::ffi::CStr::from_ptr(bus) }.to_string_lossy();
        // The bus of device 0 is 01, in the form 0000:01:00.0.
        let number = bus.split(':').nth(1).and_then(|part| usize::from_str_radix(part, 16).ok());
        let number = number.ok_or(NOT_FOUND)?;
        machine()?.device(number as i32 - 1).map_err(|_| NOT_FOUND)?;
        // SAFETY: the caller's promise.
        unsafe { write(device, number) }
    }

    /// There are none.
    fn nvmlDeviceGetComputeRunningProcesses(_device: usize, count: *mut c_uint, _infos: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { write(count, 0) }
    }
}
