//! Statistics and snapshots as the frozen dataclasses of `flagstone.stats`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule, PyTuple};

use super::attributes::set_fields;
use crate::stats::{LargeStats, Snapshot, SnapshotBlock, SnapshotSegment, Stats};

/// `flagstone.stats.Stats`.
pub fn stats<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    set_fields!(fields, stats => Stats {
        device,
        requested_bytes,
        allocated_bytes,
        active_bytes,
        reserved_bytes,
        cached_bytes,
        magazine_bytes,
        peak_requested_bytes,
        peak_allocated_bytes,
        peak_active_bytes,
        peak_reserved_bytes,
        live_blocks,
        peak_live_blocks,
        alloc_count,
        free_count,
        freed_bytes,
        freed_requested_bytes,
        miss_count,
        growth_count,
        taken_bytes,
        take_count,
        give_count,
        peak_held_count,
        synchronize_count,
        pending_blocks,
        event_count,
        stream_wait_count,
        segments,
        largest_free_bytes,
        out_of_memory_count,
        pressure_count,
        invalid_free_count,
        double_free_count,
        wrong_size_free_count,
        invalid_record_count,
        driver_error_count,
        limit,
        host_bytes;
        miss_times,
        steps,
        large
    });
    let _ = steps;
    fields.set_item("miss_times", PyTuple::new(py, miss_times.0)?)?;
    fields.set_item("large", large_stats(py, large)?)?;
    class(py, "Stats")?.call((), Some(&fields))
}

/// `flagstone.stats.LargeStats`.
fn large_stats<'py>(py: Python<'py>, stats: &LargeStats) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    set_fields!(fields, stats => LargeStats {
        live_blocks,
        peak_live_blocks,
        pending_blocks,
        alloc_count,
        free_count,
        requested_bytes,
        peak_requested_bytes,
        freed_requested_bytes,
        allocated_bytes,
        peak_allocated_bytes,
        freed_bytes,
        active_bytes,
        reserved_bytes,
    });
    class(py, "LargeStats")?.call((), Some(&fields))
}

/// `flagstone.stats.Snapshot`.
pub fn snapshot<'py>(py: Python<'py>, snapshot: &Snapshot) -> PyResult<Bound<'py, PyAny>> {
    let segments = snapshot
        .segments
        .iter()
        .map(|info| segment(py, info))
        .collect::<PyResult<Vec<_>>>()?;
    class(py, "Snapshot")?.call1((snapshot.device, PyTuple::new(py, segments)?))
}

fn segment<'py>(py: Python<'py>, segment: &SnapshotSegment) -> PyResult<Bound<'py, PyAny>> {
    let blocks = segment
        .blocks
        .iter()
        .map(|info| block(py, info))
        .collect::<PyResult<Vec<_>>>()?;
    let SnapshotSegment {
        addr,
        bytes,
        stream,
        private,
        kind,
        blocks: _,
    } = segment;
    let pool_id = private.unwrap_or((0, 0));
    class(py, "Segment")?.call1((addr, bytes, stream.0, pool_id, kind, PyTuple::new(py, blocks)?))
}

fn block<'py>(py: Python<'py>, block: &SnapshotBlock) -> PyResult<Bound<'py, PyAny>> {
    class(py, "Block")?.call1((block.addr, block.bytes, block.requested, block.state.name()))
}

/// A class of `flagstone.stats`, which is imported when it is first needed.
fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static STATS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    STATS
        .get_or_try_init(py, || py.import("flagstone.stats").map(Bound::unbind))?
        .bind(py)
        .getattr(name)
}
