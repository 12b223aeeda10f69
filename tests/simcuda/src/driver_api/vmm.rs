//! Virtual memory management. Reservations and mappings are those of the device whose context is current. These functions need
//! no context: without one they are those of the first device.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use flagstone::driver::Handle;
use flagstone::driver::sim::{Code, CuResult, Device};

use super::context::current;
use super::write;
use crate::calls::export;
use crate::state::machine;

/// `CUmemLocation`
#[repr(C)]
struct Location {
    kind: u32,
    id: c_int,
}

/// `CUmemAllocationProp`
#[repr(C)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`
#[repr(C)]
struct Access {
    location: Location,
    flags: u32,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`
const DEVICE: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: u32 = 3;
/// Where a handle keeps the ordinal of its device: the devices number their handles each for itself.
const ORDINAL_SHIFT: u32 = 48;

/// The devices that may use each page, with their flags, by the page's address.
type Permissions = BTreeMap<u64, Vec<(c_int, u32)>>;

static PERMISSIONS: Mutex<Permissions> = Mutex::new(BTreeMap::new());

fn permissions() -> MutexGuard<'static, Permissions> {
    PERMISSIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device whose addresses a call is about.
fn space() -> CuResult<&'static Device> {
    current().or_else(|_| machine()?.device(0))
}

/// The pages of a range.
fn pages(device: &Device, addr: u64, bytes: usize) -> impl Iterator<Item = u64> {
    (addr..addr.saturating_add(bytes as u64)).step_by(device.properties().granularity as usize)
}

/// Whether a device may use all of a range that is mapped; none where the range begins in no mapping with access.
pub fn is_open(ordinal: c_int, owner: &Device, addr: u64, bytes: u64) -> Option<bool> {
    let granularity = owner.properties().granularity;
    let permissions = permissions();
    let first = addr / granularity * granularity;
    permissions.get(&first)?;
    let to = |page: u64| {
        permissions
            .get(&page)
            .is_some_and(|given| given.iter().any(|&(device, _)| device == ordinal))
    };
    let end = addr.saturating_add(bytes.max(1));
    Some((first..end).step_by(granularity as usize).all(to))
}

/// The device on which memory of these properties is made.
///
/// # Safety
/// `properties` is null or points to a `CUmemAllocationProp`.
unsafe fn place(properties: *const Properties) -> CuResult<&'static Device> {
    // SAFETY: the caller's promise.
    let properties = unsafe { properties.as_ref() }.ok_or(Code::INVALID_VALUE)?;
    if properties.kind != PINNED || properties.location.kind != DEVICE {
        return Err(Code::INVALID_VALUE);
    }
    machine()?.device(properties.location.id)
}

/// The device of a handle, and the device's own handle.
fn own(handle: u64) -> CuResult<(&'static Device, Handle)> {
    let ordinal = c_int::try_from(handle >> ORDINAL_SHIFT).map_err(|_| Code::INVALID_VALUE)?;
    let device = machine()?.device(ordinal).map_err(|_| Code::INVALID_VALUE)?;
    Ok((device, Handle(handle & ((1 << ORDINAL_SHIFT) - 1))))
}

export! {
    fn cuMemGetAllocationGranularity(bytes: *mut usize, properties: *const Properties, _option: u32) {
        // SAFETY: the caller's promises.
        unsafe { write(bytes, place(properties)?.properties().granularity as usize) }
    }

    /// The hint is not followed, as a driver may do too.
    fn cuMemAddressReserve(addr: *mut u64, bytes: usize, alignment: usize, _hint: u64, flags: c_ulonglong) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { write(addr, space()?.mem_address_reserve(bytes as u64, alignment as u64)?) }
    }

    fn cuMemAddressFree(addr: u64, bytes: usize) {
        space()?.mem_address_free(addr, bytes as u64)
    }

    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, flags: c_ulonglong) {
        // SAFETY: the caller's promise.
        let device = unsafe { place(properties) }?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let ordinal = device.properties().ordinal as u64;
        // SAFETY: the caller's promise.
        unsafe { write(handle, device.mem_create(bytes as u64)?.0 | ordinal << ORDINAL_SHIFT) }
    }

    fn cuMemRelease(handle: u64) {
        let (device, handle) = own(handle)?;
        device.mem_release(handle)
    }

    fn cuMemMap(addr: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) {
        let (device, handle) = own(handle)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        device.mem_map(addr, bytes as u64, offset as u64, handle)
    }

    fn cuMemSetAccess(addr: u64, bytes: usize, descriptors: *const Access, count: usize) {
        let device = space()?;
        if descriptors.is_null() || count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller promises that many descriptors.
        let descriptors = unsafe { slice::from_raw_parts(descriptors, count) };
        for descriptor in descriptors {
            if descriptor.location.kind != DEVICE || descriptor.flags != READ_WRITE {
                return Err(Code::INVALID_VALUE);
            }
            machine()?.device(descriptor.location.id)?;
        }
        device.mem_set_access(addr, bytes as u64)?;
        let mut permissions = permissions();
        for page in pages(device, addr, bytes) {
            let given = descriptors.iter().map(|descriptor| (descriptor.location.id, descriptor.flags));
            permissions.insert(page, given.collect());
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: *mut c_ulonglong, location: *const Location, addr: u64) {
        // SAFETY: the caller's promise.
        let id = unsafe { location.as_ref() }.ok_or(Code::INVALID_VALUE)?.id;
        let granularity = space()?.properties().granularity;
        let page = addr / granularity * granularity;
        let permissions = permissions();
        let given = permissions.get(&page).and_then(|given| given.iter().find(|&&(device, _)| device == id));
        // SAFETY: the caller's promise.
        unsafe { write(flags, given.map_or(0, |&(_, flags)| flags.into())) }
    }

    fn cuMemUnmap(addr: u64, bytes: usize) {
        let device = space()?;
        device.mem_unmap(addr, bytes as u64)?;
        let mut permissions = permissions();
        for page in pages(device, addr, bytes) {
            permissions.remove(&page);
        }
        Ok(())
    }
}
