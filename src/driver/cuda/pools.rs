//! The driver's stream-ordered pools.

use core::ffi::{c_int, c_void};

use cudarc::driver::sys::{
    CUdevice, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationType, CUmemPoolProps, CUmemoryPool, CUstream,
};

use super::api::PoolApi;
use super::pages::{access, location};
use super::probe::Library;
use crate::driver::{DevicePtr, DriverResult, MemoryPool, PoolOptions, Stream};

/// Attributes of a pool, by their numbers in `CUmemPool_attribute`.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Attribute {
    FollowEventDependencies = 1,
    AllowOpportunistic = 2,
    AllowInternalDependencies = 3,
    ReleaseThreshold = 4,
}

/// The pools of one device. In every method its context is current and the thread in relaxed capture mode.
pub(super) struct Pools {
    api: &'static PoolApi,
    ordinal: c_int,
    /// Read and write for every device that can be its peer; the device itself has them.
    peers: Vec<CUmemAccessDesc>,
}

impl Pools {
    pub(super) fn new(
        library: &Library,
        api: &'static PoolApi,
        device: CUdevice,
        ordinal: c_int,
    ) -> DriverResult<Self> {
        let mut peers = access(library, device, ordinal)?;
        peers.retain(|peer| peer.location.id != ordinal);
        Ok(Self { api, ordinal, peers })
    }

    pub(super) fn create(&self, options: &PoolOptions) -> DriverResult<MemoryPool> {
        // SAFETY: numbers, enumerations that have 0, and a pointer: all zero is a value.
        let mut properties: CUmemPoolProps = unsafe { core::mem::zeroed() };
        properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.handleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        properties.location = location(self.ordinal);
        let mut pool: CUmemoryPool = core::ptr::null_mut();
        // SAFETY: the pool is written to a local; the properties live through the call.
        unsafe { self.api.cuMemPoolCreate(&mut pool, &properties)? };
        match self.set_up(pool, options) {
            Ok(()) => Ok(MemoryPool(pool as usize)),
            Err(error) => {
                // A pool that cannot be destroyed either has no memory.
                // SAFETY: the pool is ours, and forgotten.
                let _ = unsafe { self.api.cuMemPoolDestroy(pool) };
                Err(error)
            }
        }
    }

    fn set_up(&self, pool: CUmemoryPool, options: &PoolOptions) -> DriverResult<()> {
        let switches = [
            (Attribute::FollowEventDependencies, options.follow_event_dependencies),
            (Attribute::AllowOpportunistic, options.allow_opportunistic),
            (
                Attribute::AllowInternalDependencies,
                options.allow_internal_dependencies,
            ),
        ];
        for (attribute, on) in switches {
            let mut value = c_int::from(on);
            let value: *mut c_int = &mut value;
            // SAFETY: the pool is live, and these attributes are an int.
            unsafe {
                self.api
                    .cuMemPoolSetAttribute(pool, attribute as u32, value.cast::<c_void>())?
            };
        }
        let mut threshold = options.release_threshold;
        let value: *mut u64 = &mut threshold;
        let attribute = Attribute::ReleaseThreshold as u32;
        // SAFETY: the pool is live, and this attribute is a 64-bit number.
        unsafe {
            self.api
                .cuMemPoolSetAttribute(pool, attribute, value.cast::<c_void>())?
        };
        if self.peers.is_empty() {
            return Ok(());
        }
        // SAFETY: the pool is live; the descriptors live through the call.
        unsafe { self.api.cuMemPoolSetAccess(pool, self.peers.as_ptr(), self.peers.len()) }
    }

    pub(super) fn destroy(&self, pool: MemoryPool) -> DriverResult<()> {
        // SAFETY: the caller passes a live pool and forgets it.
        unsafe { self.api.cuMemPoolDestroy(pool.0 as CUmemoryPool) }
    }

    pub(super) fn alloc(&self, pool: MemoryPool, bytes: u64, stream: Stream) -> DriverResult<DevicePtr> {
        let mut addr = 0;
        // SAFETY: the address is written to a local; the caller passes a live pool and a live stream.
        unsafe {
            self.api
                .cuMemAllocFromPoolAsync(&mut addr, bytes as usize, pool.0 as CUmemoryPool, stream.0 as CUstream)?
        };
        Ok(addr)
    }

    pub(super) fn free(&self, addr: DevicePtr, stream: Stream) -> DriverResult<()> {
        // SAFETY: the driver checks the address; the caller passes a live stream.
        unsafe { self.api.cuMemFreeAsync(addr, stream.0 as CUstream) }
    }

    pub(super) fn trim(&self, pool: MemoryPool, keep: u64) -> DriverResult<()> {
        // SAFETY: the caller passes a live pool.
        unsafe { self.api.cuMemPoolTrimTo(pool.0 as CUmemoryPool, keep as usize) }
    }
}
