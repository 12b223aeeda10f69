//! One type for the pools of every kind of device: what the fronts (Python, the C functions) hold.

use std::collections::BTreeMap;

use super::backend::{Backend, simulated, unforked};
use super::process;

use crate::config::Config;
#[cfg(feature = "cuda")]
use crate::driver::cuda::Cuda;
use crate::driver::pinned::Pinned;
use crate::driver::sim::Sim;
use crate::driver::{DevicePtr, Driver, Stream};
#[cfg(not(feature = "cuda"))]
use crate::error::Unavailable;
use crate::error::{Error, Result};
use crate::history::History;
use crate::pool::{CallbackId, Core, Pool, PrivateId};
use crate::stats::{AddressInfo, BlockInfo, Snapshot, Stats, Totals};

/// What a pool gives out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Memory of the device.
    Device,
    /// Pinned host memory, which the device can reach.
    Pinned,
}

/// The host's memory in bytes: the most that can be pinned.
fn host_bytes() -> u64 {
    // SAFETY: asks for numbers, with names that exist on every Unix that we build for.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let known = u64::try_from(pages).and_then(|pages| Ok(pages.saturating_mul(u64::try_from(page)?)));
    known.unwrap_or(u64::MAX)
}

/// A pool of any kind of device.
pub enum AnyPool {
    /// Memory of a real device.
    #[cfg(feature = "cuda")]
    Cuda(Pool<Cuda>),
    /// Memory of a simulated device.
    Sim(Pool<Sim>),
    /// Pinned memory beside a real device.
    #[cfg(feature = "cuda")]
    PinnedCuda(Pool<Pinned<Cuda>>),
    /// Pinned memory beside a simulated device.
    PinnedSim(Pool<Pinned<Sim>>),
}

/// Evaluates one expression for the pool of whichever kind.
macro_rules! each {
    ($any:expr, $pool:ident => $value:expr) => {
        match $any {
            #[cfg(feature = "cuda")]
            AnyPool::Cuda($pool) => $value,
            AnyPool::Sim($pool) => $value,
            #[cfg(feature = "cuda")]
            AnyPool::PinnedCuda($pool) => $value,
            AnyPool::PinnedSim($pool) => $value,
        }
    };
}

impl AnyPool {
    /// A pool of the device with this ordinal. Simulated is device 0 alone, and each pool opened so has its own.
    ///
    /// # Errors
    /// There is no such device or no driver, or the configuration does not fit the device.
    pub fn open(memory: Memory, device: i32, backend: Backend, config: Config) -> Result<Self> {
        unforked()?;
        match backend.resolve() {
            #[cfg(feature = "cuda")]
            Backend::Cuda => Self::over_cuda(memory, Cuda::new(device)?, config),
            #[cfg(not(feature = "cuda"))]
            Backend::Cuda => Err(Unavailable::NotBuilt.into()),
            Backend::Sim | Backend::Auto if device == 0 => Self::over_sim(memory, simulated(), config),
            Backend::Sim | Backend::Auto => Err(Error::NoSuchDevice { device, count: 1 }),
        }
    }

    #[cfg(feature = "cuda")]
    fn over_cuda(memory: Memory, driver: Cuda, config: Config) -> Result<Self> {
        match memory {
            Memory::Device => Pool::new(driver, config).map(Self::Cuda),
            Memory::Pinned => Pool::new(Pinned::new(driver, host_bytes()), config).map(Self::PinnedCuda),
        }
    }

    /// A pool of a simulated device, which other pools may have too.
    ///
    /// # Errors
    /// The configuration does not fit the device.
    pub fn over_sim(memory: Memory, driver: Sim, config: Config) -> Result<Self> {
        match memory {
            Memory::Device => Pool::new(driver, config).map(Self::Sim),
            Memory::Pinned => Pool::new(Pinned::new(driver, host_bytes()), config).map(Self::PinnedSim),
        }
    }

    /// The kind of device: never `Auto`.
    #[must_use]
    pub const fn backend(&self) -> Backend {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(_) | Self::PinnedCuda(_) => Backend::Cuda,
            Self::Sim(_) | Self::PinnedSim(_) => Backend::Sim,
        }
    }

    /// What the pool gives out.
    #[must_use]
    pub const fn memory(&self) -> Memory {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => Memory::Device,
            Self::Sim(_) => Memory::Device,
            #[cfg(feature = "cuda")]
            Self::PinnedCuda(_) => Memory::Pinned,
            Self::PinnedSim(_) => Memory::Pinned,
        }
    }

    /// The device's ordinal.
    #[must_use]
    pub fn device(&self) -> i32 {
        each!(self, pool => pool.device())
    }

    /// The device's memory, in bytes; of a pool of pinned memory the host's.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        each!(self, pool => pool.driver().properties().total_bytes)
    }

    /// See [`Pool::alloc`]. Pinned memory belongs to the host, and `stream` is recorded as a use.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    #[inline]
    pub fn alloc(&self, bytes: u64, stream: Stream) -> Result<DevicePtr> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(pool) => pool.alloc(bytes, stream),
            Self::Sim(pool) => pool.alloc(bytes, stream),
            #[cfg(feature = "cuda")]
            Self::PinnedCuda(pool) => alloc_pinned(pool, bytes, Some(stream)),
            Self::PinnedSim(pool) => alloc_pinned(pool, bytes, Some(stream)),
        }
    }

    /// As [`Self::alloc`], where a stream may be named: device memory is the legacy default stream's otherwise, and pinned
    /// memory has no recorded use.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub fn alloc_on(&self, bytes: u64, stream: Option<Stream>) -> Result<DevicePtr> {
        match self {
            #[cfg(feature = "cuda")]
            Self::PinnedCuda(pool) => alloc_pinned(pool, bytes, stream),
            Self::PinnedSim(pool) => alloc_pinned(pool, bytes, stream),
            device => device.alloc(bytes, stream.unwrap_or(Stream::LEGACY)),
        }
    }

    /// See [`Pool::free`] and, with a stream, [`Pool::free_on`].
    ///
    /// # Errors
    /// As those.
    #[inline]
    pub fn free(&self, ptr: DevicePtr, stream: Option<Stream>) -> Result<()> {
        match stream {
            None => each!(self, pool => pool.free(ptr)),
            Some(stream) => each!(self, pool => pool.free_on(ptr, stream)),
        }
    }

    /// See [`Pool::free_sized`].
    ///
    /// # Errors
    /// As [`Pool::free_sized`].
    #[inline]
    pub fn free_sized(&self, ptr: DevicePtr, bytes: u64) -> Result<()> {
        each!(self, pool => pool.free_sized(ptr, bytes))
    }

    /// See [`Pool::core`].
    pub(crate) fn core(&self) -> &Core {
        each!(self, pool => pool.core())
    }

    /// See [`Pool::owns`].
    #[must_use]
    pub fn owns(&self, ptr: DevicePtr) -> bool {
        each!(self, pool => pool.owns(ptr))
    }

    /// See [`Pool::block`].
    #[must_use]
    pub fn block(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        each!(self, pool => pool.block(ptr))
    }

    /// See [`Pool::describe`].
    #[must_use]
    pub fn describe(&self, ptr: DevicePtr) -> Option<AddressInfo> {
        each!(self, pool => pool.describe(ptr))
    }

    /// See [`Pool::keep_stream`].
    ///
    /// # Errors
    /// As [`Pool::keep_stream`].
    pub fn keep_stream(&self, stream: Stream) -> Result<()> {
        each!(self, pool => pool.keep_stream(stream))
    }

    /// See [`Pool::is_kept`].
    #[must_use]
    pub fn is_kept(&self, stream: Stream) -> bool {
        each!(self, pool => pool.is_kept(stream))
    }

    /// See [`Pool::record_stream`].
    ///
    /// # Errors
    /// As [`Pool::record_stream`].
    pub fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<()> {
        each!(self, pool => pool.record_stream(ptr, stream))
    }

    /// See [`Pool::record_work`].
    ///
    /// # Errors
    /// As [`Pool::record_work`].
    pub fn record_work(&self, ptr: DevicePtr, stream: Stream) -> Result<()> {
        each!(self, pool => pool.record_work(ptr, stream))
    }

    /// See [`Pool::free_unseen`].
    ///
    /// # Errors
    /// As [`Pool::free_unseen`].
    pub fn free_unseen(&self, ptr: DevicePtr) -> Result<()> {
        each!(self, pool => pool.free_unseen(ptr))
    }

    /// See `Pool::may_capture`.
    pub(crate) fn may_capture(&self) -> bool {
        each!(self, pool => pool.may_capture())
    }

    /// See [`Pool::synchronize`].
    ///
    /// # Errors
    /// As [`Pool::synchronize`].
    pub fn synchronize(&self) -> Result<()> {
        each!(self, pool => pool.synchronize())
    }

    /// See [`Pool::reserved_bytes`].
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        each!(self, pool => pool.reserved_bytes())
    }

    /// See [`Pool::trim`].
    ///
    /// # Errors
    /// As [`Pool::trim`].
    pub fn trim(&self, target: u64) -> Result<u64> {
        each!(self, pool => pool.trim(target))
    }

    /// See [`Pool::reserve`].
    ///
    /// # Errors
    /// As [`Pool::reserve`].
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        each!(self, pool => pool.reserve(bytes))
    }

    /// See [`Pool::release_idle`].
    ///
    /// # Errors
    /// As [`Pool::release_idle`].
    pub fn release_idle(&self) -> Result<u64> {
        each!(self, pool => pool.release_idle())
    }

    /// See [`Pool::on_out_of_memory`].
    pub fn on_out_of_memory(&self, callback: impl Fn(u64) + Send + Sync + 'static) -> CallbackId {
        each!(self, pool => pool.on_out_of_memory(callback))
    }

    /// See [`Pool::remove_callback`].
    pub fn remove_callback(&self, id: CallbackId) -> bool {
        each!(self, pool => pool.remove_callback(id))
    }

    /// See [`Pool::config`].
    #[must_use]
    pub fn config(&self) -> &Config {
        each!(self, pool => pool.config())
    }

    /// See [`Pool::limit`].
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        each!(self, pool => pool.limit())
    }

    /// See [`Pool::set_limit`].
    pub fn set_limit(&self, limit: Option<u64>) {
        each!(self, pool => pool.set_limit(limit));
    }

    /// See [`Pool::stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        each!(self, pool => pool.stats())
    }

    /// See [`Pool::reset_peak`].
    pub fn reset_peak(&self) -> Stats {
        each!(self, pool => pool.reset_peak())
    }

    /// See [`Pool::totals`].
    #[must_use]
    pub fn totals(&self) -> Totals {
        each!(self, pool => pool.totals())
    }

    /// See [`Pool::snapshot`].
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        each!(self, pool => pool.snapshot())
    }

    /// See [`Pool::start_history`].
    pub fn start_history(&self, most: usize, stacks: bool) {
        each!(self, pool => pool.start_history(most, stacks));
    }

    /// See [`Pool::stop_history`].
    pub fn stop_history(&self) {
        each!(self, pool => pool.stop_history());
    }

    /// See [`Pool::is_recording`].
    #[must_use]
    pub fn is_recording(&self) -> bool {
        each!(self, pool => pool.is_recording())
    }

    /// See [`Pool::history`].
    #[must_use]
    pub fn history(&self) -> History {
        each!(self, pool => pool.history())
    }

    /// See [`Pool::begin_private`].
    pub fn begin_private(&self, id: PrivateId, filter: impl Fn(Stream) -> bool + Send + 'static) {
        each!(self, pool => pool.begin_private(id, filter));
    }

    /// See [`Pool::end_private`].
    pub fn end_private(&self, id: PrivateId) {
        each!(self, pool => pool.end_private(id));
    }

    /// See [`Pool::release_private`].
    pub fn release_private(&self, id: PrivateId) {
        each!(self, pool => pool.release_private(id));
    }

    /// See [`Pool::hold_private`].
    pub fn hold_private(&self, id: PrivateId) {
        each!(self, pool => pool.hold_private(id));
    }

    /// See [`Pool::private_pools`].
    #[must_use]
    pub fn private_pools(&self) -> BTreeMap<PrivateId, u64> {
        each!(self, pool => pool.private_pools())
    }

    /// Makes later work of `consumer` wait for the work that `producer` has so far.
    ///
    /// Returns false, with nothing done, where one of the streams is capturing: the wait would become part of the capture.
    ///
    /// # Errors
    /// [`Error::InvalidStream`], [`Error::Forked`], or a driver call failed.
    pub fn order_streams(&self, producer: Stream, consumer: Stream) -> Result<bool> {
        each!(self, pool => order_streams(pool, producer, consumer))
    }
}

fn alloc_pinned<D: Driver>(pool: &Pool<Pinned<D>>, bytes: u64, stream: Option<Stream>) -> Result<DevicePtr> {
    if pool.is_much_unseen() && !process::may_capture() {
        // What cannot be waited for now is waited for later.
        let _ = pool.synchronize();
    }
    let ptr = pool.alloc(bytes, pool.driver().home())?;
    let Some(stream) = stream else { return Ok(ptr) };
    match pool.record_stream(ptr, stream) {
        Ok(()) => Ok(ptr),
        Err(error) => {
            pool.free(ptr)?;
            Err(error)
        }
    }
}

fn order_streams<D: Driver>(pool: &Pool<D>, producer: Stream, consumer: Stream) -> Result<bool> {
    if producer == consumer || (producer.is_legacy() && consumer.is_legacy()) {
        return Ok(true);
    }
    for stream in [producer, consumer] {
        if pool.is_capturing(stream)? {
            return Ok(false);
        }
    }
    let driver = pool.driver();
    let event = driver.event_create()?;
    let ordered = driver
        .event_record(event, producer)
        .and_then(|()| driver.stream_wait(consumer, event));
    // The driver keeps what was recorded until it is done; the event itself is not needed any more.
    let destroyed = driver.event_destroy(event);
    ordered.and(destroyed)?;
    Ok(true)
}
