//! The runtime's functions that torch uses, over the same devices as the driver's. The runtime is that of CUDA 13, and in a
//! process that was built for CUDA 12 that one: see [`major`].

mod capture;
mod copy;
mod device;
mod elementwise;
mod entry_point;
mod error;
mod event;
mod kernel;
mod major;
mod memory;
mod pool;
mod properties;
mod stream;
mod unsupported;

pub use copy::{Way, copy, is_device};
pub use error::describe;
pub use kernel::idle as idle_kernels;
pub use memory::{host_register, host_unregister, is_registered, owner};

use flagstone::driver::sim::{Code, CuResult, Device};
use flagstone::driver::{Event, Stream};

use crate::driver_api::context::current_or_first;
use crate::owners;
use crate::state::machine;

/// Defines exported functions of the runtime: as `export!`, and what fails is the thread's last error.
macro_rules! runtime {
    ($( $(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block )*) => { $(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)] // the runtime's names
        unsafe extern "C" fn $name($($argument: $kind),*) -> u32 {
            $crate::runtime_api::error::remember($crate::calls::run(stringify!($name), move || $body))
        }
    )* };
}
use runtime;

/// The device of a stream. A default stream is that of the current device.
fn device_of(stream: Stream) -> CuResult<&'static Device> {
    let current = current_or_first()?;
    owners::of_stream(stream).map_or(Ok(current), |ordinal| machine()?.device(ordinal))
}

/// The device of an event. A handle that never was one goes to the current device, which refuses it.
fn device_of_event(event: Event) -> CuResult<&'static Device> {
    let current = current_or_first()?;
    owners::of_event(event).map_or(Ok(current), |ordinal| machine()?.device(ordinal))
}

/// The current device, if the stream is one of its own: other streams take no kernels.
pub fn current_for(stream: Stream) -> CuResult<&'static Device> {
    let (current, own) = (current_or_first()?, device_of(stream)?);
    if std::ptr::eq(current, own) {
        Ok(current)
    } else {
        Err(Code::INVALID_HANDLE)
    }
}
