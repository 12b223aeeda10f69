//! The environment variables, read at the first call. The table is in `lib.rs`.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::calls::Fault;

/// What the simulated machine is like, or the name of a variable whose value cannot be read.
pub fn settings() -> Result<&'static Settings, &'static str> {
    static SETTINGS: OnceLock<Result<Settings, &'static str>> = OnceLock::new();
    SETTINGS.get_or_init(Settings::read).as_ref().map_err(|&name| name)
}

/// What the simulated machine is like.
pub struct Settings {
    /// How many devices there are.
    pub devices: i32,
    /// Memory of each device, in bytes.
    pub memory: u64,
    /// Whether the host cannot touch device memory.
    pub strict: bool,
    /// Device attributes that differ from the usual, by number.
    pub attributes: BTreeMap<u32, i32>,
    /// Calls to fail.
    pub faults: Vec<Fault>,
    /// Nanoseconds for a kernel, and for a MiB copied or filled.
    pub timing: (u64, u64),
    /// Where the counts are written when the process ends.
    pub counts: Option<PathBuf>,
}

impl Settings {
    fn read() -> Result<Self, &'static str> {
        Ok(Self {
            devices: one("SIMCUDA_DEVICES", 1)?,
            memory: one("SIMCUDA_MEMORY", 16 << 30)?,
            strict: one("SIMCUDA_STRICT", 1)? != 0,
            attributes: list("SIMCUDA_ATTRIBUTES", |item| {
                let (number, value) = item.split_once('=')?;
                Some((number.parse().ok()?, value.parse().ok()?))
            })?,
            faults: list("SIMCUDA_FAIL", |item| {
                let mut parts = item.split(':');
                let (call, nth, code) = (parts.next()?.to_owned(), parts.next()?, parts.next()?);
                Some(Fault {
                    call,
                    nth: nth.parse::<u64>().ok()?.max(1),
                    code: code.parse().ok()?,
                })
            })?,
            timing: match list::<u64, Vec<_>>("SIMCUDA_TIMING", |item| item.parse().ok())?[..] {
                [] => (0, 0),
                [kernel, copy] => (kernel, copy),
                _ => return Err("SIMCUDA_TIMING"),
            },
            counts: env::var_os("SIMCUDA_COUNTS").map(PathBuf::from),
        })
    }
}

fn one<T: FromStr>(name: &'static str, default: T) -> Result<T, &'static str> {
    env::var(name).map_or(Ok(default), |value| value.parse().map_err(|_| name))
}

fn list<T, C: FromIterator<T>>(name: &'static str, item: impl Fn(&str) -> Option<T>) -> Result<C, &'static str> {
    let value = env::var(name).unwrap_or_default();
    value
        .split(',')
        .filter(|part| !part.is_empty())
        .map(|part| item(part).ok_or(name))
        .collect()
}
