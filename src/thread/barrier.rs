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
#[inline(always)]
pub(crate) fn light() {
    // SeqCst: keeps the compiler from moving our load before our store; `heavy` keeps the processor from it.
    #[cfg(not(loom))]
    compiler_fence(Ordering::SeqCst);
    // A model has no other way to say what `heavy` does to this thread.
    #[cfg(loom)]
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
    #[cfg(not(loom))]
    everywhere();
}

/// A full barrier on every thread of the process that runs.
fn everywhere() {
    // Cannot fail once it succeeded in `available`: the only errors are of arguments and registration.
    membarrier(PRIVATE_EXPEDITED);
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::atomic::AtomicU32;
    use crate::sync::meet;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn of_an_owner_and_a_taker_one_sees_the_other() {
        type Shared = [AtomicU32; 2];
        let owner = |[busy, revoked]: &Shared| {
            busy.store(1, Relaxed);
            light();
            revoked.load(Relaxed)
        };
        let taker = |[busy, revoked]: &Shared| {
            revoked.store(1, Relaxed);
            heavy();
            busy.load(Relaxed)
        };
        meet(Shared::default, owner, taker, |_, revoked, busy| {
            assert!(revoked == 1 || busy == 1);
        });
    }
}

#[cfg(test)]
mod tests {
    //! What no model can say: that the kernel is asked, and that its barrier is one for a thread that has none itself. The
    //! processor shows the latter where two threads really run at once, with the standard library's atomics.

    use super::*;
    use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use std::sync::atomic::{AtomicBool, AtomicU64, compiler_fence, fence};

    /// Ends the process where it asks for the barrier.
    fn forbid_the_barrier() -> bool {
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let [load, equal, end] = [
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            libc::BPF_JMP | libc::BPF_JEQ,
            libc::BPF_RET,
        ];
        // The call's number, and the lower half of its first argument (a little-endian machine's).
        let [number, command] = [0, 16];
        let mut filter = [
            step(load as u16, 0, 0, number),
            step(equal as u16, 0, 3, libc::SYS_membarrier as u32),
            step(load as u16, 0, 0, command),
            step(equal as u16, 0, 1, PRIVATE_EXPEDITED as u32),
            step(end as u16, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
            step(end as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: the calls take integers and a program of which the kernel makes its own copy. No core is left of the end.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0) == 0
                && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        }
    }

    #[test]
    fn the_barrier_asks_the_kernel() {
        assert!(available(), "the kernel has no membarrier, and so a pool no magazines");
        // SAFETY: the child makes system calls only, and ends without what else a process does at its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let forbidden = forbid_the_barrier();
            everywhere();
            // SAFETY: as above.
            unsafe { libc::_exit(if forbidden { 1 } else { 2 }) }
        }
        let mut status = 0;
        // SAFETY: the status is written to a place of our own.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status), "it went on without the kernel: {status:#x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGSYS);
    }

    /// On a cache line of its own: a store to it takes its time.
    #[derive(Default)]
    #[repr(align(128))]
    struct Apart(AtomicU64);

    #[test]
    fn the_kernels_barrier_is_one_for_every_thread() {
        assert!(available(), "the kernel has no membarrier, and so a pool no magazines");
        let [busy, revoked, rounds] = [(); 3].map(|()| Apart::default());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    busy.0.store(1, Relaxed);
                    compiler_fence(Ordering::SeqCst);
                    if revoked.0.load(Acquire) == 0 {
                        rounds.0.store(rounds.0.load(Relaxed) + 1, Relaxed);
                    }
                    busy.0.store(0, Release);
                }
            });
            let (mut last, mut meetings) = (0, 0);
            // Without the barrier some hundred meetings are enough on a machine with two processors; on one with a single one
            // there is nothing to be seen.
            for _ in 0..2_000_000 {
                revoked.0.store(1, Relaxed);
                fence(Ordering::SeqCst);
                everywhere();
                if busy.0.load(Acquire) == 0 {
                    let before = rounds.0.load(Relaxed);
                    if !(0..100).all(|_| rounds.0.load(Relaxed) == before) {
                        stop.store(true, Relaxed);
                        panic!("the owner and the taker were in their sections at once");
                    }
                    meetings += u32::from(before != last);
                    last = before;
                }
                revoked.0.store(0, Release);
                if meetings == 2000 {
                    break;
                }
                for _ in 0..20 {
                    std::hint::spin_loop();
                }
            }
            stop.store(true, Relaxed);
        });
    }
}
