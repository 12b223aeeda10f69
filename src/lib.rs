//! A GPU memory pool (skeleton).
#![warn(missing_docs)]
pub mod driver;
pub mod error;
#[cfg(feature = "trace")]
pub mod trace;
pub use error::{Error, Result};
