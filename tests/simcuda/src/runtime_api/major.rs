//! Which runtime the process was built for: some names of CUDA 12 have other arguments in CUDA 13.

use std::ffi::CStr;
use std::sync::LazyLock;

use flagstone::driver::sim::{Code, CuResult};

/// The major version of CUDA that a runtime has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Major {
    Cuda12,
    Cuda13,
}

impl Major {
    /// That of the runtime under whose name this library was loaded. Whoever calls a function of it has had it loaded.
    pub fn get() -> Self {
        static FOUND: LazyLock<Major> = LazyLock::new(|| {
            if is_loaded(c"libcudart.so.12") && !is_loaded(c"libcudart.so.13") {
                Major::Cuda12
            } else {
                Major::Cuda13
            }
        });
        *FOUND
    }

    /// "Not supported" for a function that only this version has, or has with these arguments, in a process of the other.
    pub fn only(self) -> CuResult {
        if Self::get() == self {
            Ok(())
        } else {
            Err(Code::NOT_SUPPORTED)
        }
    }
}

fn is_loaded(soname: &CStr) -> bool {
    // SAFETY: the name is a string; nothing is loaded that was not.
    let found = unsafe { libc::dlopen(soname.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if found.is_null() {
        return false;
    }
    // SAFETY: the handle is from `dlopen`, and is not used again.
    unsafe { libc::dlclose(found) };
    true
}
