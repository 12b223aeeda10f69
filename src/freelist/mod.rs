//! Lock-free lists of block indices. Which list when:
//!
//! | list | who pushes | who takes | used for |
//! |---|---|---|---|
//! | [`TaggedStack`] | any thread, one or a chain | any thread, one or all | an arena's shared list of one class |
//! | [`TakeAll`] | any thread, one, within a bound if wished | any thread, everything at once | blocks freed by other threads than their owner |
//!
//! The links live in the blocks' records, which are never freed while a list exists: a stale read of a link reads an
//! old number, never freed memory, and the compare-and-swap that follows it fails.

mod tagged;
mod take_all;

pub(crate) use tagged::TaggedStack;
pub(crate) use take_all::TakeAll;

use crate::sync::atomic::AtomicU32;

/// Where the links are: index 0 is "none" and is never asked for.
pub(crate) trait Links {
    /// The link of the record at `index`.
    fn link(&self, index: u32) -> &AtomicU32;
}

/// Follows a chain from `first` as long as `each` wants more of it.
#[cfg(feature = "check")]
fn walk(links: &impl Links, first: u32, mut each: impl FnMut(u32) -> bool) {
    let mut index = first;
    while index != 0 && each(index) {
        // Relaxed: all threads are quiet.
        index = links.link(index).load(std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod testing {
    //! Three records whose contents loom watches for races.

    use super::Links;
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicU32;

    pub(super) struct Records {
        links: [AtomicU32; 3],
        contents: [UnsafeCell<u32>; 3],
    }

    // SAFETY: the cells are only touched through loom's checked accessors, whose races the model reports.
    unsafe impl Sync for Records {}
    // SAFETY: as above.
    unsafe impl Send for Records {}

    impl Default for Records {
        fn default() -> Self {
            Self {
                links: std::array::from_fn(|_| AtomicU32::new(0)),
                contents: std::array::from_fn(|_| UnsafeCell::new(0)),
            }
        }
    }

    impl Records {
        pub(super) fn write(&self, index: u32, value: u32) {
            // SAFETY: loom reports a concurrent access.
            self.contents[index as usize].with_mut(|cell| unsafe { *cell = value });
        }

        pub(super) fn read(&self, index: u32) -> u32 {
            // SAFETY: loom reports a concurrent write.
            self.contents[index as usize].with(|cell| unsafe { *cell })
        }

        /// Marks the record as taken; fails when somebody else has it.
        pub(super) fn own(&self, index: u32) {
            assert_eq!(self.read(index), 0, "record {index} was popped twice");
            self.write(index, 1);
        }

        /// Marks the record as given back.
        pub(super) fn disown(&self, index: u32) {
            self.write(index, 0);
        }
    }

    impl Links for Records {
        fn link(&self, index: u32) -> &AtomicU32 {
            &self.links[index as usize]
        }
    }
}
