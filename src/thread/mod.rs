//! What each thread has of its own: magazines of ready blocks, and counters.

mod barrier;
mod cache;
mod counters;
mod current;
mod own;
mod token;

pub(crate) use barrier::available as magazines_available;
pub(crate) use cache::{Busy, Cache, NO_STREAM};
pub(crate) use counters::{Count, Counters, Owners, Sum, Totals};
pub(crate) use current::{Current, Lender};
pub(crate) use own::OwnCaches;
#[cfg(all(test, loom))]
pub(crate) use token::become_thread;
