//! A block of memory that Python code holds: its owner, and the exports that keep it from being freed.

use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::{PyErr, PyResult, Python};

use super::errors;
use super::exports::{Exports, Held};
use crate::driver::{DevicePtr, Stream};
use crate::error::Error;
use crate::registry::{AnyPool, Memory};

/// A pool as Python objects hold it: the last of them gives the memory back, unless the interpreter is ending.
pub struct PoolRef(Arc<AnyPool>);

impl PoolRef {
    pub fn new(pool: impl Into<Arc<AnyPool>>) -> Self {
        Self(pool.into())
    }

    /// What tells this pool from others.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl Clone for PoolRef {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl Deref for PoolRef {
    type Target = AnyPool;

    fn deref(&self) -> &AnyPool {
        &self.0
    }
}

impl Drop for PoolRef {
    fn drop(&mut self) {
        if interpreter_ended() {
            // Nothing is torn down at exit: other threads may still use the memory, and the process gives it back.
            mem::forget(Arc::clone(&self.0));
        }
    }
}

/// A live block of a pool. Dropping it frees it.
pub struct Block {
    pub pool: PoolRef,
    pub ptr: DevicePtr,
    pub nbytes: u64,
    pub stream: Stream,
    exports: Exports,
    /// Whether the address of pinned memory went where uses are not recorded.
    handed_out: AtomicBool,
}

impl Block {
    pub fn alloc(pool: PoolRef, nbytes: u64, stream: Option<Stream>) -> Result<Self, Error> {
        let ptr = pool.alloc_on(nbytes, stream)?;
        Ok(Self {
            pool,
            ptr,
            nbytes,
            stream: stream.unwrap_or(Stream::LEGACY),
            exports: Exports::default(),
            handed_out: AtomicBool::new(false),
        })
    }

    pub fn is_freed(&self) -> bool {
        self.exports.is_freed()
    }

    /// Frees the block, ordered on its own stream and on `stream` where one is given.
    pub fn free(&self, py: Python<'_>, stream: Option<Stream>) -> PyResult<()> {
        match self.exports.end() {
            Ok(()) => {}
            Err(Held::Freed) => return Err(Error::DoubleFree { addr: self.ptr }.into()),
            Err(Held::Exported(exports)) => {
                return Err(PyBufferError::new_err(format!(
                    "the buffer is exported through DLPack ({exports} times); drop what was made from it before free"
                )));
            }
        }
        let freed = py.detach(|| free(&self.pool, self.ptr, self.last_use(stream)));
        freed.map_err(|error| {
            // The pool kept the block, so it is still ours to free.
            self.exports.go_on();
            PyErr::from(error)
        })
    }

    /// Notes that the address is handed out. What copies from or to pinned memory then is seen only if it is recorded; device
    /// memory has a stream of its own.
    pub fn hand_out(&self) {
        if self.pool.memory() == Memory::Pinned {
            // Relaxed: the free that has to know comes after this by means that order it, as the memory is in use here.
            self.handed_out.store(true, Ordering::Relaxed);
        }
    }

    fn last_use(&self, stream: Option<Stream>) -> LastUse {
        match stream {
            Some(stream) => LastUse::On(stream),
            // Relaxed: as in `hand_out`.
            None if self.handed_out.load(Ordering::Relaxed) => LastUse::Unseen,
            None => LastUse::Recorded,
        }
    }

    /// Lets `stream` use the memory: its later work waits for the block's own stream, and the block's reuse for it.
    pub fn share_with(&self, py: Python<'_>, stream: Stream) -> PyResult<()> {
        let shared = py.detach(|| {
            self.pool.record_stream(self.ptr, stream)?;
            self.pool.order_streams(self.stream, stream)
        })?;
        if shared {
            Ok(())
        } else {
            Err(PyBufferError::new_err(format!(
                "stream {:#x} or {:#x} is capturing and cannot be ordered; export before the capture, or pass stream=-1",
                self.stream.0, stream.0
            )))
        }
    }

    /// Counts one more user of the memory, until the result is dropped.
    pub fn export(self: &Arc<Self>, py: Python<'_>) -> PyResult<Export> {
        if self.exports.add() {
            Ok(Export(Arc::clone(self)))
        } else {
            Err(errors::freed_buffer(py, self.ptr))
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.is_freed() {
            // Nobody is left to be told; the pool counts a failed free in its statistics.
            let _ = free(&self.pool, self.ptr, self.last_use(None));
        }
    }
}

/// A use of a block by another library.
pub struct Export(Arc<Block>);

impl Export {
    pub fn block(&self) -> &Block {
        &self.0
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.0.exports.remove();
    }
}

/// What the pool has to wait for before it gives a block out again.
pub enum LastUse {
    /// The uses that were recorded.
    Recorded,
    /// Those, and the work of this stream.
    On(Stream),
    /// Those; where there are none, all work of the context.
    Unseen,
}

/// Frees a block. In a forked child, where the driver does not work, that does nothing: the memory is the parent's.
pub fn free(pool: &AnyPool, ptr: DevicePtr, last: LastUse) -> Result<(), Error> {
    let freed = match last {
        LastUse::Recorded => pool.free(ptr, None),
        LastUse::On(stream) => pool.free(ptr, Some(stream)),
        LastUse::Unseen => pool.free_unseen(ptr),
    };
    match freed {
        Err(Error::Forked) => Ok(()),
        freed => freed,
    }
}

/// What a Python class holds: dropped without holding up other Python threads, since that may reach the driver.
pub struct Detached<T: Send>(ManuallyDrop<T>);

impl<T: Send> Detached<T> {
    pub fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        // SAFETY: `self` is being dropped, so the value is not used again.
        let value = unsafe { ManuallyDrop::take(&mut self.0) };
        if interpreter_ended() {
            drop(value);
        } else {
            // Where the thread cannot be attached the closure, and so the value, is dropped all the same.
            Python::try_attach(move |py| py.detach(move || drop(value)));
        }
    }
}

/// Whether Python code has run for the last time in this process: modules are being torn down, or are gone.
fn interpreter_ended() -> bool {
    // SAFETY: may be called at any time, on any thread.
    unsafe { pyo3::ffi::Py_IsInitialized() == 0 }
}
