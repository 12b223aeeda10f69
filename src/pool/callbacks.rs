//! The user's callbacks: asked to free something when memory is short.

use super::Pool;
use crate::driver::Driver;
use crate::sync::lock;
use std::cell::Cell;
use std::sync::Arc;

type Callback = Arc<dyn Fn(u64) + Send + Sync>;

thread_local! {
    /// Whether this thread is in a callback.
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// The number of a callback, to remove it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallbackId(pub u64);

/// The callbacks of a pool, in the order in which they were added.
#[derive(Default)]
pub(super) struct Callbacks {
    added: u64,
    all: Vec<(CallbackId, Callback)>,
}

/// The thread is in a callback until this is dropped, also by a panic.
struct Asking;

impl Asking {
    /// `None` in a thread that is in a callback, or ending.
    fn begin() -> Option<Self> {
        // None is made in a callback, not even to be dropped: its end says that the thread is in none.
        match ASKING.try_with(|asking| asking.replace(true)) {
            Ok(false) => Some(Self),
            _ => None,
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // A thread that ends is in no callback.
        let _ = ASKING.try_with(|asking| asking.set(false));
    }
}

impl<D: Driver> Pool<D> {
    /// Adds a function that is called when a request would fail otherwise, or have to wait for the device, with the bytes
    /// that were asked for. It may free blocks, drop caches and call the pool, in the thread of the request and in several
    /// threads at once. No lock is held while it runs. As long as blocks are freed meanwhile that are not enough, or that another
    /// request gets first, it is called again, up to eight times.
    ///
    /// A request within a callback asks no callbacks. A panic goes through to whoever made the request.
    pub fn on_out_of_memory(&self, callback: impl Fn(u64) + Send + Sync + 'static) -> CallbackId {
        let mut callbacks = lock(&self.callbacks);
        callbacks.added += 1;
        let id = CallbackId(callbacks.added);
        callbacks.all.push((id, Arc::new(callback)));
        id
    }

    /// Removes a callback, which may be running for the last time. Whether there was one with this number.
    pub fn remove_callback(&self, id: CallbackId) -> bool {
        let mut callbacks = lock(&self.callbacks);
        let place = callbacks.all.iter().position(|&(known, _)| known == id);
        let removed = place.map(|place| callbacks.all.remove(place));
        // The callback may own anything, whose end may call the pool.
        drop(callbacks);
        removed.is_some()
    }

    /// Calls all callbacks, with no lock held. Whether there were any to call.
    pub(super) fn ask_callbacks(&self, bytes: u64) -> bool {
        let callbacks = lock(&self.callbacks);
        let all: Vec<Callback> = callbacks.all.iter().map(|(_, callback)| Arc::clone(callback)).collect();
        drop(callbacks);
        let Some(_asking) = (!all.is_empty()).then(Asking::begin).flatten() else {
            return false;
        };
        for callback in &all {
            callback(bytes);
        }
        true
    }
}
