//! A real device, through NVIDIA's driver library. The library is loaded when first asked for and never before.
//!
//! Every call makes the device's primary context current and puts the caller's back. A call that is unsafe while some
//! stream captures also puts the thread into relaxed capture mode and back, so that no capture of the caller ends by it.
//! Nothing is torn down at exit. In a forked child no method may be called: CUDA does not work there.

mod api;
mod context;
mod device;
mod pages;
mod pools;
mod probe;
mod result;
mod waits;

use core::ffi::c_uint;
use core::ptr;
use std::time::Duration;

use cudarc::driver::sys::{CUevent, CUstream};

use self::api::Api;
use self::context::Context;
use self::device::Attribute;
use self::pages::Pages;
use self::pools::Pools;
use self::probe::{Library, library};
use self::waits::Waits;
use super::{DevicePtr, Driver, DriverResult, Event, Handle, MemoryPool, PoolOptions, Properties, Stream, StreamId};
use crate::error::{Error, Result, Unavailable};

/// `CU_EVENT_DISABLE_TIMING`: events only order work, which is faster.
const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context, so for every device.
const HOST_PORTABLE: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the legacy one.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_STATUS_NONE`. A capture that has failed lasts until it is ended, so it is not none.
const CAPTURE_NONE: u32 = 0;
/// The granularity told where there is no virtual memory management, in bytes.
const SLAB_GRANULARITY: u64 = 2 << 20;

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "CUDA drivers are 64-bit");

/// A CUDA device.
pub struct Cuda {
    library: &'static Library,
    context: Context,
    properties: Properties,
    pages: Option<Pages>,
    pools: Option<Pools>,
    waits: Waits,
}

impl Cuda {
    /// How many devices there are, at least 1. Loads and starts the driver at the first call in a process.
    ///
    /// # Errors
    /// [`Unavailable`] says why there is no CUDA here, and what to do.
    pub fn device_count() -> Result<i32, Unavailable> {
        library().map(|library| library.devices)
    }

    /// The device of this ordinal. Makes its primary context where nobody has yet, which takes memory and time.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without CUDA, [`Error::NoSuchDevice`], or the driver call that failed.
    pub fn new(ordinal: i32) -> Result<Self> {
        let library = library()?;
        if !(0..library.devices).contains(&ordinal) {
            return Err(Error::NoSuchDevice {
                device: ordinal,
                count: library.devices,
            });
        }
        let api = &library.api;
        let device = device::device(api, ordinal)?;
        let context = Context::retain(api, device)?;
        let entered = context.enter_relaxed()?;
        let pages = Pages::new(library, device, ordinal)?;
        let pools = match &library.pools {
            Some(pools) if device::attribute(api, device, Attribute::MemoryPools)? => {
                Some(Pools::new(library, pools, device, ordinal)?)
            }
            _ => None,
        };
        drop(entered);
        let properties = Properties {
            ordinal,
            name: device::name(api, device)?,
            total_bytes: device::total_bytes(api, device)?,
            granularity: pages.as_ref().map_or(SLAB_GRANULARITY, Pages::granularity),
            virtual_memory: pages.is_some(),
            memory_pools: pools.is_some(),
        };
        Ok(Self {
            library,
            context,
            properties,
            pages,
            pools,
            waits: Waits::default(),
        })
    }

    const fn api(&self) -> &'static Api {
        &self.library.api
    }

    /// Runs a call of virtual memory management, or says that there is none.
    fn in_pages<T>(&self, call: &'static str, run: impl FnOnce(&Pages) -> DriverResult<T>) -> DriverResult<T> {
        let Some(pages) = &self.pages else {
            return Err(result::error(call, result::NOT_SUPPORTED));
        };
        let _entered = self.context.enter_relaxed()?;
        run(pages)
    }

    /// Runs a call of the driver's own pools, or says that there are none.
    fn in_pools<T>(&self, call: &'static str, run: impl FnOnce(&Pools) -> DriverResult<T>) -> DriverResult<T> {
        let Some(pools) = &self.pools else {
            return Err(result::error(call, result::NOT_SUPPORTED));
        };
        let _entered = self.context.enter_relaxed()?;
        run(pools)
    }
}

impl Driver for Cuda {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> DriverResult<(u64, u64)> {
        let _entered = self.context.enter_relaxed()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the sizes are written to locals.
        unsafe { self.api().cuMemGetInfo(&mut free, &mut total)? };
        Ok((free as u64, total as u64))
    }

    fn alloc(&self, bytes: u64) -> DriverResult<DevicePtr> {
        let _entered = self.context.enter_relaxed()?;
        let mut addr = 0;
        // SAFETY: the address is written to a local.
        unsafe { self.api().cuMemAlloc(&mut addr, bytes as usize)? };
        Ok(addr)
    }

    fn free(&self, addr: DevicePtr) -> DriverResult<()> {
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: the driver checks the address.
        unsafe { self.api().cuMemFree(addr) }
    }

    fn reserve(&self, bytes: u64) -> DriverResult<DevicePtr> {
        self.in_pages("cuMemAddressReserve", |pages| pages.reserve(bytes))
    }

    fn unreserve(&self, addr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.in_pages("cuMemAddressFree", |pages| pages.unreserve(addr, bytes))
    }

    fn create(&self, bytes: u64) -> DriverResult<Handle> {
        self.in_pages("cuMemCreate", |pages| pages.create(bytes))
    }

    fn release(&self, handle: Handle) -> DriverResult<()> {
        self.in_pages("cuMemRelease", |pages| pages.release(handle))
    }

    fn map(&self, addr: DevicePtr, bytes: u64, handle: Handle) -> DriverResult<()> {
        self.in_pages("cuMemMap", |pages| pages.map(addr, bytes, handle))
    }

    fn set_access(&self, addr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.in_pages("cuMemSetAccess", |pages| pages.set_access(addr, bytes))
    }

    fn unmap(&self, addr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.in_pages("cuMemUnmap", |pages| pages.unmap(addr, bytes))
    }

    fn pool_create(&self, options: &PoolOptions) -> DriverResult<MemoryPool> {
        self.in_pools("cuMemPoolCreate", |pools| pools.create(options))
    }

    fn pool_destroy(&self, pool: MemoryPool) -> DriverResult<()> {
        self.in_pools("cuMemPoolDestroy", |pools| pools.destroy(pool))
    }

    fn pool_alloc(&self, pool: MemoryPool, bytes: u64, stream: Stream) -> DriverResult<DevicePtr> {
        self.in_pools("cuMemAllocFromPoolAsync", |pools| pools.alloc(pool, bytes, stream))
    }

    fn pool_free(&self, addr: DevicePtr, stream: Stream) -> DriverResult<()> {
        self.in_pools("cuMemFreeAsync", |pools| pools.free(addr, stream))
    }

    fn pool_trim(&self, pool: MemoryPool, keep: u64) -> DriverResult<()> {
        self.in_pools("cuMemPoolTrimTo", |pools| pools.trim(pool, keep))
    }

    fn new_stream(&self) -> DriverResult<Stream> {
        let _entered = self.context.enter_relaxed()?;
        let mut stream: CUstream = core::ptr::null_mut();
        // SAFETY: the stream is written to a local.
        unsafe { self.api().cuStreamCreate(&mut stream, STREAM_NON_BLOCKING)? };
        Ok(Stream(stream as usize))
    }

    fn drop_stream(&self, stream: Stream) -> DriverResult<()> {
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: the caller passes a live stream and forgets it.
        unsafe { self.api().cuStreamDestroy(stream.0 as CUstream) }
    }

    /// Before CUDA 12.0 the driver has no identities, and the handle stands in: there a stream that was destroyed and
    /// one that got its handle afterwards are taken for one, and work still running on the first is not waited for.
    /// The driver refuses a capturing stream (`CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`): ask `is_capturing` first.
    fn stream_id(&self, stream: Stream) -> DriverResult<StreamId> {
        let Some(api) = &self.library.stream_ids else {
            return Ok(StreamId(stream.0 as u64));
        };
        let _entered = self.context.enter()?;
        let mut id = 0;
        // SAFETY: the caller passes a live stream; the id is written to a local.
        unsafe { api.cuStreamGetId(stream.0 as CUstream, &mut id)? };
        Ok(StreamId(id))
    }

    fn is_capturing(&self, stream: Stream) -> DriverResult<bool> {
        let _entered = self.context.enter()?;
        let mut status = CAPTURE_NONE;
        // SAFETY: the caller passes a live stream; the status is written to a local.
        unsafe { self.api().cuStreamIsCapturing(stream.0 as CUstream, &mut status)? };
        Ok(status != CAPTURE_NONE)
    }

    /// Where the driver does not tell, the stream's handle: all captures of the stream are one then.
    fn capture_id(&self, stream: Stream) -> DriverResult<u64> {
        let Some(api) = &self.library.capture_ids else {
            return Ok(stream.0 as u64);
        };
        let _entered = self.context.enter()?;
        let (mut status, mut id) = (CAPTURE_NONE, 0);
        let (graph, nodes, count) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: the caller passes a live stream; the status and the number are written to locals, and null asks for nothing.
        unsafe { api.cuStreamGetCaptureInfo(stream.0 as CUstream, &mut status, &mut id, graph, nodes, count)? };
        Ok(id)
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        // SAFETY: the caller passes a live stream and a live event.
        unsafe {
            self.api()
                .cuStreamWaitEvent(stream.0 as CUstream, event.0 as CUevent, 0)
        }
    }

    fn fill(&self, addr: DevicePtr, bytes: u64, value: u8, stream: Stream) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        // SAFETY: the caller passes a live stream, and memory that it holds.
        unsafe {
            self.api()
                .cuMemsetD8Async(addr, value, bytes as usize, stream.0 as CUstream)
        }
    }

    fn event_create(&self) -> DriverResult<Event> {
        let _entered = self.context.enter_relaxed()?;
        let mut event: CUevent = core::ptr::null_mut();
        // SAFETY: the event is written to a local.
        unsafe { self.api().cuEventCreate(&mut event, EVENT_DISABLE_TIMING)? };
        Ok(Event(event as usize))
    }

    fn event_record(&self, event: Event, stream: Stream) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        // SAFETY: the caller passes a live event and a live stream.
        unsafe { self.api().cuEventRecord(event.0 as CUevent, stream.0 as CUstream) }
    }

    fn event_query(&self, event: Event) -> DriverResult<bool> {
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: the caller passes a live event.
        match unsafe { self.api().cuEventQuery(event.0 as CUevent) } {
            Ok(()) => Ok(true),
            Err(error) if error.code == result::NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn event_synchronize(&self, event: Event, most: Duration) -> DriverResult<bool> {
        if most < Duration::MAX {
            let done = self.event_query(event)?;
            if done || most.is_zero() {
                return Ok(done);
            }
        }
        let (api, context) = (self.api(), self.context);
        self.waits.within("cuEventSynchronize", Some(event), most, move || {
            let _entered = context.enter_relaxed()?;
            // SAFETY: the caller passes a live event, and it is not destroyed while a thread of `waits` uses it.
            unsafe { api.cuEventSynchronize(event.0 as CUevent) }
        })
    }

    /// An event that a thread still waits for, left from a wait that has reached its bound, is not destroyed but lost: the
    /// thread may be just about to name it to the driver. There are at most as many as there are such threads.
    fn event_destroy(&self, event: Event) -> DriverResult<()> {
        if self.waits.uses(event) {
            return Ok(());
        }
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: the caller passes a live event and forgets it.
        unsafe { self.api().cuEventDestroy(event.0 as CUevent) }
    }

    fn synchronize(&self, most: Duration) -> DriverResult<bool> {
        let (api, context) = (self.api(), self.context);
        self.waits.within("cuCtxSynchronize", None, most, move || {
            let _entered = context.enter_relaxed()?;
            // SAFETY: the context is current.
            unsafe { api.cuCtxSynchronize() }
        })
    }

    fn host_alloc(&self, bytes: u64) -> DriverResult<u64> {
        let _entered = self.context.enter_relaxed()?;
        let mut addr = core::ptr::null_mut();
        // SAFETY: the address is written to a local.
        unsafe { self.api().cuMemHostAlloc(&mut addr, bytes as usize, HOST_PORTABLE)? };
        Ok(addr as u64)
    }

    fn host_free(&self, addr: u64) -> DriverResult<()> {
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: the driver checks the address.
        unsafe { self.api().cuMemFreeHost(addr as *mut _) }
    }
}
