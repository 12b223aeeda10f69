//! Arrays that are zero when they are made: the kernel gives their pages when they are touched.

use crate::sync::atomic::AtomicPtr;
#[cfg(not(loom))]
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr;

/// Types for which zeroed memory is a valid value and that need no drop.
///
/// # Safety
/// All-zero bytes must be a valid value, and dropping must be a no-op.
pub(crate) unsafe trait Zeroed {
    /// The value: loom's atomics are not what their bytes are.
    #[cfg(loom)]
    fn zeroed() -> Self;
}

// SAFETY: null pointers; no drop.
unsafe impl<T, const N: usize> Zeroed for [AtomicPtr<T>; N] {
    #[cfg(loom)]
    fn zeroed() -> Self {
        std::array::from_fn(|_| AtomicPtr::default())
    }
}

/// `count` values, for [`drop_array`]; null where there is no such array.
#[cfg(not(loom))]
pub(super) fn make_array<T: Zeroed>(count: usize) -> *mut T {
    let Ok(layout) = Layout::array::<T>(count) else {
        return ptr::null_mut();
    };
    assert!(layout.size() > 0, "an array of nothing");
    // SAFETY: the layout is not empty, as was just asserted.
    let array = unsafe { alloc_zeroed(layout) };
    if array.is_null() {
        handle_alloc_error(layout);
    }
    array.cast()
}

/// Frees what [`make_array`] made.
///
/// # Safety
/// `array` must come from `make_array` with this `count`, be freed once, and have no other user.
#[cfg(not(loom))]
pub(super) unsafe fn drop_array<T: Zeroed>(array: *mut T, count: usize) {
    if let Ok(layout) = Layout::array::<T>(count) {
        // SAFETY: the caller's promise; values need no drop.
        unsafe { dealloc(array.cast(), layout) };
    }
}

/// As above, value by value.
#[cfg(loom)]
pub(super) fn make_array<T: Zeroed>(count: usize) -> *mut T {
    let values: Box<[T]> = (0..count).map(|_| T::zeroed()).collect();
    Box::into_raw(values).cast()
}

/// As above, value by value.
///
/// # Safety
/// As above.
#[cfg(loom)]
pub(super) unsafe fn drop_array<T: Zeroed>(array: *mut T, count: usize) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(array, count)) });
}
