//! Python functions as callbacks of a pool that is short of memory.
//!
//! They run only in requests that Python code made through a pool object: its thread let the interpreter go for the
//! request, holds nothing, and may take it again. A hook of torch, or any other caller of the C functions, may hold locks of
//! its own that a thread with the interpreter waits for, so no Python runs there.

use std::cell::Cell;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::ffi;
use pyo3::prelude::*;

use super::ending;

thread_local! {
    /// Whether this thread is in a request that Python code made.
    static REQUESTING: Cell<bool> = const { Cell::new(false) };
}

/// The thread is in such a request until this is dropped; after that, in one if it was before. Requests are nested where a
/// callback makes one.
struct Requesting {
    before: bool,
}

impl Requesting {
    fn enter() -> Self {
        Self {
            before: REQUESTING.replace(true),
        }
    }
}

impl Drop for Requesting {
    fn drop(&mut self) {
        REQUESTING.set(self.before);
    }
}

/// Makes a request of Python code, with the interpreter let go.
pub fn request<T: Send>(py: Python<'_>, make: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let _requesting = Requesting::enter();
        make()
    })
}

/// Calls a callback, if Python may run here. What it raises goes to `sys.unraisablehook`, but for an interrupt, which is raised
/// when the request is over: the request goes on.
pub fn call(callback: &Py<PyAny>, bytes: u64) {
    if !REQUESTING.get() {
        return;
    }
    // Without an interpreter there is nobody to call any more.
    let _ = Python::try_attach(|py| {
        let callback = callback.bind(py);
        let called = (bytes,)
            .into_pyobject(py)
            .and_then(|args| ending::call(callback, &args, None));
        match called {
            Ok(_) => {}
            // An interrupt is for the program: it comes again when the request is over.
            // SAFETY: only sets a flag.
            Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => unsafe { ffi::PyErr_SetInterrupt() },
            Err(error) => error.write_unraisable(py, Some(callback)),
        }
    });
}
