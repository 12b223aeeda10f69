//! Calls of Python code by threads that the ending interpreter may stop.
//!
//! CPython before 3.14 ends a daemon thread with `pthread_exit` where it wants the interpreter after that has ended. That unwinds
//! the stack, and frames that nothing may unwind through, or that stop what does, abort the process. PyO3 lets the thread sleep for
//! ever instead where the crate takes the interpreter, but Python code lets it go and takes it by itself. So the crate calls Python
//! code by these functions alone.

use std::ffi::{CStr, c_char};
use std::ptr::read_volatile;
use std::time::Duration;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule, PyTuple};

/// The C functions, as such that may be unwound through. PyO3 declares them as such that may not, and what the linker takes for one
/// function has one declaration: so they are called by these pointers, which are read where the compiler does not know them.
type Call =
    unsafe extern "C-unwind" fn(*mut ffi::PyObject, *mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;
type Import = unsafe extern "C-unwind" fn(*const c_char) -> *mut ffi::PyObject;

// SAFETY: the same function, with the same arguments.
static CALL: Call = unsafe {
    std::mem::transmute::<
        unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject,
        Call,
    >(ffi::PyObject_Call)
};
// SAFETY: as above.
static IMPORT: Import = unsafe {
    std::mem::transmute::<unsafe extern "C" fn(*const c_char) -> *mut ffi::PyObject, Import>(ffi::PyImport_ImportModule)
};

/// Dropped where the stack is unwound: the thread sleeps for as long as the process lives.
struct Stay;

impl Drop for Stay {
    fn drop(&mut self) {
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
}

/// Runs a function of C that may run Python code. It does not panic.
pub fn outlast<T>(body: impl FnOnce() -> T) -> T {
    let stay = Stay;
    let result = body();
    std::mem::forget(stay);
    result
}

/// `callable(*args, **keywords)`.
pub fn call<'py>(
    callable: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (function, args) = (callable.as_ptr(), args.as_ptr());
    let keywords = keywords.map_or(std::ptr::null_mut(), Bound::as_ptr);
    // SAFETY: the pointer is good. The thread has the interpreter, and the objects live as long as the call.
    let result = outlast(|| unsafe { read_volatile(&raw const CALL)(function, args, keywords) });
    // SAFETY: a new reference, or null where an exception is set.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), result) }
}

/// `importlib.import_module(name)`.
pub fn import<'py>(py: Python<'py>, name: &CStr) -> PyResult<Bound<'py, PyModule>> {
    // SAFETY: the pointer is good, and the thread has the interpreter.
    let module = outlast(|| unsafe { read_volatile(&raw const IMPORT)(name.as_ptr()) });
    // SAFETY: a new reference, or null where an exception is set.
    let module = unsafe { Bound::from_owned_ptr_or_err(py, module) }?;
    Ok(module.cast_into()?)
}
