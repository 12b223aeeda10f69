//! The pools of a process: of any kind of device, and by device.

mod any;
mod backend;
pub mod held;
pub mod process;
mod slot;

pub use any::{AnyPool, Memory};
pub use backend::{Backend, cuda_devices, devices};
