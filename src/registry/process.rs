//! The process's pools, one for each device, which the exported C functions use. Made at first use, never dropped: blocks
//! are freed after the interpreter has ended, and nothing is torn down at exit.

use super::any::{AnyPool, Memory};
use super::backend::{Backend, unforked};
use super::slot::Slot;
use crate::config::Config;
use crate::driver::DevicePtr;
use crate::error::{ConfigError, Error, Result};
use crate::pool::Core;
use crate::sync::lock;
use std::fmt;
use std::sync::{Arc, Mutex, Once};

/// The most devices that a process can have pools of.
const DEVICES: usize = 64;

static POOLS: [Slot<AnyPool>; DEVICES] = [const { Slot::empty() }; DEVICES];
/// The hit path of each of them, for the C functions: one load, and no question which kind of pool it is.
static CORES: [Slot<Core>; DEVICES] = [const { Slot::empty() }; DEVICES];
static SETTINGS: Mutex<Option<Settings>> = Mutex::new(None);
/// How pools that are made from now on are recorded. Changed and read with [`SETTINGS`] locked.
static RECORDED: Mutex<Option<Recorded>> = Mutex::new(None);

/// How a pool's history is recorded: see [`Pool::start_history`](crate::Pool::start_history).
#[derive(Debug, Clone, Copy)]
pub struct Recorded {
    /// The most events to keep.
    pub most: usize,
    /// Whether with Python's stacks.
    pub stacks: bool,
}

/// What the process's pools are made with.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Whose memory.
    pub backend: Backend,
    /// How.
    pub config: Config,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend:{}", self.backend.name())?;
        let config = self.config.to_string();
        if config.is_empty() {
            Ok(())
        } else {
            write!(f, ",{config}")
        }
    }
}

/// Sets what the process's pools are made with. The same settings may be set again.
///
/// # Errors
/// [`Error::Config`] when other settings are in force already.
pub fn configure(settings: Settings) -> Result<()> {
    let mut current = lock(&SETTINGS);
    match &*current {
        Some(known) if *known != settings => Err(Error::Config(ConfigError {
            key: "settings".to_owned(),
            value: settings.to_string(),
            allowed: format!("what this process set first, {known}"),
        })),
        _ => {
            *current = Some(settings);
            Ok(())
        }
    }
}

/// Every pool that is made from now on records its history from its first byte on; `None` ends that. Pools that are there are
/// not touched.
///
/// # Errors
/// [`Error::Forked`].
pub fn record_later(recorded: Option<Recorded>) -> Result<()> {
    unforked()?;
    // A pool is either there when this returns, or is made afterwards.
    let _making = lock(&SETTINGS);
    *lock(&RECORDED) = recorded;
    Ok(())
}

/// The pool of a device, made if there is none. Without [`configure`] it is one of the real device, with the settings of
/// `FLAGSTONE_CONF`.
///
/// # Errors
/// There is no such device, or no driver, or the settings are not valid.
#[inline]
pub fn pool(device: i32) -> Result<&'static AnyPool> {
    match existing(device) {
        Some(pool) => Ok(pool),
        None => open(device),
    }
}

/// The hit path of a device's pool, if it was made, and if this is not a forked child.
#[cfg(feature = "python")]
#[inline(always)]
pub(crate) fn core(device: i32) -> Option<&'static Core> {
    // A negative number is a large one.
    CORES.get(device as u32 as usize)?.get()
}

/// The pool of a device, if it was made.
#[inline]
pub fn existing(device: i32) -> Option<&'static AnyPool> {
    POOLS.get(usize::try_from(device).ok()?)?.get()
}

/// The pool of a device, made if there is none, to be held like any other.
///
/// # Errors
/// As [`pool`].
pub fn shared(device: i32) -> Result<Arc<AnyPool>> {
    let pool: *const AnyPool = pool(device)?;
    // SAFETY: made by `Arc::into_raw` in `open`; the count that `open` leaked keeps it alive while we add ours.
    unsafe {
        Arc::increment_strong_count(pool);
        Ok(Arc::from_raw(pool))
    }
}

/// All pools that were made.
pub fn all() -> impl Iterator<Item = &'static AnyPool> {
    (0..DEVICES as i32).filter_map(existing)
}

/// Whether one of them knows of a capture under way, which a wait for the device would end.
pub(super) fn may_capture() -> bool {
    all().any(AnyPool::may_capture)
}

/// The pool that gave out the block at `addr`, looking at the one of `device` first.
#[inline]
pub fn owner(addr: DevicePtr, device: i32) -> Option<&'static AnyPool> {
    let first = existing(device).filter(|pool| pool.owns(addr));
    first.or_else(|| all().find(|pool| pool.owns(addr)))
}

/// In a forked child there are no hits: the slow paths say what is wrong.
extern "C" fn in_child() {
    CORES.iter().for_each(Slot::clear);
}

fn watch_fork() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler is a function of this library, which is never unloaded once it has a pool for the process, and does
    // nothing but store pointers. Failure (no memory) leaves forks unnoticed.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

#[cold]
fn open(device: i32) -> Result<&'static AnyPool> {
    unforked()?;
    // One at a time: two pools of one device would share its limit unknowingly.
    let mut current = lock(&SETTINGS);
    if let Some(pool) = existing(device) {
        return Ok(pool);
    }
    let settings = match &*current {
        Some(settings) => settings.clone(),
        None => Settings {
            backend: Backend::Cuda,
            config: Config::from_env()?,
        },
    };
    let pool = AnyPool::open(Memory::Device, device, settings.backend, settings.config.clone())?;
    // The devices that there are have been counted by now: this is one of them.
    let count = DEVICES as i32;
    let slot = usize::try_from(device).ok().and_then(|device| POOLS.get(device));
    let slot = slot.ok_or(Error::NoSuchDevice { device, count })?;
    *current = Some(settings);
    // SAFETY: the count of `into_raw` is never given back: pools are leaked on purpose.
    let pool: &'static AnyPool = unsafe { &*Arc::into_raw(Arc::new(pool)) };
    if let Some(Recorded { most, stacks }) = *lock(&RECORDED) {
        pool.start_history(most, stacks);
    }
    slot.set(pool);
    watch_fork();
    CORES[device as usize].set(pool.core());
    Ok(pool)
}
