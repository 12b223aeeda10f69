//! A plug-in for torch as its documentation shows one: each call is passed on to `cudaMalloc` or `cudaFree`.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

type Malloc = unsafe extern "C" fn(ptr: *mut *mut c_void, size: usize) -> c_int;
type Free = unsafe extern "C" fn(ptr: *mut c_void) -> c_int;

/// CUDA's functions, as they were given first.
static CUDA: OnceLock<(Malloc, Free)> = OnceLock::new();

/// The addresses of the plug-in's functions, which call those at the given addresses; None if one is null.
///
/// # Safety
/// The addresses are those of `cudaMalloc` and `cudaFree`, in a library that stays loaded.
pub unsafe fn functions(malloc: usize, free: usize) -> Option<(usize, usize)> {
    let malloc: *const c_void = ptr::with_exposed_provenance(malloc);
    let free: *const c_void = ptr::with_exposed_provenance(free);
    // SAFETY: an Option of a function pointer has the layout of a pointer, and null is None; else by the contract.
    let (malloc, free) = unsafe {
        (
            std::mem::transmute::<*const c_void, Option<Malloc>>(malloc),
            std::mem::transmute::<*const c_void, Option<Free>>(free),
        )
    };
    CUDA.get_or_init({
        let cuda = (malloc?, free?);
        move || cuda
    });
    Some((plain_alloc as *const () as usize, plain_free as *const () as usize))
}

/// Null where there is no memory.
unsafe extern "C" fn plain_alloc(size: usize, _device: c_int, _stream: *mut c_void) -> *mut c_void {
    let mut block = ptr::null_mut();
    if let Some((malloc, _)) = CUDA.get() {
        // SAFETY: by the contract of `functions`; on failure the pointer stays null.
        unsafe { malloc(&mut block, size) };
    }
    block
}

unsafe extern "C" fn plain_free(block: *mut c_void, _size: usize, _device: c_int, _stream: *mut c_void) {
    if let Some((_, free)) = CUDA.get() {
        // SAFETY: by the contract of `functions`; the caller gives back what it got from `plain_alloc`.
        unsafe { free(block) };
    }
}
