//! Virtual memory management: which devices may use a page, how pages are made, and whether all that works here.

use core::ffi::c_int;

use cudarc::driver::sys::{
    CUdevice, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};

use super::api::PageApi;
use super::device::{self, Attribute, attribute};
use super::probe::Library;
use crate::driver::{DevicePtr, DriverResult, Handle};

/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`
const GRANULARITY_MINIMUM: u32 = 0;

/// Virtual memory management of one device.
pub(super) struct Pages {
    api: &'static PageApi,
    ordinal: c_int,
    /// Read and write for the device itself and for every device that can be its peer.
    access: Vec<CUmemAccessDesc>,
    /// Whether pages may be read and written by network cards (GPUDirect RDMA).
    rdma: bool,
    granularity: u64,
}

impl Pages {
    /// Virtual memory management of the device, where the driver, the device and a trial page say that it works.
    ///
    /// The context is current and the thread in relaxed capture mode.
    pub(super) fn new(library: &'static Library, device: CUdevice, ordinal: c_int) -> DriverResult<Option<Self>> {
        let Some(api) = &library.pages else {
            return Ok(None);
        };
        if !attribute(&library.api, device, Attribute::VirtualMemory)? {
            return Ok(None);
        }
        let mut pages = Self {
            api,
            ordinal,
            access: access(library, device, ordinal)?,
            rdma: attribute(&library.api, device, Attribute::RdmaPages)?,
            granularity: 0,
        };
        let mut bytes = 0;
        // SAFETY: the size is written to a local; the properties live through the call.
        unsafe { api.cuMemGetAllocationGranularity(&mut bytes, &pages.properties(), GRANULARITY_MINIMUM)? };
        pages.granularity = bytes as u64;
        // WSL2 promises pages for network cards and then refuses access to them (pytorch issue 192330).
        pages.rdma = pages.rdma && pages.works();
        Ok((pages.rdma || pages.works()).then_some(pages))
    }

    /// The unit of pages and mappings, in bytes.
    pub(super) const fn granularity(&self) -> u64 {
        self.granularity
    }

    pub(super) fn reserve(&self, bytes: u64) -> DriverResult<DevicePtr> {
        let mut addr = 0;
        // SAFETY: the address is written to a local.
        unsafe {
            self.api
                .cuMemAddressReserve(&mut addr, bytes as usize, self.granularity as usize, 0, 0)?
        };
        Ok(addr)
    }

    pub(super) fn unreserve(&self, addr: DevicePtr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the driver checks the range.
        unsafe { self.api.cuMemAddressFree(addr, bytes as usize) }
    }

    pub(super) fn create(&self, bytes: u64) -> DriverResult<Handle> {
        let mut handle = 0;
        // SAFETY: the handle is written to a local; the properties live through the call.
        unsafe {
            self.api
                .cuMemCreate(&mut handle, bytes as usize, &self.properties(), 0)?
        };
        Ok(Handle(handle))
    }

    pub(super) fn release(&self, handle: Handle) -> DriverResult<()> {
        // SAFETY: the driver checks the handle.
        unsafe { self.api.cuMemRelease(handle.0) }
    }

    pub(super) fn map(&self, addr: DevicePtr, bytes: u64, handle: Handle) -> DriverResult<()> {
        // SAFETY: the driver checks range and handle.
        unsafe { self.api.cuMemMap(addr, bytes as usize, 0, handle.0, 0) }
    }

    pub(super) fn set_access(&self, addr: DevicePtr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the descriptors live through the call; the driver checks the range.
        unsafe {
            self.api
                .cuMemSetAccess(addr, bytes as usize, self.access.as_ptr(), self.access.len())
        }
    }

    pub(super) fn unmap(&self, addr: DevicePtr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the driver checks the range.
        unsafe { self.api.cuMemUnmap(addr, bytes as usize) }
    }

    /// How physical memory is made.
    fn properties(&self) -> CUmemAllocationProp {
        CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: location(self.ordinal),
            win32HandleMetaData: core::ptr::null_mut(),
            allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: self.rdma.into(),
                usage: 0,
                reserved: [0; 4],
            },
        }
    }

    /// Whether a page can be made, mapped and accessed. A device with no page left has not refused.
    fn works(&self) -> bool {
        match self.trial() {
            Ok(()) => true,
            Err(error) => error.is_out_of_memory(),
        }
    }

    fn trial(&self) -> DriverResult<()> {
        let bytes = self.granularity;
        let addr = self.reserve(bytes)?;
        let result = self.create(bytes).and_then(|handle| {
            let mapped = self.map(addr, bytes, handle);
            let result = mapped.clone().and_then(|()| self.set_access(addr, bytes));
            if mapped.is_ok() {
                self.unmap(addr, bytes)?;
            }
            self.release(handle)?;
            result
        });
        self.unreserve(addr, bytes)?;
        result
    }
}

/// Access for the device and for every device that can be its peer.
pub(super) fn access(library: &Library, device: CUdevice, ordinal: c_int) -> DriverResult<Vec<CUmemAccessDesc>> {
    let mut access = vec![read_write(ordinal)];
    for peer in (0..library.devices).filter(|&peer| peer != ordinal) {
        let mut can = 0;
        // SAFETY: the answer is written to a local.
        unsafe {
            library
                .api
                .cuDeviceCanAccessPeer(&mut can, device::device(&library.api, peer)?, device)?
        };
        if can != 0 {
            access.push(read_write(peer));
        }
    }
    Ok(access)
}

const fn read_write(ordinal: c_int) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location(ordinal),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

pub(super) const fn location(ordinal: c_int) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: ordinal,
    }
}
