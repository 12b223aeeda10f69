//! What a pool holds and has done, as plain numbers; and where each block is.
#![forbid(unsafe_code)]

use crate::bytes;
use crate::driver::{DevicePtr, Stream};
use crate::histogram::Histogram;
use std::fmt;

/// A pool's numbers at one moment. Bytes and counts; exact when no thread allocates or frees meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// The device's ordinal.
    pub device: i32,
    /// Bytes that users asked for and have.
    pub requested_bytes: u64,
    /// The same, rounded to multiples of 512.
    pub allocated_bytes: u64,
    /// Allocated, and freed but waiting for other streams.
    pub active_bytes: u64,
    /// Held from the driver.
    pub reserved_bytes: u64,
    /// Reserved and not active: ready for use.
    pub cached_bytes: u64,
    /// Of those, in the threads' magazines (about).
    pub magazine_bytes: u64,
    /// `requested_bytes` when `allocated_bytes` was highest.
    pub peak_requested_bytes: u64,
    /// Highest `allocated_bytes`: exact with one thread, and never too low. With several, at most 1 MiB a thread too high: blocks up
    /// to 1 MiB count as each has announced them, ahead of use.
    pub peak_allocated_bytes: u64,
    /// Highest `active_bytes`, as exact as `peak_allocated_bytes`.
    pub peak_active_bytes: u64,
    /// Highest `reserved_bytes`, exact.
    pub peak_reserved_bytes: u64,
    /// Blocks that users have.
    pub live_blocks: u64,
    /// `live_blocks` when `allocated_bytes` was highest.
    pub peak_live_blocks: u64,
    /// Blocks given out so far.
    pub alloc_count: u64,
    /// Blocks given back so far.
    pub free_count: u64,
    /// Bytes given back so far, rounded; with `allocated_bytes` the bytes given out so far.
    pub freed_bytes: u64,
    /// Bytes given back so far, as asked for; with `requested_bytes` the bytes asked for so far.
    pub freed_requested_bytes: u64,
    /// Requests that no magazine could meet.
    pub miss_count: u64,
    /// How long requests took that a thread's own magazine met: of each thread's about one in 1,024.
    pub hit_times: Histogram,
    /// How long those took that no list of ready blocks could meet either, and that got their memory.
    pub miss_times: Histogram,
    /// Times that the pool grew: by idle memory, by memory from the driver, or by both.
    pub growth_count: u64,
    /// Bytes taken from the driver so far.
    pub taken_bytes: u64,
    /// Bytes given back to it so far. What is left is `reserved_bytes`.
    pub given_bytes: u64,
    /// Pieces of memory taken from the driver so far: handles, or slabs.
    pub take_count: u64,
    /// Pieces given back.
    pub give_count: u64,
    /// The most pieces held.
    pub peak_held_count: u64,
    /// Times that the whole context was waited for.
    pub synchronize_count: u64,
    /// Blocks that wait for other streams.
    pub pending_blocks: u64,
    /// Events recorded for uses on other streams.
    pub event_count: u64,
    /// How often a stream was made to wait, on the device, for another one's memory.
    pub stream_wait_count: u64,
    /// Runs of contiguous memory.
    pub segments: u64,
    /// The largest free range of any stream.
    pub largest_free_bytes: u64,
    /// Requests that failed for want of memory.
    pub out_of_memory_count: u64,
    /// Requests that needed more than growth, whether they failed or not.
    pub pressure_count: u64,
    /// Frees of pointers that the pool did not give out.
    pub invalid_free_count: u64,
    /// Frees of blocks that were free already.
    pub double_free_count: u64,
    /// Frees with a size that was not the block's.
    pub wrong_size_free_count: u64,
    /// Uses recorded for pointers that are not live blocks.
    pub invalid_record_count: u64,
    /// Driver calls that failed while memory was given back; what they concern is kept or abandoned.
    pub driver_error_count: u64,
    /// The most that the pool may hold; `None` for no limit but the device.
    pub limit: Option<u64>,
    /// Host memory for the records of blocks and slabs.
    pub host_bytes: u64,
    /// Of all this, the part of blocks above 1 MiB.
    pub large: LargeStats,
    /// The steps that are taken before a request fails, in order.
    pub steps: Vec<StepTotal>,
}

/// The part of a pool's numbers that is of blocks above 1 MiB; each as in [`Stats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LargeStats {
    /// Blocks that users have.
    pub live_blocks: u64,
    /// `live_blocks` when the `allocated_bytes` of all blocks were highest, as other peaks here.
    pub peak_live_blocks: u64,
    /// Blocks that wait for other streams.
    pub pending_blocks: u64,
    /// Blocks given out so far.
    pub alloc_count: u64,
    /// Blocks given back so far.
    pub free_count: u64,
    /// Bytes that users asked for and have.
    pub requested_bytes: u64,
    /// The same at the peak.
    pub peak_requested_bytes: u64,
    /// Bytes given back so far, as asked for.
    pub freed_requested_bytes: u64,
    /// `requested_bytes`, rounded.
    pub allocated_bytes: u64,
    /// The same at the peak.
    pub peak_allocated_bytes: u64,
    /// Bytes given back so far, rounded.
    pub freed_bytes: u64,
    /// Allocated, and freed but waiting for other streams.
    pub active_bytes: u64,
    /// Held from the driver for such blocks, or for none yet.
    pub reserved_bytes: u64,
}

/// A step that is taken before a request fails, over all requests of a pool so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepTotal {
    /// What is done.
    pub name: &'static str,
    /// How often it was taken.
    pub count: u64,
    /// How often the request had its memory then.
    pub sufficed: u64,
    /// How often the device was not done in the time that the step may wait.
    pub timed_out: u64,
    /// Time that it took together, with the attempt after it.
    pub nanoseconds: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("requested", self.requested_bytes, Some(self.peak_requested_bytes)),
            ("allocated", self.allocated_bytes, Some(self.peak_allocated_bytes)),
            ("active", self.active_bytes, Some(self.peak_active_bytes)),
            ("cached", self.cached_bytes, None),
            ("reserved", self.reserved_bytes, Some(self.peak_reserved_bytes)),
        ];
        writeln!(f, "device {:<8} {:>12} {:>12}", self.device, "now", "peak")?;
        for (name, now, peak) in rows {
            let peak = peak.map_or_else(String::new, bytes::format);
            writeln!(f, "{name:<15} {:>12} {peak:>12}", bytes::format(now))?;
        }
        write!(
            f,
            "{} blocks live, {} allocations, {} frees, {} misses, {} times out of memory",
            self.live_blocks, self.alloc_count, self.free_count, self.miss_count, self.out_of_memory_count
        )
    }
}

/// What one stream got of one size, so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GivenOut {
    /// The stream's handle, as first passed; `None` for all streams and private pools that are gone.
    pub stream: Option<Stream>,
    /// The private pool that it was for, if any.
    pub private: Option<(u64, u64)>,
    /// Bytes of each block, rounded to a multiple of 512; above 1 MiB the next power of two.
    pub size: u64,
    /// How many blocks.
    pub alloc_count: u64,
    /// Their bytes, as asked for.
    pub requested_bytes: u64,
    /// Their bytes, rounded to multiples of 512.
    pub allocated_bytes: u64,
}

/// What a pool has given out so far, whether it came back or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Totals {
    /// The device's ordinal.
    pub device: i32,
    /// By stream, private pool and size.
    pub given_out: Vec<GivenOut>,
}

/// A block that a user has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// First address.
    pub addr: DevicePtr,
    /// Size, rounded.
    pub bytes: u64,
    /// Size as asked for.
    pub requested: u64,
    /// The handle of the stream that it belongs to, as first passed.
    pub stream: Stream,
}

/// What the block around an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressState {
    /// Given out.
    Live,
    /// Freed, and waiting for the device.
    Waiting,
    /// Freed.
    Freed,
}

impl AddressState {
    /// The name that Python sees.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Waiting => "waiting",
            Self::Freed => "freed",
        }
    }
}

/// Whose an address is, or was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressInfo {
    /// The block.
    pub block: BlockInfo,
    /// What it is now.
    pub state: AddressState,
    /// Bytes from the block's first address to this one: outside of it when negative, or not below `block.requested`.
    pub offset: i64,
}

/// What a piece of a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// Given out.
    ActiveAllocated,
    /// Freed, and waiting for other streams.
    ActivePendingFree,
    /// Ready for use.
    Inactive,
}

impl BlockState {
    /// The name that PyTorch's snapshots use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

/// A piece of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotBlock {
    /// First address.
    pub addr: DevicePtr,
    /// Size.
    pub bytes: u64,
    /// Size as asked for; 0 when inactive.
    pub requested: u64,
    /// What it is.
    pub state: BlockState,
}

/// A run of contiguous memory of one stream, its blocks in address order and side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSegment {
    /// First address.
    pub addr: DevicePtr,
    /// Size.
    pub bytes: u64,
    /// The stream whose memory it is.
    pub stream: Stream,
    /// The private pool that it belongs to, if any.
    pub private: Option<(u64, u64)>,
    /// Blocks up to 16 KiB (`slabs`), up to 1 MiB (`small`) or above (`large`).
    pub kind: &'static str,
    /// Its blocks.
    pub blocks: Vec<SnapshotBlock>,
}

/// Everything that a pool holds. Each stream's part is of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The device's ordinal.
    pub device: i32,
    /// By stream, kind and address.
    pub segments: Vec<SnapshotSegment>,
}
