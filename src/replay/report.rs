//! What a replay found.

use std::collections::BTreeMap;

use super::Sample;

/// The result of a replay, or of a model of an allocator on the same trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The trace's name.
    pub trace: String,
    /// The trace's format, in words.
    pub format: String,
    /// The allocator: `flagstone`, or what a model stands for.
    pub allocator: &'static str,
    /// Where the driver calls went: `cuda`, `sim`, or `model`.
    pub backend: &'static str,
    /// How often the trace was replayed.
    pub passes: u32,
    /// Blocks allocated, in all passes.
    pub allocations: u64,
    /// The most bytes that the trace has live at once, as requested.
    pub peak_live_bytes: u64,
    /// The most bytes held from the driver.
    pub peak_reserved_bytes: u64,
    /// The most bytes that the trace has live, or freed but still in use on another stream.
    pub peak_active_bytes: u64,
    /// Peak active bytes over peak reserved bytes; 1 where nothing was held.
    pub utilisation: f64,
    /// Driver calls by name.
    pub driver_calls: BTreeMap<&'static str, u64>,
    /// Driver calls of the last pass by name.
    pub driver_calls_last_pass: BTreeMap<&'static str, u64>,
    /// Microseconds in the driver: by the price list, or by the wall clock on a real device.
    pub driver_time_us: Option<f64>,
    /// Where that time is from, in words.
    pub price_source: &'static str,
    /// Nanoseconds of wall time for one allocation or free; none for a model.
    pub ns_per_op: Option<f64>,
    /// Calls that failed, and blocks given out while another stream could still use them.
    pub errors: u64,
    /// The first error, in words.
    pub first_error: Option<String>,
    /// Bytes held over time.
    pub series: Vec<Sample>,
}

/// Active over reserved bytes.
pub(super) fn utilisation(active: u64, reserved: u64) -> f64 {
    if reserved == 0 {
        1.0
    } else {
        active as f64 / reserved as f64
    }
}

/// The calls that were made since `before`.
pub(super) fn calls_since(
    now: &BTreeMap<&'static str, u64>,
    before: &BTreeMap<&'static str, u64>,
) -> BTreeMap<&'static str, u64> {
    let since = now
        .iter()
        .map(|(name, count)| (*name, count - before.get(name).unwrap_or(&0)));
    since.filter(|(_, count)| *count > 0).collect()
}
