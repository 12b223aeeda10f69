//! Sizes as multiples of 512 bytes, and the shape of the slabs that small ones are cut from.
//!
//! | request | class | cut from |
//! |---|---|---|
//! | 0 to 16 KiB | multiple of 512 bytes | slabs of equal slots |
//! | to 1 MiB | multiple of 512 bytes | ranges of small segments |
//! | above | multiple of 512 bytes, no class | ranges of large segments |
//!
//! No request is rounded to anything coarser than 512 bytes, so the most that rounding wastes is 511 bytes a block.
#![forbid(unsafe_code)]

/// The unit of every size and address, in bytes. What CUDA libraries may assume of an allocation's alignment is 256.
pub const UNIT: u64 = 512;
/// The largest size with a class, in units (1 MiB). In a model each class costs time: there it is the largest slot.
pub const CLASS_MAX: u32 = if cfg!(loom) { SLOT_MAX } else { 2048 };
/// The largest size that is cut from slabs, in units (16 KiB).
pub const SLOT_MAX: u32 = 32;
/// What slabs are multiples of and aligned to, and what the address table is indexed by, in units (16 KiB).
pub const GRANULE: u32 = 32;
/// The largest request, in bytes: sizes are kept as 32-bit numbers of units.
pub const BYTES_MAX: u64 = (u32::MAX as u64 - GRANULE as u64) * UNIT;

/// A request in units, at least one: size 0 gets a block of its own. More than [`BYTES_MAX`] gives 0.
#[inline(always)]
#[must_use]
pub const fn units(bytes: u64) -> u32 {
    if bytes > BYTES_MAX {
        return 0;
    }
    let units = bytes.wrapping_add(UNIT - 1) / UNIT;
    if units == 0 { 1 } else { units as u32 }
}

/// A request in units as the hit path needs it: size 0, and what is too large to be rounded up, give 0, which no block has.
#[inline(always)]
pub(crate) const fn hit_units(bytes: u64) -> u64 {
    bytes.wrapping_add(UNIT - 1) / UNIT
}

/// Units as bytes.
#[inline(always)]
#[must_use]
pub const fn bytes(units: u32) -> u64 {
    units as u64 * UNIT
}

/// The shape of one class's slabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// The slab, in granules.
    pub granules: u32,
    /// How many blocks it has.
    pub count: u32,
}

/// The slab of a class of at most [`SLOT_MAX`] units: the smallest that wastes at most a sixteenth of itself.
#[must_use]
pub const fn slots(units: u32) -> Slots {
    assert!(units >= 1 && units <= SLOT_MAX);
    let mut granules = 1;
    loop {
        let count = granules * GRANULE / units;
        let waste = granules * GRANULE - count * units;
        if waste * 16 <= granules * GRANULE {
            return Slots { granules, count };
        }
        granules += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_next_multiple_of_512_and_never_zero() {
        assert_eq!(units(0), 1);
        assert_eq!(units(1), 1);
        assert_eq!(units(512), 1);
        assert_eq!(units(513), 2);
        assert_eq!(units(1 << 20), CLASS_MAX);
        assert_eq!(units(BYTES_MAX), u32::MAX - GRANULE);
        assert_eq!(units(BYTES_MAX + 1), 0);
        assert_eq!(units(u64::MAX), 0);
        for bytes in [1, 511, 512, 513, 1 << 20, BYTES_MAX] {
            assert_eq!(hit_units(bytes), u64::from(units(bytes)));
        }
        for bytes in [0, u64::MAX, u64::MAX - 510] {
            assert_eq!(hit_units(bytes), 0);
        }
    }

    #[test]
    fn slabs_waste_at_most_a_sixteenth_and_stay_below_256_kib() {
        for class in 1..=SLOT_MAX {
            let slab = slots(class);
            let all = slab.granules * GRANULE;
            let used = slab.count * class;
            assert!(
                used <= all && (all - used) * 16 <= all,
                "class {class}: {used} of {all}"
            );
            assert!(all < 512, "class {class}: {} bytes", bytes(all));
        }
    }
}
