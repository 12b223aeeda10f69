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

/// Memory that the driver knows.
struct Known {
    ordinal: c_int,
    kind: MemoryKind,
}

fn known(addr: u64) -> Option<Known> {
    let at = addr as usize;
    let registered = || is_registered(at).then_some((0, MemoryKind::Host));
    let (ordinal, kind) = owner(at).or_else(registered)?;
    Some(Known { ordinal, kind })
}

/// Writes an attribute. Of an address that the driver does not know it is an invalid value.
///
/// # Safety
/// `out` is null or has room for what the attribute is.
unsafe fn write_attribute(out: *mut c_void, attribute: c_int, addr: u64) -> CuResult {
    let known = known(addr).ok_or(Code::INVALID_VALUE)?;
    let range = || machine()?.device(known.ordinal)?.mem_get_address_range(addr);
    // SAFETY: by the contract; the numbers are those of `CUpointer_attribute`.
    unsafe {
        match attribute {
            1 => write(out.cast(), primary(known.ordinal)),
            2 => write(out.cast(), if known.kind == MemoryKind::Device { DEVICE } else { HOST }),
            3 => write(out.cast(), addr),
            4 if known.kind == MemoryKind::Host => write(out.cast(), addr),
            4 => Err(Code::INVALID_VALUE),
            8 => write(out.cast(), 0u32),
            9 => write(out.cast(), known.ordinal),
            11 => write(out.cast(), range()?.0),
            12 => write(out.cast(), range()?.1 as usize),
            13 => write(out.cast(), 1u32),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }
}

/// Writes what an attribute is of an address that the driver does not know.
///
/// # Safety
/// As above.
unsafe fn write_unknown(out: *mut c_void, attribute: c_int) -> CuResult {
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
    fn cuPointerGetAttribute(out: *mut c_void, attribute: c_int, addr: u64) {
        machine()?;
        // SAFETY: the caller's promise.
        unsafe { write_attribute(out, attribute, addr) }
    }

    /// No error where the driver does not know the address: the attributes are those of none.
    fn cuPointerGetAttributes(count: c_uint, attributes: *const c_int, out: *const *mut c_void, addr: c_ulonglong) {
        machine()?;
        if attributes.is_null() || out.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        for index in 0..count as usize {
            // SAFETY: the caller promises that many attributes, and as many places for them.
            unsafe {
                let (attribute, out) = (*attributes.add(index), *out.add(index));
                let nothing = known(addr).is_none() || write_attribute(out, attribute, addr) == Err(Code::INVALID_VALUE);
                if nothing {
                    write_unknown(out, attribute)?;
                }
            }
        }
        Ok(())
    }

    /// In pinned memory it is the address itself.
    fn cuMemHostGetDevicePointer_v2(device: *mut u64, host: *mut c_void, flags: c_uint) {
        current()?;
        let found = known(host as u64).ok_or(Code::INVALID_VALUE)?;
        if flags != 0 || found.kind != MemoryKind::Host {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { write(device, host as u64) }
    }
}
