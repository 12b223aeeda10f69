//! The driver's functions, in files by the part of the interface that they belong to.

pub mod capture;
pub mod context;
mod copy;
mod entry_point;
mod event;
mod host;
mod init;
mod memory;
mod pointer;
mod pools;
mod stream;
mod unsupported;
mod vmm;

use flagstone::driver::sim::{Code, CuResult};

pub use entry_point::write_entry_point;
pub use init::{VERSION, attribute, uuid};
pub use vmm::is_open;

/// Writes a result where the caller wants it. A null pointer is an invalid value, as in the driver.
///
/// # Safety
/// `out` is null or valid for a write.
pub unsafe fn write<T>(out: *mut T, value: T) -> CuResult {
    if out.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and valid by the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}
