//! Numbers of bytes as people write and read them.
#![forbid(unsafe_code)]

/// Reads `1048576`, `512KiB`, `1.5GiB`, `2GB`, `64MB` or `7B` as bytes. Upper and lower case are the same.
///
/// Returns `None` for anything else, for negative numbers, for a part of a byte and for more than `u64::MAX`.
///
/// ```
/// assert_eq!(flagstone::bytes::parse("1.5 GiB"), Some(3 << 29));
/// assert_eq!(flagstone::bytes::parse("2MB"), Some(2_000_000));
/// assert_eq!(flagstone::bytes::parse("-1"), None);
/// ```
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" | "k" => 1 << 10,
        "mib" | "m" => 1 << 20,
        "gib" | "g" => 1 << 30,
        "tib" | "t" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit);
    }
    let value = number.parse::<f64>().ok()? * unit as f64;
    // A part of a byte is none: who writes 0.5 means a half of something.
    let is_bytes = if unit == 1 {
        value.fract() == 0.0
    } else {
        value == 0.0 || value >= 1.0
    };
    (is_bytes && value >= 0.0 && value < u64::MAX as f64).then_some(value as u64)
}

/// Writes bytes with the unit that fits, as `1.50 GiB`.
///
/// ```
/// assert_eq!(flagstone::bytes::format(3 << 29), "1.50 GiB");
/// assert_eq!(flagstone::bytes::format(512), "512 B");
/// ```
#[must_use]
pub fn format(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (bytes.ilog2() / 10) as usize;
    format!(
        "{:.2} {}",
        bytes as f64 / (1u64 << (10 * power)) as f64,
        UNITS[power - 1]
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rejects_what_is_not_a_number_of_bytes() {
        for bad in [
            "",
            "GiB",
            "1 parsec",
            "1..2MiB",
            "-4",
            "1e3",
            "99999999999TiB",
            "nan",
            "0.5",
            "1.5B",
            "0.0001KiB",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn whole_numbers_of_every_unit_are_exact(n in 0u64..1 << 20) {
            for (unit, scale) in [("", 1u64), ("KiB", 1 << 10), ("mib", 1 << 20), ("GiB", 1 << 30), ("kB", 1000)] {
                prop_assert_eq!(parse(&format!("{n}{unit}")), Some(n * scale));
            }
        }
    }
}
