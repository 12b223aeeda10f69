//! Prices measured on a real device. `tests/gpu/prices.py` writes this file; do not edit it.

use super::{Call, Price};

/// The device, the day and the file of results; none where the check has not been run on a device yet.
pub(super) const SOURCE: Option<&str> = None;

/// The price of each function that was measured.
pub(super) const PRICES: &[(Call, Price)] = &[];
