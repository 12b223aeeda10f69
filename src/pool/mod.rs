//! The pool: what its users call. The work is in the files beside this one.
//!
//! | file | what |
//! |---|---|
//! | `core` | the part that knows no driver, with the hit path |
//! | `miss` | a request that no magazine can meet |
//! | `dependencies` | streams that wait for each other on the device |
//! | `free` | a free that cannot just go into a magazine; uses on other streams |
//! | `owners` | which arena is whose |
//! | `pressure` | what is done before a request fails |
//! | `steps` | the steps of that, counted and timed |
//! | `callbacks` | the user's functions that are asked to free something |
//! | `waits` | waiting for other streams and for the device |
//! | `give` | giving memory back to the driver |
//! | `surplus` | idle memory that the settings send back |
//! | `ahead` | memory taken ahead of use |
//! | `private` | private pools of graph captures |
//! | `remap` | idle memory taken from where it is free to where it is wanted |
//! | `wake` | memory that is mapped at several addresses, used where it is wanted |
//! | `report` | statistics and snapshots |
//! | `history` | what is recorded of them, while somebody asks for it |
//! | `poison` | blocks that are filled with a pattern |
//! | `guard` | blocks with pages of their own |
//! | `describe` | whose an address is, or was |
//! | `check` | walks every invariant (feature `check`) |

mod ahead;
mod callbacks;
#[cfg(feature = "check")]
mod check;
mod core;
mod dependencies;
mod describe;
mod free;
mod give;
mod grow;
mod guard;
mod history;
mod hits;
mod ledger;
mod miss;
mod owners;
mod pinned;
mod poison;
mod pressure;
mod private;
mod remap;
mod report;
mod steps;
mod surplus;
mod waits;
mod wake;

pub use callbacks::CallbackId;
pub use private::PrivateId;

use crate::arena::{ArenaKey, StreamKey, Visit};
use crate::config::{Config, Limit, Source};
use crate::driver::{DevicePtr, Driver, DriverError, Stream};
use crate::error::{ConfigError, Error, Result};
use crate::pages::{DriverPool, Pages};
use crate::stream::{Pending, Uses};
use crate::sync::atomic::AtomicUsize;
use crate::sync::{Mutex, lock};
use crate::thread::Current;
use callbacks::Callbacks;
pub(crate) use core::{Core, forked};
use free::Last;
use guard::Guards;
pub(crate) use hits::Hit;
#[cfg(feature = "python")]
pub(crate) use hits::pointer;
use private::Routes;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use surplus::Ages;

/// A pool of one device's memory.
///
/// All methods may be called from any thread at once. Memory belongs to the stream that it was allocated on: freed, it
/// may be given out at once on that stream, and on another only when that is safe. Share a pool by `Arc`; dropping it
/// gives its memory back, except segments in which a block is still live.
///
/// ```
/// use flagstone::{Config, Pool, driver::{Stream, sim::Sim}};
/// let pool = Pool::new(Sim::default(), Config::default())?;
/// let block = pool.alloc(1000, Stream::LEGACY)?;
/// assert_eq!(block % 512, 0);
/// pool.free(block)?;
/// assert!(pool.free(block).is_err());
/// # Ok::<(), flagstone::Error>(())
/// ```
pub struct Pool<D: Driver> {
    core: Arc<Core>,
    driver: D,
    config: Config,
    virtual_memory: bool,
    pages: Pages,
    uses: Uses,
    pending: Mutex<Pending>,
    /// How many blocks wait, so that a miss need not take the lock to see that none do.
    waiting: AtomicUsize,
    routes: Mutex<Routes>,
    /// Held by whoever waits for the context, beside others, and by whoever announces a capture, alone: no capture begins under a wait
    /// that would end it.
    announcing: RwLock<()>,
    /// Held by whoever is pressed, alone, and by whoever grows, beside others: what one sets free no other takes away.
    pressed: RwLock<()>,
    /// Streams whose handles stay good: their identities, by handle.
    kept: Mutex<HashMap<usize, u64>>,
    callbacks: Mutex<Callbacks>,
    /// What the steps of requests that were short of memory gave.
    steps: steps::Counters,
    /// Whether the settings bound what is held idle.
    sheds: bool,
    ages: Mutex<Ages>,
    guards: Guards,
}

impl<D: Driver> Pool<D> {
    /// Makes a pool; takes memory only as far as `config.reserve` asks.
    ///
    /// # Errors
    /// [`Error::Config`] when the source needs what the device does not have; as [`Self::reserve`] otherwise.
    pub fn new(driver: D, config: Config) -> Result<Self> {
        let properties = driver.properties();
        let virtual_memory = match config.source {
            Source::Slabs => false,
            Source::DriverPool if properties.memory_pools => false,
            Source::DriverPool => {
                return Err(Error::Config(ConfigError {
                    key: "source".to_owned(),
                    value: "driver_pool".to_owned(),
                    allowed: format!("auto or slabs: {} has no pools of the driver's own", properties.name),
                }));
            }
            Source::Auto => properties.virtual_memory,
            Source::VirtualMemory if properties.virtual_memory => true,
            Source::VirtualMemory => {
                return Err(Error::Config(ConfigError {
                    key: "source".to_owned(),
                    value: "virtual_memory".to_owned(),
                    allowed: format!("auto or slabs: {} has no virtual memory management", properties.name),
                }));
            }
        };
        if config.guard.is_some() && !virtual_memory {
            return Err(Error::Config(ConfigError {
                key: "guard".to_owned(),
                value: config.guard.unwrap_or(0).to_string(),
                allowed: "none: pages of their own need the source virtual_memory, on a device that has it".to_owned(),
            }));
        }
        let of_device = |limit: Limit| limit.bytes(properties.total_bytes);
        let headroom = config.headroom.map_or(0, of_device);
        let driver_pool = match config.source {
            Source::DriverPool => Some(DriverPool::new(&driver, &config.driver_pool)?),
            _ => None,
        };
        let pool = Self {
            core: Core::new(config.magazine, driver.is_host(driver.home())),
            virtual_memory,
            pages: Pages::new(
                config.limit.map(of_device),
                headroom,
                config.handle,
                properties,
                driver_pool,
            ),
            uses: Uses::default(),
            pending: Mutex::default(),
            waiting: AtomicUsize::new(0),
            routes: Mutex::default(),
            announcing: RwLock::default(),
            pressed: RwLock::default(),
            kept: Mutex::default(),
            callbacks: Mutex::default(),
            steps: steps::Counters::default(),
            sheds: config.cache.is_some() || config.release_after.is_some(),
            ages: Mutex::default(),
            guards: Guards::default(),
            driver,
            config,
        };
        if pool.is_slow() {
            pool.core.watch();
        }
        if pool.config.reserve > 0 {
            pool.reserve(pool.config.reserve)?;
        }
        Ok(pool)
    }

    /// A block of at least `bytes` bytes for use on `stream`, aligned to 512 bytes. 0 bytes give a block too.
    ///
    /// The stream's handle is used only within this call, unless it is a default stream's or was
    /// [kept](Self::keep_stream). Never waits for the device, unless memory is short.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with numbers, [`Error::TooLarge`], [`Error::InvalidStream`], [`Error::Forked`], or
    /// [`Error::Driver`]. The pool is as before then.
    #[inline]
    pub fn alloc(&self, bytes: u64, stream: Stream) -> Result<DevicePtr> {
        if forked() {
            return self.alloc_miss(bytes, stream);
        }
        match self.core.alloc_hit(bytes, stream) {
            Hit::Block(addr) => Ok(addr),
            Hit::Rest(rest) => rest.result(),
            Hit::Miss => self.alloc_miss(bytes, stream),
        }
    }

    /// Gives a block back. It may be given out again at once on its own stream, and on another one as soon as its
    /// uses there allow it. Any thread may free; nothing waits for the device.
    ///
    /// # Errors
    /// [`Error::UnknownPointer`] and [`Error::DoubleFree`], which change nothing; [`Error::Forked`].
    #[inline]
    pub fn free(&self, addr: DevicePtr) -> Result<()> {
        if !forked() && self.core.free_hit(addr, None) {
            Ok(())
        } else {
            self.free_slow(addr, None, Last::Known)
        }
    }

    /// As [`Self::free`], for a block whose last use was on `stream`, live now.
    ///
    /// # Errors
    /// As [`Self::free`], and [`Error::InvalidStream`], which changes nothing.
    pub fn free_on(&self, addr: DevicePtr, stream: Stream) -> Result<()> {
        self.free_slow(addr, None, Last::On(stream))
    }

    /// As [`Self::free`], for a block whose address went where uses are not recorded. With no use recorded any work of the
    /// context may use it: it is given out again only after the context was synchronised.
    ///
    /// # Errors
    /// As [`Self::free`].
    pub fn free_unseen(&self, addr: DevicePtr) -> Result<()> {
        self.free_slow(addr, None, Last::Unknown)
    }

    /// As [`Self::free`], for callers that pass a size: a wrong one is counted, and the block freed by its own.
    ///
    /// # Errors
    /// As [`Self::free`].
    #[inline]
    pub fn free_sized(&self, addr: DevicePtr, bytes: u64) -> Result<()> {
        if !forked() && self.core.free_hit(addr, Some(bytes)) {
            Ok(())
        } else {
            self.free_slow(addr, Some(bytes), Last::Known)
        }
    }

    /// Says that `stream` uses a block of another stream, from now until the block is freed. What `stream` has been
    /// given by then must be done before the block is used elsewhere.
    ///
    /// # Errors
    /// [`Error::UnknownPointer`] or [`Error::DoubleFree`] for what is not a live block, [`Error::InvalidStream`].
    pub fn record_stream(&self, addr: DevicePtr, stream: Stream) -> Result<()> {
        self.add_use(addr, stream)
    }

    /// Says that what `stream`, live now, has been given so far uses a block of another stream. The block waits for that
    /// alone, not for what the stream is given later; the handle is not used after this call.
    ///
    /// # Errors
    /// As [`Self::record_stream`].
    pub fn record_work(&self, addr: DevicePtr, stream: Stream) -> Result<()> {
        self.add_use_so_far(addr, stream)
    }

    /// Waits for all work of the context. Every block that waited, for events or for this, is ready then.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Driver`] when the device could not be waited for, as while a stream is capturing.
    pub fn synchronize(&self) -> Result<()> {
        self.quiesce().map(|_| ())
    }

    /// The bytes of blocks that wait until the context is synchronised, as nobody knows what uses them.
    pub fn unseen_bytes(&self) -> u64 {
        lock(&self.pending).aside_bytes()
    }

    /// Promises that the handle of this stream, live now, is never destroyed while the pool lives. Then events can be
    /// recorded on it when they are needed; without this, memory that it used goes to other streams only after the whole
    /// context was synchronised. Default streams need no promise.
    ///
    /// # Errors
    /// [`Error::InvalidStream`].
    pub fn keep_stream(&self, stream: Stream) -> Result<()> {
        if let StreamKey::Id(id) = self.known(stream)?.key {
            lock(&self.kept).insert(stream.0, id);
        }
        Ok(())
    }

    /// Whether the stream captures. A default stream does not: asking it would be an error while another one does.
    ///
    /// # Errors
    /// [`Error::InvalidStream`] or [`Error::Forked`].
    pub fn is_capturing(&self, stream: Stream) -> Result<bool> {
        Ok(self.known(stream)?.capturing == Some(true))
    }

    /// Whether [`Self::keep_stream`] was called with this handle.
    pub fn is_kept(&self, stream: Stream) -> bool {
        lock(&self.kept).contains_key(&stream.0)
    }

    /// Gives idle memory back to the driver until at most `target` bytes are reserved, or nothing idle is left. Returns
    /// the bytes given back: no more than it takes, as far as the sizes of the pieces allow. Waits for the device, at most
    /// the time that the setting `wait` allows: nothing that it still uses is unmapped.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Driver`] when the device could not be waited for (a stream is capturing, or the
    /// device has failed). What was given back before stays given back.
    pub fn trim(&self, target: u64) -> Result<u64> {
        let given = self.trim_to(target.into())?;
        self.pages.trim_driver_pool(&self.driver)?;
        Ok(given)
    }

    /// Takes memory from the driver until `bytes` are reserved, ahead of use; of a limit that is no whole number of pages as many as
    /// it has. With virtual memory it serves every stream and size. A slab serves blocks of the legacy stream: those above 1 MiB
    /// first, smaller ones when no more can be had.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the limit or the device does not allow it, [`Error::Driver`], [`Error::Forked`].
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        self.reserve_ahead(bytes)
    }

    /// Bytes held from the driver.
    pub fn reserved_bytes(&self) -> u64 {
        self.pages.reserved()
    }

    /// The most that the pool may hold, in bytes; `None` for no limit but the device.
    pub fn limit(&self) -> Option<u64> {
        self.pages.limit()
    }

    /// Changes the limit. Memory above a lower one is kept until [`Self::trim`], also while blocks are live in the rest, but no
    /// more is taken.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.pages.set_limit(limit);
    }

    /// Whether the block at `addr` is one that this pool gave out, live or not.
    #[inline]
    pub fn owns(&self, addr: DevicePtr) -> bool {
        self.core.metadata.find(addr).is_some()
    }

    /// The part with the hit path, which lives at least as long as the pool.
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// The driver that the pool was made with.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// The device's ordinal.
    pub fn device(&self) -> i32 {
        self.driver.properties().ordinal
    }

    /// The settings that the pool was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whose memory a stream's is. Asks the driver unless it is a default stream: whether it captures first, since the
    /// driver does not tell the identity of a stream that does.
    fn known(&self, stream: Stream) -> Result<Known> {
        if forked() {
            return Err(Error::Forked);
        }
        let refused = |error: DriverError| match error {
            // Where every stream gives the same answer it is not about this one.
            error if is_bad_handle(&error) && self.broken().is_none() => Error::InvalidStream {
                stream: stream.0,
                device: self.device(),
            },
            error => error.into(),
        };
        let (key, capturing) = if stream.is_legacy() {
            (StreamKey::Legacy, None)
        } else if stream == Stream::PER_THREAD {
            // A thread that is ending has no number any more.
            let number = Current::with(|current| current.number).ok_or(Error::InvalidStream {
                stream: stream.0,
                device: self.device(),
            })?;
            (StreamKey::PerThread(number), None)
        } else if self.driver.is_capturing(stream).map_err(refused)? {
            let kept = lock(&self.kept).get(&stream.0).copied();
            (kept.map_or(StreamKey::Capturing(stream.0), StreamKey::Id), Some(true))
        } else {
            let id = self.driver.stream_id(stream).map_err(refused)?;
            (StreamKey::Id(id.0), Some(false))
        };
        Ok(Known { key, capturing })
    }

    /// The arena with this key; made, for a stream that is live now, if there is none.
    fn arena_for(&self, key: ArenaKey, stream: Stream) -> Result<Visit<'_>> {
        // One handle for the legacy stream, whichever came first: hits are found by it.
        let stream = if stream.is_legacy() { Stream::LEGACY } else { stream };
        let may_end = |key| !self.is_durable(key);
        if let Some(arena) = self.core.arena(key, stream, may_end) {
            return Ok(arena);
        }
        // All are taken, and most of their streams and threads are probably gone: what is empty without its idle memory can be
        // another's. A private pool's arena is asked for under the lock of the routes, which a wait for the device takes too.
        if key.private.is_some() {
            return Err(Error::TooMany { what: "streams" });
        }
        self.core.take_magazines(None);
        if self.quiesce().and_then(|_| self.take_idle(0, true)).is_ok() {
            let _alone = self.pressed.write().unwrap_or_else(PoisonError::into_inner);
            self.give_addresses();
            self.core.look_for_vacant_arenas(may_end);
        }
        let arena = self.core.arena(key, stream, may_end);
        arena.ok_or(Error::TooMany { what: "streams" })
    }

    /// The error that every call of the driver gives, once work of the device has failed.
    fn broken(&self) -> Option<DriverError> {
        let asked = self.driver.is_capturing(Stream::LEGACY);
        asked.err().filter(DriverError::is_sticky)
    }

    /// Whether the settings ask for what no hit does.
    fn is_slow(&self) -> bool {
        self.config.poison.is_some() || self.config.guard.is_some()
    }

    /// Whether a stream's handle may be used later than in the call that passed it.
    fn is_durable(&self, key: StreamKey) -> bool {
        match key {
            StreamKey::Legacy => true,
            StreamKey::PerThread(_) | StreamKey::Capturing(_) => false,
            StreamKey::Id(id) => lock(&self.kept).values().any(|&kept| kept == id),
        }
    }
}

/// What a stream is, in the call that passed its handle.
struct Known {
    key: StreamKey,
    /// Whether it is capturing; `None` for default streams, which were not asked.
    capturing: Option<bool>,
}

/// Whether the driver says that a handle is none: destroyed, of another context, or never one.
fn is_bad_handle(error: &DriverError) -> bool {
    const INVALID_VALUE: u32 = 1;
    const CONTEXT_IS_DESTROYED: u32 = 709;
    const INVALID_CONTEXT: u32 = 201;
    const INVALID_HANDLE: u32 = 400;
    matches!(
        error.code,
        INVALID_VALUE | INVALID_CONTEXT | INVALID_HANDLE | CONTEXT_IS_DESTROYED
    )
}

impl<D: Driver> Drop for Pool<D> {
    fn drop(&mut self) {
        self.give_everything_back();
    }
}

impl<D: Driver> std::fmt::Debug for Pool<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("device", &self.device())
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
