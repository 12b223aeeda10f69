#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

pub mod bytes;
pub mod config;
pub mod driver;
pub mod error;
pub mod histogram;
pub mod history;
#[cfg(all(feature = "trace", not(loom)))]
pub mod replay;
pub mod size_class;
pub mod stats;
#[cfg(all(feature = "trace", not(loom)))]
pub mod trace;

mod freelist;
mod sync;

mod arena;
#[cfg(all(feature = "python", not(loom)))]
pub mod capi;
mod metadata;
mod pages;
mod pool;
#[cfg(all(feature = "python", not(loom)))]
mod python;
#[cfg(not(loom))]
pub mod registry;
// In a model there is no Python and no device: of these there is what its threads meet in.
#[cfg(loom)]
mod python {
    mod exports;
}
#[cfg(loom)]
mod registry {
    mod slot;
}
mod stream;
mod thread;

pub use config::Config;
pub use error::{Error, Result};
pub use pool::{CallbackId, Pool, PrivateId};
pub use stats::{AddressInfo, AddressState, BlockInfo, BlockState, GivenOut, Snapshot, Stats, StepTotal, Totals};
