//! The one place that chooses between the standard atomics and loom's (`--cfg loom`).

#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose holders never leave it half-written: a panic elsewhere does not make the data unusable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
