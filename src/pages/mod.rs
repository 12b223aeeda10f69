//! Memory from the driver: what a pool holds of its device, against its limit, and handles that are ready to be mapped.
//!
//! Invariants:
//! - `reserved` = bytes of all mapped handles + of all spare handles + of all slabs;
//! - `reserved` is at most the limit that was in force when it last grew.

mod account;
mod choice;
mod driver_pool;
mod spare;

pub(crate) use driver_pool::DriverPool;

use crate::arena::Mapping;
use crate::driver::{DevicePtr, Driver, DriverError, DriverResult, Handle, Properties, Stream};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use account::Account;
use std::sync::atomic::Ordering::Relaxed;

/// No limit but the device.
const UNLIMITED: u64 = u64::MAX;

/// What PyTorch's expandable segments use for each handle of large memory, in bytes: fewer and larger ones cost less. Also the
/// size of those that are taken ahead.
const USUAL_HANDLE: u64 = 20 << 20;

/// The largest, unless the configuration says otherwise: larger ones would save little, and are rarely free as a whole.
const LARGEST_HANDLE: u64 = 64 << 20;

/// Why memory could not be had.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The pool's limit, or the device, has no more.
    Full,
    /// The driver failed for another reason.
    Failed(DriverError),
}

impl From<DriverError> for Refusal {
    fn from(error: DriverError) -> Self {
        if error.is_out_of_memory() {
            Self::Full
        } else {
            Self::Failed(error)
        }
    }
}

/// Memory could not be mapped.
#[derive(Debug)]
pub(crate) struct Unmapped {
    pub(crate) refusal: Refusal,
    /// Mapped, without access, and not to be unmapped at the moment.
    pub(crate) stuck: Vec<Mapping>,
}

/// How new handles are cut.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cut {
    /// Two of them meet at this address, where it is within.
    pub(crate) seam: u64,
    /// There are other streams that they may serve, as wholes.
    pub(crate) streams: bool,
}

/// How much memory is to stay when some is given back: at most `bytes`, as near to that as the sizes of the pieces allow, and
/// never less than `floor`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Target {
    pub(crate) bytes: u64,
    pub(crate) floor: u64,
}

impl From<u64> for Target {
    fn from(bytes: u64) -> Self {
        Self { bytes, floor: 0 }
    }
}

/// What was taken from the driver so far and what went back, in bytes and in handles and slabs.
pub(crate) struct Taken {
    pub(crate) bytes: u64,
    pub(crate) given_bytes: u64,
    pub(crate) takes: u64,
    pub(crate) gives: u64,
}

/// The page layer of one pool.
pub(crate) struct Pages {
    reserved: Account,
    limit: AtomicU64,
    /// What the device has: the most whatever the limit says.
    capacity: u64,
    /// Bytes to leave free on the device for others.
    headroom: u64,
    /// The unit of memory, in bytes.
    granularity: u64,
    /// The largest handle, in bytes; and where several streams use memory in turn.
    largest_handle: u64,
    largest_passed_on: u64,
    /// Where slabs come from, unless they come from `cuMemAlloc`.
    driver_pool: Option<DriverPool>,
    /// Handles created so far.
    created: AtomicU64,
    /// Handles and slabs taken so far, and given back.
    takes: AtomicU64,
    gives: AtomicU64,
    /// Bytes taken so far, and given back.
    taken: AtomicU64,
    given: AtomicU64,
    /// The most handles and slabs that were held.
    peak_pieces: AtomicU64,
    /// Unmapped handles with their bytes, smallest first.
    spare: Mutex<Vec<(u64, Handle)>>,
}

impl Pages {
    pub(crate) fn new(
        limit: Option<u64>,
        headroom: u64,
        handle: u64,
        properties: &Properties,
        driver_pool: Option<DriverPool>,
    ) -> Self {
        let handle = handle.checked_next_multiple_of(properties.granularity);
        let handle = handle.filter(|&bytes| bytes > 0);
        Self {
            reserved: Account::default(),
            limit: AtomicU64::new(limit.unwrap_or(UNLIMITED)),
            capacity: properties.total_bytes,
            headroom,
            granularity: properties.granularity,
            largest_handle: handle.unwrap_or(LARGEST_HANDLE),
            largest_passed_on: handle.unwrap_or(USUAL_HANDLE),
            driver_pool,
            created: AtomicU64::new(0),
            takes: AtomicU64::new(0),
            gives: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            given: AtomicU64::new(0),
            peak_pieces: AtomicU64::new(0),
            spare: Mutex::default(),
        }
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.held()
    }

    /// The most bytes, and the most handles and slabs, that were held.
    pub(crate) fn peaks(&self) -> (u64, u64) {
        (self.reserved.peak(), self.peak_pieces.load(Relaxed))
    }

    /// The same as they begin again.
    pub(crate) fn reset_peaks(&self) -> (u64, u64) {
        (
            self.reserved.reset_peak(),
            self.peak_pieces.swap(self.pieces(), Relaxed),
        )
    }

    /// Handles and slabs that are held.
    fn pieces(&self) -> u64 {
        // Relaxed, as everywhere here: numbers only.
        let gives = self.gives.load(Relaxed);
        self.takes.load(Relaxed).saturating_sub(gives)
    }

    /// What was taken from the driver so far.
    pub(crate) fn taken(&self) -> Taken {
        // In this order: what went back had been taken.
        let (given_bytes, gives) = (self.given.load(Relaxed), self.gives.load(Relaxed));
        Taken {
            bytes: self.taken.load(Relaxed),
            given_bytes,
            takes: self.takes.load(Relaxed),
            gives,
        }
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Relaxed)).filter(|&limit| limit != UNLIMITED)
    }

    pub(crate) fn set_limit(&self, limit: Option<u64>) {
        self.limit.store(limit.unwrap_or(UNLIMITED), Relaxed);
    }

    /// The most that can be held now: the limit, or the device's memory.
    pub(crate) fn most(&self) -> u64 {
        self.limit.load(Relaxed).min(self.capacity)
    }

    /// Whether handles are large enough on average for one more: creating them is what costs most in the driver.
    pub(crate) fn affords_seam(&self) -> bool {
        self.created.load(Relaxed) * USUAL_HANDLE.min(self.largest_handle) < self.reserved()
    }

    /// How many bytes of the device's headroom others have taken, or growth by `bytes` would take.
    pub(crate) fn intrusion(&self, driver: &impl Driver, bytes: u64) -> DriverResult<u64> {
        if self.headroom == 0 {
            return Ok(0);
        }
        let (free, _) = driver.memory_info()?;
        Ok(self.headroom.saturating_add(bytes).saturating_sub(free))
    }

    /// Counts `bytes` and takes them from the driver, unless that would pass the limit or take what is to stay free on the
    /// device. What the driver refuses was never held, so it does not count for the peak.
    fn book<T>(&self, driver: &impl Driver, bytes: u64, take: impl FnOnce() -> DriverResult<T>) -> Result<T, Refusal> {
        let limit = self.most();
        if self.reserved().saturating_add(bytes) <= limit && self.intrusion(driver, bytes)? > 0 {
            return Err(Refusal::Full);
        }
        let sum = self.reserved.book(bytes, limit).ok_or(Refusal::Full)?;
        let taken = take().inspect_err(|_| self.reserved.unbook(bytes))?;
        self.reserved.raise_peak(sum);
        self.taken.fetch_add(bytes, Relaxed);
        let takes = self.takes.fetch_add(1, Relaxed) + 1;
        let pieces = takes.saturating_sub(self.gives.load(Relaxed));
        self.peak_pieces.fetch_max(pieces, Relaxed);
        Ok(taken)
    }

    /// Counts what was given back to the driver.
    fn give(&self, bytes: u64) {
        self.gives.fetch_add(1, Relaxed);
        self.given.fetch_add(bytes, Relaxed);
        self.reserved.unbook(bytes);
    }

    /// A slab from the driver, for work of `stream`, which is live now.
    pub(crate) fn take_slab(&self, driver: &impl Driver, bytes: u64, stream: Stream) -> Result<DevicePtr, Refusal> {
        self.book(driver, bytes, || match &self.driver_pool {
            Some(pool) => pool.alloc(driver, bytes, stream),
            None => driver.alloc(bytes),
        })
    }

    /// Gives a slab back. Nothing on the device may still use it.
    pub(crate) fn give_slab(&self, driver: &impl Driver, addr: DevicePtr, bytes: u64) -> DriverResult<()> {
        match &self.driver_pool {
            Some(pool) => pool.free(driver, addr)?,
            None => driver.free(addr)?,
        }
        self.give(bytes);
        Ok(())
    }

    /// What a pool of the driver's own keeps of slabs that were given back goes back to the device.
    pub(crate) fn trim_driver_pool(&self, driver: &impl Driver) -> DriverResult<()> {
        self.driver_pool.as_ref().map_or(Ok(()), |pool| pool.trim(driver))
    }

    /// The pool is going away. Slabs that are still held stay.
    pub(crate) fn destroy_driver_pool(&self, driver: &impl Driver) {
        if let Some(pool) = &self.driver_pool {
            pool.destroy(driver);
        }
    }

    /// Maps `bytes` of memory at `addr`: what was lent first (it stays mapped where it is, too), then spare handles, then
    /// new ones. All or nothing, unless the driver fails twice: then what could not
    /// be unmapped again is in the error.
    pub(crate) fn map(
        &self,
        driver: &impl Driver,
        addr: u64,
        bytes: u64,
        cut: Cut,
        lent: &[Mapping],
    ) -> Result<Vec<Mapping>, Unmapped> {
        let lent_bytes: u64 = lent.iter().map(|mapping| mapping.bytes).sum();
        let own = self.take_handles(driver, addr + lent_bytes, bytes - lent_bytes, cut);
        let own = own.map_err(|refusal| Unmapped {
            refusal,
            stuck: Vec::new(),
        })?;
        let own_pieces = own.iter().map(|&(bytes, handle)| Mapping {
            addr: 0,
            bytes,
            handle,
            touched: 0,
        });
        let mut mappings: Vec<Mapping> = lent.iter().copied().chain(own_pieces).collect();
        let mut at = addr;
        let mut mapped = 0;
        let mut result = Ok(());
        for mapping in &mut mappings {
            mapping.addr = at;
            at += mapping.bytes;
            result = driver.map(mapping.addr, mapping.bytes, mapping.handle);
            if result.is_err() {
                break;
            }
            mapped += 1;
        }
        // One call over the whole run: the price is by the call.
        let Err(error) = result.and_then(|()| driver.set_access(addr, bytes)) else {
            return Ok(mappings);
        };
        let mut stuck = Vec::new();
        for (place, mapping) in mappings.into_iter().enumerate() {
            if place < mapped && driver.unmap(mapping.addr, mapping.bytes).is_err() {
                stuck.push(mapping);
            } else if place >= lent.len() {
                self.put_spare(vec![(mapping.bytes, mapping.handle)]);
            }
        }
        Err(Unmapped {
            refusal: error.into(),
            stuck,
        })
    }

    /// Handles of `bytes` together for the addresses from `addr` on: spare ones, then new ones.
    fn take_handles(
        &self,
        driver: &impl Driver,
        addr: u64,
        bytes: u64,
        cut: Cut,
    ) -> Result<Vec<(u64, Handle)>, Refusal> {
        let Cut { seam, streams } = cut;
        let largest = if streams {
            self.largest_passed_on
        } else {
            self.largest_handle
        };
        let mut handles = self.take_spare(bytes);
        let mut have = handles.iter().map(|(bytes, _)| bytes).sum::<u64>();
        while have < bytes {
            let within = addr + have < seam && seam < addr + bytes;
            let end = if within { seam - addr } else { bytes };
            let end = end.min(have + largest);
            match self.create(driver, end - have) {
                Ok(handle) => handles.push((end - have, handle)),
                Err(refusal) => {
                    self.put_spare(handles);
                    return Err(refusal);
                }
            }
            have = end;
        }
        Ok(handles)
    }

    fn create(&self, driver: &impl Driver, bytes: u64) -> Result<Handle, Refusal> {
        let handle = self.book(driver, bytes, || driver.create(bytes))?;
        self.created.fetch_add(1, Relaxed);
        Ok(handle)
    }

    /// Unmaps memory, whose handle is spare then. Nothing on the device may still use it.
    pub(crate) fn unmap(&self, driver: &impl Driver, mapping: &Mapping) -> DriverResult<()> {
        driver.unmap(mapping.addr, mapping.bytes)?;
        self.put_spare(vec![(mapping.bytes, mapping.handle)]);
        Ok(())
    }
}
