//! What can go wrong, with the numbers that say what to do about it.

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
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Why there is no CUDA in this process. The answer does not change while the process lives.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
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

/// The numbers of a request that could not be met, all in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested: u64,
    /// The pool's device.
    pub device: i32,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes asked for on device {}", self.requested, self.device)
    }
}

impl std::error::Error for OutOfMemory {}
