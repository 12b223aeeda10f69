//! Contexts: each device has its primary one. Each thread has a stack of them, the top one being current.

use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU64, Ordering};

use flagstone::driver::sim::{Code, CuResult, Device};

use super::write;
use crate::calls::export;
use crate::state::{self, machine};

/// A `CUcontext`: the device's ordinal and this, so that it is neither null nor a small number.
const PRIMARY: usize = 0xC0DE_0000;

/// The priorities of streams.
pub const LEAST_PRIORITY: c_int = 0;
pub const GREATEST_PRIORITY: c_int = -5;

/// The most contexts on a thread's stack.
const DEPTH: usize = 16;

thread_local! {
    // It has no destructor: threads free memory in their last destructors.
    static STACK: Cell<([usize; DEPTH], usize)> = const { Cell::new(([0; DEPTH], 0)) };
}

/// The devices whose primary context was used, a bit for each.
static ACTIVE: AtomicU64 = AtomicU64::new(0);

fn activate(ordinal: c_int) {
    // Relaxed: nothing else is published by it.
    ACTIVE.fetch_or(1 << (ordinal & 63), Ordering::Relaxed);
}

fn push(context: usize) -> CuResult {
    let (mut stack, depth) = STACK.get();
    *stack.get_mut(depth).ok_or(Code::INVALID_VALUE)? = context;
    STACK.set((stack, depth + 1));
    Ok(())
}

fn pop() -> Option<usize> {
    let (stack, depth) = STACK.get();
    let last = depth.checked_sub(1)?;
    STACK.set((stack, last));
    Some(stack[last])
}

/// The handle of a device's primary context.
pub const fn primary(ordinal: c_int) -> usize {
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
    let (stack, depth) = STACK.get();
    depth.checked_sub(1).map_or(0, |last| stack[last])
}

/// The device whose context is current.
pub fn current() -> CuResult<&'static Device> {
    device(top())
}

/// The device that calls of the runtime go to: that of the current context, or device 0, whose context becomes current.
pub fn current_or_first() -> CuResult<&'static Device> {
    if top() == 0 {
        make_current(0)?;
    }
    current()
}

/// The ordinal of the current context, 0 for none.
pub fn ordinal() -> c_int {
    current().map_or(0, |device| device.properties().ordinal)
}

/// Makes the primary context of a device current, in place of the one that is. Starts the driver.
pub fn make_current(ordinal: c_int) -> CuResult {
    state::start()?;
    machine()?.device(ordinal)?;
    activate(ordinal);
    pop();
    push(primary(ordinal))
}

export! {
    fn cuDevicePrimaryCtxRetain(context: *mut usize, ordinal: c_int) {
        machine()?.device(ordinal)?;
        activate(ordinal);
        // SAFETY: the caller's promise.
        unsafe { write(context, primary(ordinal)) }
    }

    /// The context stays: the simulated devices live as long as the process.
    fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) {
        machine()?.device(ordinal).map(drop)
    }

    /// Everything of the context is gone, and every call of the device says so from now on.
    fn cuDevicePrimaryCtxReset_v2(ordinal: c_int) {
        machine()?.device(ordinal)?.break_with(Code::CONTEXT_IS_DESTROYED);
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(ordinal: c_int, flags: *mut c_uint, active: *mut c_int) {
        machine()?.device(ordinal)?;
        // Relaxed: as in `activate`.
        let used = ACTIVE.load(Ordering::Relaxed) >> (ordinal & 63) & 1;
        // SAFETY: the caller's promise.
        unsafe {
            write(flags, 0)?;
            write(active, used as c_int)
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
        pop();
        if context == 0 { Ok(()) } else { push(context) }
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        device(context)?;
        push(context)
    }

    fn cuCtxPopCurrent_v2(context: *mut usize) {
        let popped = pop().ok_or(Code::INVALID_CONTEXT)?;
        // SAFETY: the caller's promise; null is allowed here.
        if context.is_null() { Ok(()) } else { unsafe { write(context, popped) } }
    }

    fn cuCtxGetDevice(ordinal: *mut c_int) {
        // SAFETY: the caller's promise.
        unsafe { write(ordinal, current()?.properties().ordinal) }
    }

    /// That of any context; null is the current one.
    fn cuCtxGetDevice_v2(ordinal: *mut c_int, context: usize) {
        let device = if context == 0 { current() } else { device(context) }?;
        // SAFETY: the caller's promise.
        unsafe { write(ordinal, device.properties().ordinal) }
    }

    fn cuCtxSynchronize() {
        current()?.ctx_synchronize()
    }

    /// Numbers that are lower come first. All streams run at the same speed here. Either result may be left out.
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        current()?;
        // SAFETY: the caller promises that each is null or can be written.
        unsafe {
            let _ = write(least, LEAST_PRIORITY);
            let _ = write(greatest, GREATEST_PRIORITY);
        }
        Ok(())
    }
}
