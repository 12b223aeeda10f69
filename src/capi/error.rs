//! The boundary: panics and errors become plain values.

use crate::error::{Error, Result};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// What went wrong last in a C function called by this thread, taken out; `None` if nothing did.
pub fn last_error() -> Option<Error> {
    LAST.try_with(RefCell::take).ok().flatten()
}

/// Keeps an error for [`last_error`]. Late in a thread's exit there is nowhere to keep it.
pub(super) fn keep(error: Error) {
    let _ = LAST.try_with(|last| last.replace(Some(error)));
}

/// Runs one call; a panic is an error like others.
#[inline(always)]
pub(super) fn call<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    // Unwind safe: after a panic nothing is used but the pool, whose locks survive one and whose accounts are changed last.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Error::Internal))
}

/// As [`call`], for functions that have no way to say that something went wrong.
#[inline(always)]
pub(super) fn quietly(body: impl FnOnce() -> Result<()>) {
    if let Err(error) = call(body) {
        keep(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_its_thread() {
        assert!(matches!(call::<()>(|| panic!("a defect")), Err(Error::Internal)));
        quietly(|| panic!("a defect"));
        assert!(matches!(last_error(), Some(Error::Internal)));
        assert!(last_error().is_none(), "taken out");
    }
}
