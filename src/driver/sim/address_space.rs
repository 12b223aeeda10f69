//! Addresses that no other memory of the process has.

use super::ranges::Ranges;
use super::{Code, CuResult, host_map};

/// Addresses are taken from the operating system in pieces of at least this many bytes: few enough for valgrind.
const CHUNK: u64 = 8 << 30;

/// How far from a device's address its bytes are, where the host must not find them at the address itself: the size of the
/// only piece that such a device takes.
pub(super) const DISTANCE: u64 = 2 << 40;

/// Addresses reserved from the operating system, with no memory behind them.
///
/// They are kept until the device is dropped, so that a stale device pointer never points into other memory of the
/// process, and no two devices give out the same address.
pub(super) struct AddressSpace {
    chunks: Vec<(u64, u64)>,
    free: Ranges,
    unit: u64,
    /// Whether each address has another one, `DISTANCE` further on, that is not handed out.
    twofold: bool,
}

impl AddressSpace {
    /// Hands out multiples of `unit` bytes: a power of two, at least a page of the host.
    pub const fn new(unit: u64) -> Self {
        Self {
            chunks: Vec::new(),
            free: Ranges::new(u64::MAX),
            unit,
            twofold: false,
        }
    }

    /// As `new`. Each address has another one, `DISTANCE` further on, that nobody has.
    pub fn twofold(unit: u64) -> Self {
        let mut space = Self::new(unit);
        space.twofold = true;
        space
    }

    /// Takes `bytes` (a multiple of the unit) at an alignment (a power of two; the unit if it is less).
    pub fn take(&mut self, bytes: u64, align: u64) -> CuResult<u64> {
        let align = align.max(self.unit);
        if let Some(addr) = self.free.take(bytes, align) {
            return Ok(addr);
        }
        let mut room = bytes.checked_add(align).ok_or(Code::OUT_OF_MEMORY)?.max(CHUNK);
        if self.twofold {
            if !self.chunks.is_empty() || room > DISTANCE {
                return Err(Code::OUT_OF_MEMORY);
            }
            room = DISTANCE;
        }
        let taken = if self.twofold { 2 * room } else { room };
        let mapped = host_map::reserve(taken)?;
        self.chunks.push((mapped, taken));
        let start = mapped.next_multiple_of(self.unit);
        let end = (mapped + room) / self.unit * self.unit;
        self.free.add(start, end - start);
        self.free.take(bytes, align).ok_or(Code::OUT_OF_MEMORY)
    }

    /// Gives back what `take` gave, with no memory mapped there.
    pub fn give(&mut self, addr: u64, bytes: u64) {
        self.free.add(addr, bytes);
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        for &(addr, bytes) in &self.chunks {
            host_map::unreserve(addr, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twofold_space_hands_out_its_first_half() {
        let mut space = AddressSpace::twofold(4096);
        let first = space.take(DISTANCE / 2, 1).expect("addresses");
        let second = space.take(DISTANCE / 2, 1).expect("addresses");
        assert_eq!(first.abs_diff(second), DISTANCE / 2);
        assert_eq!(
            space.take(4096, 1),
            Err(Code::OUT_OF_MEMORY),
            "the rest is not for handing out"
        );
        space.give(second, DISTANCE / 2);
        assert_eq!(space.take(4096, 1), Ok(second));
    }

    #[test]
    fn spaces_do_not_overlap_and_addresses_come_back() {
        let unit = 2 << 20;
        let (mut a, mut b) = (AddressSpace::new(unit), AddressSpace::new(unit));
        let first = a.take(unit, 1).expect("addresses");
        let other = b.take(unit, 1).expect("addresses");
        assert!(first.abs_diff(other) >= unit);
        assert_eq!(first % unit, 0);
        a.give(first, unit);
        assert_eq!(a.take(unit, 1), Ok(first));
        let aligned = a.take(unit, 1 << 30).expect("addresses");
        assert_eq!(aligned % (1 << 30), 0);
        assert_eq!(a.take(u64::MAX / unit * unit, 1), Err(Code::OUT_OF_MEMORY));
        assert_eq!(
            a.take(1 << 62, 1),
            Err(Code::OUT_OF_MEMORY),
            "more than the host has addresses for"
        );
    }
}
