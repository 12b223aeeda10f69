//! What is in a device's memory, for tests and for whoever must tell kinds of memory apart.

use crate::driver::DevicePtr;

use super::device::{Device, State};
use super::mappings::end_of;
use super::{Code, CuResult};

/// What a device's memory is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Physical memory held, in bytes.
    pub physical_bytes: u64,
    /// Live results of `cuMemAlloc`.
    pub allocations: usize,
    /// Handles with memory behind them, released or not.
    pub handles: usize,
    /// Reserved addresses, in bytes.
    pub reserved_bytes: u64,
    /// Addresses with a mapping, in bytes; memory that is mapped twice counts twice.
    pub mapped_bytes: u64,
    /// Pinned host memory held, in bytes.
    pub host_bytes: u64,
}

/// What kind of memory an address is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Device memory: from `cuMemAlloc`, or mapped.
    Device,
    /// Pinned host memory.
    Host,
}

impl Device {
    /// What is held at present.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let state = self.lock();
        Usage {
            physical_bytes: state.physical.used(),
            allocations: state.allocations.count(),
            handles: state.mappings.handle_count(),
            reserved_bytes: state.mappings.reserved_bytes(),
            mapped_bytes: state.mappings.mapped_bytes(),
            host_bytes: state.host.used(),
        }
    }

    /// What kind of memory the address is in; none where there is no memory of the device.
    #[must_use]
    pub fn memory_kind(&self, addr: DevicePtr) -> Option<MemoryKind> {
        let state = self.lock();
        if state.host.around(addr).is_some() {
            return Some(MemoryKind::Host);
        }
        state
            .allocations
            .around(addr)
            .or_else(|| state.mappings.around(addr))
            .map(|_| MemoryKind::Device)
    }

    /// Where the host reaches the byte at an address of the device's or of pinned memory: there, or, for memory of a strict
    /// device, elsewhere. What is touched must be memory with access.
    #[must_use]
    pub fn host_address(&self, addr: DevicePtr) -> u64 {
        self.lock().host_address(addr)
    }

    /// Reads memory as the host sees it now, in no order with any stream.
    ///
    /// # Errors
    /// `ILLEGAL_ADDRESS` where part of the range has no memory or no access; `NOT_SUPPORTED` where memory is not backed.
    pub fn read(&self, addr: DevicePtr, data: &mut [u8]) -> CuResult {
        let state = self.lock();
        state.check_bytes(addr, data.len() as u64)?;
        // SAFETY: the device has memory with access at the whole range, and keeps it while the state is locked.
        unsafe { std::ptr::copy(state.host_address(addr) as *const u8, data.as_mut_ptr(), data.len()) };
        Ok(())
    }

    /// Writes memory as the host sees it now, in no order with any stream.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, addr: DevicePtr, data: &[u8]) -> CuResult {
        let state = self.lock();
        state.check_bytes(addr, data.len() as u64)?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy(data.as_ptr(), state.host_address(addr) as *mut u8, data.len()) };
        Ok(())
    }
}

impl State {
    pub fn host_address(&self, addr: u64) -> u64 {
        if self.host.around(addr).is_some() {
            addr
        } else {
            self.physical.host_address(addr)
        }
    }

    /// Whether the device may touch every byte of the range.
    pub fn accessible(&self, addr: u64, bytes: u64) -> bool {
        let Ok(end) = end_of(addr, bytes) else {
            return bytes == 0;
        };
        let inside = |range: Option<(u64, u64)>| range.is_some_and(|(start, bytes)| end <= start + bytes);
        inside(self.allocations.around(addr)) || self.mappings.accessible(addr, end) || inside(self.host.around(addr))
    }

    /// Whether the host can read and write every byte of the range.
    pub fn check_bytes(&self, addr: u64, bytes: u64) -> CuResult {
        if !self.accessible(addr, bytes) {
            return Err(Code::ILLEGAL_ADDRESS);
        }
        let on_host = self.host.around(addr).is_some();
        if bytes == 0 || on_host || self.physical.backed() {
            Ok(())
        } else {
            Err(Code::NOT_SUPPORTED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{Options, Work};

    const PAGE: u64 = 2 << 20;

    #[test]
    fn one_handle_at_two_addresses_shows_the_same_bytes() {
        let device = Device::new(Options::default());
        let addr = device.mem_address_reserve(2 * PAGE, 0).expect("addresses");
        let handle = device.mem_create(PAGE).expect("memory");
        let mut byte = [0];
        device.mem_map(addr, PAGE, 0, handle).expect("a mapping");
        assert_eq!(
            device.read(addr, &mut byte),
            Err(Code::ILLEGAL_ADDRESS),
            "no access yet"
        );
        device.mem_map(addr + PAGE, PAGE, 0, handle).expect("a second mapping");
        device.mem_set_access(addr, 2 * PAGE).expect("access");
        device.write(addr + 7, &[42]).expect("memory");
        device.read(addr + PAGE + 7, &mut byte).expect("memory");
        assert_eq!(byte, [42]);
        assert_eq!(device.mem_get_address_range(addr + PAGE + 7), Ok((addr, 2 * PAGE)));
        device.mem_unmap(addr, PAGE).expect("a mapping");
        assert_eq!(device.read(addr, &mut byte), Err(Code::ILLEGAL_ADDRESS));
        device
            .read(addr + PAGE + 7, &mut byte)
            .expect("the other mapping stays");
    }

    /// What the host may do at an address, as `rw-s`.
    fn permissions(addr: u64) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("an address");
        let line = maps.lines().find(|line| {
            let (range, _) = line.split_once(' ').expect("a range");
            let (start, end) = range.split_once('-').expect("two ends");
            (hex(start)..hex(end)).contains(&addr)
        });
        line.and_then(|line| line.split(' ').nth(1))
            .unwrap_or("none")
            .to_owned()
    }

    #[test]
    fn the_host_cannot_touch_addresses_without_memory_or_access() {
        let device = Device::new(Options::default());
        let addr = device.mem_address_reserve(PAGE, 0).expect("addresses");
        let handle = device.mem_create(PAGE).expect("memory");
        assert_eq!(permissions(addr), "---p");
        device.mem_map(addr, PAGE, 0, handle).expect("a mapping");
        assert_eq!(permissions(addr), "---s");
        device.mem_set_access(addr, PAGE).expect("access");
        assert_eq!(permissions(addr), "rw-s");
        device.mem_unmap(addr, PAGE).expect("a mapping");
        assert_eq!(permissions(addr), "---p");
        let (slab, pinned) = (
            device.mem_alloc(PAGE).expect("memory"),
            device.mem_host_alloc(1).expect("memory"),
        );
        assert_eq!((permissions(slab), permissions(pinned)), ("rw-s".into(), "rw-p".into()));
        device.mem_free(slab).expect("memory");
        device.mem_free_host(pinned).expect("memory");
        assert_eq!((permissions(slab), permissions(pinned)), ("---p".into(), "---p".into()));
    }

    #[test]
    fn the_host_cannot_touch_a_strict_devices_memory() {
        let device = Device::new(Options {
            strict: true,
            ..Options::default()
        });
        let (slab, pinned) = (
            device.mem_alloc(PAGE).expect("memory"),
            device.mem_host_alloc(1).expect("memory"),
        );
        let addr = device.mem_address_reserve(2 * PAGE, 0).expect("addresses");
        let handle = device.mem_create(PAGE).expect("memory");
        for at in [addr, addr + PAGE] {
            device.mem_map(at, PAGE, 0, handle).expect("a mapping");
            assert_eq!(permissions(device.host_address(at)), "---s", "no access yet");
        }
        device.mem_set_access(addr, 2 * PAGE).expect("access");
        for at in [slab, addr, addr + PAGE] {
            assert_eq!(permissions(at), "---p");
            assert_eq!(permissions(device.host_address(at)), "rw-s");
        }
        assert_eq!((device.host_address(pinned), &*permissions(pinned)), (pinned, "rw-p"));

        let stream = crate::driver::Stream::LEGACY;
        let work = Work::new().stores(slab, [1, 2]).copies(addr, slab, 2);
        device
            .launch(stream, work.copies(pinned, addr, 1).fills(slab, 1, 7))
            .expect("a launch");
        device.stream_synchronize(stream).expect("the stream");
        for (at, expected) in [(slab, [7, 2]), (addr, [1, 2]), (addr + PAGE, [1, 2]), (pinned, [1, 0])] {
            let mut found = [0; 2];
            device.read(at, &mut found).expect("memory");
            assert_eq!(found, expected);
        }
        device.mem_unmap(addr, PAGE).expect("a mapping");
        assert_eq!(permissions(device.host_address(addr)), "---p");
    }

    #[test]
    fn bytes_outlive_a_mapping_but_not_the_memory() {
        let device = Device::new(Options::default());
        let addr = device.mem_address_reserve(PAGE, 0).expect("addresses");
        let mut handle = device.mem_create(PAGE).expect("memory");
        for (pass, expected) in [(0, 0), (1, 9), (2, 0)] {
            device.mem_map(addr, PAGE, 0, handle).expect("a mapping");
            device.mem_set_access(addr, PAGE).expect("access");
            let mut byte = [1];
            device.read(addr, &mut byte).expect("memory");
            assert_eq!(byte, [expected], "pass {pass}");
            device.write(addr, &[9]).expect("memory");
            device.mem_unmap(addr, PAGE).expect("a mapping");
            if pass == 1 {
                device.mem_release(handle).expect("a handle");
                handle = device.mem_create(PAGE).expect("memory");
            }
        }
    }

    #[test]
    fn memory_without_bytes_cannot_be_read_and_holds_a_large_device() {
        let device = Device::new(Options {
            backed: false,
            capacity: 1 << 40,
            ..Options::default()
        });
        let addr = device.mem_alloc(1 << 39).expect("memory");
        assert_eq!(device.mem_get_info(), Ok((1 << 39, 1 << 40)));
        assert_eq!(device.write(addr, &[1]), Err(Code::NOT_SUPPORTED));
        assert_eq!(device.write(addr - 1, &[1]), Err(Code::ILLEGAL_ADDRESS));
        let pinned = device.mem_host_alloc(10).expect("memory");
        assert_eq!(device.write(pinned, &[1]), Ok(()), "host memory always has bytes");
        assert_eq!(device.memory_kind(pinned), Some(MemoryKind::Host));
        assert_eq!(device.memory_kind(addr), Some(MemoryKind::Device));
        assert_eq!(device.memory_kind(addr - 1), None);
    }
}
