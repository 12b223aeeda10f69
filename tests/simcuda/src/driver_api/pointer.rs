//! What the driver knows of an address.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use flagstone::driver::sim::{Code, CuResult, MemoryKind};

use super::context::{current, primary};
use super::write;
use crate::calls::export;
use crate::runtime_api::{is_registered, owner};
use crate::state::machine;

/// `CU_MEMORYTYPE_HOST`
const HOST: u32 = 1;
/// `CU_MEMORYTYPE_DEVICE`
const DEVICE: u32 = 2;

/// The device that has the memory at an address, and what memory it is; none for what the driver does not know.
fn known(addr: u64) -> Option<(c_int, MemoryKind)> {
    let at = addr as usize;
    owner(at).or_else(|| is_registered(at).then_some((0, MemoryKind::Host)))
}

/// Writes an attribute of memory that the driver knows; the numbers are those of `CUpointer_attribute`.
///
/// # Safety
/// `out` is null or has room for what the attribute is.
unsafe fn write_known(out: *mut c_void, attribute: c_int, addr: u64, (ordinal, kind): (c_int, MemoryKind)) -> CuResult {
    let range = || machine()?.device(ordinal)?.mem_get_address_range(addr);
    // SAFETY: by the contract.
    unsafe {
        match attribute {
            1 => write(out.cast(), primary(ordinal)),
            2 => write(out.cast(), if kind == MemoryKind::Device { DEVICE } else { HOST }),
            3 => write(out.cast(), addr),
            4 if kind == MemoryKind::Host => write(out.cast(), addr),
            4 => Err(Code::INVALID_VALUE),
            8 => write(out.cast(), 0u32),
            9 => write(out.cast(), ordinal),
            11 => write(out.cast(), range()?.0),
            12 => write(out.cast(), range()?.1 as usize),
            13 => write(out.cast(), 1u32),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }
}

/// Writes what an attribute is where there is none.
///
/// # Safety
/// As above.
unsafe fn write_none(out: *mut c_void, attribute: c_int) -> CuResult {
    // SAFETY: by the contract.
    unsafe {
        match attribute {
            2 | 8 | 13 => write(out.cast(), 0u32),
            9 => write(out.cast(), -2i32),
            1 | 3 | 4 | 11 | 12 => write(out.cast(), 0u64),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }
}

export! {
    /// Of an address that the driver does not know it is an invalid value.
    fn cuPointerGetAttribute(out: *mut c_void, attribute: c_int, addr: u64) {
        machine()?;
        // SAFETY: the caller's promise.
        unsafe { write_known(out, attribute, addr, known(addr).ok_or(Code::INVALID_VALUE)?) }
    }

    /// Of an address that the driver does not know, and of the host what is the device's, the attributes are those of none.
    fn cuPointerGetAttributes(count: c_uint, attributes: *const c_int, out: *const *mut c_void, addr: c_ulonglong) {
        machine()?;
        if attributes.is_null() || out.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        for index in 0..count as usize {
            // SAFETY: the caller promises that many attributes, and as many places for them.
            unsafe {
                let (attribute, out) = (*attributes.add(index), *out.add(index));
                let done = known(addr).map(|known| write_known(out, attribute, addr, known));
                match done {
                    None | Some(Err(Code::INVALID_VALUE)) => write_none(out, attribute)?,
                    Some(done) => done?,
                }
            }
        }
        Ok(())
    }

    /// In pinned memory it is the address itself.
    fn cuMemHostGetDevicePointer_v2(device: *mut u64, host: *mut c_void, flags: c_uint) {
        current()?;
        let (_, kind) = known(host as u64).ok_or(Code::INVALID_VALUE)?;
        if flags != 0 || kind != MemoryKind::Host {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { write(device, host as u64) }
    }
}
