//! Virtual memory management: reservations, physical handles and the mappings between them.

use std::collections::{BTreeMap, HashMap};

use super::address_space::AddressSpace;
use super::physical::{Extent, Physical};
use super::{Code, CuResult};

/// The reservations, handles and mappings. Physical memory is accounted by handle, however often it is mapped.
pub(super) struct Mappings {
    granularity: u64,
    reservations: BTreeMap<u64, u64>,
    handles: HashMap<u64, Physically>,
    mapped: BTreeMap<u64, Mapping>,
    last_handle: u64,
}

/// The memory behind a handle. It is given back when the handle is released and nothing maps it.
struct Physically {
    extent: Extent,
    mappings: usize,
    released: bool,
}

struct Mapping {
    bytes: u64,
    handle: u64,
    access: bool,
}

impl Mappings {
    pub fn new(granularity: u64) -> Self {
        Self {
            granularity,
            reservations: BTreeMap::new(),
            handles: HashMap::new(),
            mapped: BTreeMap::new(),
            last_handle: 0,
        }
    }

    pub fn reserve(&mut self, bytes: u64, align: u64, addresses: &mut AddressSpace) -> CuResult<u64> {
        if align != 0 && !align.is_power_of_two() {
            return Err(Code::INVALID_VALUE);
        }
        let addr = addresses.take(self.whole(bytes)?, align)?;
        self.reservations.insert(addr, bytes);
        Ok(addr)
    }

    /// Gives a reservation back. It must be whole and have nothing mapped.
    pub fn unreserve(&mut self, addr: u64, bytes: u64, addresses: &mut AddressSpace) -> CuResult {
        let end = end_of(addr, bytes)?;
        if self.reservations.get(&addr) != Some(&bytes) || self.mapped.range(addr..end).next().is_some() {
            return Err(Code::INVALID_VALUE);
        }
        self.reservations.remove(&addr);
        addresses.give(addr, bytes);
        Ok(())
    }

    pub fn create(&mut self, bytes: u64, physical: &mut Physical) -> CuResult<u64> {
        let extent = physical.take(self.whole(bytes)?)?;
        self.last_handle += 1;
        self.handles.insert(
            self.last_handle,
            Physically {
                extent,
                mappings: 0,
                released: false,
            },
        );
        Ok(self.last_handle)
    }

    pub fn release(&mut self, handle: u64, physical: &mut Physical) -> CuResult {
        let memory = self.live(handle)?;
        memory.released = true;
        self.give_if_unused(handle, physical);
        Ok(())
    }

    /// Maps a whole handle inside one reservation, over nothing.
    pub fn map(&mut self, addr: u64, bytes: u64, offset: u64, handle: u64, physical: &Physical) -> CuResult {
        let end = end_of(addr, bytes)?;
        let extent = self.live(handle)?.extent;
        if offset != 0 || bytes != extent.bytes || !addr.is_multiple_of(self.granularity) {
            return Err(Code::INVALID_VALUE);
        }
        let reserved = self
            .reservations
            .range(..=addr)
            .next_back()
            .is_some_and(|(&at, &room)| end <= at + room);
        let over = self
            .mapped
            .range(..end)
            .next_back()
            .is_some_and(|(&at, mapping)| at + mapping.bytes > addr);
        if !reserved || over {
            return Err(Code::INVALID_VALUE);
        }
        physical.show(extent, addr)?;
        self.live(handle)?.mappings += 1;
        self.mapped.insert(
            addr,
            Mapping {
                bytes,
                handle,
                access: false,
            },
        );
        Ok(())
    }

    /// Gives access to whole mappings without a hole between them.
    pub fn set_access(&mut self, addr: u64, bytes: u64, physical: &Physical) -> CuResult {
        let end = self.whole_mappings(addr, bytes)?;
        physical.allow(addr, bytes)?;
        for mapping in self.mapped.range_mut(addr..end).map(|(_, mapping)| mapping) {
            mapping.access = true;
        }
        Ok(())
    }

    /// Unmaps whole mappings without a hole between them, and says how many they were.
    pub fn unmap(&mut self, addr: u64, bytes: u64, physical: &mut Physical) -> CuResult<u64> {
        let end = self.whole_mappings(addr, bytes)?;
        physical.hide(addr, bytes)?;
        let gone: Vec<(u64, u64)> = self
            .mapped
            .range(addr..end)
            .map(|(&at, mapping)| (at, mapping.handle))
            .collect();
        for &(at, handle) in &gone {
            self.mapped.remove(&at);
            if let Some(memory) = self.handles.get_mut(&handle) {
                memory.mappings -= 1;
            }
            self.give_if_unused(handle, physical);
        }
        Ok(gone.len() as u64)
    }

    /// Whether the device may touch every byte.
    pub fn accessible(&self, addr: u64, end: u64) -> bool {
        let mut covered = addr;
        let first = self.mapped.range(..=addr).next_back().map_or(addr, |(&at, _)| at);
        for (&at, mapping) in self.mapped.range(first..end) {
            if at > covered || !mapping.access {
                return false;
            }
            covered = at + mapping.bytes;
            if covered >= end {
                return true;
            }
        }
        false
    }

    /// Start and bytes of the reservation around an address that is mapped.
    pub fn around(&self, addr: u64) -> Option<(u64, u64)> {
        let (&at, mapping) = self.mapped.range(..=addr).next_back()?;
        let (&start, &bytes) = self.reservations.range(..=addr).next_back()?;
        (addr - at < mapping.bytes).then_some((start, bytes))
    }

    pub fn reserved_bytes(&self) -> u64 {
        self.reservations.values().sum()
    }

    pub fn handle_count(&self) -> usize {
        self.handles.len()
    }

    pub fn mapped_bytes(&self) -> u64 {
        self.mapped.values().map(|mapping| mapping.bytes).sum()
    }

    /// The number of bytes, if it is a multiple of the granularity and not zero.
    const fn whole(&self, bytes: u64) -> CuResult<u64> {
        if bytes == 0 || !bytes.is_multiple_of(self.granularity) {
            Err(Code::INVALID_VALUE)
        } else {
            Ok(bytes)
        }
    }

    /// The end of the range, if whole mappings fill it.
    fn whole_mappings(&self, addr: u64, bytes: u64) -> CuResult<u64> {
        let end = end_of(addr, bytes)?;
        let mut covered = addr;
        for (&at, mapping) in self.mapped.range(addr..end) {
            if at != covered {
                return Err(Code::INVALID_VALUE);
            }
            covered = at + mapping.bytes;
        }
        if covered == end {
            Ok(end)
        } else {
            Err(Code::INVALID_VALUE)
        }
    }

    /// The memory of a handle that is not released.
    fn live(&mut self, handle: u64) -> CuResult<&mut Physically> {
        self.handles
            .get_mut(&handle)
            .filter(|memory| !memory.released)
            .ok_or(Code::INVALID_VALUE)
    }

    fn give_if_unused(&mut self, handle: u64, physical: &mut Physical) {
        if self
            .handles
            .get(&handle)
            .is_some_and(|memory| memory.released && memory.mappings == 0)
            && let Some(memory) = self.handles.remove(&handle)
        {
            physical.give(memory.extent);
        }
    }
}

/// The end of a range that is not empty and does not wrap around.
pub(super) fn end_of(addr: u64, bytes: u64) -> CuResult<u64> {
    addr.checked_add(bytes)
        .filter(|&end| end > addr)
        .ok_or(Code::INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;
    const BAD: CuResult = Err(Code::INVALID_VALUE);

    struct Memory(Mappings, Physical, AddressSpace);

    impl Memory {
        fn new() -> Self {
            Self(
                Mappings::new(PAGE),
                Physical::new(8 * PAGE, false, false),
                AddressSpace::new(PAGE),
            )
        }
        fn reserve(&mut self, pages: u64) -> u64 {
            self.0.reserve(pages * PAGE, 0, &mut self.2).expect("addresses")
        }
        fn create(&mut self, pages: u64) -> u64 {
            self.0.create(pages * PAGE, &mut self.1).expect("memory")
        }
        fn map(&mut self, addr: u64, pages: u64, handle: u64) -> CuResult {
            self.0.map(addr, pages * PAGE, 0, handle, &self.1)
        }
        fn unmap(&mut self, addr: u64, pages: u64) -> CuResult<u64> {
            self.0.unmap(addr, pages * PAGE, &mut self.1)
        }
    }

    #[test]
    fn sizes_are_multiples_of_the_granularity() {
        let mut memory = Memory::new();
        for bytes in [0, 1, PAGE - 1, PAGE + 512] {
            assert_eq!(memory.0.reserve(bytes, 0, &mut memory.2), Err(Code::INVALID_VALUE));
            assert_eq!(memory.0.create(bytes, &mut memory.1), Err(Code::INVALID_VALUE));
        }
        assert_eq!(memory.0.reserve(PAGE, 3, &mut memory.2), Err(Code::INVALID_VALUE));
        assert_eq!(memory.0.create(9 * PAGE, &mut memory.1), Err(Code::OUT_OF_MEMORY));
    }

    #[test]
    fn a_handle_is_mapped_whole_inside_a_reservation_over_nothing() {
        let mut memory = Memory::new();
        let (addr, handle) = (memory.reserve(4), memory.create(2));
        assert_eq!(memory.map(addr, 1, handle), BAD, "part of a handle");
        assert_eq!(memory.0.map(addr, 2 * PAGE, PAGE, handle, &memory.1), BAD, "an offset");
        assert_eq!(memory.map(addr + PAGE / 2, 2, handle), BAD, "not aligned");
        assert_eq!(memory.map(addr + 3 * PAGE, 2, handle), BAD, "beyond the reservation");
        assert_eq!(memory.map(addr, 2, handle + 1), BAD, "no such handle");
        assert_eq!(memory.map(addr + PAGE, 2, handle), Ok(()));
        assert_eq!(memory.map(addr, 2, handle), BAD, "over the start of a mapping");
        assert_eq!(memory.map(addr + 2 * PAGE, 2, handle), BAD, "over the end of a mapping");
    }

    #[test]
    fn access_is_for_whole_mapped_ranges_and_lost_at_unmap() {
        let mut memory = Memory::new();
        let (addr, a, b) = (memory.reserve(4), memory.create(1), memory.create(2));
        assert_eq!(memory.0.set_access(addr, PAGE, &memory.1), BAD, "nothing is mapped");
        assert_eq!(memory.map(addr, 1, a), Ok(()));
        assert_eq!(memory.map(addr + PAGE, 2, b), Ok(()));
        assert!(!memory.0.accessible(addr, addr + 1), "mapped, but no access yet");
        assert_eq!(memory.0.set_access(addr, 4 * PAGE, &memory.1), BAD, "a hole at the end");
        assert_eq!(memory.0.set_access(addr, 2 * PAGE, &memory.1), BAD, "part of a mapping");
        assert_eq!(memory.0.set_access(addr, 3 * PAGE, &memory.1), Ok(()));
        assert!(memory.0.accessible(addr + 5, addr + 3 * PAGE));
        assert!(!memory.0.accessible(addr, addr + 3 * PAGE + 1));
        assert_eq!(memory.unmap(addr, 1), Ok(1));
        assert_eq!(memory.map(addr, 1, a), Ok(()));
        assert!(!memory.0.accessible(addr, addr + 1));
    }

    #[test]
    fn whole_mappings_are_unmapped() {
        let mut memory = Memory::new();
        let (addr, a, b) = (memory.reserve(4), memory.create(2), memory.create(1));
        assert_eq!(memory.map(addr, 2, a), Ok(()));
        assert_eq!(memory.map(addr + 3 * PAGE, 1, b), Ok(()));
        assert_eq!(
            memory.unmap(addr, 1),
            Err(Code::INVALID_VALUE),
            "the front of a mapping"
        );
        assert_eq!(
            memory.unmap(addr + PAGE, 1),
            Err(Code::INVALID_VALUE),
            "the back of a mapping"
        );
        assert_eq!(memory.unmap(addr, 4), Err(Code::INVALID_VALUE), "a hole");
        assert_eq!(memory.0.unreserve(addr, 4 * PAGE, &mut memory.2), BAD, "still mapped");
        assert_eq!(memory.unmap(addr, 2), Ok(1));
        assert_eq!(memory.unmap(addr + 3 * PAGE, 1), Ok(1));
        assert_eq!(
            memory.0.unreserve(addr, 2 * PAGE, &mut memory.2),
            BAD,
            "part of a reservation"
        );
        assert_eq!(memory.0.unreserve(addr, 4 * PAGE, &mut memory.2), Ok(()));
        assert_eq!(memory.0.unreserve(addr, 4 * PAGE, &mut memory.2), BAD, "twice");
    }

    #[test]
    fn memory_is_counted_by_handle_and_kept_while_mapped() {
        let mut memory = Memory::new();
        let (addr, handle) = (memory.reserve(4), memory.create(2));
        assert_eq!(memory.map(addr, 2, handle), Ok(()));
        assert_eq!(memory.map(addr + 2 * PAGE, 2, handle), Ok(()));
        assert_eq!((memory.1.used(), memory.0.mapped_bytes()), (2 * PAGE, 4 * PAGE));
        assert_eq!(memory.0.release(handle, &mut memory.1), Ok(()));
        assert_eq!(memory.0.release(handle, &mut memory.1), BAD, "twice");
        assert_eq!(memory.unmap(addr, 2), Ok(1));
        assert_eq!(memory.map(addr, 2, handle), BAD, "a released handle");
        assert_eq!(memory.1.used(), 2 * PAGE, "one mapping is left");
        assert_eq!(memory.unmap(addr + 2 * PAGE, 2), Ok(1));
        assert_eq!((memory.1.used(), memory.0.handle_count()), (0, 0));
    }
}
