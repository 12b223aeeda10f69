//! What each thread has of its own: magazines of ready blocks, and counters.

mod barrier;
mod cache;
mod counters;
mod current;
mod own;
mod token;

pub(crate) use barrier::available as magazines_available;
pub(crate) use cache::{Cache, NO_STREAM};
pub(crate) use counters::{Counters, Live, Sum, Totals};
pub(crate) use current::{Current, Lender};
pub(crate) use own::OwnCaches;
#[cfg(all(test, loom))]
pub(crate) use token::become_thread;
pub(crate) use token::change as change_tokens;
