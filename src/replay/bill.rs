//! What modelled driver calls cost by the price list.

use std::collections::BTreeMap;

use crate::driver::sim::{Call, Prices};

/// Counts modelled driver calls and adds up their prices.
pub(super) struct Bill<'a> {
    prices: &'a Prices,
    pub calls: BTreeMap<&'static str, u64>,
    pub ns: u64,
}

impl<'a> Bill<'a> {
    pub const fn new(prices: &'a Prices) -> Self {
        Self {
            prices,
            calls: BTreeMap::new(),
            ns: 0,
        }
    }

    /// A call about that many bytes was made.
    pub fn charge(&mut self, call: Call, bytes: u64) {
        self.charge_each(call, bytes, 1);
    }

    /// So many calls about that many bytes each were made.
    pub fn charge_each(&mut self, call: Call, bytes: u64, calls: u64) {
        let counted = self.calls.entry(call.name()).or_insert(0);
        *counted = counted.saturating_add(calls);
        self.ns = self
            .ns
            .saturating_add(self.prices.cost(call, bytes).saturating_mul(calls));
    }
}
