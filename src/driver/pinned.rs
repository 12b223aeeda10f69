//! Pinned host memory as a driver's memory: `Pool<Pinned<D>>` cuts and merges host buffers exactly as device memory.

use super::numa::{NODES, current_node};
use super::{
    DevicePtr, Driver, DriverError, DriverResult, Event, Handle, MemoryPool, PoolOptions, Properties, Stream, StreamId,
};
use std::time::Duration;

/// The host as a stream, one for each NUMA node, counted down from here: what it did is done. Host code writes a block as
/// soon as it has it, so blocks are allocated on the stream of the thread's node, and each stream that copies from or to one is
/// recorded as a use; then a block is not given out again while a copy may still run, on whatever stream.
const HOST: usize = usize::MAX;

/// The least that is pinned at once, in bytes: the host's pages are small, and the labels of a batch few.
const GRANULARITY: u64 = 64 << 10;

/// The stream of a node.
const fn host(node: usize) -> Stream {
    Stream(HOST - node)
}

/// The identity of a host stream. No stream of a driver has it: those are counted from 1.
fn host_id(stream: Stream) -> Option<StreamId> {
    let node = HOST - stream.0;
    (node < NODES).then(|| StreamId(u64::MAX - node as u64))
}

/// A driver whose slabs are pinned host memory; streams and events are those of the driver within.
///
/// The operating system takes the memory from the node of the thread that has it pinned.
///
/// There is no virtual memory: slabs come from `cuMemHostAlloc` and go back by `cuMemFreeHost`. Freeing pinned memory waits for
/// the device, as it does in CUDA.
#[derive(Debug, Clone)]
pub struct Pinned<D> {
    driver: D,
    properties: Properties,
    node: fn() -> usize,
}

impl<D: Driver> Pinned<D> {
    /// Pinned memory for copies to and from the driver's device. `capacity` is the most that will be pinned, in bytes;
    /// the operating system may refuse earlier.
    pub fn new(driver: D, capacity: u64) -> Self {
        Self::with_nodes(driver, capacity, current_node)
    }

    /// As [`Self::new`], where `node` says on which NUMA node the calling thread runs, below 64.
    pub fn with_nodes(driver: D, capacity: u64, node: fn() -> usize) -> Self {
        let properties = Properties {
            name: format!("pinned host memory for {}", driver.properties().name),
            total_bytes: capacity,
            granularity: GRANULARITY,
            virtual_memory: false,
            memory_pools: false,
            ..driver.properties().clone()
        };
        Self {
            driver,
            properties,
            node,
        }
    }

    /// The driver within.
    pub fn driver(&self) -> &D {
        &self.driver
    }
}

/// The answer of every call that is about memory of another kind.
fn unsupported<T>(call: &'static str) -> DriverResult<T> {
    Err(DriverError {
        call,
        code: 801,
        name: "CUDA_ERROR_NOT_SUPPORTED",
    })
}

impl<D: Driver> Driver for Pinned<D> {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The capacity, both ways: what the operating system has left to pin cannot be asked.
    fn memory_info(&self) -> DriverResult<(u64, u64)> {
        Ok((self.properties.total_bytes, self.properties.total_bytes))
    }

    fn home(&self) -> Stream {
        host((self.node)())
    }

    fn alloc(&self, bytes: u64) -> DriverResult<DevicePtr> {
        self.driver.host_alloc(bytes)
    }

    fn free(&self, addr: DevicePtr) -> DriverResult<()> {
        self.driver.host_free(addr)
    }

    fn reserve(&self, _bytes: u64) -> DriverResult<DevicePtr> {
        unsupported("cuMemAddressReserve")
    }

    fn unreserve(&self, _addr: DevicePtr, _bytes: u64) -> DriverResult<()> {
        unsupported("cuMemAddressFree")
    }

    fn create(&self, _bytes: u64) -> DriverResult<Handle> {
        unsupported("cuMemCreate")
    }

    fn release(&self, _handle: Handle) -> DriverResult<()> {
        unsupported("cuMemRelease")
    }

    fn map(&self, _addr: DevicePtr, _bytes: u64, _handle: Handle) -> DriverResult<()> {
        unsupported("cuMemMap")
    }

    fn set_access(&self, _addr: DevicePtr, _bytes: u64) -> DriverResult<()> {
        unsupported("cuMemSetAccess")
    }

    fn unmap(&self, _addr: DevicePtr, _bytes: u64) -> DriverResult<()> {
        unsupported("cuMemUnmap")
    }

    fn pool_create(&self, _options: &PoolOptions) -> DriverResult<MemoryPool> {
        unsupported("cuMemPoolCreate")
    }

    fn pool_destroy(&self, _pool: MemoryPool) -> DriverResult<()> {
        unsupported("cuMemPoolDestroy")
    }

    fn pool_alloc(&self, _pool: MemoryPool, _bytes: u64, _stream: Stream) -> DriverResult<DevicePtr> {
        unsupported("cuMemAllocFromPoolAsync")
    }

    fn pool_free(&self, _addr: DevicePtr, _stream: Stream) -> DriverResult<()> {
        unsupported("cuMemFreeAsync")
    }

    fn pool_trim(&self, _pool: MemoryPool, _keep: u64) -> DriverResult<()> {
        unsupported("cuMemPoolTrimTo")
    }

    fn new_stream(&self) -> DriverResult<Stream> {
        self.driver.new_stream()
    }

    fn drop_stream(&self, stream: Stream) -> DriverResult<()> {
        self.driver.drop_stream(stream)
    }

    fn stream_id(&self, stream: Stream) -> DriverResult<StreamId> {
        match host_id(stream) {
            Some(id) => Ok(id),
            None => self.driver.stream_id(stream),
        }
    }

    fn is_capturing(&self, stream: Stream) -> DriverResult<bool> {
        if host_id(stream).is_some() {
            Ok(false)
        } else {
            self.driver.is_capturing(stream)
        }
    }

    fn capture_id(&self, stream: Stream) -> DriverResult<u64> {
        if host_id(stream).is_some() {
            unsupported("cuStreamGetCaptureInfo")
        } else {
            self.driver.capture_id(stream)
        }
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> DriverResult<()> {
        if host_id(stream).is_some() {
            unsupported("cuStreamWaitEvent")
        } else {
            self.driver.stream_wait(stream, event)
        }
    }

    fn is_host(&self, stream: Stream) -> bool {
        host_id(stream).is_some()
    }

    /// By the host, at once, where the stream is one of its own.
    fn fill(&self, addr: DevicePtr, bytes: u64, value: u8, stream: Stream) -> DriverResult<()> {
        if !self.is_host(stream) {
            return self.driver.fill(addr, bytes, value, stream);
        }
        // SAFETY: the caller holds a block of pinned memory, which the host can write, and nobody else uses it.
        unsafe { core::ptr::write_bytes(addr as *mut u8, value, bytes as usize) };
        Ok(())
    }

    fn event_create(&self) -> DriverResult<Event> {
        self.driver.event_create()
    }

    fn event_record(&self, event: Event, stream: Stream) -> DriverResult<()> {
        // The host has nothing to record: an event of the default stream is done no earlier.
        let recorded = if host_id(stream).is_some() {
            Stream::LEGACY
        } else {
            stream
        };
        self.driver.event_record(event, recorded)
    }

    fn event_query(&self, event: Event) -> DriverResult<bool> {
        self.driver.event_query(event)
    }

    fn event_synchronize(&self, event: Event, most: Duration) -> DriverResult<bool> {
        self.driver.event_synchronize(event, most)
    }

    fn event_destroy(&self, event: Event) -> DriverResult<()> {
        self.driver.event_destroy(event)
    }

    fn synchronize(&self, most: Duration) -> DriverResult<bool> {
        self.driver.synchronize(most)
    }

    fn host_alloc(&self, bytes: u64) -> DriverResult<u64> {
        self.driver.host_alloc(bytes)
    }

    fn host_free(&self, addr: u64) -> DriverResult<()> {
        self.driver.host_free(addr)
    }
}
