//! Starting the driver, and what the devices say about themselves.

use std::ffi::{c_char, c_int, c_uint};

use flagstone::driver::sim::{Code, CuResult};

use super::write;
use crate::calls::export;
use crate::runtime_api::describe;
use crate::state::{self, machine};

/// The driver that is simulated: CUDA 13.0.
pub const VERSION: c_int = 13_000;

/// Attributes of every device, by number; all others are 0. `SIMCUDA_ATTRIBUTES` changes them.
const ATTRIBUTES: &[(u32, c_int)] = &[
    (1, 1024),       // MAX_THREADS_PER_BLOCK
    (10, 32),        // WARP_SIZE
    (16, 108),       // MULTIPROCESSOR_COUNT
    (39, 2048),      // MAX_THREADS_PER_MULTIPROCESSOR
    (41, 1),         // UNIFIED_ADDRESSING
    (75, 8),         // COMPUTE_CAPABILITY_MAJOR
    (76, 0),         // COMPUTE_CAPABILITY_MINOR
    (97, 163 << 10), // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    (99, 1),         // HOST_REGISTER_SUPPORTED
    (102, 1),        // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    (103, 1),        // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    (110, 1),        // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    (115, 1),        // MEMORY_POOLS_SUPPORTED
];

/// One more than the greatest attribute that this driver knows.
const ATTRIBUTE_END: u32 = 145;

/// An attribute of a device.
pub fn attribute(number: u32, device: c_int) -> CuResult<c_int> {
    machine()?.device(device)?;
    if !(1..ATTRIBUTE_END).contains(&number) {
        return Err(Code::INVALID_VALUE);
    }
    let usual = ATTRIBUTES
        .iter()
        .find(|&&(known, _)| known == number)
        .map_or(0, |&(_, value)| value);
    Ok(machine()?.attributes.get(&number).copied().unwrap_or(usual))
}

/// What names a device wherever it is seen.
pub const fn uuid(device: c_int) -> [u8; 16] {
    [device as u8 + 1; 16]
}

export! {
    fn cuInit(flags: c_uint) {
        if flags == 0 { state::start() } else { Err(Code::INVALID_VALUE) }
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller's promise.
        unsafe { write(version, VERSION) }
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        // SAFETY: the caller's promise.
        unsafe { write(count, machine()?.count()) }
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        machine()?.device(ordinal)?;
        // SAFETY: the caller's promise.
        unsafe { write(device, ordinal) }
    }

    fn cuDeviceGetName(name: *mut c_char, bytes: c_int, device: c_int) {
        let own = machine()?.device(device)?.properties().name.as_bytes();
        let room = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_sub(1)).ok_or(Code::INVALID_VALUE)?;
        for (at, &byte) in own.iter().take(room).chain(&[0]).enumerate() {
            // SAFETY: at most `room` bytes and a zero, which the caller promises to have.
            unsafe { write(name.wrapping_add(at), byte as c_char) }?;
        }
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { write(bytes, machine()?.device(device)?.properties().total_bytes as usize) }
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        machine()?.device(device)?;
        // SAFETY: the caller's promise.
        unsafe { write(uuid, self::uuid(device)) }
    }

    fn cuDeviceGetAttribute(value: *mut c_int, number: u32, device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { write(value, attribute(number, device)?) }
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        machine()?.device(device)?;
        machine()?.device(peer)?;
        // SAFETY: the caller's promise.
        unsafe { write(can, (device != peer).into()) }
    }

    fn cuGetErrorString(code: u32, text: *mut *const c_char) {
        // SAFETY: the caller's promise.
        unsafe { write(text, describe(code).1.as_ptr()) }
    }

    /// The runtime's name for the number: tests look at the number.
    fn cuGetErrorName(code: u32, text: *mut *const c_char) {
        // SAFETY: the caller's promise.
        unsafe { write(text, describe(code).0.as_ptr()) }
    }
}
