//! A number that tells the calling thread from all others that run, without a call.
//!
//! A hit has to know two things of its thread: which cache is its own, and whether a block's cache is. Reading a thread-local of a
//! shared library is a function call; the thread pointer itself is in a register. It is unique among running threads, and used
//! again after a thread has ended, by when the thread has given its caches back.

/// The calling thread's token: not 0, and no other running thread's. In a forked child it is that of the thread that forked.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom)))]
#[inline(always)]
pub(crate) fn token() -> u64 {
    let pointer: u64;
    // SAFETY: the word at fs:0 is the thread control block's own address (System V ABI for x86-64, thread-local storage).
    unsafe {
        std::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
    }
    pointer
}

/// As for x86-64.
#[cfg(all(target_arch = "aarch64", target_os = "linux", not(loom)))]
#[inline(always)]
pub(crate) fn token() -> u64 {
    let pointer: u64;
    // SAFETY: the register may be read in user mode and holds the thread pointer.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags));
    }
    pointer
}

#[cfg(loom)]
loom::thread_local! {
    /// In a model all threads share one of the system's: they differ by this.
    static POINTER: std::cell::Cell<u64> = std::cell::Cell::new(0);
}

/// In a model a thread is nobody, who owns nothing, until it [`become`](become_thread)s one of them.
#[cfg(loom)]
pub(crate) fn token() -> u64 {
    POINTER.with(|pointer| match pointer.get() {
        0 => u64::MAX,
        pointer => pointer,
    })
}

/// In a model: from now on the calling thread is the one with this number, not 0.
#[cfg(all(test, loom))]
pub(crate) fn become_thread(number: u64) {
    POINTER.with(|pointer| pointer.set(number));
}

/// As for x86-64.
#[cfg(not(any(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"), loom)))]
#[inline(always)]
pub(crate) fn token() -> u64 {
    thread_local!(static HERE: u16 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr() as u64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;

    #[test]
    fn threads_that_run_together_have_different_tokens() {
        let barrier = Barrier::new(8);
        let tokens: HashSet<u64> = std::thread::scope(|scope| {
            let spawn = |_| {
                scope.spawn(|| {
                    let first = token();
                    barrier.wait();
                    assert_eq!(first, token());
                    first
                })
            };
            let threads: Vec<_> = (0..8).map(spawn).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        assert_eq!(tokens.len(), 8);
        assert!(!tokens.contains(&0));
    }
}
