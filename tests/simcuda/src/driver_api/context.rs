//! Contexts: each device has its primary one. Each thread has a stack of them, the top one being current.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint};

use flagstone::driver::sim::{Code, CuResult, Device};

use super::write;
use crate::calls::export;
use crate::state::machine;

/// A `CUcontext`: the device's ordinal and this, so that it is neither null nor a small number.
const PRIMARY: usize = 0xC0DE_0000;

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The handle of a device's primary context.
const fn primary(ordinal: c_int) -> usize {
    PRIMARY + ordinal as usize
}

/// The device of a context.
fn device(context: usize) -> CuResult<&'static Device> {
    let ordinal = context
        .checked_sub(PRIMARY)
        .and_then(|ordinal| c_int::try_from(ordinal).ok());
    machine()?
        .device(ordinal.ok_or(Code::INVALID_CONTEXT)?)
        .map_err(|_| Code::INVALID_CONTEXT)
}

/// The context that is current, 0 for none.
fn top() -> usize {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// The device whose context is current.
pub fn current() -> CuResult<&'static Device> {
    device(top())
}

export! {
    fn cuDevicePrimaryCtxRetain(context: *mut usize, ordinal: c_int) {
        machine()?.device(ordinal)?;
        // SAFETY: the caller's promise.
        unsafe { write(context, primary(ordinal)) }
    }

    /// The context stays: the simulated devices live as long as the process.
    fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) {
        machine()?.device(ordinal).map(drop)
    }

    fn cuDevicePrimaryCtxGetState(ordinal: c_int, flags: *mut c_uint, active: *mut c_int) {
        machine()?.device(ordinal)?;
        // SAFETY: the caller's promise.
        unsafe {
            write(flags, 0)?;
            write(active, 1)
        }
    }

    fn cuCtxGetCurrent(context: *mut usize) {
        machine()?;
        // SAFETY: the caller's promise.
        unsafe { write(context, top()) }
    }

    /// Null takes the top context off the stack.
    fn cuCtxSetCurrent(context: usize) {
        if context != 0 {
            device(context)?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend((context != 0).then_some(context));
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        device(context)?;
        STACK.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut usize) {
        let popped = STACK.with_borrow_mut(Vec::pop).ok_or(Code::INVALID_CONTEXT)?;
        // SAFETY: the caller's promise; null is allowed here.
        if context.is_null() { Ok(()) } else { unsafe { write(context, popped) } }
    }

    fn cuCtxGetDevice(ordinal: *mut c_int) {
        // SAFETY: the caller's promise.
        unsafe { write(ordinal, current()?.properties().ordinal) }
    }

    fn cuCtxSynchronize() {
        current()?.ctx_synchronize()
    }
}
