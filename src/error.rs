//! What can go wrong, with the numbers that say what to do about it.

use crate::bytes;
use crate::driver::DriverError;

/// The result of a pool operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request failed. Every failure leaves the pool's accounts as they were.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No memory could be had after every step of the ladder. Free something, ask for less, or raise the limit.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// A driver call failed. Sticky device errors (illegal access, launch failure) make every later call fail too.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The request can never succeed on this device.
    #[error("{requested} bytes asked for, more than the {most} bytes that one block may have; ask for less")]
    TooLarge {
        /// Bytes asked for.
        requested: u64,
        /// The most that one block may have, in bytes.
        most: u64,
    },
    /// The pointer was not given out by this pool. Nothing was changed.
    #[error("{addr:#x} was not given out by this pool; pass the pointer that alloc returned, to the same pool")]
    UnknownPointer {
        /// The address that was passed.
        addr: u64,
    },
    /// The pointer was given back already. Nothing was changed.
    #[error("{addr:#x} was freed already; each block is freed once")]
    DoubleFree {
        /// The address that was passed.
        addr: u64,
    },
    /// The stream was destroyed, belongs to another device, or is not a stream.
    #[error("stream {stream:#x} is not a live stream of device {device}; pass a stream that exists")]
    InvalidStream {
        /// The handle that was passed.
        stream: usize,
        /// The pool's device.
        device: i32,
    },
    /// There is no such device.
    #[error("device {device} does not exist: {count} found; pass 0 to count - 1")]
    NoSuchDevice {
        /// The ordinal that was passed.
        device: i32,
        /// How many devices there are.
        count: i32,
    },
    /// There is no CUDA in this process: no driver, no device, or a driver that does not start.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// This process was forked after the pool was made. The driver does not work in a forked child: use spawn.
    #[error("this process was forked after the pool was made, where CUDA does not work; start processes with spawn")]
    Forked,
    /// The pool has run out of records: 65,535 streams and as many thread caches at most.
    #[error("the pool has too many {what} (65,535 at most); use streams again instead of making new ones")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
    },
    /// A fault of flagstone itself: please report it. The request failed; the pool's accounts may be wrong by its size.
    #[error(
        "flagstone has a fault: a panic was stopped at its boundary; please report it with the program that shows it"
    )]
    Internal,
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Why there is no CUDA in this process. The answer does not change while the process lives.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// This build has no CUDA driver.
    #[error("this build is without CUDA: build with the feature cuda, or use the simulated device")]
    NotBuilt,
    /// The dynamic loader finds no driver library.
    #[error(
        "no CUDA driver: libcuda.so.1 cannot be loaded; install NVIDIA's driver, or start the process with its folder on \
         LD_LIBRARY_PATH, or use the simulated device"
    )]
    NoLibrary,
    /// The library lacks a function that every driver since CUDA 11 has.
    #[error(
        "the CUDA driver library has no function {name}: it is too old or not NVIDIA's; install driver 450 or newer"
    )]
    MissingSymbol {
        /// The name that was looked up.
        name: &'static str,
    },
    /// The driver works and has no device.
    #[error("the CUDA driver finds no device; see nvidia-smi, CUDA_VISIBLE_DEVICES and the container's devices")]
    NoDevice,
    /// The driver does not start.
    #[error("the CUDA driver does not start: {0}; {advice}", advice = advice(.0.name))]
    Init(DriverError),
}

/// What to do about a driver that does not start.
fn advice(name: &str) -> &'static str {
    match name {
        "CUDA_ERROR_STUB_LIBRARY" => "take the toolkit's lib64/stubs folder out of LD_LIBRARY_PATH",
        "CUDA_ERROR_SYSTEM_NOT_READY" => "start the fabric manager (nvidia-fabricmanager)",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" => "the driver was upgraded under the running kernel module: reboot",
        _ => "see nvidia-smi and the kernel log",
    }
}

/// A key or value that the configuration does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("configuration key {key:?}: {value:?} is not allowed; allowed: {allowed}")]
pub struct ConfigError {
    /// The key as given.
    pub key: String,
    /// The value as given.
    pub value: String,
    /// What is allowed, in words.
    pub allowed: String,
}

/// The numbers of a request that could not be met. All in bytes; what happened meanwhile in other threads may show.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested: u64,
    /// The pool's device.
    pub device: i32,
    /// The pool's limit; `None` when only the device limits it.
    pub limit: Option<u64>,
    /// Given out, rounded.
    pub allocated: u64,
    /// Freed, and waiting for other streams.
    pub pending: u64,
    /// Held from the driver.
    pub reserved: u64,
    /// Held, and neither given out nor waiting.
    pub cached: u64,
    /// The largest free range of the stream that asked.
    pub largest_free: u64,
    /// Free on the device for any process, if the driver answered.
    pub device_free: Option<u64>,
    /// The device's memory.
    pub device_total: u64,
    /// What was tried, in order.
    pub steps: Vec<Step>,
}

/// One step that was taken to find memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What was done.
    pub name: &'static str,
    /// Bytes that became free for the request's stream, or went back to the driver.
    pub bytes: u64,
    /// Time it took, in nanoseconds.
    pub nanoseconds: u64,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "out of memory on device {}: {} asked for ({} bytes); {} allocated, {} waiting for other streams, {} cached, \
             {} reserved; largest free range {}; ",
            self.device,
            bytes::format(self.requested),
            self.requested,
            bytes::format(self.allocated),
            bytes::format(self.pending),
            bytes::format(self.cached),
            bytes::format(self.reserved),
            bytes::format(self.largest_free),
        )?;
        match self.limit {
            Some(limit) => write!(f, "limit {}; ", bytes::format(limit))?,
            None => f.write_str("no limit set; ")?,
        }
        match self.device_free {
            Some(free) => write!(
                f,
                "device {} free of {}",
                bytes::format(free),
                bytes::format(self.device_total)
            )?,
            None => write!(f, "device {}", bytes::format(self.device_total))?,
        }
        for (i, step) in self.steps.iter().enumerate() {
            let lead = if i == 0 { "; tried: " } else { ", " };
            write!(
                f,
                "{lead}{} ({} in {} us)",
                step.name,
                bytes::format(step.bytes),
                step.nanoseconds / 1000
            )?;
        }
        f.write_str(". Free something, ask for less, or raise the limit")
    }
}

impl std::error::Error for OutOfMemory {}
