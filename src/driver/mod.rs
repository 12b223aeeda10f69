//! What a device must give. The only layer that knows which kind of device there is.
//!
//! `cuda` asks a real driver through cudarc; `sim` is a simulated device in this process. Every method may be called from
//! any thread, on a thread with any (or no) current context, and while any stream is capturing: an implementation
//! pushes and pops its context and exchanges the capture mode by itself. No method panics.

#[cfg(all(feature = "cuda", not(loom)))]
pub mod cuda;
mod numa;
pub mod pinned;
#[cfg(not(loom))]
pub mod sim;

use std::time::Duration;

/// An address on the device.
pub type DevicePtr = u64;

/// A stream handle as the caller passed it: a `CUstream` as a number.
///
/// Handles can come back as other streams after they are destroyed; [`StreamId`] never does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream(pub usize);

impl Stream {
    /// The legacy default stream (handle 0).
    pub const LEGACY: Self = Self(0);
    /// The per-thread default stream (handle 2): another stream in each thread.
    pub const PER_THREAD: Self = Self(2);

    /// Handles 0 and 1 both name the legacy default stream.
    #[must_use]
    pub const fn is_legacy(self) -> bool {
        self.0 <= 1
    }
}

/// The identity of a stream for the life of the process (`cuStreamGetId`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// A driver event, owned by whoever created it until [`Driver::event_destroy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event(pub usize);

/// A physical allocation of the device (`CUmemGenericAllocationHandle`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// One of the driver's own stream-ordered pools (`CUmemoryPool`), owned by whoever made it until
/// [`Driver::pool_destroy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemoryPool(pub usize);

/// What one of the driver's own pools keeps and gives out again. The default is the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions {
    /// How many bytes it keeps when the host waits for the device (`RELEASE_THRESHOLD`).
    pub release_threshold: u64,
    /// Whether memory goes to a stream that waits for an event after the free (`REUSE_FOLLOW_EVENT_DEPENDENCIES`).
    pub follow_event_dependencies: bool,
    /// Whether memory goes to any stream when the free has come to pass (`REUSE_ALLOW_OPPORTUNISTIC`).
    pub allow_opportunistic: bool,
    /// Whether the driver makes a stream wait for a free, to give it the memory (`REUSE_ALLOW_INTERNAL_DEPENDENCIES`).
    pub allow_internal_dependencies: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            release_threshold: 0,
            follow_event_dependencies: true,
            allow_opportunistic: true,
            allow_internal_dependencies: true,
        }
    }
}

/// What does not change about a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// The device's ordinal.
    pub ordinal: i32,
    /// Its name.
    pub name: String,
    /// Its memory, in bytes.
    pub total_bytes: u64,
    /// The unit of physical allocations and mappings, in bytes (2 MiB on present devices).
    pub granularity: u64,
    /// Whether virtual memory management works (reserve, create, map, set access).
    pub virtual_memory: bool,
    /// Whether the driver's own stream-ordered pools work.
    pub memory_pools: bool,
}

/// The code of every call after a reset of the device.
const CONTEXT_IS_DESTROYED: u32 = 709;

/// A driver call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {name} (error {code}){}", self.advice())]
pub struct DriverError {
    /// The driver function.
    pub call: &'static str,
    /// The `CUresult` code.
    pub code: u32,
    /// Its name, as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: &'static str,
}

impl DriverError {
    /// The device has no memory left (`CUDA_ERROR_OUT_OF_MEMORY`).
    #[must_use]
    pub const fn is_out_of_memory(&self) -> bool {
        self.code == 2
    }

    /// Every later call of the context fails with the same code, until the process ends: work of the device failed
    /// (`CUDA_ERROR_ILLEGAL_ADDRESS`, `CUDA_ERROR_LAUNCH_FAILED` and the like), or the device was reset.
    #[must_use]
    pub const fn is_sticky(&self) -> bool {
        matches!(
            self.code,
            214 | 220 | 226 | 700 | 702 | CONTEXT_IS_DESTROYED | 710 | 714..=719 | 721
        )
    }

    /// What to do about an error that does not end.
    const fn advice(&self) -> &'static str {
        match self.code {
            CONTEXT_IS_DESTROYED => {
                ": the device was reset, and all memory of this process on it is gone; start the process anew"
            }
            _ if self.is_sticky() => {
                ": work of the device failed earlier, and nothing works on it until the process is started anew; \
                 CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer shows which"
            }
            _ => "",
        }
    }
}

/// The result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;

/// A device.
pub trait Driver: Send + Sync + 'static {
    /// What does not change about the device.
    fn properties(&self) -> &Properties;

    /// Free and total device memory in bytes, as every process sees it (`cuMemGetInfo`).
    fn memory_info(&self) -> DriverResult<(u64, u64)>;

    /// The stream that memory taken ahead of use belongs to.
    fn home(&self) -> Stream {
        Stream::LEGACY
    }

    /// A slab of device memory, at least 512-byte aligned (`cuMemAlloc`).
    fn alloc(&self, bytes: u64) -> DriverResult<DevicePtr>;
    /// Gives a slab back (`cuMemFree`). Waits for the device, as the real call does.
    fn free(&self, addr: DevicePtr) -> DriverResult<()>;

    /// Reserves addresses; `bytes` and the result are multiples of the granularity (`cuMemAddressReserve`).
    fn reserve(&self, bytes: u64) -> DriverResult<DevicePtr>;
    /// Gives addresses back, whole and unmapped (`cuMemAddressFree`).
    fn unreserve(&self, addr: DevicePtr, bytes: u64) -> DriverResult<()>;
    /// Takes physical memory, a multiple of the granularity (`cuMemCreate`).
    fn create(&self, bytes: u64) -> DriverResult<Handle>;
    /// Gives physical memory back once it is unmapped everywhere (`cuMemRelease`).
    fn release(&self, handle: Handle) -> DriverResult<()>;
    /// Maps a whole handle at a reserved, unmapped address (`cuMemMap`). No access yet.
    fn map(&self, addr: DevicePtr, bytes: u64, handle: Handle) -> DriverResult<()>;
    /// Gives the device (and every device that can be its peer) access to a mapped range (`cuMemSetAccess`).
    fn set_access(&self, addr: DevicePtr, bytes: u64) -> DriverResult<()>;
    /// Unmaps whole mappings (`cuMemUnmap`). Nothing on the device may still use them.
    fn unmap(&self, addr: DevicePtr, bytes: u64) -> DriverResult<()>;

    /// A pool of the driver's own, whose memory every device that can be a peer has access to (`cuMemPoolCreate`).
    fn pool_create(&self, options: &PoolOptions) -> DriverResult<MemoryPool>;
    /// Destroys a pool; its memory goes back once it is freed (`cuMemPoolDestroy`).
    fn pool_destroy(&self, pool: MemoryPool) -> DriverResult<()>;
    /// A slab from a pool, for work that the stream is given from now on (`cuMemAllocFromPoolAsync`). Illegal on a
    /// capturing stream.
    fn pool_alloc(&self, pool: MemoryPool, bytes: u64, stream: Stream) -> DriverResult<DevicePtr>;
    /// Gives a slab back to its pool when the stream has done what it was given so far (`cuMemFreeAsync`). Illegal on a
    /// capturing stream.
    fn pool_free(&self, addr: DevicePtr, stream: Stream) -> DriverResult<()>;
    /// Gives what a pool keeps above `keep` bytes back to the device (`cuMemPoolTrimTo`).
    fn pool_trim(&self, pool: MemoryPool, keep: u64) -> DriverResult<()>;

    /// A stream that waits for no other (`cuStreamCreate`), owned by the caller.
    fn new_stream(&self) -> DriverResult<Stream>;
    /// Destroys a stream; its work goes on (`cuStreamDestroy`).
    fn drop_stream(&self, stream: Stream) -> DriverResult<()>;
    /// The identity of a live stream that is not a default one (`cuStreamGetId`).
    fn stream_id(&self, stream: Stream) -> DriverResult<StreamId>;
    /// Whether the stream is capturing (`cuStreamIsCapturing`).
    fn is_capturing(&self, stream: Stream) -> DriverResult<bool>;
    /// The number of the capture that the stream, which is capturing, is part of: no other capture has or had it
    /// (`cuStreamGetCaptureInfo`).
    fn capture_id(&self, stream: Stream) -> DriverResult<u64>;
    /// Makes later work of `stream` wait for the event (`cuStreamWaitEvent`).
    fn stream_wait(&self, stream: Stream, event: Event) -> DriverResult<()>;

    /// Whether the stream is the host itself: what it did is done, it can be named at any time, and it waits for no event.
    fn is_host(&self, _stream: Stream) -> bool {
        false
    }
    /// Fills memory, after what the stream was given before (`cuMemsetD8Async`).
    fn fill(&self, addr: DevicePtr, bytes: u64, value: u8, stream: Stream) -> DriverResult<()>;

    /// Makes an event without timing (`cuEventCreate`).
    fn event_create(&self) -> DriverResult<Event>;
    /// Records the work that the stream has so far (`cuEventRecord`).
    fn event_record(&self, event: Event, stream: Stream) -> DriverResult<()>;
    /// Whether the recorded work is done (`cuEventQuery`).
    fn event_query(&self, event: Event) -> DriverResult<bool>;
    /// Waits on the host for the recorded work (`cuEventSynchronize`), at most so long. Whether it is done.
    fn event_synchronize(&self, event: Event, most: Duration) -> DriverResult<bool>;
    /// Destroys the event (`cuEventDestroy`).
    fn event_destroy(&self, event: Event) -> DriverResult<()>;
    /// Waits on the host for all work of the context (`cuCtxSynchronize`), at most so long. Whether it is done. Illegal while a
    /// stream captures: then an error.
    fn synchronize(&self, most: Duration) -> DriverResult<bool>;

    /// Pinned host memory, page aligned (`cuMemHostAlloc`, portable).
    fn host_alloc(&self, bytes: u64) -> DriverResult<u64>;
    /// Gives pinned host memory back (`cuMemFreeHost`).
    fn host_free(&self, addr: u64) -> DriverResult<()>;
}
