//! Counts and times the calls of a driver that does not do so itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::driver::sim::Call;
use crate::driver::{
    DevicePtr, Driver, DriverResult, Event, Handle, MemoryPool, PoolOptions, Properties, Stream, StreamId,
};

/// A driver whose calls are counted and timed by the wall clock.
pub struct Metered<D> {
    driver: D,
    meters: [Meter; Call::COUNT],
    made: Instant,
}

#[derive(Default)]
struct Meter {
    calls: AtomicU64,
    nanoseconds: AtomicU64,
}

impl<D> Metered<D> {
    /// Starts to count.
    pub fn new(driver: D) -> Self {
        Self {
            driver,
            meters: std::array::from_fn(|_| Meter::default()),
            made: Instant::now(),
        }
    }

    /// The driver itself; what is called on it is not counted.
    pub const fn driver(&self) -> &D {
        &self.driver
    }

    /// Nanoseconds since the counting began.
    pub fn age_ns(&self) -> u64 {
        nanoseconds_since(self.made)
    }

    /// Calls by name, without those that were never made.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        // Relaxed: a sum that is read when the calls are over.
        let calls = Call::ALL
            .iter()
            .map(|call| (call.name(), self.meters[*call as usize].calls.load(Ordering::Relaxed)));
        calls.filter(|(_, count)| *count > 0).collect()
    }

    /// Nanoseconds in all calls.
    pub fn call_time_ns(&self) -> u64 {
        // Relaxed: as above.
        self.meters
            .iter()
            .map(|meter| meter.nanoseconds.load(Ordering::Relaxed))
            .sum()
    }

    fn metered<T>(&self, call: Call, body: impl FnOnce(&D) -> T) -> T {
        let start = Instant::now();
        let result = body(&self.driver);
        let meter = &self.meters[call as usize];
        // Relaxed: sums; they order nothing.
        meter.calls.fetch_add(1, Ordering::Relaxed);
        meter.nanoseconds.fetch_add(nanoseconds_since(start), Ordering::Relaxed);
        result
    }
}

fn nanoseconds_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// One method for each driver function: passes the call on and meters it.
macro_rules! metered {
    ($($call:ident $method:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        impl<D: Driver> Driver for Metered<D> {
            fn properties(&self) -> &Properties {
                self.driver.properties()
            }

            $(fn $method(&self, $($argument: $kind),*) -> DriverResult<$result> {
                self.metered(Call::$call, |driver| driver.$method($($argument),*))
            })*
        }
    };
}

metered! {
    MemGetInfo memory_info() -> (u64, u64);
    MemAlloc alloc(bytes: u64) -> DevicePtr;
    MemFree free(addr: DevicePtr) -> ();
    MemAddressReserve reserve(bytes: u64) -> DevicePtr;
    MemAddressFree unreserve(addr: DevicePtr, bytes: u64) -> ();
    MemCreate create(bytes: u64) -> Handle;
    MemRelease release(handle: Handle) -> ();
    MemMap map(addr: DevicePtr, bytes: u64, handle: Handle) -> ();
    MemSetAccess set_access(addr: DevicePtr, bytes: u64) -> ();
    MemUnmap unmap(addr: DevicePtr, bytes: u64) -> ();
    MemPoolCreate pool_create(options: &PoolOptions) -> MemoryPool;
    MemPoolDestroy pool_destroy(pool: MemoryPool) -> ();
    MemAllocFromPoolAsync pool_alloc(pool: MemoryPool, bytes: u64, stream: Stream) -> DevicePtr;
    MemFreeAsync pool_free(addr: DevicePtr, stream: Stream) -> ();
    MemPoolTrimTo pool_trim(pool: MemoryPool, keep: u64) -> ();
    StreamCreate new_stream() -> Stream;
    StreamDestroy drop_stream(stream: Stream) -> ();
    StreamGetId stream_id(stream: Stream) -> StreamId;
    StreamIsCapturing is_capturing(stream: Stream) -> bool;
    StreamIsCapturing capture_id(stream: Stream) -> u64;
    StreamWaitEvent stream_wait(stream: Stream, event: Event) -> ();
    MemsetD8Async fill(addr: DevicePtr, bytes: u64, value: u8, stream: Stream) -> ();
    EventCreate event_create() -> Event;
    EventRecord event_record(event: Event, stream: Stream) -> ();
    EventQuery event_query(event: Event) -> bool;
    EventSynchronize event_synchronize(event: Event, most: Duration) -> bool;
    EventDestroy event_destroy(event: Event) -> ();
    CtxSynchronize synchronize(most: Duration) -> bool;
    MemHostAlloc host_alloc(bytes: u64) -> u64;
    MemFreeHost host_free(addr: u64) -> ();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::Sim;

    #[test]
    fn calls_are_counted_as_the_device_counts_them() {
        let driver = Metered::new(Sim::default());
        let addr = driver.alloc(1 << 20).unwrap();
        driver.free(addr).unwrap();
        assert!(driver.free(addr).is_err());
        let event = driver.event_create().unwrap();
        driver.event_record(event, Stream::LEGACY).unwrap();
        assert!(driver.event_query(event).unwrap());
        driver.event_destroy(event).unwrap();
        assert_eq!(driver.calls(), driver.driver().counts().iter().collect());
        assert!((1..=driver.age_ns()).contains(&driver.call_time_ns()));
    }
}
