//! What each thread has of its own: magazines of ready blocks, and counters.

mod barrier;
mod cache;
mod counters;
mod current;

pub(crate) use cache::Cache;
pub(crate) use counters::{Counters, Sum, Totals};
pub(crate) use current::{Current, Lender, NO_STREAM};
