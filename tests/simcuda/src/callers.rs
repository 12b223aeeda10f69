//! Which libraries take memory: the calls that give device or pinned memory, counted by who made them.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The functions that give memory.
const TRACED: &[&str] = &[
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemHostAlloc",
    "cudaHostAlloc",
    "cudaMalloc",
    "cudaMallocAsync",
    "cudaMallocFromPoolAsync",
    "cudaMallocHost",
];

/// How far up a caller is looked for.
const FRAMES: usize = 32;

static CALLERS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

fn callers() -> MutexGuard<'static, BTreeMap<String, u64>> {
    CALLERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a call of such a function, as `by:function:library`.
pub fn trace(function: &str) {
    if TRACED.contains(&function) {
        let library = caller().unwrap_or_default();
        *callers().entry(format!("by:{function}:{library}")).or_insert(0) += 1;
    }
}

/// The counts, one on a line.
pub fn list() -> String {
    callers()
        .iter()
        .map(|(name, count)| format!("{name} {count}\n"))
        .collect()
}

/// Forgets the counts.
pub fn reset() {
    callers().clear();
}

/// The file name of the first library up the stack that is not this one.
fn caller() -> Option<String> {
    let own = file(caller as *const c_void)?;
    let mut frames = [null_mut(); FRAMES];
    // SAFETY: there is room for that many frames.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as i32) };
    let files = frames[..count as usize].iter().filter_map(|&frame| file(frame));
    files.into_iter().find(|file| *file != own)
}

/// The name of the file that code is from.
fn file(code: *const c_void) -> Option<String> {
    // SAFETY: all its fields may be 0.
    let mut found: libc::Dl_info = unsafe { zeroed() };
    // SAFETY: any address may be asked about.
    if unsafe { libc::dladdr(code, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string. Libraries that allocate stay loaded.
    let path = unsafe { CStr::from_ptr(found.dli_fname) }.to_string_lossy();
    path.rsplit('/').next().map(str::to_owned)
}
