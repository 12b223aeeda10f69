//! Errors: the thread's last one, and their names. The runtime's numbers are those of the driver.

use std::cell::Cell;
use std::ffi::{CStr, c_char};

thread_local! {
    static LAST: Cell<u32> = const { Cell::new(0) };
}

/// Keeps what a call returned, if it failed, until somebody asks.
pub fn remember(code: u32) -> u32 {
    if code != 0 {
        LAST.set(code);
    }
    code
}

/// Number, name and text of the errors that the simulation gives.
const ERRORS: &[(u32, &CStr, &CStr)] = &[
    (0, c"cudaSuccess", c"no error"),
    (1, c"cudaErrorInvalidValue", c"invalid argument"),
    (2, c"cudaErrorMemoryAllocation", c"out of memory"),
    (3, c"cudaErrorInitializationError", c"initialization error"),
    (9, c"cudaErrorInvalidConfiguration", c"invalid configuration argument"),
    (98, c"cudaErrorInvalidDeviceFunction", c"invalid device function"),
    (100, c"cudaErrorNoDevice", c"no CUDA-capable device is detected"),
    (101, c"cudaErrorInvalidDevice", c"invalid device ordinal"),
    (201, c"cudaErrorDeviceUninitialized", c"invalid device context"),
    (
        304,
        c"cudaErrorOperatingSystem",
        c"OS call failed or operation not supported on this OS",
    ),
    (400, c"cudaErrorInvalidResourceHandle", c"invalid resource handle"),
    (
        401,
        c"cudaErrorIllegalState",
        c"the operation cannot be performed in the present state",
    ),
    (500, c"cudaErrorSymbolNotFound", c"named symbol not found"),
    (600, c"cudaErrorNotReady", c"device not ready"),
    (
        700,
        c"cudaErrorIllegalAddress",
        c"an illegal memory access was encountered",
    ),
    (
        704,
        c"cudaErrorPeerAccessAlreadyEnabled",
        c"peer access is already enabled",
    ),
    (
        705,
        c"cudaErrorPeerAccessNotEnabled",
        c"peer access has not been enabled",
    ),
    (
        712,
        c"cudaErrorHostMemoryAlreadyRegistered",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        713,
        c"cudaErrorHostMemoryNotRegistered",
        c"pointer does not correspond to a registered memory region",
    ),
    (719, c"cudaErrorLaunchFailure", c"unspecified launch failure"),
    (800, c"cudaErrorNotPermitted", c"operation not permitted"),
    (801, c"cudaErrorNotSupported", c"operation not supported"),
    (
        900,
        c"cudaErrorStreamCaptureUnsupported",
        c"operation not permitted when stream is capturing",
    ),
    (
        901,
        c"cudaErrorStreamCaptureInvalidated",
        c"operation failed due to a previous error during capture",
    ),
    (
        902,
        c"cudaErrorStreamCaptureMerge",
        c"operation would result in a merge of separate capture sequences",
    ),
    (
        903,
        c"cudaErrorStreamCaptureUnmatched",
        c"capture was not ended in the same stream as it began",
    ),
    (
        904,
        c"cudaErrorStreamCaptureUnjoined",
        c"capturing stream has unjoined work",
    ),
    (
        905,
        c"cudaErrorStreamCaptureIsolation",
        c"dependency created on uncaptured work in another stream",
    ),
    (
        906,
        c"cudaErrorStreamCaptureImplicit",
        c"operation would make the legacy stream depend on a capturing blocking stream",
    ),
    (
        907,
        c"cudaErrorCapturedEvent",
        c"operation not permitted on an event last recorded in a capturing stream",
    ),
    (
        908,
        c"cudaErrorStreamCaptureWrongThread",
        c"attempt to terminate a thread-local capture sequence from another thread",
    ),
    (999, c"cudaErrorUnknown", c"unknown error"),
];

/// The name and text of a number.
pub fn describe(code: u32) -> (&'static CStr, &'static CStr) {
    let known = ERRORS.iter().find(|error| error.0 == code);
    known.map_or((c"unrecognized error code", c"unrecognized error code"), |error| {
        (error.1, error.2)
    })
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaGetLastError() -> u32 {
    LAST.replace(0)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaPeekAtLastError() -> u32 {
    LAST.get()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaGetErrorName(code: u32) -> *const c_char {
    describe(code).0.as_ptr()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cudaGetErrorString(code: u32) -> *const c_char {
    describe(code).1.as_ptr()
}
