//! A store-load barrier whose cost lies with the rare side (Linux `membarrier`, since 4.14).
//!
//! A thread that uses its magazines writes "busy" and reads "revoked"; one that wants to take them writes "revoked" and
//! reads "busy". Both need a full barrier between, or each could miss the other's write. The owner does this at every
//! hit and the taker almost never, so the owner has only a compiler barrier, and the taker asks the kernel to run a
//! barrier on every thread of the process. Where the kernel refuses there are no magazines.

use crate::sync::atomic::fence;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::compiler_fence;

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether the kernel has the barrier. Registers the process, once; asked before the first cache is made.
pub(crate) fn available() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    // A trial, since a sandbox may allow one command and not the other.
    *REGISTERED.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED))
}

/// The owner's barrier.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn light() {
    // SeqCst: keeps the compiler from moving our load before our store; `heavy` keeps the processor from it.
    compiler_fence(Ordering::SeqCst);
}

/// The owner's barrier in a model, which has no other way to say what `heavy` does to this thread.
#[cfg(loom)]
pub(crate) fn light() {
    // SeqCst: orders our store before our load.
    fence(Ordering::SeqCst);
}

/// Beside a `SeqCst` read-modify-write that is meant as a barrier: loom takes it for `AcqRel`.
#[inline(always)]
pub(crate) fn both() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// The taker's barrier.
pub(crate) fn heavy() {
    // SeqCst: orders our store before our load.
    fence(Ordering::SeqCst);
    // Cannot fail once it succeeded in `available`: the only errors are of arguments and registration.
    #[cfg(not(loom))]
    membarrier(PRIVATE_EXPEDITED);
}
