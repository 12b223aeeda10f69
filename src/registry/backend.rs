//! Where a pool's memory is from, and what devices there are.

use std::str::FromStr;

#[cfg(feature = "cuda")]
use crate::driver::cuda::Cuda;
use crate::driver::sim::{Options as SimOptions, Sim};
use crate::driver::{Driver, Properties};
#[cfg(not(feature = "cuda"))]
use crate::error::Unavailable;
use crate::error::{ConfigError, Error, Result};
use crate::pool::forked;

/// Which kind of device a pool asks for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// A real device where a driver and a device are there, otherwise a simulated one.
    Auto,
    /// A real device.
    Cuda,
    /// A simulated device in this process.
    Sim,
}

impl Backend {
    /// The name that users give it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cuda => "cuda",
            Self::Sim => "sim",
        }
    }

    /// `Cuda` or `Sim`: what `Auto` means in this process. Loads the driver where there is one.
    #[must_use]
    pub fn resolve(self) -> Self {
        match self {
            Self::Auto if cuda_devices().is_ok() => Self::Cuda,
            Self::Auto => Self::Sim,
            named => named,
        }
    }
}

/// In a forked child the driver is asked nothing, not even what there is: a lock of its own that another thread of the parent
/// held is never let go of there.
pub(super) fn unforked() -> Result<()> {
    if forked() { Err(Error::Forked) } else { Ok(()) }
}

/// How many CUDA devices there are, at least 1. Loads the driver where there is one.
///
/// # Errors
/// There is no CUDA in this process, and why.
pub fn cuda_devices() -> Result<i32> {
    unforked()?;
    #[cfg(feature = "cuda")]
    return Ok(Cuda::device_count()?);
    #[cfg(not(feature = "cuda"))]
    return Err(Unavailable::NotBuilt.into());
}

/// The properties of every device.
///
/// # Errors
/// There is no CUDA in this process, or a device cannot be opened.
pub fn devices(backend: Backend) -> Result<Vec<Properties>> {
    unforked()?;
    match backend.resolve() {
        #[cfg(feature = "cuda")]
        Backend::Cuda => (0..cuda_devices()?)
            .map(|ordinal| Ok(Cuda::new(ordinal)?.properties().clone()))
            .collect(),
        #[cfg(not(feature = "cuda"))]
        Backend::Cuda => Err(Unavailable::NotBuilt.into()),
        Backend::Sim | Backend::Auto => Ok(vec![simulated().properties().clone()]),
    }
}

impl FromStr for Backend {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        let all = [Self::Auto, Self::Cuda, Self::Sim];
        all.into_iter()
            .find(|backend| backend.name() == name)
            .ok_or_else(|| ConfigError {
                key: "backend".to_owned(),
                value: name.to_owned(),
                allowed: all.map(Self::name).join(", "),
            })
    }
}

/// The memory of a simulated device that nobody described: that of a middling GPU.
const SIMULATED_BYTES: u64 = 24 << 30;

/// A device that nobody described.
pub(super) fn simulated() -> Sim {
    Sim::new(SimOptions {
        capacity: SIMULATED_BYTES,
        ..SimOptions::default()
    })
}
