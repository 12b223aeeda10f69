//! What each call of a driver takes, by the wall clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::driver::sim::Call;
use crate::driver::{DevicePtr, Driver, DriverResult, Stream};

/// Pages that one call maps, gives access to or unmaps, beside a single one.
const RUN: u64 = 32;
/// Calls that change nothing are so short that several are timed together.
const SHORT: u32 = 100;

/// What was timed: the function, the bytes that a call is about, and how many mappings these are.
pub(super) type Case = (Call, u64, u64);

/// Nanoseconds of a call for each case, one figure a round.
pub(super) type Timings = BTreeMap<Case, Vec<u64>>;

/// Times every call of the driver `rounds` times, on a stream of its that nothing else uses. Takes 64 pages at most, and pins as
/// many bytes of host memory.
///
/// # Errors
/// The call that failed. What was taken by then is not given back.
pub(super) fn time<D: Driver>(driver: &D, stream: Stream, rounds: usize) -> DriverResult<Timings> {
    let mut timer = Timer(Timings::new());
    let page = driver.properties().granularity;
    for _ in 0..rounds {
        for bytes in [page, RUN * page] {
            slab(&mut timer, driver, bytes)?;
            if driver.properties().virtual_memory {
                handle(&mut timer, driver, bytes)?;
            }
        }
        if driver.properties().virtual_memory {
            run(&mut timer, driver, page)?;
        }
        order(&mut timer, driver, stream)?;
    }
    Ok(timer.0)
}

struct Timer(Timings);

impl Timer {
    /// The result of a call, whose time is kept under the case.
    fn call<T>(&mut self, case: Case, body: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        let start = Instant::now();
        let result = body();
        self.add(case, start, 1);
        result
    }

    /// The same for a call that can be made again and again.
    fn short<T>(&mut self, call: Call, body: impl Fn() -> DriverResult<T>) -> DriverResult<()> {
        let start = Instant::now();
        for _ in 0..SHORT {
            body()?;
        }
        self.add((call, 0, 0), start, SHORT);
        Ok(())
    }

    fn add(&mut self, case: Case, start: Instant, calls: u32) {
        let nanoseconds = (start.elapsed() / calls).as_nanos();
        let samples = self.0.entry(case).or_default();
        samples.push(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
    }
}

/// Memory without a choice of address, of the device and of the host.
fn slab<D: Driver>(timer: &mut Timer, driver: &D, bytes: u64) -> DriverResult<()> {
    let addr = timer.call((Call::MemAlloc, bytes, 0), || driver.alloc(bytes))?;
    timer.call((Call::MemFree, bytes, 0), || driver.free(addr))?;
    let addr = timer.call((Call::MemHostAlloc, bytes, 0), || driver.host_alloc(bytes))?;
    timer.call((Call::MemFreeHost, bytes, 0), || driver.host_free(addr))
}

/// The life of a handle that is mapped once.
fn handle<D: Driver>(timer: &mut Timer, driver: &D, bytes: u64) -> DriverResult<()> {
    let addr = timer.call((Call::MemAddressReserve, bytes, 0), || driver.reserve(bytes))?;
    let handle = timer.call((Call::MemCreate, bytes, 0), || driver.create(bytes))?;
    timer.call((Call::MemMap, bytes, 1), || driver.map(addr, bytes, handle))?;
    timer.call((Call::MemSetAccess, bytes, 1), || driver.set_access(addr, bytes))?;
    timer.call((Call::MemUnmap, bytes, 1), || driver.unmap(addr, bytes))?;
    timer.call((Call::MemRelease, bytes, 0), || driver.release(handle))?;
    timer.call((Call::MemAddressFree, bytes, 0), || driver.unreserve(addr, bytes))
}

/// One call for a run of mappings.
fn run<D: Driver>(timer: &mut Timer, driver: &D, page: u64) -> DriverResult<()> {
    let bytes = RUN * page;
    let addr: DevicePtr = driver.reserve(bytes)?;
    let mut handles = Vec::new();
    for index in 0..RUN {
        let handle = driver.create(page)?;
        driver.map(addr + index * page, page, handle)?;
        handles.push(handle);
    }
    timer.call((Call::MemSetAccess, bytes, RUN), || driver.set_access(addr, bytes))?;
    timer.call((Call::MemUnmap, bytes, RUN), || driver.unmap(addr, bytes))?;
    for handle in handles {
        driver.release(handle)?;
    }
    driver.unreserve(addr, bytes)
}

/// Streams, events and questions.
fn order<D: Driver>(timer: &mut Timer, driver: &D, stream: Stream) -> DriverResult<()> {
    let event = timer.call((Call::EventCreate, 0, 0), || driver.event_create())?;
    timer.short(Call::EventRecord, || driver.event_record(event, stream))?;
    timer.short(Call::StreamWaitEvent, || driver.stream_wait(stream, event))?;
    timer.call((Call::EventSynchronize, 0, 0), || {
        driver.event_synchronize(event, Duration::MAX)
    })?;
    timer.short(Call::EventQuery, || driver.event_query(event))?;
    timer.call((Call::EventDestroy, 0, 0), || driver.event_destroy(event))?;
    timer.call((Call::CtxSynchronize, 0, 0), || driver.synchronize(Duration::MAX))?;
    timer.short(Call::StreamGetId, || driver.stream_id(stream))?;
    timer.short(Call::StreamIsCapturing, || driver.is_capturing(stream))?;
    timer.short(Call::MemGetInfo, || driver.memory_info())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{Options, Sim, StreamKind};

    #[test]
    fn every_call_of_the_trait_is_timed_and_nothing_is_kept() {
        for virtual_memory in [true, false] {
            let sim = Sim::new(Options {
                virtual_memory,
                ..Options::default()
            });
            let stream = sim.stream_create(StreamKind::NonBlocking).unwrap();
            let before = sim.memory_info().unwrap();
            sim.reset_counts();
            let timings = time(&sim, stream, 3).unwrap();
            assert_eq!(sim.memory_info().unwrap(), before);
            let timed: Vec<_> = timings.keys().map(|case| case.0).collect();
            for (name, _) in sim.counts().iter() {
                assert!(timed.iter().any(|call| call.name() == name), "{name} is not timed");
            }
            assert_eq!(timed.contains(&Call::MemCreate), virtual_memory);
            assert!(timings.values().all(|samples| samples.len() == 3));
        }
    }

    #[test]
    fn a_call_that_fails_is_the_error() {
        let sim = Sim::new(Options {
            capacity: 1 << 20,
            ..Options::default()
        });
        let error = time(&sim, Stream::LEGACY, 1).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
    }
}
