//! What a replay needs of a device beyond being a driver.

use std::collections::BTreeMap;

#[cfg(feature = "cuda")]
use super::Metered;
#[cfg(feature = "cuda")]
use crate::driver::cuda::Cuda;
use crate::driver::sim::{Call, Options as SimOptions, Sim, StreamKind, Work};
use crate::driver::{DevicePtr, Driver, DriverResult, Stream};

/// A device on which traces can be replayed.
pub trait ReplayDevice: Driver {
    /// What reports call it.
    const BACKEND: &'static str;

    /// A new stream that does not wait for the default stream, and that lives as long as the device.
    fn make_stream(&self) -> DriverResult<Stream>;

    /// Driver calls so far by name, without those of the replay itself.
    fn calls(&self) -> BTreeMap<&'static str, u64>;

    /// Nanoseconds spent in those calls.
    fn call_time_ns(&self) -> u64;

    /// Where the time of a call is from, in words.
    fn price_source(&self) -> &'static str;

    /// Events recorded from now on complete at the earliest that many nanoseconds later, where time can be set.
    fn set_lag(&self, ns: u64);

    /// Nanoseconds since the device was made, by the clock that can be set.
    fn now_ns(&self) -> u64;

    /// Sets that clock.
    fn set_time(&self, ns: u64);

    /// Gives a stream work that reads a block until that moment of the clock.
    fn read(&self, stream: Stream, addr: DevicePtr, bytes: u64, until_ns: u64) -> DriverResult<()>;

    /// Checks that a block may be used on the stream that it was given out to; faults are added to those found.
    fn check(&self, addr: DevicePtr, bytes: u64, stream: Stream);

    /// The faults found so far, in words.
    fn faults(&self) -> Vec<String>;
}

/// A simulated device for replays: 1 TiB of memory that has no bytes.
#[must_use]
pub fn simulated_device() -> Sim {
    Sim::new(SimOptions {
        capacity: 1 << 40,
        backed: false,
        ..SimOptions::default()
    })
}

/// Calls that the replay makes by itself.
const OWN_CALLS: [Call; 2] = [Call::StreamCreate, Call::LaunchKernel];

impl ReplayDevice for Sim {
    const BACKEND: &'static str = "sim";

    fn make_stream(&self) -> DriverResult<Stream> {
        self.stream_create(StreamKind::NonBlocking)
            .map_err(|code| code.at(Call::StreamCreate))
    }

    fn calls(&self) -> BTreeMap<&'static str, u64> {
        let mut calls: BTreeMap<_, _> = self.counts().iter().collect();
        for call in OWN_CALLS {
            calls.remove(call.name());
        }
        calls
    }

    fn call_time_ns(&self) -> u64 {
        let time = self.driver_time_ns();
        time.total() - time.sum(&OWN_CALLS)
    }

    fn price_source(&self) -> &'static str {
        self.options().prices.source()
    }

    fn set_lag(&self, ns: u64) {
        (**self).set_lag(ns);
    }

    fn now_ns(&self) -> u64 {
        (**self).now_ns()
    }

    fn set_time(&self, ns: u64) {
        (**self).set_time(ns);
    }

    fn read(&self, stream: Stream, addr: DevicePtr, bytes: u64, until_ns: u64) -> DriverResult<()> {
        self.launch(stream, Work::new().reads(addr, bytes).until(until_ns))
            .map_err(|code| code.at(Call::LaunchKernel))
    }

    fn check(&self, addr: DevicePtr, bytes: u64, stream: Stream) {
        // What it finds is among the violations.
        let _ = self.check_handout(addr, bytes, stream);
    }

    fn faults(&self) -> Vec<String> {
        self.violations().iter().map(ToString::to_string).collect()
    }
}

/// A real device follows its own clock: lag and time cannot be set, and its streams get no work.
#[cfg(feature = "cuda")]
impl ReplayDevice for Metered<Cuda> {
    const BACKEND: &'static str = "cuda";

    fn make_stream(&self) -> DriverResult<Stream> {
        self.driver().make_stream()
    }

    fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.calls()
    }

    fn call_time_ns(&self) -> u64 {
        self.call_time_ns()
    }

    fn price_source(&self) -> &'static str {
        "the device, by the wall clock"
    }

    fn set_lag(&self, _: u64) {}

    fn now_ns(&self) -> u64 {
        self.age_ns()
    }

    fn set_time(&self, _: u64) {}

    fn read(&self, _: Stream, _: DevicePtr, _: u64, _: u64) -> DriverResult<()> {
        Ok(())
    }

    fn check(&self, _: DevicePtr, _: u64, _: Stream) {}

    fn faults(&self) -> Vec<String> {
        Vec::new()
    }
}
