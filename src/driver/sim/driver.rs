//! The simulated device as a driver.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::driver::{
    DevicePtr, Driver, DriverResult, Event, Handle, MemoryPool, PoolOptions, Properties, Stream, StreamId,
};

use super::{Call, CaptureMode, CaptureStatus, CuResult, Device, Options, StreamKind, exchange_capture_mode};

/// A simulated device as a [`Driver`]. Clones share the device, whose own methods can be called on it:
///
/// ```
/// use flagstone::driver::Driver;
/// use flagstone::driver::sim::{Call, Options, Sim};
///
/// let sim = Sim::new(Options::default());
/// let addr = sim.alloc(1 << 20)?;
/// sim.free(addr)?;
/// assert_eq!(sim.counts().get(Call::MemAlloc), 1);
/// assert!(sim.violations().is_empty());
/// # Ok::<(), flagstone::driver::DriverError>(())
/// ```
///
/// As a driver must, it exchanges the capture mode of the calling thread around each call that is unsafe in capture; the
/// device's own methods do not.
#[derive(Debug, Clone)]
pub struct Sim(Arc<Device>);

impl Sim {
    /// A driver of a new device.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self(Arc::new(Device::new(options)))
    }

    /// A driver of a device that others have, too.
    #[must_use]
    pub const fn of(device: Arc<Device>) -> Self {
        Self(device)
    }
}

impl Default for Sim {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Deref for Sim {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.0
    }
}

/// Keeps the calling thread in relaxed mode, then puts it back into its own.
struct Relaxed(CaptureMode);

impl Relaxed {
    fn new() -> Self {
        Self(exchange_capture_mode(CaptureMode::Relaxed))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        exchange_capture_mode(self.0);
    }
}

fn relaxed<T>(call: Call, body: impl FnOnce() -> CuResult<T>) -> DriverResult<T> {
    let _mode = Relaxed::new();
    named(call, body())
}

fn named<T>(call: Call, result: CuResult<T>) -> DriverResult<T> {
    result.map_err(|code| code.at(call))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Driver for Sim {
    fn properties(&self) -> &Properties {
        self.0.properties()
    }

    fn memory_info(&self) -> DriverResult<(u64, u64)> {
        named(Call::MemGetInfo, self.0.mem_get_info())
    }

    fn alloc(&self, bytes: u64) -> DriverResult<DevicePtr> {
        relaxed(Call::MemAlloc, || self.0.mem_alloc(bytes))
    }

    fn free(&self, addr: DevicePtr) -> DriverResult<()> {
        relaxed(Call::MemFree, || self.0.mem_free(addr))
    }

    fn reserve(&self, bytes: u64) -> DriverResult<DevicePtr> {
        named(Call::MemAddressReserve, self.0.mem_address_reserve(bytes, 0))
    }

    fn unreserve(&self, addr: DevicePtr, bytes: u64) -> DriverResult<()> {
        named(Call::MemAddressFree, self.0.mem_address_free(addr, bytes))
    }

    fn create(&self, bytes: u64) -> DriverResult<Handle> {
        named(Call::MemCreate, self.0.mem_create(bytes))
    }

    fn release(&self, handle: Handle) -> DriverResult<()> {
        named(Call::MemRelease, self.0.mem_release(handle))
    }

    fn map(&self, addr: DevicePtr, bytes: u64, handle: Handle) -> DriverResult<()> {
        named(Call::MemMap, self.0.mem_map(addr, bytes, 0, handle))
    }

    fn set_access(&self, addr: DevicePtr, bytes: u64) -> DriverResult<()> {
        named(Call::MemSetAccess, self.0.mem_set_access(addr, bytes))
    }

    fn unmap(&self, addr: DevicePtr, bytes: u64) -> DriverResult<()> {
        named(Call::MemUnmap, self.0.mem_unmap(addr, bytes))
    }

    fn pool_create(&self, options: &PoolOptions) -> DriverResult<MemoryPool> {
        let pool = named(Call::MemPoolCreate, self.0.mem_pool_create())?;
        match self.0.mem_pool_set(pool, |set| *set = *options) {
            Ok(()) => Ok(pool),
            Err(code) => {
                // One that cannot be destroyed either has no memory.
                let _ = self.0.mem_pool_destroy(pool);
                named(Call::MemPoolSetAttribute, Err(code))
            }
        }
    }

    fn pool_destroy(&self, pool: MemoryPool) -> DriverResult<()> {
        named(Call::MemPoolDestroy, self.0.mem_pool_destroy(pool))
    }

    fn pool_alloc(&self, pool: MemoryPool, bytes: u64, stream: Stream) -> DriverResult<DevicePtr> {
        let call = Call::MemAllocFromPoolAsync;
        named(call, self.0.mem_alloc_from_pool_async(bytes, pool, stream))
    }

    fn pool_free(&self, addr: DevicePtr, stream: Stream) -> DriverResult<()> {
        named(Call::MemFreeAsync, self.0.mem_free_async(addr, stream))
    }

    fn pool_trim(&self, pool: MemoryPool, keep: u64) -> DriverResult<()> {
        named(Call::MemPoolTrimTo, self.0.mem_pool_trim_to(pool, keep))
    }

    fn new_stream(&self) -> DriverResult<Stream> {
        named(Call::StreamCreate, self.0.stream_create(StreamKind::NonBlocking))
    }

    fn drop_stream(&self, stream: Stream) -> DriverResult<()> {
        named(Call::StreamDestroy, self.0.stream_destroy(stream))
    }

    fn stream_id(&self, stream: Stream) -> DriverResult<StreamId> {
        named(Call::StreamGetId, self.0.stream_get_id(stream))
    }

    fn is_capturing(&self, stream: Stream) -> DriverResult<bool> {
        let status = named(Call::StreamIsCapturing, self.0.stream_is_capturing(stream))?;
        Ok(status != CaptureStatus::None)
    }

    fn capture_id(&self, stream: Stream) -> DriverResult<u64> {
        let info = self.0.stream_get_capture_info(stream);
        named(Call::StreamIsCapturing, info.map(|(_, id)| id))
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> DriverResult<()> {
        named(Call::StreamWaitEvent, self.0.stream_wait_event(stream, event))
    }

    fn fill(&self, addr: DevicePtr, bytes: u64, value: u8, stream: Stream) -> DriverResult<()> {
        named(Call::MemsetD8Async, self.0.memset_d8_async(addr, value, bytes, stream))
    }

    fn event_create(&self) -> DriverResult<Event> {
        named(Call::EventCreate, self.0.event_create(false))
    }

    fn event_record(&self, event: Event, stream: Stream) -> DriverResult<()> {
        named(Call::EventRecord, self.0.event_record(event, stream))
    }

    fn event_query(&self, event: Event) -> DriverResult<bool> {
        relaxed(Call::EventQuery, || self.0.event_query(event))
    }

    /// The bound is in nanoseconds of the device's clock, as the wait.
    fn event_synchronize(&self, event: Event, most: Duration) -> DriverResult<bool> {
        relaxed(Call::EventSynchronize, || {
            self.0.event_synchronize_within(event, nanoseconds(most))
        })
    }

    fn event_destroy(&self, event: Event) -> DriverResult<()> {
        named(Call::EventDestroy, self.0.event_destroy(event))
    }

    /// The bound is in nanoseconds of the device's clock, as the wait.
    fn synchronize(&self, most: Duration) -> DriverResult<bool> {
        relaxed(Call::CtxSynchronize, || {
            self.0.ctx_synchronize_within(nanoseconds(most))
        })
    }

    fn host_alloc(&self, bytes: u64) -> DriverResult<u64> {
        relaxed(Call::MemHostAlloc, || self.0.mem_host_alloc(bytes))
    }

    fn host_free(&self, addr: u64) -> DriverResult<()> {
        relaxed(Call::MemFreeHost, || self.0.mem_free_host(addr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{Code, Fault, StreamKind};

    #[test]
    fn calls_do_not_disturb_a_capture_and_leave_the_mode_of_the_thread() {
        let sim = Sim::default();
        let stream = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        let event = Driver::event_create(&sim).expect("an event");
        sim.stream_begin_capture(stream, CaptureMode::Global)
            .expect("a capture");
        let addr = sim.alloc(512).expect("memory");
        sim.free(addr).expect("memory");
        let pinned = sim.host_alloc(512).expect("memory");
        sim.host_free(pinned).expect("memory");
        assert_eq!(Driver::event_query(&sim, event), Ok(true));
        assert_eq!(Driver::event_synchronize(&sim, event, Duration::MAX), Ok(true));
        assert_eq!(
            (sim.is_capturing(stream), sim.is_capturing(Stream::LEGACY)),
            (Ok(true), Ok(false))
        );
        assert_eq!(exchange_capture_mode(CaptureMode::Global), CaptureMode::Global);
        assert!(sim.stream_end_capture(stream).is_ok());
        assert_eq!(sim.violations(), []);
    }

    #[test]
    fn errors_name_the_call() {
        let sim = Sim::default();
        sim.fail(Fault::nth(Call::MemSetAccess, 1, Code::UNKNOWN));
        let error = sim.set_access(0, 0).expect_err("an error");
        assert_eq!(
            (error.call, error.code, error.name),
            ("cuMemSetAccess", 999, "CUDA_ERROR_UNKNOWN")
        );
        assert_eq!(sim.stream_id(Stream(0x1234)).map_err(|error| error.code), Err(400));
    }

    #[test]
    fn clones_share_the_device() {
        let sim = Sim::default();
        let other = sim.clone();
        let addr = sim.alloc(512).expect("memory");
        assert_eq!(other.usage().allocations, 1);
        assert_eq!(other.free(addr), Ok(()));
    }
}
