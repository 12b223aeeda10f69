//! What a program does with the driver beside the pool, and with the simulated driver's own functions.

use std::ptr::null_mut;

use cudarc::driver::sys;
use flagstone::driver::Stream;

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: u32 = 1;
pub const SUCCESS: sys::CUresult = sys::CUresult::CUDA_SUCCESS;

/// Makes the primary context of a device current.
pub fn enter(ordinal: i32) {
    let mut context = null_mut();
    // SAFETY: results are written to locals.
    unsafe {
        assert_eq!(sys::cuInit(0), SUCCESS);
        assert_eq!(sys::cuDevicePrimaryCtxRetain(&mut context, ordinal), SUCCESS);
        assert_eq!(sys::cuCtxPushCurrent_v2(context), SUCCESS);
    }
}

/// Makes the context current that was so before.
pub fn leave() {
    let mut context = null_mut();
    // SAFETY: the handle is written to a local.
    assert_eq!(unsafe { sys::cuCtxPopCurrent_v2(&mut context) }, SUCCESS);
}

/// A stream of device 0.
pub fn stream() -> Stream {
    enter(0);
    let mut stream = null_mut();
    // SAFETY: the handle is written to a local.
    assert_eq!(unsafe { sys::cuStreamCreate(&mut stream, NON_BLOCKING) }, SUCCESS);
    leave();
    Stream(stream as usize)
}

/// The handle of a stream of device 0 that was destroyed.
pub fn dead_stream() -> Stream {
    let stream = stream();
    enter(0);
    // SAFETY: the stream is live and not used again but by the calls that are to refuse it.
    assert_eq!(unsafe { sys::cuStreamDestroy_v2(stream.0 as sys::CUstream) }, SUCCESS);
    leave();
    stream
}

/// A function of the simulated driver's own, by name.
pub fn control<F: Copy>(name: &str) -> F {
    // SAFETY: the library is loaded; each caller gives the function's type as the library declares it.
    *unsafe { sys::culib().get::<F>(name.as_bytes()) }.expect("the simulated driver has it")
}
