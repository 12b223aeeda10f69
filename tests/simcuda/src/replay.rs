//! What a replay of a trace needs beside CUDA's own functions: the device's clock, work that lasts, bytes held, and the bill.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};

use flagstone::driver::Stream;
use flagstone::driver::sim::Work;

use crate::control::{give, on_device};
use crate::state::machine;

/// Nanoseconds since a device was made; 0 where there is no such device.
#[unsafe(no_mangle)]
extern "C" fn simcuda_now(ordinal: c_int) -> u64 {
    let device = machine().and_then(|machine| machine.device(ordinal));
    device.map_or(0, |device| device.now_ns())
}

/// Sets a device's clock, which does not go back.
#[unsafe(no_mangle)]
extern "C" fn simcuda_set_time(ordinal: c_int, ns: u64) -> u32 {
    on_device(ordinal, |device| {
        device.set_time(ns);
        Ok(())
    })
}

/// Sets how many nanoseconds later than they are recorded a device's events complete, of those recorded from now on.
#[unsafe(no_mangle)]
extern "C" fn simcuda_lag(ordinal: c_int, ns: u64) -> u32 {
    on_device(ordinal, |device| {
        device.set_lag(ns);
        Ok(())
    })
}

/// Gives a stream work that reads memory until that moment of the device's clock.
#[unsafe(no_mangle)]
extern "C" fn simcuda_read(ordinal: c_int, stream: usize, addr: u64, bytes: u64, until_ns: u64) -> u32 {
    on_device(ordinal, |device| {
        device.launch(Stream(stream), Work::new().reads(addr, bytes).until(until_ns))
    })
}

/// Bytes of physical memory that are held on a device.
#[unsafe(no_mangle)]
extern "C" fn simcuda_held(ordinal: c_int) -> u64 {
    let device = machine().and_then(|machine| machine.device(ordinal));
    device.map_or(0, |device| device.usage().physical_bytes)
}

/// The driver functions that a device carried out, whatever interface they came by: name, count and nanoseconds by the price
/// list, one on a line. Results as those of `simcuda_counts`.
///
/// # Safety
/// `out` is valid for writes of `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn simcuda_bill(ordinal: c_int, out: *mut c_char, room: usize) -> usize {
    let device = machine().and_then(|machine| machine.device(ordinal));
    let text: String = device.map_or_else(
        |_| String::new(),
        |device| {
            let times: BTreeMap<_, _> = device.driver_time_ns().iter().collect();
            let ns = |name| times.get(name).copied().unwrap_or(0);
            let counts = device.counts();
            counts
                .iter()
                .map(|(name, count)| format!("{name} {count} {}\n", ns(name)))
                .collect()
        },
    );
    // SAFETY: the caller's promise.
    unsafe { give(&text, out, room) }
}
