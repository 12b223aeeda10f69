//! The configuration of a pool from keyword arguments.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

use super::args::Amount;
use crate::config::{Config, KEYS};
use crate::error::Error;
use crate::registry::Memory;

/// The configuration that `FLAGSTONE_CONF` gives, with the keys that the keyword arguments name set. None leaves a key as it is.
pub fn config(class: &str, memory: Memory, keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Config> {
    let mut config = environment(memory)?;
    for (key, value) in keywords.into_iter().flatten() {
        let key: String = key.extract()?;
        if !KEYS.iter().any(|&(known, _)| known == key) {
            let message = format!("{class}() got an unexpected keyword argument '{key}'");
            return Err(PyTypeError::new_err(message));
        }
        if !value.is_none() {
            config.set(&key, &text(&value)?).map_err(Error::from)?;
        }
    }
    Ok(config)
}

/// What `FLAGSTONE_CONF` gives for this memory. How much of a device to hold, and how it is taken, says nothing about the host.
fn environment(memory: Memory) -> PyResult<Config> {
    let config = Config::from_env().map_err(Error::from)?;
    Ok(match memory {
        Memory::Device => config,
        Memory::Pinned => {
            let plain = Config::default();
            Config {
                limit: plain.limit,
                headroom: plain.headroom,
                reserve: plain.reserve,
                source: plain.source,
                guard: plain.guard,
                ..config
            }
        }
    })
}

/// A value as the configuration's text, which is where it is checked.
fn text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    match value.cast::<PyBool>() {
        Ok(switch) => Ok(if switch.is_true() { "on" } else { "off" }.to_owned()),
        Err(_) => value.extract().map(|Amount(text)| text),
    }
}
