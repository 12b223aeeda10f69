//! A C++ `std::function<bool(cudaStream_t)>` as torch passes it: 16 bytes of functor, a manager, an invoker (libstdc++).

use crate::driver::Stream;
use std::ffi::{c_int, c_void};

const CLONE: c_int = 2;
const DESTROY: c_int = 3;

type Manager = unsafe extern "C" fn(*mut c_void, *const c_void, c_int) -> bool;
type Invoker = unsafe extern "C" fn(*const c_void, *const usize) -> bool;

/// The object's layout. On x86-64 the function object is passed by invisible reference.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct StdFunction {
    functor: [usize; 2],
    manager: Option<Manager>,
    invoker: Option<Invoker>,
}

/// An owned copy of the function.
pub(super) struct Filter(Box<StdFunction>);

// SAFETY: torch's filters read thread-safe state (the capture id, the thread's id); torch's own allocator calls
// them from any thread too.
unsafe impl Send for Filter {}

impl Filter {
    /// A copy of torch's function; `None` for an empty one.
    ///
    /// # Safety
    /// `source` must be null or point to a live `std::function<bool(cudaStream_t)>`.
    pub(super) unsafe fn copy(source: *const StdFunction) -> Option<Self> {
        // SAFETY: the caller's promise.
        let source = unsafe { source.as_ref() }?;
        let manager = source.manager?;
        source.invoker?;
        let mut copy = Box::new(StdFunction {
            functor: [0; 2],
            ..*source
        });
        let (to, from) = ((&raw mut copy.functor).cast(), (&raw const source.functor).cast());
        // SAFETY: the manager's clone operation constructs the functor at `to` from the one at `from`.
        unsafe { manager(to, from, CLONE) };
        Some(Self(copy))
    }

    /// Whether requests for the stream go to the pool.
    pub(super) fn accepts(&self, stream: Stream) -> bool {
        // SAFETY: the copy is alive, and the argument is passed by reference as `cudaStream_t&&`.
        self.0
            .invoker
            .is_some_and(|invoke| unsafe { invoke((&raw const self.0.functor).cast(), &raw const stream.0) })
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        if let Some(manager) = self.0.manager {
            let functor: *mut c_void = (&raw mut self.0.functor).cast();
            // SAFETY: the copy was cloned by the same manager and is destroyed once.
            unsafe { manager(functor, functor, DESTROY) };
        }
    }
}
