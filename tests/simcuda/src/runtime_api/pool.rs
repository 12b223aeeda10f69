//! The stream-ordered pools: a default one for each device. Not for captures, which would make memory nodes of it.
//!
//! A block that was freed is given out again on the stream that it was freed on, or on any once the free has come to pass. It keeps
//! its size. Under pressure, and by trimming, such blocks go back to the device.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flagstone::driver::sim::{CaptureMode, CaptureStatus, Code, CuResult, Device, exchange_capture_mode};
use flagstone::driver::{Event, Stream, StreamId};

use super::{device_of, runtime};
use crate::driver_api::write;
use crate::state::{self, machine};

/// A `cudaMemPool_t`: the device's ordinal and this.
const DEFAULT: usize = 0x900D_0000;
/// Blocks are multiples of this many bytes.
const UNIT: u64 = 512;

/// A device's pool.
#[derive(Default)]
struct Pool {
    /// Bytes of the blocks that are out, by address.
    live: BTreeMap<u64, u64>,
    freed: Vec<Freed>,
}

/// A block that was freed.
struct Freed {
    addr: u64,
    bytes: u64,
    stream: StreamId,
    /// Recorded at the free.
    event: Event,
}

static POOLS: Mutex<BTreeMap<c_int, Pool>> = Mutex::new(BTreeMap::new());

fn pools() -> MutexGuard<'static, BTreeMap<c_int, Pool>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool's own calls are no calls of the program.
fn relaxed<T>(body: impl FnOnce() -> CuResult<T>) -> CuResult<T> {
    let mode = exchange_capture_mode(CaptureMode::Relaxed);
    let done = body();
    exchange_capture_mode(mode);
    done
}

fn device(pool: usize) -> CuResult<&'static Device> {
    let ordinal = pool
        .checked_sub(DEFAULT)
        .and_then(|ordinal| c_int::try_from(ordinal).ok());
    machine()?.device(ordinal.ok_or(Code::INVALID_VALUE)?)
}

fn alloc(device: &Device, bytes: usize, stream: Stream) -> CuResult<u64> {
    if device.stream_is_capturing(stream)? != CaptureStatus::None {
        return Err(Code::NOT_SUPPORTED);
    }
    if bytes == 0 {
        return Ok(0);
    }
    let bytes = (bytes as u64)
        .checked_next_multiple_of(UNIT)
        .ok_or(Code::OUT_OF_MEMORY)?;
    let id = device.stream_get_id(stream)?;
    let mut pools = pools();
    let pool = pools.entry(device.properties().ordinal).or_default();
    relaxed(|| {
        let usable =
            |freed: &Freed| freed.bytes == bytes && (freed.stream == id || device.event_query(freed.event) == Ok(true));
        let addr = if let Some(index) = pool.freed.iter().position(usable) {
            let freed = pool.freed.swap_remove(index);
            device.event_destroy(freed.event)?;
            freed.addr
        } else {
            match device.mem_alloc(bytes) {
                Err(Code::OUT_OF_MEMORY) => {
                    pool.give_back(device, 0)?;
                    device.mem_alloc(bytes)?
                }
                other => other?,
            }
        };
        pool.live.insert(addr, bytes);
        Ok(addr)
    })
}

/// The block was freed in another way.
pub fn forget(addr: u64) {
    for pool in pools().values_mut() {
        pool.live.remove(&addr);
    }
}

impl Pool {
    fn used(&self) -> u64 {
        self.live.values().sum()
    }

    fn reserved(&self) -> u64 {
        self.used() + self.freed.iter().map(|freed| freed.bytes).sum::<u64>()
    }

    /// Gives blocks whose free has come to pass back to the device until the pool holds no more than `keep` bytes.
    fn give_back(&mut self, device: &Device, keep: u64) -> CuResult {
        let mut index = 0;
        while index < self.freed.len() && self.reserved() > keep {
            let event = self.freed[index].event;
            if device.event_query(event)? {
                let freed = self.freed.swap_remove(index);
                device.event_destroy(event)?;
                device.mem_free(freed.addr)?;
            } else {
                index += 1;
            }
        }
        Ok(())
    }
}

runtime! {
    fn cudaMallocAsync(addr: *mut *mut c_void, bytes: usize, stream: usize) {
        let found = alloc(device_of(Stream(stream))?, bytes, Stream(stream))?;
        // SAFETY: the caller's promise.
        unsafe { write(addr, found as *mut c_void) }
    }

    fn cudaMallocFromPoolAsync(addr: *mut *mut c_void, bytes: usize, pool: usize, stream: usize) {
        let found = alloc(device(pool)?, bytes, Stream(stream))?;
        // SAFETY: the caller's promise.
        unsafe { write(addr, found as *mut c_void) }
    }

    fn cudaFreeAsync(addr: *mut c_void, stream: usize) {
        let stream = Stream(stream);
        let device = device_of(stream)?;
        if device.stream_is_capturing(stream)? != CaptureStatus::None {
            return Err(Code::NOT_SUPPORTED);
        }
        let id = device.stream_get_id(stream)?;
        let mut pools = pools();
        let pool = pools.entry(device.properties().ordinal).or_default();
        let bytes = pool.live.remove(&(addr as u64)).ok_or(Code::INVALID_VALUE)?;
        let event = device.event_create(false)?;
        device.event_record(event, stream)?;
        pool.freed.push(Freed { addr: addr as u64, bytes, stream: id, event });
        Ok(())
    }

    fn cudaDeviceGetDefaultMemPool(pool: *mut usize, device: c_int) {
        state::start()?;
        machine()?.device(device)?;
        // SAFETY: the caller's promise.
        unsafe { write(pool, DEFAULT + device as usize) }
    }

    /// The numbers are known, reserved (5, 6) and used (7, 8); the peaks are the present values.
    fn cudaMemPoolGetAttribute(pool: usize, attribute: u32, value: *mut c_void) {
        let ordinal = device(pool)?.properties().ordinal;
        let pools = pools();
        let found = pools.get(&ordinal).map_or(0, |pool| match attribute {
            5 | 6 => pool.reserved(),
            7 | 8 => pool.used(),
            _ => 0,
        });
        // SAFETY: the caller promises room for a `cuuint64_t`: all that are asked for here are.
        unsafe { write(value.cast::<u64>(), found) }
    }

    /// What a pool may keep and reuse is as above.
    fn cudaMemPoolSetAttribute(pool: usize, _attribute: u32, _value: *mut c_void) {
        device(pool).map(drop)
    }

    /// Other devices do not get at the memory by kernels, whatever they are given.
    fn cudaMemPoolSetAccess(pool: usize, _descriptors: *const c_void, _count: usize) {
        device(pool).map(drop)
    }

    fn cudaMemPoolTrimTo(pool: usize, keep: usize) {
        let device = device(pool)?;
        let mut pools = pools();
        let pool = pools.entry(device.properties().ordinal).or_default();
        relaxed(|| pool.give_back(device, keep as u64))
    }
}
