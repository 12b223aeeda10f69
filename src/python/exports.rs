//! Who uses a block that Python code holds: exports come and go, until it is freed.

use crate::sync::atomic::{AtomicUsize, Ordering};

/// The state of a block that was freed; any smaller number counts its exports.
const FREED: usize = usize::MAX;

/// Counts the exports of one block.
#[derive(Default)]
pub struct Exports(AtomicUsize);

/// Why a block cannot be freed.
#[derive(Debug, PartialEq, Eq)]
pub enum Held {
    /// It was freed already.
    Freed,
    /// It has so many exports.
    Exported(usize),
}

impl Exports {
    pub fn is_freed(&self) -> bool {
        // Relaxed: a report only. Whoever acts on the state does so by compare-and-exchange.
        self.0.load(Ordering::Relaxed) == FREED
    }

    /// There are none, and from now on there are none more: the block is the caller's to free.
    pub fn end(&self) -> Result<(), Held> {
        // Acquire: what the exports did before they ended happens before the free. Relaxed on failure: nothing follows.
        match self.0.compare_exchange(0, FREED, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(FREED) => Err(Held::Freed),
            Err(exports) => Err(Held::Exported(exports)),
        }
    }

    /// The pool kept the block that [`Self::end`] gave to the caller: it is held again.
    pub fn go_on(&self) {
        // Release: whoever has it next sees it as the caller left it.
        self.0.store(0, Ordering::Release);
    }

    /// One more, unless the block was freed: it stays so.
    pub fn add(&self) -> bool {
        // Acquire: pairs with `go_on`.
        let counted = self
            .0
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| state.checked_add(1));
        counted.is_ok()
    }

    /// One less.
    pub fn remove(&self) {
        // Release: what it did happens before a free that sees the lower count.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::meet;
    use loom::cell::UnsafeCell;

    #[derive(Default)]
    struct Shared {
        exports: Exports,
        /// The block's memory.
        contents: UnsafeCell<u32>,
    }

    impl Shared {
        /// Uses the memory: loom reports a concurrent use.
        fn touch(&self) {
            // SAFETY: loom reports a concurrent access.
            self.contents.with_mut(|contents| unsafe { *contents += 1 });
        }
    }

    fn free(shared: &Shared) -> bool {
        let ended = shared.exports.end().is_ok();
        if ended {
            shared.touch();
        }
        ended
    }

    fn export(shared: &Shared) -> bool {
        let exported = shared.exports.add();
        if exported {
            shared.touch();
            shared.exports.remove();
        }
        exported
    }

    #[test]
    fn a_free_comes_after_all_exports_or_before() {
        meet(Shared::default, free, export, |shared, freed, exported| {
            assert!(freed || exported, "one was first");
            assert_eq!(shared.exports.is_freed(), freed);
            assert_eq!(free(shared), !freed);
            assert!(!export(shared), "it was freed");
        });
    }

    #[test]
    fn one_of_two_frees_gets_the_block() {
        meet(Shared::default, free, free, |shared, mine, theirs| {
            assert_ne!(mine, theirs);
            assert_eq!(shared.exports.end(), Err(Held::Freed));
        });
    }

    #[test]
    fn a_block_that_the_pool_kept_is_held_again() {
        let try_to_free = |shared: &Shared| {
            if free(shared) {
                shared.exports.go_on();
            }
        };
        meet(Shared::default, try_to_free, export, |shared, (), _| {
            assert!(shared.exports.add());
            assert_eq!(shared.exports.end(), Err(Held::Exported(1)));
        });
    }
}
