//! What random sequences of requests are made of, and what every answer must be.

use flagstone::config::Dependencies;
use flagstone::driver::sim::{Call, Sim};
use flagstone::{Error, Pool, Stats};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Sizes in bytes: small ones most of the time, and those at which something changes.
pub fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..20_000,
        2 => 0u64..1 << 20,
        2 => (1u64 << 20)..12 << 20,
        1 => (12u64 << 20)..64 << 20,
        1 => prop::sample::select(vec![0, 512, 16 << 10, (16 << 10) + 1, 1 << 20, (1 << 20) + 1, 2 << 20]),
    ]
}

/// What a stream may wait for.
pub fn dependencies() -> impl Strategy<Value = Dependencies> {
    use Dependencies::{Growth, Off, Overlap, Pressure};
    prop::sample::select(vec![Off, Pressure, Overlap, Growth])
}

/// Calls that are made to fail now and then.
pub const FAILING: [Call; 10] = [
    Call::MemCreate,
    Call::MemMap,
    Call::MemSetAccess,
    Call::MemUnmap,
    Call::MemAlloc,
    Call::MemAddressReserve,
    Call::EventCreate,
    Call::EventRecord,
    Call::StreamWaitEvent,
    Call::CtxSynchronize,
];

/// Asserts that a new block of `size` bytes overlaps none of those that are live, by address, whose bytes `bytes` says.
pub fn assert_apart<B: std::fmt::Debug>(live: &BTreeMap<u64, B>, bytes: impl Fn(&B) -> u64, addr: u64, size: u64) {
    let (below, above) = (live.range(..addr).next_back(), live.range(addr..).next());
    assert!(
        below.is_none_or(|(&start, block)| start + bytes(block).max(1) <= addr),
        "overlaps {below:x?}"
    );
    assert!(
        above.is_none_or(|(&start, _)| addr + size <= start),
        "overlaps {above:x?}"
    );
}

/// A request was refused as one may be, and changed nothing.
pub fn assert_refused(error: &Error, before: &Stats, after: &Stats) {
    assert!(matches!(error, Error::OutOfMemory(_) | Error::Driver(_)), "{error}");
    assert_eq!(
        (before.live_blocks, before.allocated_bytes),
        (after.live_blocks, after.allocated_bytes)
    );
}

/// Asserts that the pool's accounts balance, that it has blocks of just these `live` bytes, as asked for, within the device's `capacity`,
/// and that nothing was done that the device forbids.
pub fn assert_sound(pool: &Pool<Sim>, sim: &Sim, live: impl ExactSizeIterator<Item = u64>, capacity: u64) {
    if let Err(fault) = pool.check() {
        panic!("{fault}\n{}", pool.stats());
    }
    let stats = pool.stats();
    assert_eq!(stats.live_blocks as usize, live.len());
    assert_eq!(stats.requested_bytes, live.sum::<u64>());
    assert!(stats.reserved_bytes <= capacity);
    let violations: &[_] = &sim.violations();
    assert!(violations.is_empty(), "{violations:?}");
}
