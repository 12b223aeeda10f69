//! Statistics and snapshots as the frozen dataclasses of `flagstone.stats`.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::attributes::set_fields;
use super::ending;
use crate::registry::AnyPool;
use crate::stats::{GivenOut, LargeStats, Snapshot, SnapshotBlock, SnapshotSegment, Stats, StepTotal, Totals};

/// `flagstone.stats.Stats` of a pool.
pub fn stats<'py>(py: Python<'py>, pool: &AnyPool, stats: &Stats) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    let settings: Vec<_> = pool
        .config()
        .changes()
        .map(|(key, value)| format!("{key}:{value}"))
        .collect();
    fields.set_item("backend", pool.backend().name())?;
    fields.set_item("settings", settings.join(", "))?;
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
        given_bytes,
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
        hit_times,
        miss_times,
        steps,
        large
    });
    let steps = steps
        .iter()
        .map(|total| step(py, total))
        .collect::<PyResult<Vec<_>>>()?;
    fields.set_item("steps", PyTuple::new(py, steps)?)?;
    fields.set_item("hit_times", PyTuple::new(py, hit_times.counts)?)?;
    fields.set_item("hit_nanoseconds", hit_times.nanoseconds)?;
    fields.set_item("miss_times", PyTuple::new(py, miss_times.counts)?)?;
    fields.set_item("miss_nanoseconds", miss_times.nanoseconds)?;
    fields.set_item("large", large_stats(py, large)?)?;
    ending::call(&class(py, "Stats")?, &PyTuple::empty(py), Some(&fields))
}

fn step<'py>(py: Python<'py>, total: &StepTotal) -> PyResult<Bound<'py, PyAny>> {
    let StepTotal {
        name,
        count,
        sufficed,
        timed_out,
        nanoseconds,
    } = total;
    make(py, "StepTotal", (name, count, sufficed, timed_out, nanoseconds))
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
    ending::call(&class(py, "LargeStats")?, &PyTuple::empty(py), Some(&fields))
}

/// `flagstone.stats.Totals`.
pub fn totals<'py>(py: Python<'py>, totals: &Totals) -> PyResult<Bound<'py, PyAny>> {
    let rows = totals
        .given_out
        .iter()
        .map(|row| given_out(py, row))
        .collect::<PyResult<Vec<_>>>()?;
    make(py, "Totals", (totals.device, PyTuple::new(py, rows)?))
}

fn given_out<'py>(py: Python<'py>, row: &GivenOut) -> PyResult<Bound<'py, PyAny>> {
    let GivenOut {
        stream,
        private,
        size,
        alloc_count,
        requested_bytes,
        allocated_bytes,
    } = row;
    let stream = stream.map(|stream| stream.0);
    // As segments have it; of streams and private pools that are gone it is not known.
    let pool_id = stream.map(|_| private.unwrap_or((0, 0)));
    make(
        py,
        "GivenOut",
        (stream, pool_id, size, alloc_count, requested_bytes, allocated_bytes),
    )
}

/// `flagstone.stats.Snapshot`.
pub fn snapshot<'py>(py: Python<'py>, snapshot: &Snapshot) -> PyResult<Bound<'py, PyAny>> {
    let segments = snapshot
        .segments
        .iter()
        .map(|info| segment(py, info))
        .collect::<PyResult<Vec<_>>>()?;
    make(py, "Snapshot", (snapshot.device, PyTuple::new(py, segments)?))
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
    let blocks = PyTuple::new(py, blocks)?;
    make(py, "Segment", (addr, bytes, stream.0, pool_id, kind, blocks))
}

fn block<'py>(py: Python<'py>, block: &SnapshotBlock) -> PyResult<Bound<'py, PyAny>> {
    make(
        py,
        "Block",
        (block.addr, block.bytes, block.requested, block.state.name()),
    )
}

/// An object of a class of `flagstone.stats`.
fn make<'py>(
    py: Python<'py>,
    name: &str,
    fields: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
) -> PyResult<Bound<'py, PyAny>> {
    ending::call(&class(py, name)?, &fields.into_pyobject(py)?, None)
}

/// A class of `flagstone.stats`, which is imported when it is first needed. Asked for each time, as those of errors.
fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    ending::import(py, c"flagstone.stats")?.getattr(name)
}
