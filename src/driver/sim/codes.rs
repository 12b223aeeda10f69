//! The result codes of the CUDA driver.

use crate::driver::DriverError;

use super::Call;

/// A `CUresult` that is not success.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
#[error("{} (error {})", self.name(), self.0)]
pub struct Code(pub u32);

/// What a call on a simulated device gives.
pub type CuResult<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $number:literal: $meaning:literal,)*) => {
        impl Code {
            $(#[doc = $meaning] pub const $name: Self = Self($number);)*

            /// The code's name, as `CUDA_ERROR_OUT_OF_MEMORY`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($number => concat!("CUDA_ERROR_", stringify!($name)),)*
                    _ => "CUDA_ERROR_UNKNOWN",
                }
            }
        }
    };
}

codes! {
    INVALID_VALUE = 1: "An argument is out of range, or names memory that is not in the state the call needs.",
    OUT_OF_MEMORY = 2: "No memory is left.",
    NOT_INITIALIZED = 3: "`cuInit` was not called.",
    DEINITIALIZED = 4: "The driver is shutting down.",
    NO_DEVICE = 100: "There is no device.",
    INVALID_DEVICE = 101: "There is no device with that ordinal.",
    INVALID_CONTEXT = 201: "No context is current, or it is not valid.",
    OPERATING_SYSTEM = 304: "A call to the operating system failed.",
    INVALID_HANDLE = 400: "A stream or event that does not exist.",
    ILLEGAL_STATE = 401: "The object is not in a state that permits the call.",
    NOT_FOUND = 500: "A symbol was not found.",
    NOT_READY = 600: "The work is not done yet.",
    ILLEGAL_ADDRESS = 700: "Work touched memory that is not mapped. Every later call fails too.",
    LAUNCH_TIMEOUT = 702: "Work took too long. Every later call fails too.",
    CONTEXT_IS_DESTROYED = 709: "The device was reset. Every later call fails too.",
    LAUNCH_FAILED = 719: "Work failed. Every later call fails too.",
    NOT_PERMITTED = 800: "The call is not permitted.",
    NOT_SUPPORTED = 801: "The device does not support the call.",
    STREAM_CAPTURE_UNSUPPORTED = 900: "The call is not permitted while a stream is capturing.",
    STREAM_CAPTURE_INVALIDATED = 901: "The capture was invalidated by an earlier error.",
    STREAM_CAPTURE_MERGE = 902: "The call would have merged two captures.",
    STREAM_CAPTURE_UNMATCHED = 903: "The capture was not begun on this stream.",
    STREAM_CAPTURE_UNJOINED = 904: "A stream that the capture forked to was not joined to its origin.",
    STREAM_CAPTURE_ISOLATION = 905: "Captured work would have depended on work outside the capture.",
    STREAM_CAPTURE_IMPLICIT = 906: "The legacy stream would have synchronised with a capturing stream.",
    CAPTURED_EVENT = 907: "The event was last recorded in a capturing stream.",
    STREAM_CAPTURE_WRONG_THREAD = 908: "A capture that is not relaxed was ended by another thread than began it.",
    UNKNOWN = 999: "Any other error.",
}

impl Code {
    /// The code as the error of a [`Driver`](crate::driver::Driver).
    #[must_use]
    pub const fn at(self, call: Call) -> DriverError {
        DriverError {
            call: call.name(),
            code: self.0,
            name: self.name(),
        }
    }
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_carries_call_number_and_name() {
        let error = Code::OUT_OF_MEMORY.at(Call::MemCreate);
        assert_eq!(
            error.to_string(),
            "cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY (error 2)"
        );
        assert!(error.is_out_of_memory());
    }
}
