#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

pub mod bytes;
pub mod config;
pub mod driver;
pub mod error;
pub mod histogram;
#[cfg(not(loom))]
pub mod history;
#[cfg(all(feature = "trace", not(loom)))]
pub mod replay;
pub mod size_class;
pub mod stats;
#[cfg(feature = "trace")]
pub mod trace;

mod freelist;
mod sync;

#[cfg(not(loom))]
mod arena;
#[cfg(all(feature = "python", not(loom)))]
pub mod capi;
#[cfg(not(loom))]
mod metadata;
#[cfg(not(loom))]
mod pages;
#[cfg(not(loom))]
mod pool;
#[cfg(all(feature = "python", not(loom)))]
mod python;
#[cfg(not(loom))]
pub mod registry;
#[cfg(not(loom))]
mod stream;
#[cfg(not(loom))]
mod thread;

pub use config::Config;
pub use error::{Error, Result};
#[cfg(not(loom))]
pub use pool::{CallbackId, Pool, PrivateId};
pub use stats::{AddressInfo, AddressState, BlockInfo, BlockState, Snapshot, Stats, StepTotal};
