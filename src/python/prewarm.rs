//! Memory taken ahead of use, beside the program.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use super::block::PoolRef;
use crate::error::Error;
use crate::sync::lock;

/// What is taken at once: small enough that the program can use it while the next is being taken.
const PIECE: u64 = 64 << 20;
/// How long a wait goes on before it looks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// How far a thread has come.
#[derive(Default)]
struct Progress {
    result: Mutex<Option<Result<(), Error>>>,
    ended: Condvar,
}

/// Memory that a thread of its own takes from the driver: what `PinnedPool.prewarm` returns.
///
/// It may be dropped; the thread goes on.
#[pyclass(module = "flagstone", frozen)]
pub struct Prewarm {
    progress: Arc<Progress>,
}

impl Prewarm {
    /// Starts the thread, which lets `pool` hold `nbytes`.
    pub fn start(pool: PoolRef, nbytes: u64) -> PyResult<Self> {
        let progress = Arc::new(Progress::default());
        let told = Arc::clone(&progress);
        let run = move || {
            let result = take(&pool, nbytes);
            // The last of a pool gives its memory back: not while somebody waits for us.
            drop(pool);
            *lock(&told.result) = Some(result);
            told.ended.notify_all();
        };
        thread::Builder::new()
            .name("flagstone-prewarm".to_owned())
            .spawn(run)
            .map_err(|error| PyOSError::new_err(format!("no thread could be started to take memory ahead: {error}")))?;
        Ok(Self { progress })
    }
}

/// Lets the pool hold `nbytes`, a piece at a time.
fn take(pool: &PoolRef, nbytes: u64) -> Result<(), Error> {
    let mut target = 0;
    while target < nbytes {
        // Others may take memory too.
        target = pool.reserved_bytes().max(target).saturating_add(PIECE).min(nbytes);
        pool.reserve(target)?;
    }
    Ok(())
}

#[pymethods]
impl Prewarm {
    /// Whether the thread has ended, with all memory taken or with an error.
    #[getter]
    fn done(&self) -> bool {
        lock(&self.progress.result).is_some()
    }

    /// Waits until the memory is there, or for `timeout` seconds; whether it is. Raises what stopped the thread, as
    /// `OutOfMemoryError`.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let end = match timeout {
            None => None,
            Some(seconds) => Some(
                Duration::try_from_secs_f64(seconds)
                    .ok()
                    .and_then(|timeout| Instant::now().checked_add(timeout))
                    .ok_or_else(|| PyValueError::new_err(format!("a timeout is seconds from 0 on, not {seconds}")))?,
            ),
        };
        loop {
            let left = end.map_or(SIGNALS, |end| {
                end.saturating_duration_since(Instant::now()).min(SIGNALS)
            });
            let result = py.detach(|| {
                let running = lock(&self.progress.result);
                let waited = self
                    .progress
                    .ended
                    .wait_timeout_while(running, left, |result| result.is_none());
                waited.unwrap_or_else(PoisonError::into_inner).0.clone()
            });
            if let Some(result) = result {
                return Ok(result.map(|()| true)?);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }
}
