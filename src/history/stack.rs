//! The Python stack of each thread, kept beside Python's own: an allocation that comes through C can read it without
//! the interpreter's lock.
//!
//! Whoever follows the interpreter (a profile function) pushes and pops; the recorder copies. Both are the same thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// The most frames of a stack that are kept, innermost first.
const DEPTH: usize = 64;

/// One frame: numbers that only whoever pushed it understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The code.
    pub code: u32,
    /// The place within it.
    pub at: i32,
}

/// Which recording the frames are of: those of an earlier one are stale.
static EPOCH: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static SHADOW: RefCell<Shadow> = const { RefCell::new(Shadow { frames: Vec::new(), epoch: 0 }) };
}

/// The calling thread's frames, outermost first.
pub(crate) struct Shadow {
    frames: Vec<Frame>,
    epoch: u32,
}

impl Shadow {
    /// Runs `with` on the calling thread's frames, unless the thread is ending.
    pub(crate) fn with<T>(with: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let current = |shadow: &RefCell<Self>| {
            let mut shadow = shadow.try_borrow_mut().ok()?;
            // Relaxed: frames that were pushed beside the change are of either recording.
            let epoch = EPOCH.load(Relaxed);
            if shadow.epoch != epoch {
                shadow.frames.clear();
                shadow.epoch = epoch;
            }
            Some(with(&mut shadow))
        };
        SHADOW.try_with(current).ok()?
    }
}

#[cfg(any(feature = "python", test))]
impl Shadow {
    /// Makes every thread forget its frames.
    pub(crate) fn forget_all() {
        EPOCH.fetch_add(1, Relaxed);
    }

    /// The frames, outermost first.
    pub(crate) fn frames(&mut self) -> &mut Vec<Frame> {
        &mut self.frames
    }
}

/// Each stack once.
pub(super) struct Stacks {
    known: HashMap<Box<[Frame]>, u32>,
    all: Vec<Box<[Frame]>>,
}

impl Default for Stacks {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            all: vec![Box::from([])],
        }
    }
}

impl Stacks {
    /// The place of the calling thread's stack; 0 where it has none.
    pub(super) fn current(&mut self) -> u32 {
        let frames: Vec<Frame> =
            Shadow::with(|shadow| shadow.frames.iter().rev().take(DEPTH).copied().collect()).unwrap_or_default();
        if frames.is_empty() {
            return 0;
        }
        if let Some(&place) = self.known.get(&frames[..]) {
            return place;
        }
        let place = self.all.len() as u32;
        self.all.push(frames.clone().into());
        self.known.insert(frames.into(), place);
        place
    }

    pub(super) fn all(&self) -> Vec<Box<[Frame]>> {
        self.all.clone()
    }
}
