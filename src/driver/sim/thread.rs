//! What a device knows about the calling thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::CaptureMode;

thread_local! {
    // Neither has a destructor: both work in the last destructors of a thread.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// A number for the calling thread that no other thread of the process has or will have.
pub(super) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NUMBER.with(|number| {
        if number.get() == 0 {
            // Relaxed: only the uniqueness of the number counts.
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// The calling thread's capture mode.
pub(super) fn capture_mode() -> CaptureMode {
    MODE.get()
}

/// Sets the calling thread's capture mode, for all devices, and gives the old one
/// (`cuThreadExchangeStreamCaptureMode`).
pub fn exchange_capture_mode(mode: CaptureMode) -> CaptureMode {
    MODE.replace(mode)
}
