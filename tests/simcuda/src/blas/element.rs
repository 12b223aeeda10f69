//! The numbers that matrices are of.

use flagstone::driver::sim::CuResult;

use super::{INVALID_VALUE, NOT_SUPPORTED};

/// A `cudaDataType_t` that matrices can be of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    F32,
    F64,
    F16,
    BF16,
}

impl Element {
    pub const fn new(data_type: u32) -> CuResult<Self> {
        match data_type {
            0 => Ok(Self::F32),
            1 => Ok(Self::F64),
            2 => Ok(Self::F16),
            14 => Ok(Self::BF16),
            _ => Err(NOT_SUPPORTED),
        }
    }

    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// # Safety
    /// There is such a number at `addr`, aligned.
    pub unsafe fn load(self, addr: u64) -> f64 {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32 => f64::from((addr as *const f32).read()),
                Self::F64 => (addr as *const f64).read(),
                Self::F16 => f64::from(from_half((addr as *const u16).read())),
                Self::BF16 => f64::from(f32::from_bits(u32::from((addr as *const u16).read()) << 16)),
            }
        }
    }

    /// # Safety
    /// There is room for such a number at `addr`, aligned.
    pub unsafe fn store(self, addr: u64, value: f64) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32 => (addr as *mut f32).write(value as f32),
                Self::F64 => (addr as *mut f64).write(value),
                Self::F16 => (addr as *mut u16).write(to_half(value as f32)),
                Self::BF16 => (addr as *mut u16).write(to_bfloat(value as f32)),
            }
        }
    }

    /// The factor at a pointer of the host's.
    ///
    /// # Safety
    /// `factor` is null or points to such a number.
    pub unsafe fn factor(self, factor: *const u8) -> CuResult<f64> {
        if factor.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { self.load(factor as u64) })
    }
}

/// The number of 16 bits: 1 of sign, 5 of exponent, 10 of fraction.
fn from_half(half: u16) -> f32 {
    let fraction = f32::from(half & 0x3ff) / 1024.0;
    let magnitude = match half >> 10 & 0x1f {
        0 => fraction * 2f32.powi(-14),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        exponent => (1.0 + fraction) * 2f32.powi(i32::from(exponent) - 15),
    };
    if half >> 15 == 0 { magnitude } else { -magnitude }
}

/// The nearest number of 16 bits; of two, the even one. From half a unit above the greatest on it is infinite.
fn to_half(value: f32) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return sign | 0x7e00;
    }
    if magnitude >= 65_520.0 {
        return sign | 0x7c00;
    }
    // The distance between numbers of 16 bits around the magnitude. Below 2^-14 it is the same everywhere.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-14);
    let units = (magnitude / 2f32.powi(exponent - 10)).round_ties_even() as u32;
    // A sum carries into the exponent where rounding reached the next power of two.
    sign | (((exponent + 14) as u32) * 1024 + units) as u16
}

/// The nearest number with the upper 16 bits of a `float`; of two, the even one.
const fn to_bfloat(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}
