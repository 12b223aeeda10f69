//! The one place that chooses between the standard library's primitives and loom's (`--cfg loom`).
//!
//! Under loom the lock-free modules, the arenas and the pool are compiled with its atomics and locks, so that the models
//! run the same code; statics keep the standard ones, since loom's are made anew in each run of a model.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

use std::sync::PoisonError;

/// Locks a mutex whose holders never leave it half-written: a panic elsewhere does not make the data unusable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The length of an array of atomics: `all`, or `few` in a model, which pays for each.
pub(crate) const fn length(all: usize, few: usize) -> usize {
    if cfg!(loom) { few } else { all }
}

/// Runs `body` under every order of its threads' steps with at most three preemptions, and with every value that a load may
/// see. Loom takes a `SeqCst` access for `AcqRel`, and has `SeqCst` fences.
#[cfg(all(test, loom))]
pub(crate) fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.max_branches = 20_000;
    builder.check(body);
}

/// Models two threads that use what `make` makes at once, and calls `after` with what both gave.
///
/// Twice, each in the first place once: loom remembers of an atomic only its last use, so that a thread's own load hides
/// another one's before it, and with it the order in which the other comes later. The second time shows that order.
#[cfg(all(test, loom))]
pub(crate) fn meet<S: 'static, A: 'static, B: 'static>(
    make: fn() -> S,
    one: fn(&S) -> A,
    other: fn(&S) -> B,
    after: fn(&S, A, B),
) {
    use loom::sync::Arc;
    use loom::thread::spawn;
    model(move || {
        let shared = Arc::new(make());
        let second = shared.clone();
        let second = spawn(move || other(&second));
        let first = one(&shared);
        after(&shared, first, second.join().expect("no panic"));
    });
    model(move || {
        let shared = Arc::new(make());
        let second = shared.clone();
        let second = spawn(move || one(&second));
        let first = other(&shared);
        after(&shared, second.join().expect("no panic"), first);
    });
}
