//! Pools as Python objects.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::args::{Address, Device, Pointer, Size, StreamArg};
use super::block::{Block, Detached, LastUse, PoolRef};
use super::buffer::{Buffer, PinnedBuffer};
use super::callbacks::{self, request};
use super::prewarm::Prewarm;
use super::{block, errors, history, settings, stats};
use crate::config::Config;
use crate::error::Error;
use crate::pool::{CallbackId, forked};
use crate::registry::{AnyPool, Backend, Memory, cuda_devices};

/// A pool of memory: what `Pool` and `PinnedPool` share. Every method may be called in any thread.
#[pyclass(module = "flagstone", frozen, subclass, weakref)]
pub struct BasePool {
    pool: Detached<PoolRef>,
}

impl BasePool {
    /// Makes a pool. `auto` that finds no CUDA warns once in a process.
    fn open(py: Python<'_>, memory: Memory, device: Device, backend: &str, config: Config) -> PyResult<Self> {
        let asked: Backend = backend.parse().map_err(Error::from)?;
        let pool = match device {
            Device::Simulated(_) if asked == Backend::Cuda => {
                return Err(PyValueError::new_err(
                    "a simulated device is not one of the backend \"cuda\"",
                ));
            }
            Device::Simulated(sim) => py.detach(|| AnyPool::over_sim(memory, sim, config))?,
            Device::Ordinal(device) => {
                let pool = py.detach(|| AnyPool::open(memory, device, asked, config))?;
                if asked == Backend::Auto
                    && let Err(reason) = cuda_devices()
                {
                    errors::warn_simulated(py, &reason)?;
                }
                pool
            }
        };
        Ok(Self {
            pool: Detached::new(PoolRef::new(pool)),
        })
    }

    /// A pool that is there already.
    pub fn of(pool: Arc<AnyPool>) -> Self {
        Self {
            pool: Detached::new(PoolRef::new(pool)),
        }
    }

    /// The pool itself.
    pub fn pool(&self) -> &PoolRef {
        &self.pool
    }

    fn block(&self, py: Python<'_>, nbytes: Size, stream: Option<StreamArg>) -> PyResult<Block> {
        let stream = stream.map(|stream| stream.0);
        Ok(request(py, || Block::alloc(self.pool.clone(), nbytes.0, stream))?)
    }
}

#[pymethods]
impl BasePool {
    /// The device's ordinal.
    #[getter]
    fn device(&self) -> i32 {
        self.pool.device()
    }

    /// `"cuda"`, or `"sim"` for the simulated device.
    #[getter]
    fn backend(&self) -> &'static str {
        self.pool.backend().name()
    }

    /// The most that the pool may hold from the driver, in bytes; None for no limit but the device. May be set, in any thread: one
    /// below what is held gives nothing back by itself, see `trim`.
    #[getter]
    fn limit(&self) -> Option<u64> {
        self.pool.limit()
    }

    #[setter]
    fn set_limit(&self, py: Python<'_>, limit: Option<Size>) {
        py.detach(|| self.pool.set_limit(limit.map(|limit| limit.0)));
    }

    /// The settings that the pool was made with, as far as they differ from the defaults: keyword arguments for another pool,
    /// in another process too.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let settings = PyDict::new(py);
        for (key, value) in self.pool.config().changes() {
            settings.set_item(key, value)?;
        }
        Ok(settings)
    }

    /// Allocates `nbytes` on `stream` and returns the address, to be given to `free_raw`, from any thread. Raises as `alloc` does.
    #[pyo3(signature = (nbytes, stream = None))]
    fn alloc_raw(&self, py: Python<'_>, nbytes: Size, stream: Option<StreamArg>) -> PyResult<u64> {
        Ok(request(py, || {
            self.pool.alloc_on(nbytes.0, stream.map(|stream| stream.0))
        })?)
    }

    /// Frees what `alloc_raw` returned, ordered on its own stream and, if given, on `stream` too, which has to exist then. In any thread,
    /// with work on these streams still under way.
    ///
    /// `DoubleFreeError` and `InvalidPointerError` for what is freed already or not of this pool; nothing is changed then.
    #[pyo3(signature = (ptr, stream = None))]
    fn free_raw(&self, py: Python<'_>, ptr: Address, stream: Option<StreamArg>) -> PyResult<()> {
        let last = match (stream, self.pool.memory()) {
            (Some(stream), _) => LastUse::On(stream.0),
            (None, Memory::Device) => LastUse::Recorded,
            (None, Memory::Pinned) => LastUse::Unseen,
        };
        Ok(py.detach(|| block::free(self.pool(), ptr.0, last))?)
    }

    /// Says that the block is also used on `stream`: after its free it is not given out again before that use is done.
    ///
    /// A stream that is not a default one may be gone when the block is freed. Unless `keep_stream` promised that it is not,
    /// the block waits for the whole device; a stream that is named to `free`, and so is live then, it waits for alone.
    /// `InvalidPointerError` for what is no live block of this pool, `StreamError` for a stream that does not exist.
    fn record_stream(&self, py: Python<'_>, block: Pointer, stream: StreamArg) -> PyResult<()> {
        Ok(py.detach(|| self.pool.record_stream(block.0, stream.0))?)
    }

    /// Promises that `stream`, live now, is not destroyed while the pool lives. `StreamError` for one that does not exist.
    fn keep_stream(&self, py: Python<'_>, stream: StreamArg) -> PyResult<()> {
        Ok(py.detach(|| self.pool.keep_stream(stream.0))?)
    }

    /// Takes memory from the driver until the pool holds at least `nbytes`: for any stream and size. `OutOfMemoryError` where
    /// the device or the limit does not let it; what was taken by then stays.
    fn reserve(&self, py: Python<'_>, nbytes: Size) -> PyResult<()> {
        Ok(py.detach(|| self.pool.reserve(nbytes.0))?)
    }

    /// Gives idle memory back to the driver until the pool holds at most `target` bytes, or no idle memory is left.
    ///
    /// Waits for the device where that sets memory free. Returns the bytes that were given back, which may be 0.
    #[pyo3(signature = (target = Size(0)), text_signature = "($self, target=0)")]
    fn trim(&self, py: Python<'_>, target: Size) -> PyResult<u64> {
        Ok(py.detach(|| self.pool.trim(target.0))?)
    }

    /// Gives back what the settings `cache`, `release_after` and `headroom` do not let the pool hold idle, and waits for the
    /// device where it must. Returns the bytes that were given back.
    fn release_idle(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| self.pool.release_idle())?)
    }

    /// Adds a function that is called with the number of bytes asked for, when an allocation would fail otherwise or have to wait
    /// for the device. It may free buffers and call the pool; no lock is held meanwhile. Returns the number that
    /// `remove_callback` takes. An exception goes to `sys.unraisablehook`.
    ///
    /// Only for allocations through `alloc` and `alloc_raw`: torch's and those of the other C functions never run Python.
    fn on_out_of_memory(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<u64> {
        if !callback.bind(py).is_callable() {
            let name = callback.bind(py).get_type().name()?.to_string();
            return Err(PyTypeError::new_err(format!(
                "a callback is called, which {name} cannot be"
            )));
        }
        Ok(self
            .pool
            .on_out_of_memory(move |bytes| callbacks::call(&callback, bytes))
            .0)
    }

    /// Removes the callback of this number. Returns whether there was one.
    fn remove_callback(&self, number: i64) -> bool {
        u64::try_from(number).is_ok_and(|number| self.pool.remove_callback(CallbackId(number)))
    }

    /// The pool's numbers, as `flagstone.stats.Stats`. Cheap. `ForkError` in a forked child.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        unforked()?;
        stats::stats(py, &self.pool, &py.detach(|| self.pool.stats()))
    }

    /// Starts the peaks of `stats` anew from what is held now, for all threads. Returns what `stats` said at that moment, with the
    /// peaks so far: none is lost in between. `ForkError` in a forked child.
    fn reset_peak<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        unforked()?;
        stats::stats(py, &self.pool, &py.detach(|| self.pool.reset_peak()))
    }

    /// What was given out so far, by stream, private pool and size, as `flagstone.stats.Totals`. Looks at every size of every
    /// thread. `ForkError` in a forked child.
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        unforked()?;
        stats::totals(py, &py.detach(|| self.pool.totals()))
    }

    /// Every segment with its blocks, as `flagstone.stats.Snapshot`. A full walk: not for hot paths. `ForkError` in a forked
    /// child.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        unforked()?;
        stats::snapshot(py, &py.detach(|| self.pool.snapshot()))
    }

    /// Records what happens to the memory from now on: the newest `max_events` events, 64 bytes each. What was recorded before
    /// is forgotten.
    ///
    /// With `stacks` each event has the Python stack of its thread. That sets a profile function in this thread, in those that
    /// start later and, from Python 3.12 on, in all others, which slows every Python call: `flagstone bench history` says by how much.
    #[pyo3(signature = (max_events = 1_000_000, *, stacks = false))]
    fn start_history(slf: &Bound<'_, Self>, max_events: i64, stacks: bool) -> PyResult<()> {
        history::start(slf, max_events, stacks)
    }

    /// Records nothing any more; `history` still returns what was recorded.
    fn stop_history(&self, py: Python<'_>) -> PyResult<()> {
        history::stop(py, &self.pool)
    }

    /// Whether a history is being recorded.
    #[getter]
    fn is_recording(&self) -> bool {
        self.pool.is_recording()
    }

    /// What was recorded so far, with the present snapshot, as `flagstone.history.History`. `ForkError` in a forked child.
    fn history<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        unforked()?;
        history::get(py, &self.pool)
    }

    /// Whose an address is, or was, as `flagstone.history.AddressInfo`; None where nothing is known of it. Of freed blocks those are
    /// known whose addresses the setting `guard` keeps, and those in a recorded history. Walks over everything.
    fn describe<'py>(&self, py: Python<'py>, address: Address) -> PyResult<Option<Bound<'py, PyAny>>> {
        unforked()?;
        history::describe(py, &self.pool, address.0)
    }

    /// Objects of the same pool, as `process_pool` returns them, are equal.
    fn __eq__(&self, other: &Self) -> bool {
        self.pool.address() == other.pool.address()
    }

    fn __hash__(&self) -> usize {
        self.pool.address()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let pool = slf.get().pool();
        let class = slf.get_type().name()?;
        let (backend, device) = (pool.backend().name(), pool.device());
        if forked() {
            return Ok(format!(
                "<flagstone.{class} on {backend} device {device}, before a fork>"
            ));
        }
        let stats = slf.py().detach(|| pool.stats());
        Ok(format!(
            "<flagstone.{class} on {backend} device {device}: {} bytes in {} blocks, {} held>",
            stats.requested_bytes, stats.live_blocks, stats.reserved_bytes,
        ))
    }
}

/// `ForkError` in a forked child: a lock that another thread of the parent held is never let go of there.
fn unforked() -> PyResult<()> {
    if forked() {
        return Err(Error::Forked.into());
    }
    Ok(())
}

/// A pool of device memory.
///
/// `device` is an ordinal, or a simulated device of `flagstone.testing`. `backend` is "cuda", "sim" (a simulated device in
/// this process) or "auto": cuda where a driver and a device are there, otherwise sim. The other arguments are keys of
/// the configuration; what is not given comes from `FLAGSTONE_CONF`. `limit`, the most to hold from the driver, is bytes,
/// a fraction of the device, or text as "2GiB" and "50%"; `growth`, `handle`, `magazine` and `reserve` are bytes, or text as "2MiB";
/// `source` is "auto", "virtual_memory", "slabs" or "driver_pool"; `dependencies`, when streams may be made to wait for each other's
/// memory, is "off", "pressure", "overlap" or "growth". `cache`, the most to hold idle, is bytes; `headroom`, what stays free on the
/// device for others, is given as `limit` is; `release_after`, how long memory may be idle, and `wait`, how long a step of a
/// request that is short of memory may wait for the device, are seconds. "none" switches a bound off. `remap`, whether free memory is mapped to where it is wanted, is a bool;
/// `release_threshold` (bytes) and the `reuse_` policies (bools) are those of the driver's own pool. `poison`, what freed and new
/// blocks are filled with, is a byte; `guard`, which gives each block pages of its own, is bytes of addresses that stay unmapped.
/// docs/settings.md says more about each, docs/debugging.md about the last two.
#[pyclass(module = "flagstone", extends = BasePool, frozen)]
pub struct Pool;

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(
        signature = (device = Device::Ordinal(0), *, backend = "auto", **settings),
        text_signature = "(device=0, *, backend='auto', limit=None, growth=None, handle=None, magazine=None, source=None, reserve=None, \
                          dependencies=None, cache=None, release_after=None, headroom=None, wait=None, remap=None, release_threshold=None, \
                          reuse_event_dependencies=None, reuse_opportunistic=None, reuse_internal_dependencies=None, poison=None, guard=None)"
    )]
    fn new(
        py: Python<'_>,
        device: Device,
        backend: &str,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let config = settings::config("Pool", Memory::Device, settings)?;
        let base = BasePool::open(py, Memory::Device, device, backend, config)?;
        Ok(PyClassInitializer::from(base).add_subclass(Self))
    }

    /// Allocates `nbytes` of device memory, to be used on `stream`.
    ///
    /// `stream` is None for the legacy default stream, a handle, or an object with `__cuda_stream__`, `cuda_stream`
    /// (torch) or `ptr` (CuPy). 0 bytes give a buffer of its own. The address is a multiple of 512.
    ///
    /// May be called in any thread, and the buffer freed in any other. `OutOfMemoryError`, a `MemoryError`, when every step failed that
    /// could have set memory free; `TooLargeError` for more than any device has; `StreamError` for a stream that does not exist;
    /// `ForkError` in a forked child. The pool is as before then.
    #[pyo3(signature = (nbytes, stream = StreamArg::DEFAULT), text_signature = "($self, nbytes, stream=None)")]
    fn alloc(slf: &Bound<'_, Self>, nbytes: Size, stream: StreamArg) -> PyResult<Py<Buffer>> {
        Buffer::build(slf.py(), slf.as_super().get().block(slf.py(), nbytes, Some(stream))?)
    }
}

/// A pool of pinned host memory, which device and host both reach.
///
/// The arguments are those of `Pool`; fractions are of the host's memory. `limit`, `headroom`, `reserve`, `source` and `guard` in
/// `FLAGSTONE_CONF` are meant for devices and do not apply here. A buffer is not given out again before the copies
/// that were recorded for it are done: `PinnedBuffer.record` after a copy, or a stream named to `alloc` or `free`. One whose
/// address was handed out and for which none was recorded waits until the pool synchronises the context, which it does when
/// memory is short or that would get half of it back, 64 MiB at least.
#[pyclass(module = "flagstone", extends = BasePool, frozen)]
pub struct PinnedPool;

#[pymethods]
impl PinnedPool {
    #[new]
    #[pyo3(
        signature = (device = Device::Ordinal(0), *, backend = "auto", **settings),
        text_signature = "(device=0, *, backend='auto', limit=None, growth=None, handle=None, magazine=None, source=None, reserve=None, \
                          dependencies=None, cache=None, release_after=None, headroom=None, wait=None, remap=None, release_threshold=None, \
                          reuse_event_dependencies=None, reuse_opportunistic=None, reuse_internal_dependencies=None, poison=None, guard=None)"
    )]
    fn new(
        py: Python<'_>,
        device: Device,
        backend: &str,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let config = settings::config("PinnedPool", Memory::Pinned, settings)?;
        let base = BasePool::open(py, Memory::Pinned, device, backend, config)?;
        Ok(PyClassInitializer::from(base).add_subclass(Self))
    }

    /// Allocates `nbytes` of pinned memory. Where `stream` is given, a handle or an object of another library, it is taken to
    /// copy from or to it until it is freed, as by `record_stream`. Threads and errors are those of `Pool.alloc`.
    #[pyo3(signature = (nbytes, stream = None))]
    fn alloc(slf: &Bound<'_, Self>, nbytes: Size, stream: Option<StreamArg>) -> PyResult<Py<PinnedBuffer>> {
        PinnedBuffer::build(slf.py(), slf.as_super().get().block(slf.py(), nbytes, stream)?)
    }

    /// As `PinnedBuffer.record`, for a buffer or an address that `alloc_raw` returned.
    fn record(slf: &Bound<'_, Self>, block: Pointer, stream: StreamArg) -> PyResult<()> {
        let pool = slf.as_super().get().pool();
        Ok(slf.py().detach(|| pool.record_work(block.0, stream.0))?)
    }

    /// Takes memory from the driver in a thread of its own until the pool holds at least `nbytes`, and returns at once. What
    /// is there already can be used meanwhile.
    fn prewarm(slf: &Bound<'_, Self>, nbytes: Size) -> PyResult<Prewarm> {
        Prewarm::start(slf.as_super().get().pool().clone(), nbytes.0)
    }

    /// Waits for all work of the device, of every thread. What waited for copies, or for this, can be given out again then.
    fn synchronize(slf: &Bound<'_, Self>) -> PyResult<()> {
        let pool = slf.as_super().get().pool();
        Ok(slf.py().detach(|| pool.synchronize())?)
    }
}
