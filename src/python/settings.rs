//! The configuration of a pool from keyword arguments.

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat};

use crate::config::{Config, KEYS};
use crate::error::Error;
use crate::registry::Memory;

/// The configuration that `FLAGSTONE_CONF` gives, with the keys that the keyword arguments name set. None leaves a key as it is.
pub fn config(class: &str, memory: Memory, keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Config> {
    let mut config = environment(memory)?;
    for (key, value) in keywords.into_iter().flatten() {
        let key: String = key.extract()?;
        let Some(&(_, allowed)) = KEYS.iter().find(|&&(known, _)| known == key) else {
            return Err(PyTypeError::new_err(format!(
                "{class}() got an unexpected keyword argument '{key}'; its settings are {}",
                KEYS.map(|(known, _)| known).join(", ")
            )));
        };
        if !value.is_none() {
            config.set(&key, &text(&key, allowed, &value)?).map_err(Error::from)?;
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

/// A value as the configuration's text, which is where it is checked: text, a switch, a float or an integer.
fn text(key: &str, allowed: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(switch) = value.cast::<PyBool>() {
        return Ok(if switch.is_true() { "on" } else { "off" }.to_owned());
    }
    if let Ok(text) = value.extract::<String>() {
        return Ok(text);
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(format!("{:?}", number.value()));
    }
    match value.extract::<u64>() {
        Ok(number) => Ok(number.to_string()),
        // Negative or enormous: refused with the key and what is allowed, as any value.
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => Ok(value.str()?.to_string()),
        Err(_) => Err(PyTypeError::new_err(format!(
            "configuration key \"{key}\" takes {allowed}, not {}",
            value.get_type().name()?
        ))),
    }
}
