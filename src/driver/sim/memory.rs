//! The driver's memory calls, and what the host can see of the memory.

use crate::driver::{DevicePtr, Handle};

use super::device::{Device, State};
use super::{Call, Code, CuResult, Violation};

impl Device {
    /// Sets how many bytes of the device's memory other processes hold.
    pub fn set_used_by_others(&self, bytes: u64) {
        self.lock().physical.set_others(bytes);
    }

    /// Free and total memory in bytes.
    ///
    /// # Errors
    /// Injected ones and those of a broken context, as every call.
    pub fn mem_get_info(&self) -> CuResult<(u64, u64)> {
        self.call(Call::MemGetInfo, 0, |state| {
            Ok((state.physical.free(), self.options().capacity))
        })
    }

    /// Memory of at least `bytes`. Up to half a page it is 512-byte aligned and shares pages; above, it has whole pages.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
    pub fn mem_alloc(&self, bytes: u64) -> CuResult<DevicePtr> {
        self.call(Call::MemAlloc, bytes, |state| {
            state
                .allocations
                .alloc(bytes, &mut state.physical, &mut state.addresses)
        })
    }

    /// Frees what [`mem_alloc`](Self::mem_alloc) gave. Waits for all work of the device first.
    ///
    /// # Errors
    /// `INVALID_VALUE` for any other address; `NOT_READY` when the wait would never end.
    pub fn mem_free(&self, addr: DevicePtr) -> CuResult {
        self.call(Call::MemFree, 0, |state| {
            if state.allocations.around(addr).is_none_or(|(start, _)| start != addr) {
                return Err(Code::INVALID_VALUE);
            }
            state.wait_for_all(Call::MemFree)?;
            state.allocations.free(addr, &mut state.physical, &mut state.addresses)
        })
    }

    /// Reserves addresses, at an alignment that is a power of two or 0.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the bytes are not a multiple of the granularity or the alignment is none; `NOT_SUPPORTED`
    /// without virtual memory; `OUT_OF_MEMORY` when the host has no such addresses.
    pub fn mem_address_reserve(&self, bytes: u64, align: u64) -> CuResult<DevicePtr> {
        self.virtual_call(Call::MemAddressReserve, bytes, |state| {
            state.mappings.reserve(bytes, align, &mut state.addresses)
        })
    }

    /// Gives a whole reservation back.
    ///
    /// # Errors
    /// `INVALID_VALUE` where it is not a whole one or anything is mapped in it.
    pub fn mem_address_free(&self, addr: DevicePtr, bytes: u64) -> CuResult {
        self.virtual_call(Call::MemAddressFree, bytes, |state| {
            state.mappings.unreserve(addr, bytes, &mut state.addresses)
        })
    }

    /// Takes physical memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the bytes are not a multiple of the granularity; `OUT_OF_MEMORY`.
    pub fn mem_create(&self, bytes: u64) -> CuResult<Handle> {
        self.virtual_call(Call::MemCreate, bytes, |state| {
            state.mappings.create(bytes, &mut state.physical).map(Handle)
        })
    }

    /// Releases a handle. Its memory is given back when nothing maps it any more.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a handle that does not exist or was released.
    pub fn mem_release(&self, handle: Handle) -> CuResult {
        self.virtual_call(Call::MemRelease, 0, |state| {
            state.mappings.release(handle.0, &mut state.physical)
        })
    }

    /// Maps a whole handle inside one reservation. It has no access yet.
    ///
    /// # Errors
    /// `INVALID_VALUE` where anything is mapped there, the range is not reserved, the offset is not 0 or the bytes are not
    /// those of the handle.
    pub fn mem_map(&self, addr: DevicePtr, bytes: u64, offset: u64, handle: Handle) -> CuResult {
        self.virtual_call(Call::MemMap, bytes, |state| {
            state.mappings.map(addr, bytes, offset, handle.0, &state.physical)
        })
    }

    /// Gives the device access to whole mappings that lie side by side.
    ///
    /// # Errors
    /// `INVALID_VALUE` where part of the range is not mapped or a mapping lies over its ends.
    pub fn mem_set_access(&self, addr: DevicePtr, bytes: u64) -> CuResult {
        self.virtual_call(Call::MemSetAccess, bytes, |state| {
            state.mappings.set_access(addr, bytes, &state.physical)
        })
    }

    /// Unmaps whole mappings that lie side by side. Does not wait: work that nobody has seen finish and that touches
    /// them is a violation.
    ///
    /// # Errors
    /// `INVALID_VALUE` where part of the range is not mapped or a mapping lies over its ends.
    pub fn mem_unmap(&self, addr: DevicePtr, bytes: u64) -> CuResult {
        let call = Call::MemUnmap;
        self.virtual_call(call, bytes, |state| {
            let mappings = state.mappings.unmap(addr, bytes, &mut state.physical)?;
            self.charge(
                state,
                call,
                (mappings - 1).saturating_mul(self.options().prices.cost(call, 0)),
            );
            if let Some((at, user)) = state.in_use(addr, addr + bytes) {
                state.violations.add(Violation::UnmappedInUse { call, addr: at, user });
            }
            state.touches.forget(addr, addr + bytes);
            Ok(())
        })
    }

    /// Start and bytes of the allocation, or the reservation, around an address with memory behind it.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no device memory.
    pub fn mem_get_address_range(&self, addr: DevicePtr) -> CuResult<(DevicePtr, u64)> {
        self.call(Call::MemGetAddressRange, 0, |state| {
            state
                .allocations
                .around(addr)
                .or_else(|| state.mappings.around(addr))
                .ok_or(Code::INVALID_VALUE)
        })
    }

    /// Pinned host memory, page aligned.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
    pub fn mem_host_alloc(&self, bytes: u64) -> CuResult<u64> {
        self.call(Call::MemHostAlloc, bytes, |state| state.host.alloc(bytes))
    }

    /// Frees pinned host memory. Waits for all work of the device first.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an address that [`mem_host_alloc`](Self::mem_host_alloc) did not give; `NOT_READY` when the wait
    /// would never end.
    pub fn mem_free_host(&self, addr: u64) -> CuResult {
        let held = self.lock().host.around(addr).map_or(0, |(_, bytes)| bytes);
        self.call(Call::MemFreeHost, held, |state| {
            if state.host.around(addr).is_none_or(|(start, _)| start != addr) {
                return Err(Code::INVALID_VALUE);
            }
            state.wait_for_all(Call::MemFreeHost)?;
            state.host.free(addr)
        })
    }

    fn virtual_call<T>(&self, call: Call, bytes: u64, body: impl FnOnce(&mut State) -> CuResult<T>) -> CuResult<T> {
        self.call(call, bytes, |state| {
            if !self.options().virtual_memory {
                return Err(Code::NOT_SUPPORTED);
            }
            body(state)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{Options, StreamKind, Work};

    const PAGE: u64 = 2 << 20;

    #[test]
    fn what_others_hold_is_not_free() {
        let device = Device::new(Options {
            capacity: 4 * PAGE,
            ..Options::default()
        });
        device.set_used_by_others(3 * PAGE);
        assert_eq!(device.mem_get_info(), Ok((PAGE, 4 * PAGE)));
        assert_eq!(device.mem_create(2 * PAGE), Err(Code::OUT_OF_MEMORY));
        assert!(device.mem_create(PAGE).is_ok());
    }

    #[test]
    fn freeing_waits_for_the_device() {
        let device = Device::new(Options::default());
        let (addr, pinned) = (
            device.mem_alloc(PAGE).expect("memory"),
            device.mem_host_alloc(1).expect("memory"),
        );
        let stream = device.stream_create(StreamKind::NonBlocking).expect("a stream");
        device
            .launch(stream, Work::new().writes(addr, PAGE).takes(70))
            .expect("a launch");
        device.mem_free(addr).expect("memory");
        assert_eq!(device.now_ns(), 70);
        device
            .launch(stream, Work::new().reads(pinned, 1).takes(30))
            .expect("a launch");
        device.mem_free_host(pinned).expect("memory");
        assert_eq!((device.now_ns(), device.violations()), (100, vec![]));
        assert_eq!(device.mem_free(addr), Err(Code::INVALID_VALUE), "twice");
    }

    #[test]
    fn unmapping_does_not_wait_and_costs_by_mapping() {
        let device = Device::new(Options::default());
        let addr = device.mem_address_reserve(2 * PAGE, 0).expect("addresses");
        for at in [addr, addr + PAGE] {
            let handle = device.mem_create(PAGE).expect("memory");
            device.mem_map(at, PAGE, 0, handle).expect("a mapping");
        }
        device.mem_set_access(addr, 2 * PAGE).expect("access");
        device
            .launch(
                crate::driver::Stream::LEGACY,
                Work::new().reads(addr + PAGE, 1).takes(1),
            )
            .expect("a launch");
        device.reset_counts();
        device.mem_unmap(addr, 2 * PAGE).expect("mappings");
        let user = device.stream_get_id(crate::driver::Stream::LEGACY).expect("a stream");
        assert_eq!(
            device.take_violations(),
            [Violation::UnmappedInUse {
                call: Call::MemUnmap,
                addr: addr + PAGE,
                user
            }]
        );
        assert_eq!(
            device.driver_time_ns().get(Call::MemUnmap),
            2 * device.options().prices.cost(Call::MemUnmap, 0)
        );
        device.advance(1);
        assert_eq!(
            device.mem_get_info(),
            Err(Code::ILLEGAL_ADDRESS),
            "the work found nothing there"
        );
    }

    #[test]
    fn without_virtual_memory_its_calls_are_not_supported() {
        let device = Device::new(Options {
            virtual_memory: false,
            ..Options::default()
        });
        assert_eq!(device.mem_address_reserve(PAGE, 0), Err(Code::NOT_SUPPORTED));
        assert_eq!(device.mem_create(PAGE), Err(Code::NOT_SUPPORTED));
        assert!(device.mem_alloc(PAGE).is_ok());
    }
}
