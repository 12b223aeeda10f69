//! A store-load barrier whose cost lies with the rare side (Linux `membarrier`, since 4.14).
//!
//! A thread that uses its magazines writes "busy" and reads "revoked"; one that wants to take them writes "revoked" and
//! reads "busy". Both need a full barrier between, or each could miss the other's write. The owner does this at every
//! hit and the taker almost never, so the owner has only a compiler barrier, and the taker asks the kernel to run a
//! barrier on every thread of the process. Where the kernel refuses, both sides use a fence.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

/// Whether the owner's side needs a fence of its own. Starts as true: safe before [`init`].
static LIGHT_NEEDS_FENCE: AtomicBool = AtomicBool::new(true);

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers the process, once. Called before the first cache is made.
pub(crate) fn init() {
    static REGISTERED: OnceLock<()> = OnceLock::new();
    REGISTERED.get_or_init(|| {
        // A trial, since a sandbox may allow one command and not the other.
        if membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED) {
            // Relaxed: a thread that still sees true runs a fence that it does not need.
            LIGHT_NEEDS_FENCE.store(false, Ordering::Relaxed);
        }
    });
}

/// The owner's barrier.
#[inline(always)]
pub(crate) fn light() {
    // Relaxed: see `init`.
    if LIGHT_NEEDS_FENCE.load(Ordering::Relaxed) {
        // SeqCst: orders our store before our load against the taker's.
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The taker's barrier.
pub(crate) fn heavy() {
    // SeqCst: orders our store before our load against the owner's.
    fence(Ordering::SeqCst);
    // Relaxed: see `init`.
    if !LIGHT_NEEDS_FENCE.load(Ordering::Relaxed) {
        // Cannot fail once it succeeded in `init`: the only errors are of arguments and registration.
        membarrier(PRIVATE_EXPEDITED);
    }
}
