//! What a device says about itself.

use core::ffi::{CStr, c_int};

use cudarc::driver::sys::CUdevice;

use super::api::Api;
use super::result::INVALID_VALUE;
use crate::driver::DriverResult;

/// Attributes that are asked for, by their numbers in `CUdevice_attribute`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(super) enum Attribute {
    /// Virtual memory management works.
    VirtualMemory = 102,
    /// Pages can be made that network cards may use.
    RdmaPages = 110,
    /// The driver's own stream-ordered pools work.
    MemoryPools = 115,
}

/// The device of an ordinal.
pub(super) fn device(api: &Api, ordinal: c_int) -> DriverResult<CUdevice> {
    let mut device = 0;
    // SAFETY: the device is written to a local.
    unsafe { api.cuDeviceGet(&mut device, ordinal)? };
    Ok(device)
}

/// Whether the device has the attribute. A driver that does not know an attribute does not have it.
pub(super) fn attribute(api: &Api, device: CUdevice, attribute: Attribute) -> DriverResult<bool> {
    let mut value = 0;
    // SAFETY: the value is written to a local.
    match unsafe { api.cuDeviceGetAttribute(&mut value, attribute as u32, device) } {
        Ok(()) => Ok(value != 0),
        Err(error) if error.code == INVALID_VALUE => Ok(false),
        Err(error) => Err(error),
    }
}

/// The device's name, as "NVIDIA H200".
pub(super) fn name(api: &Api, device: CUdevice) -> DriverResult<String> {
    let mut buffer = [0_u8; 256];
    // SAFETY: the driver writes at most the given number of bytes, with a final zero.
    unsafe { api.cuDeviceGetName(buffer.as_mut_ptr().cast(), buffer.len() as c_int, device)? };
    let name = CStr::from_bytes_until_nul(&buffer).map(CStr::to_string_lossy);
    Ok(name.unwrap_or_default().into_owned())
}

/// The device's memory, in bytes.
pub(super) fn total_bytes(api: &Api, device: CUdevice) -> DriverResult<u64> {
    let mut bytes = 0;
    // SAFETY: the size is written to a local.
    unsafe { api.cuDeviceTotalMem(&mut bytes, device)? };
    Ok(bytes as u64)
}
