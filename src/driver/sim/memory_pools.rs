//! The driver's stream-ordered pools: memory that is allocated and freed in the order of streams.
//!
//! A block that was freed is given out again, whole, where a policy allows it: on the stream that it was freed on always. What
//! a pool keeps above its threshold goes back to the device when the host waits for it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::driver::{DevicePtr, MemoryPool, PoolOptions, Stream, StreamId};

use super::device::{Device, State};
use super::timeline::Record;
use super::{Call, Code, CuResult, Violation};

/// Blocks are multiples of this many bytes.
const UNIT: u64 = 512;

/// The pools of a device.
#[derive(Default)]
pub(super) struct MemoryPools {
    all: HashMap<usize, Pool>,
    /// The pool of each live block, and its bytes, by address.
    live: HashMap<u64, (usize, u64)>,
    /// The highest number given out.
    last: usize,
}

struct Pool {
    options: PoolOptions,
    freed: Vec<Freed>,
    /// Destroyed: what is freed goes back to the device.
    closed: bool,
}

/// A block that was freed.
struct Freed {
    addr: u64,
    bytes: u64,
    stream: StreamId,
    /// The free, in the order of its stream.
    record: Arc<Record>,
}

impl Device {
    /// A pool of this device's memory, with all policies on and no threshold.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for a device without pools.
    pub fn mem_pool_create(&self) -> CuResult<MemoryPool> {
        self.pool_call(Call::MemPoolCreate, |state| {
            let pools = &mut state.memory_pools;
            pools.last += 1;
            let pool = Pool {
                options: PoolOptions::default(),
                freed: Vec::new(),
                closed: false,
            };
            pools.all.insert(pools.last, pool);
            Ok(MemoryPool(pools.last))
        })
    }

    /// Changes what a pool keeps and reuses.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such pool.
    pub fn mem_pool_set(&self, pool: MemoryPool, change: impl FnOnce(&mut PoolOptions)) -> CuResult {
        self.pool_call(Call::MemPoolSetAttribute, |state| {
            change(&mut state.open_pool(pool)?.options);
            Ok(())
        })
    }

    /// Destroys a pool. Its memory goes back to the device as soon as it is freed.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such pool.
    pub fn mem_pool_destroy(&self, pool: MemoryPool) -> CuResult {
        self.pool_call(Call::MemPoolDestroy, |state| {
            state.open_pool(pool)?.closed = true;
            state.shrink_pool(pool.0, 0)
        })
    }

    /// Memory of at least `bytes` from a pool, for work that the stream is given from now on. Not for captures.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes or where there is no such pool; `INVALID_HANDLE` where there is no such stream;
    /// `OUT_OF_MEMORY`; `NOT_SUPPORTED` on a capturing stream.
    pub fn mem_alloc_from_pool_async(&self, bytes: u64, pool: MemoryPool, stream: Stream) -> CuResult<DevicePtr> {
        let call = Call::MemAllocFromPoolAsync;
        self.pool_call(call, |state| {
            let id = state.pool_stream(call, stream)?;
            let bytes = bytes.checked_next_multiple_of(UNIT).ok_or(Code::OUT_OF_MEMORY)?;
            state.open_pool(pool)?;
            if bytes == 0 {
                return Err(Code::INVALID_VALUE);
            }
            let addr = match state.reuse(pool, bytes, id) {
                Some(addr) => addr,
                None => {
                    self.charge(state, call, self.options().prices.cost(Call::MemAlloc, bytes));
                    match state.take_for_pool(bytes) {
                        Err(Code::OUT_OF_MEMORY) => {
                            state.shrink_pool(pool.0, 0)?;
                            state.take_for_pool(bytes)?
                        }
                        other => other?,
                    }
                }
            };
            state.memory_pools.live.insert(addr, (pool.0, bytes));
            Ok(addr)
        })
    }

    /// Frees a block once the stream has done what it was given so far. Work of other streams that is not known to come
    /// before is a violation.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an address that no pool gave; `INVALID_HANDLE` where there is no such stream; `NOT_SUPPORTED` on a
    /// capturing stream.
    pub fn mem_free_async(&self, addr: DevicePtr, stream: Stream) -> CuResult {
        let call = Call::MemFreeAsync;
        self.pool_call(call, |state| {
            let id = state.pool_stream(call, stream)?;
            let &(pool, bytes) = state.memory_pools.live.get(&addr).ok_or(Code::INVALID_VALUE)?;
            state.before_operation(call, id)?;
            state.memory_pools.live.remove(&addr);
            if let Some((at, user)) = state.unordered(id, addr, addr + bytes, true) {
                state.violations.add(Violation::UnmappedInUse { call, addr: at, user });
            }
            let record = state.record(id, 0);
            let freed = Freed {
                addr,
                bytes,
                stream: id,
                record,
            };
            let Some(owner) = state.memory_pools.all.get_mut(&pool) else {
                return Ok(());
            };
            owner.freed.push(freed);
            if owner.closed {
                state.shrink_pool(pool, 0)
            } else {
                Ok(())
            }
        })
    }

    /// Gives what a pool keeps and the device is done with back, until it keeps at most `keep` bytes.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such pool.
    pub fn mem_pool_trim_to(&self, pool: MemoryPool, keep: u64) -> CuResult {
        self.pool_call(Call::MemPoolTrimTo, |state| {
            state.open_pool(pool)?;
            state.shrink_pool(pool.0, keep)
        })
    }

    /// Bytes that a pool holds of the device, live and freed.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such pool.
    pub fn mem_pool_reserved(&self, pool: MemoryPool) -> CuResult<u64> {
        let mut state = self.lock();
        state.open_pool(pool)?;
        Ok(state.memory_pools.reserved(pool.0))
    }

    fn pool_call<T>(&self, call: Call, body: impl FnOnce(&mut State) -> CuResult<T>) -> CuResult<T> {
        self.call(call, 0, |state| {
            if !self.options().memory_pools {
                return Err(Code::NOT_SUPPORTED);
            }
            body(state)
        })
    }
}

impl MemoryPools {
    fn reserved(&self, pool: usize) -> u64 {
        let live = self.live.values().filter(|&&(owner, _)| owner == pool);
        let freed = self.all.get(&pool).into_iter().flat_map(|pool| &pool.freed);
        live.map(|&(_, bytes)| bytes).sum::<u64>() + freed.map(|freed| freed.bytes).sum::<u64>()
    }
}

impl State {
    /// The host has waited: pools give back what they keep above their thresholds.
    pub fn shrink_pools(&mut self) -> CuResult {
        let all = self.memory_pools.all.iter();
        let thresholds: Vec<(usize, u64)> = all
            .map(|(&pool, known)| (pool, known.options.release_threshold))
            .collect();
        for (pool, threshold) in thresholds {
            self.shrink_pool(pool, threshold)?;
        }
        Ok(())
    }

    fn open_pool(&mut self, pool: MemoryPool) -> CuResult<&mut Pool> {
        let known = self.memory_pools.all.get_mut(&pool.0).filter(|pool| !pool.closed);
        known.ok_or(Code::INVALID_VALUE)
    }

    /// The stream of a pool's operation.
    fn pool_stream(&mut self, call: Call, stream: Stream) -> CuResult<StreamId> {
        let id = self.stream(call, stream)?;
        match self.capturing(id)? {
            Some(_) => Err(Code::NOT_SUPPORTED),
            None => Ok(id),
        }
    }

    fn take_for_pool(&mut self, bytes: u64) -> CuResult<u64> {
        self.allocations.alloc(bytes, &mut self.physical, &mut self.addresses)
    }

    /// A freed block of these bytes that the stream may have by one of the policies.
    fn reuse(&mut self, pool: MemoryPool, bytes: u64, id: StreamId) -> Option<u64> {
        let clock = self.streams.get(id).clock.clone();
        let pool = self.memory_pools.all.get_mut(&pool.0)?;
        let options = pool.options;
        let fits = |freed: &&Freed| freed.bytes == bytes;
        let place = |usable: &dyn Fn(&Freed) -> bool| pool.freed.iter().position(|freed| fits(&freed) && usable(freed));
        let ordered = |freed: &Freed| clock.get(freed.record.stream) >= freed.record.op;
        let at = place(&|freed| freed.stream == id)
            .or_else(|| place(&|freed| options.follow_event_dependencies && ordered(freed)))
            .or_else(|| place(&|freed| options.allow_opportunistic && freed.record.is_done()))
            .or_else(|| place(&|_| options.allow_internal_dependencies))?;
        let freed = pool.freed.swap_remove(at);
        if freed.stream != id {
            self.wait(id, &freed.record);
        }
        Some(freed.addr)
    }

    /// Gives freed blocks that the device is done with back to it, until the pool holds at most `keep` bytes.
    fn shrink_pool(&mut self, number: usize, keep: u64) -> CuResult {
        let mut reserved = self.memory_pools.reserved(number);
        let Some(pool) = self.memory_pools.all.get_mut(&number) else {
            return Ok(());
        };
        let mut given = Vec::new();
        pool.freed.retain(|freed| {
            let back = reserved > keep && freed.record.is_done();
            if back {
                reserved -= freed.bytes;
                given.push((freed.addr, freed.bytes));
            }
            !back
        });
        for (addr, bytes) in given {
            self.touches.forget(addr, addr + bytes);
            self.allocations.free(addr, &mut self.physical, &mut self.addresses)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{Options, StreamKind, Work};

    const MIB: u64 = 1 << 20;
    const NONE: PoolOptions = PoolOptions {
        release_threshold: u64::MAX,
        follow_event_dependencies: false,
        allow_opportunistic: false,
        allow_internal_dependencies: false,
    };

    /// A pool, two streams, and a block that the first freed while its work goes on.
    fn scene(options: PoolOptions) -> (Device, MemoryPool, [Stream; 2], u64) {
        let device = Device::new(Options {
            capacity: 64 * MIB,
            ..Options::default()
        });
        let pool = device.mem_pool_create().expect("a pool");
        device.mem_pool_set(pool, |set| *set = options).expect("a pool");
        let streams = [(); 2].map(|()| device.stream_create(StreamKind::NonBlocking).expect("a stream"));
        let addr = device
            .mem_alloc_from_pool_async(8 * MIB, pool, streams[0])
            .expect("memory");
        let work = Work::new().writes(addr, 8 * MIB).takes(100);
        device.launch(streams[0], work).expect("a launch");
        device.mem_free_async(addr, streams[0]).expect("live");
        (device, pool, streams, addr)
    }

    #[test]
    fn each_policy_lets_a_block_go_to_another_stream() {
        let (device, pool, [own, other], addr) = scene(NONE);
        let new = device.mem_alloc_from_pool_async(8 * MIB, pool, other).expect("memory");
        assert_ne!(new, addr);
        device.advance(100);
        let more = device.mem_alloc_from_pool_async(8 * MIB, pool, other).expect("memory");
        assert_ne!(more, addr, "done, but not to be looked at");
        let again = device.mem_alloc_from_pool_async(8 * MIB, pool, own);
        assert_eq!(again, Ok(addr), "the own stream may have it");

        let (device, pool, [own, other], addr) = scene(PoolOptions {
            follow_event_dependencies: true,
            ..NONE
        });
        let event = device.event_create(false).expect("an event");
        device.event_record(event, own).expect("a record");
        device.stream_wait_event(other, event).expect("a wait");
        assert_eq!(device.mem_alloc_from_pool_async(8 * MIB, pool, other), Ok(addr));

        let (device, pool, [_, other], addr) = scene(PoolOptions {
            allow_opportunistic: true,
            ..NONE
        });
        device.advance(100);
        assert_eq!(device.mem_alloc_from_pool_async(8 * MIB, pool, other), Ok(addr));

        let (device, pool, [_, other], addr) = scene(PoolOptions {
            allow_internal_dependencies: true,
            ..NONE
        });
        assert_eq!(device.mem_alloc_from_pool_async(8 * MIB, pool, other), Ok(addr));
        device
            .check_handout(addr, 8 * MIB, other)
            .expect("the stream was made to wait");
        assert_eq!(device.violations(), []);
    }

    #[test]
    fn what_is_kept_goes_back_by_threshold_trimming_and_need() {
        let (device, pool, [own, _], _) = scene(PoolOptions {
            release_threshold: 8 * MIB,
            ..NONE
        });
        assert_eq!(device.mem_pool_trim_to(pool, 0), Ok(()));
        assert_eq!(
            device.mem_pool_reserved(pool),
            Ok(8 * MIB),
            "the free has not come to pass"
        );
        device.ctx_synchronize().expect("done");
        assert_eq!(
            device.mem_pool_reserved(pool),
            Ok(8 * MIB),
            "no more than the threshold"
        );
        device.mem_pool_trim_to(pool, 0).expect("a pool");
        assert_eq!(
            (device.mem_pool_reserved(pool), device.usage().physical_bytes),
            (Ok(0), 0)
        );
        let whole = device.mem_alloc_from_pool_async(64 * MIB, pool, own).expect("memory");
        device.mem_free_async(whole, own).expect("live");
        let part = device
            .mem_alloc_from_pool_async(40 * MIB, pool, own)
            .expect("what is kept makes room");
        device.mem_pool_destroy(pool).expect("a pool");
        assert_eq!(
            device.mem_alloc_from_pool_async(MIB, pool, own),
            Err(Code::INVALID_VALUE)
        );
        device.mem_free_async(part, own).expect("live");
        assert_eq!(device.mem_free_async(part, own), Err(Code::INVALID_VALUE));
        assert_eq!(device.usage().physical_bytes, 0);
    }

    #[test]
    fn a_free_that_other_work_does_not_come_before_is_a_violation() {
        let (device, pool, [own, other], _) = scene(NONE);
        let addr = device.mem_alloc_from_pool_async(MIB, pool, own).expect("memory");
        let work = Work::new().reads(addr, MIB).takes(50);
        device.launch(own, work).expect("a launch");
        device.mem_free_async(addr, other).expect("live");
        assert_eq!(device.take_violations().len(), 1);
    }
}
