//! Python's own stack, followed call by call by a profile function, so that allocations made below C++ code can be told
//! whose they are without the interpreter's lock.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use pyo3::intern;
use pyo3::prelude::*;

use crate::history::{Frame, Shadow};
use crate::sync::lock;

/// Every code object that was seen, by its number. They are kept, so that addresses stay what they were.
#[derive(Default)]
struct Codes {
    numbers: HashMap<usize, u32>,
    all: Vec<Py<PyAny>>,
}

static CODES: LazyLock<Mutex<Codes>> = LazyLock::new(Mutex::default);

fn number(code: &Bound<'_, PyAny>) -> u32 {
    // No Python runs while the lock is held.
    let mut codes = lock(&CODES);
    let address = code.as_ptr().addr();
    if let Some(&number) = codes.numbers.get(&address) {
        return number;
    }
    let number = codes.all.len() as u32;
    codes.all.push(code.clone().unbind());
    codes.numbers.insert(address, number);
    number
}

/// The code object with a number that a frame has.
pub fn code(py: Python<'_>, number: u32) -> Option<Py<PyAny>> {
    let codes = lock(&CODES);
    codes.all.get(number as usize).map(|code| code.clone_ref(py))
}

fn describe(frame: &Bound<'_, PyAny>) -> PyResult<Frame> {
    let py = frame.py();
    Ok(Frame {
        code: number(&frame.getattr(intern!(py, "f_code"))?),
        at: frame.getattr(intern!(py, "f_lasti"))?.extract()?,
    })
}

fn caller<'py>(frame: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let back = frame.getattr(intern!(frame.py(), "f_back"))?;
    Ok((!back.is_none()).then_some(back))
}

/// The whole stack of a frame, outermost first.
fn whole(frame: Bound<'_, PyAny>) -> PyResult<Vec<Frame>> {
    let mut frames = Vec::new();
    let mut next = Some(frame);
    while let Some(frame) = next {
        frames.push(describe(&frame)?);
        next = caller(&frame)?;
    }
    frames.reverse();
    Ok(frames)
}

/// A profile function, for `sys.setprofile`: keeps the thread's stack for the histories of pools.
#[pyfunction]
pub fn follow_stack(frame: Bound<'_, PyAny>, event: &str, _argument: &Bound<'_, PyAny>) -> PyResult<()> {
    // Where a call is made, and where its caller is at that moment.
    let (place, entered) = match event {
        "call" => (caller(&frame)?, Some(describe(&frame)?)),
        "c_call" => (Some(frame.clone()), None),
        "return" => {
            Shadow::with(|shadow| shadow.frames().pop());
            return Ok(());
        }
        _ => return Ok(()),
    };
    let place = place.as_ref().map(describe).transpose()?;
    let known = Shadow::with(|shadow| {
        let frames = shadow.frames();
        let known = match (frames.last_mut(), place) {
            (Some(last), Some(place)) if last.code == place.code => {
                last.at = place.at;
                true
            }
            (None, None) => true,
            _ => false,
        };
        frames.extend(entered.filter(|_| known));
        known
    });
    // The function was set further down, or the thread went on with another stack (greenlets).
    if known == Some(false) {
        let frames = whole(frame)?;
        Shadow::with(|shadow| *shadow.frames() = frames);
    }
    Ok(())
}

/// Makes every thread forget its stack: what was followed before a pause is not where it is now.
#[pyfunction]
pub fn forget_stacks() {
    Shadow::forget_all();
}
