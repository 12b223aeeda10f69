//! The pools of a process: of any kind of device, and by device.

mod any;
pub mod held;
pub mod process;
mod slot;

pub use any::{AnyPool, Backend, Memory, cuda_devices, devices};
