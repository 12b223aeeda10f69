//! What every exported function goes through: it is counted, can be made to fail, and never unwinds into its caller.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use flagstone::driver::sim::{Code, CuResult};

use crate::callers;
use crate::settings::settings;

/// Defines exported functions: each body gives an `CuResult`, each caller gets its code.
macro_rules! export {
    ($( $(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block )*) => { $(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)] // the driver's names
        unsafe extern "C" fn $name($($argument: $kind),*) -> u32 {
            $crate::calls::run(stringify!($name), move || $body)
        }
    )* };
}
pub(crate) use export;

/// Exports functions that are only counted: whatever their arguments, they return "not supported", through `$through`.
macro_rules! unsupported {
    ($through:path; $($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)] // the libraries' names
        extern "C" fn $name() -> u32 {
            $through($crate::calls::run(stringify!($name), || Err(flagstone::driver::sim::Code::NOT_SUPPORTED)))
        }
    )* };
}
pub(crate) use unsupported;

/// A call that is to fail.
#[derive(Clone)]
pub struct Fault {
    /// The exported name.
    pub call: String,
    /// Which of its calls from now on, from 1.
    pub nth: u64,
    /// What it returns.
    pub code: u32,
}

struct Calls {
    counts: BTreeMap<&'static str, u64>,
    missing: BTreeMap<String, u64>,
    faults: Vec<Fault>,
}

static CALLS: LazyLock<Mutex<Calls>> = LazyLock::new(|| {
    let faults = settings().map_or(Vec::new(), |settings| settings.faults.clone());
    Mutex::new(Calls {
        counts: BTreeMap::new(),
        missing: BTreeMap::new(),
        faults,
    })
});

fn calls() -> MutexGuard<'static, Calls> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one exported function.
pub fn run(name: &'static str, body: impl FnOnce() -> CuResult) -> u32 {
    callers::trace(name);
    if let Some(code) = calls().begin(name) {
        return code;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Makes a call fail.
pub fn fail(fault: Fault) {
    calls().faults.push(fault);
}

/// How often an exported function was called.
pub fn count(name: &str) -> u64 {
    calls().counts.get(name).copied().unwrap_or(0)
}

/// Every exported function that was called, and how often, one on a line; those that give memory also by their caller.
pub fn list() -> String {
    let calls = calls();
    let missing = calls.missing.iter().map(|(name, count)| (name.as_str(), count));
    let all = calls.counts.iter().map(|(&name, count)| (name, count)).chain(missing);
    all.map(|(name, count)| format!("{name} {count}\n"))
        .chain([callers::list()])
        .collect()
}

/// Counts a function that was asked for by name and is not there, as `missing:` and its name.
pub fn missing(name: &str) {
    *calls().missing.entry(format!("missing:{name}")).or_insert(0) += 1;
}

/// Forgets counts and failures to come.
pub fn reset() {
    let mut calls = calls();
    calls.counts.clear();
    calls.missing.clear();
    calls.faults.clear();
    callers::reset();
}

impl Calls {
    /// Counts a call; the code that it fails with, if it is to fail.
    fn begin(&mut self, name: &'static str) -> Option<u32> {
        *self.counts.entry(name).or_insert(0) += 1;
        for fault in self.faults.iter_mut().filter(|fault| fault.call == name) {
            fault.nth -= 1;
        }
        let due = self.faults.iter().position(|fault| fault.nth == 0)?;
        Some(self.faults.swap_remove(due).code)
    }
}
