//! The exported C functions: for torch's pluggable allocator and memory pools, for CuPy, for ctypes.
//!
//! No panic leaves them, none takes the interpreter's lock, none prints, and all work after the interpreter has ended.
//! What fails is counted by the pool and kept as the thread's last error.

mod error;
mod filter;
mod hooks;
mod memory;
mod own_streams;
mod throw;

pub use error::last_error;
pub use hooks::*;
pub use memory::*;
pub use throw::{Throws, throws};
