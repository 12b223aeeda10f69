//! Uses of blocks on other streams than their own, and the events that say when they are over.

mod pending;
mod uses;

pub(crate) use pending::{Pending, Recorded};
pub(crate) use uses::{Use, Uses};
