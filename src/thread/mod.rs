//! What each thread has of its own: magazines of ready blocks, and counters.

mod barrier;
mod cache;
mod counters;
mod current;
mod magazine;
mod own;
mod peaks;
mod slots;
mod stock;
mod sums;
mod token;

pub(crate) use barrier::available as magazines_available;
pub(crate) use cache::{Busy, Cache, NO_STREAM};
pub(crate) use counters::Counters;
pub(crate) use current::{Current, Lender};
pub(crate) use own::OwnCaches;
pub(crate) use peaks::{Totals, Whose};
pub(crate) use slots::{Given, size_of_count};
pub(crate) use sums::{Sum, allocated, count_frees};
#[cfg(all(test, loom))]
pub(crate) use token::become_thread;
pub(crate) use token::token;
