//! What kind of device to simulate.

use super::{Prices, host_map};

/// A simulated device's properties. Start from the default and change what matters:
///
/// ```
/// use flagstone::driver::sim::{Options, Sim};
/// let sim = Sim::new(Options { capacity: 1 << 30, virtual_memory: false, ..Options::default() });
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The device's ordinal.
    pub ordinal: i32,
    /// Its name.
    pub name: String,
    /// Its memory, in bytes. 16 GiB by default.
    pub capacity: u64,
    /// The unit of physical memory in bytes, 2 MiB by default. Other values are rounded up to a power of two of at least a
    /// page of the host.
    pub granularity: u64,
    /// Whether virtual memory management works.
    pub virtual_memory: bool,
    /// Whether the device says that it has the driver's stream-ordered pools. They are not simulated.
    pub memory_pools: bool,
    /// Whether memory has bytes, readable and writable by the host at the device's addresses. Without, addresses cost
    /// nothing, so that a recording of a large device can be replayed on a small machine.
    pub backed: bool,
    /// Whether a host that touches device memory gets a segmentation fault, as with a real device. The bytes are then at
    /// other addresses of the process ([`Device::host_address`](super::Device::host_address)), and a device has no more
    /// than 2 TiB of addresses in all.
    pub strict: bool,
    /// Events complete at the earliest this many nanoseconds after they were recorded.
    pub lag_ns: u64,
    /// What each driver call costs.
    pub prices: Prices,
    /// Whether the device's clock advances by the price of each call.
    pub prices_advance_clock: bool,
    /// Pinned host memory that can be had, in bytes.
    pub host_capacity: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ordinal: 0,
            name: "Simulated GPU".to_owned(),
            capacity: 16 << 30,
            granularity: 2 << 20,
            virtual_memory: true,
            memory_pools: false,
            backed: true,
            strict: false,
            lag_ns: 0,
            prices: Prices::default(),
            prices_advance_clock: false,
            host_capacity: u64::MAX,
        }
    }
}

impl Options {
    pub(super) fn with_valid_granularity(mut self) -> Self {
        let most = 1 << 40;
        self.granularity = self.granularity.clamp(host_map::page_bytes(), most).next_power_of_two();
        self
    }
}
