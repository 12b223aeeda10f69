//! A simulated CUDA device in this process, as strict as a real one, for tests and for replaying recordings.
//!
//! [`Device`] has the driver's functions: memory, virtual memory management, pinned host memory, streams, events and
//! capture, with the driver's rules and result codes. [`Sim`] makes a [`Driver`](crate::driver::Driver) of it. Nothing
//! happens by itself: work takes effect in stream order as the device's clock is advanced, streams can be held, calls
//! can be made to fail, and each call has a price. A checker finds what a real device would answer with wrong data,
//! an illegal address or a hang.
//!
//! Linux only. What it models and what not is in `docs/simulation.md`.
//!
//! A block that one stream still uses must not be given to another:
//!
//! ```
//! use flagstone::driver::sim::{Device, Options, StreamKind, Violation, Work};
//!
//! let device = Device::new(Options::default());
//! let addr = device.mem_alloc(4096)?;
//! let (compute, copy) = (device.stream_create(StreamKind::NonBlocking)?, device.stream_create(StreamKind::NonBlocking)?);
//! device.launch(compute, Work::new().fills(addr, 4096, 7).takes(10_000))?;
//!
//! assert!(matches!(device.check_handout(addr, 4096, copy), Err(Violation::Handout { .. })));
//!
//! let event = device.event_create(false)?;
//! device.event_record(event, compute)?;
//! device.advance(10_000); // nanoseconds
//! assert!(device.event_query(event)?);
//! assert!(device.check_handout(addr, 4096, copy).is_ok());
//! # Ok::<(), flagstone::driver::sim::Code>(())
//! ```

mod address_space;
mod allocations;
mod calls;
mod capture;
mod checker;
mod codes;
mod contents;
mod device;
mod driver;
mod events;
mod faults;
mod host;
mod host_map;
mod legacy;
mod mappings;
mod measured;
mod memory;
mod options;
mod order;
mod physical;
mod prices;
mod ranges;
mod streams;
mod thread;
mod timeline;
mod touches;
mod violations;
mod work;

pub use calls::{Call, PerCall};
pub use capture::{CaptureMode, CaptureStatus, Graph};
pub use codes::{Code, CuResult};
pub use contents::{MemoryKind, Usage};
pub use device::Device;
pub use driver::Sim;
pub use faults::Fault;
pub use options::Options;
pub use prices::{Price, Prices};
pub use streams::StreamKind;
pub use thread::exchange_capture_mode;
pub use violations::Violation;
pub use work::Work;
