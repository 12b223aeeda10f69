//! The device's primary context, made current for the length of a call, and the thread's capture mode likewise.

use cudarc::driver::sys::{CUcontext, CUdevice};

use super::api::Api;
use crate::driver::DriverResult;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: calls of this thread neither fail nor end a capture because of what they are.
const RELAXED: u32 = 2;

/// The primary context of a device: the one that the CUDA runtime, and so PyTorch, uses.
///
/// Retained once by each driver object and never released: at exit the driver may be gone before its users are.
#[derive(Clone, Copy)]
pub(super) struct Context {
    api: &'static Api,
    handle: usize, // a CUcontext; as a number it may go to any thread
}

impl Context {
    /// Retains the device's primary context, which makes it where nobody has yet (hundreds of milliseconds).
    pub(super) fn retain(api: &'static Api, device: CUdevice) -> DriverResult<Self> {
        let mut handle: CUcontext = core::ptr::null_mut();
        // SAFETY: the handle is written to a local.
        unsafe { api.cuDevicePrimaryCtxRetain(&mut handle, device)? };
        Ok(Self {
            api,
            handle: handle as usize,
        })
    }

    /// Makes the context current until the guard is dropped.
    pub(super) fn enter(&self) -> DriverResult<Current> {
        let mut current: CUcontext = core::ptr::null_mut();
        // SAFETY: the handle is written to a local.
        unsafe { self.api.cuCtxGetCurrent(&mut current)? };
        let pushed = current as usize != self.handle;
        if pushed {
            // SAFETY: the context is retained for the life of the process.
            unsafe { self.api.cuCtxPushCurrent(self.handle as CUcontext)? };
        }
        Ok(Current { api: self.api, pushed })
    }

    /// The same, and in relaxed capture mode: for calls that would fail and end a capture that some stream is under.
    pub(super) fn enter_relaxed(&self) -> DriverResult<Relaxed> {
        let context = self.enter()?;
        let mut mode = RELAXED;
        // SAFETY: the mode is read from and the earlier one written to a local.
        unsafe { self.api.cuThreadExchangeStreamCaptureMode(&mut mode)? };
        Ok(Relaxed { earlier: mode, context })
    }
}

/// The context is current; dropping this makes the caller's context current again.
pub(super) struct Current {
    api: &'static Api,
    pushed: bool,
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped: CUcontext = core::ptr::null_mut();
            // A failure here is the driver's end. What the call did has been done: its own result is what counts.
            // SAFETY: the handle is written to a local; this thread pushed it.
            let _ = unsafe { self.api.cuCtxPopCurrent(&mut popped) };
        }
    }
}

/// The thread is in relaxed capture mode; dropping this puts its own mode back, then its context.
pub(super) struct Relaxed {
    earlier: u32,
    context: Current,
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // As for the context: a failure cannot be helped, and the call's own result is what counts.
        // SAFETY: the mode is one that the driver gave us.
        let _ = unsafe { self.context.api.cuThreadExchangeStreamCaptureMode(&mut self.earlier) };
    }
}
