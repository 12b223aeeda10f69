//! A GPU memory pool: device memory is taken in slabs once, and blocks are given out in tens of nanoseconds.
#![warn(missing_docs)]

pub mod bytes;
pub mod config;
pub mod driver;
pub mod error;
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
#[cfg(not(loom))]
mod metadata;
#[cfg(not(loom))]
mod pages;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod stream;
#[cfg(not(loom))]
mod thread;

pub use config::Config;
pub use error::{Error, Result};
#[cfg(not(loom))]
pub use pool::{Pool, PrivateId};
pub use stats::{BlockInfo, BlockState, Snapshot, Stats};
