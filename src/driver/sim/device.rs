//! The simulated device: its state behind one lock, and what every driver call goes through.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::Properties;

use super::address_space::AddressSpace;
use super::allocations::Allocations;
use super::capture::Captures;
use super::events::Events;
use super::faults::Faults;
use super::host::HostMemory;
use super::mappings::Mappings;
use super::order::Clock;
use super::physical::Physical;
use super::streams::Streams;
use super::timeline::Timeline;
use super::touches::Touches;
use super::violations::Violations;
use super::{Call, Code, CuResult, Fault, Options, PerCall, Violation};

/// A simulated CUDA device.
///
/// Its methods are the driver's functions, with the same arguments, results and rules; each can be called from any
/// thread. A call that fails has changed nothing, unless its documentation says so. Calls that are unsafe during a
/// capture fail and invalidate it, as the real ones do, unless the calling thread is in relaxed mode.
pub struct Device {
    properties: Properties,
    options: Options,
    state: Mutex<State>,
}

/// All that changes about a device.
pub(super) struct State {
    pub physical: Physical,
    pub addresses: AddressSpace,
    pub allocations: Allocations,
    pub mappings: Mappings,
    pub host: HostMemory,
    pub streams: Streams,
    pub events: Events,
    pub captures: Captures,
    pub timeline: Timeline,
    pub touches: Touches,
    /// The work that the host has seen finish.
    pub seen: Clock,
    pub violations: Violations,
    pub faults: Faults,
    counts: PerCall,
    time: PerCall,
}

impl Device {
    /// A device with nothing allocated. It is given no memory and no addresses before they are needed.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let options = options.with_valid_granularity();
        let properties = Properties {
            ordinal: options.ordinal,
            name: options.name.clone(),
            total_bytes: options.capacity,
            granularity: options.granularity,
            virtual_memory: options.virtual_memory,
            memory_pools: options.memory_pools,
        };
        let state = State {
            physical: Physical::new(options.capacity, options.backed, options.strict),
            addresses: if options.strict {
                AddressSpace::twofold(options.granularity)
            } else {
                AddressSpace::new(options.granularity)
            },
            allocations: Allocations::new(options.granularity),
            mappings: Mappings::new(options.granularity),
            host: HostMemory::new(options.host_capacity),
            streams: Streams::new(),
            events: Events::default(),
            captures: Captures::default(),
            timeline: Timeline::new(options.lag_ns),
            touches: Touches::new(),
            seen: Clock::default(),
            violations: Violations::default(),
            faults: Faults::default(),
            counts: PerCall::new(),
            time: PerCall::new(),
        };
        Self {
            properties,
            options,
            state: Mutex::new(state),
        }
    }

    /// What does not change about the device.
    #[must_use]
    pub const fn properties(&self) -> &Properties {
        &self.properties
    }

    /// What it was made with.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// How often each driver function was called.
    ///
    /// Exchanges of a thread's capture mode are not counted.
    #[must_use]
    pub fn counts(&self) -> PerCall {
        self.lock().counts.clone()
    }

    /// Nanoseconds that the host spent in each driver function, by the price list.
    #[must_use]
    pub fn driver_time_ns(&self) -> PerCall {
        self.lock().time.clone()
    }

    /// Counts and driver time start at zero again.
    pub fn reset_counts(&self) {
        let mut state = self.lock();
        state.counts = PerCall::new();
        state.time = PerCall::new();
    }

    /// Makes calls fail. Several faults can be set; where more than one applies, the last one gives the code.
    pub fn fail(&self, fault: Fault) {
        self.lock().faults.add(fault);
    }

    /// Breaks the context: every call fails with this code from now on, as after an illegal address.
    pub fn break_with(&self, code: Code) {
        self.lock().faults.sticky = Some(code);
    }

    /// Ends all faults, and mends a broken context (which nothing does on a real device).
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// What the checker has found so far, in order; the first 1,000.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.all().to_vec()
    }

    /// As [`violations`](Self::violations), and forgets them.
    pub fn take_violations(&self) -> Vec<Violation> {
        self.lock().violations.take()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Only an effect of the caller's can panic under the lock, and it runs when the state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A driver call about that many bytes: counts it, lets it fail where it must, charges its price and does it.
    pub(super) fn call<T>(&self, call: Call, bytes: u64, body: impl FnOnce(&mut State) -> CuResult<T>) -> CuResult<T> {
        let mut state = self.lock();
        state.counts.add(call, 1);
        self.charge(&mut state, call, self.options.prices.cost(call, bytes));
        state.faults.check(call)?;
        state.check_capture(call)?;
        body(&mut state)
    }

    /// Adds to the time spent in a function.
    pub(super) fn charge(&self, state: &mut State, call: Call, ns: u64) {
        state.time.add(call, ns);
        if self.options.prices_advance_clock {
            state.timeline.now = state.timeline.now.saturating_add(ns);
            state.settle();
        }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{Price, Prices};

    #[test]
    fn a_failed_call_changes_nothing() {
        let device = Device::new(Options::default());
        device.fail(Fault::nth(Call::MemCreate, 2, Code::OUT_OF_MEMORY));
        let before = device.mem_create(2 << 20);
        let usage = device.usage();
        assert_eq!(device.mem_create(2 << 20), Err(Code::OUT_OF_MEMORY));
        assert_eq!(device.usage(), usage);
        assert!(before.is_ok() && device.mem_create(2 << 20).is_ok());
        assert_eq!(device.counts().get(Call::MemCreate), 3, "failed calls are counted");
        device.reset_counts();
        assert_eq!(device.counts().total(), 0);
    }

    #[test]
    fn nothing_works_in_a_broken_context() {
        let device = Device::new(Options::default());
        device.break_with(Code::LAUNCH_FAILED);
        assert_eq!(device.mem_get_info(), Err(Code::LAUNCH_FAILED));
        assert_eq!(device.event_create(false), Err(Code::LAUNCH_FAILED));
        device.clear_faults();
        assert!(device.mem_get_info().is_ok());
    }

    #[test]
    fn calls_cost_their_price_and_advance_the_clock_when_asked_to() {
        for prices_advance_clock in [false, true] {
            let mut prices = Prices::free();
            prices.set(
                Call::MemAlloc,
                Price {
                    base_ns: 100,
                    per_mib_ns: 10,
                },
            );
            let device = Device::new(Options {
                prices,
                prices_advance_clock,
                ..Options::default()
            });
            assert!(device.mem_alloc(2 << 20).is_ok());
            assert_eq!(
                device.driver_time_ns().iter().collect::<Vec<_>>(),
                [("cuMemAlloc", 120)]
            );
            assert_eq!(device.now_ns(), if prices_advance_clock { 120 } else { 0 });
        }
    }
}
