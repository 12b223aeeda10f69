//! The pool's settings, from code or from `key:value,key:value`.
#![forbid(unsafe_code)]

use crate::bytes;
use crate::error::ConfigError;
use std::fmt;

/// The environment variable that [`Config::from_env`] reads.
pub const ENVIRONMENT: &str = "FLAGSTONE_CONF";

/// The most that a pool may hold of its device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// A number of bytes.
    Bytes(u64),
    /// A part of the device's memory, above 0 and at most 1.
    Fraction(f64),
}

impl Limit {
    /// The limit in bytes on a device with this much memory.
    #[must_use]
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Fraction(fraction) => (total as f64 * fraction) as u64,
        }
    }
}

/// Where memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// Virtual memory management where the device has it, otherwise slabs.
    #[default]
    Auto,
    /// Physical memory mapped into reserved addresses; an error where the device cannot.
    VirtualMemory,
    /// Slabs from `cuMemAlloc`.
    Slabs,
}

/// The settings of one pool. Every field has a default that is right for training on one device.
///
/// ```
/// use flagstone::config::{Config, Limit, Source};
/// let config = Config::parse("limit:2GiB,source:slabs")?;
/// assert_eq!((config.limit, config.source), (Some(Limit::Bytes(2 << 30)), Source::Slabs));
/// let error = Config::parse("limti:2GiB").unwrap_err();
/// assert!(error.to_string().contains("limti"));
/// # Ok::<(), flagstone::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The most that the pool holds. Default: no limit but the device.
    pub limit: Option<Limit>,
    /// The least that the pool takes at once, in bytes, rounded up to the device's granularity; 0 lets the pool choose.
    pub growth: u64,
    /// The most that one thread keeps ready for one stream, in bytes: up to half of it in blocks above 1 MiB, once its stream has
    /// what it needs, and an eighth in smaller ones. As much may wait on its list of blocks freed by other threads. 0
    /// switches magazines off. Default 64 MiB.
    pub magazine: u64,
    /// Where memory comes from.
    pub source: Source,
    /// Bytes to take when the pool is made. Default 0.
    pub reserve: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: None,
            growth: 0,
            magazine: 64 << 20,
            source: Source::Auto,
            reserve: 0,
        }
    }
}

/// The keys that [`Config::set`] knows, each with what is allowed.
pub const KEYS: [(&str, &str); 5] = [
    (
        "limit",
        "bytes as 2147483648 or 2GiB, or a fraction as 0.5 or 50%, or none",
    ),
    ("growth", "bytes as 20MiB, or 0 to let the pool choose"),
    ("magazine", "bytes as 64MiB, or 0 for none"),
    ("source", "auto, virtual_memory or slabs"),
    ("reserve", "bytes as 4GiB"),
];

impl Config {
    /// Reads `key:value,key:value`; an empty text gives the defaults.
    ///
    /// # Errors
    /// Names the key and what is allowed, when a key is unknown or a value is not allowed.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        config.update(text)?;
        Ok(config)
    }

    /// Reads the environment variable [`ENVIRONMENT`].
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::parse(&std::env::var(ENVIRONMENT).unwrap_or_default())
    }

    /// Sets what `key:value,key:value` says and leaves the rest.
    ///
    /// # Errors
    /// As [`Self::parse`]; nothing was changed then.
    pub fn update(&mut self, text: &str) -> Result<(), ConfigError> {
        let mut changed = self.clone();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once(':').unwrap_or((pair, ""));
            changed.set(key.trim(), value.trim())?;
        }
        *self = changed;
        Ok(())
    }

    /// Sets one key.
    ///
    /// # Errors
    /// As [`Self::parse`]; nothing was changed then.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let allowed = KEYS.iter().find(|(name, _)| *name == key).map(|(_, allowed)| *allowed);
        let known = || format!("the keys {}", KEYS.map(|(name, _)| name).join(", "));
        let refuse = || ConfigError {
            key: key.to_owned(),
            value: value.to_owned(),
            allowed: allowed.map_or_else(known, str::to_owned),
        };
        match key {
            "limit" => self.limit = parse_limit(value).ok_or_else(refuse)?,
            "growth" => self.growth = bytes::parse(value).ok_or_else(refuse)?,
            "magazine" => self.magazine = bytes::parse(value).ok_or_else(refuse)?,
            "reserve" => self.reserve = bytes::parse(value).ok_or_else(refuse)?,
            "source" => {
                self.source = match value {
                    "auto" => Source::Auto,
                    "virtual_memory" => Source::VirtualMemory,
                    "slabs" => Source::Slabs,
                    _ => return Err(refuse()),
                }
            }
            _ => return Err(refuse()),
        }
        Ok(())
    }
}

/// What differs from the defaults, as [`Config::parse`] reads it.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let texts = |config: &Self| {
            let limit = match config.limit {
                None => "none".to_owned(),
                Some(Limit::Bytes(bytes)) => bytes.to_string(),
                Some(Limit::Fraction(fraction)) => format!("{fraction:?}"),
            };
            let source = match config.source {
                Source::Auto => "auto",
                Source::VirtualMemory => "virtual_memory",
                Source::Slabs => "slabs",
            };
            [
                ("limit", limit),
                ("growth", config.growth.to_string()),
                ("magazine", config.magazine.to_string()),
                ("source", source.to_owned()),
                ("reserve", config.reserve.to_string()),
            ]
        };
        let pairs = texts(self).into_iter().zip(texts(&default));
        let changed = pairs.filter(|(own, default)| own != default);
        for (place, ((key, value), _)) in changed.enumerate() {
            write!(f, "{}{key}:{value}", if place > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// A limit; `Some(None)` for "none".
fn parse_limit(text: &str) -> Option<Option<Limit>> {
    if text == "none" {
        return Some(None);
    }
    let fraction = match text.strip_suffix('%') {
        Some(percent) => Some(percent.trim().parse::<f64>().ok()? / 100.0),
        // 0.5 is a half; 1 is a byte, and 1.0 the whole device.
        None if text.contains('.') => text.parse::<f64>().ok(),
        None => None,
    };
    match fraction {
        Some(fraction) if fraction > 0.0 && fraction <= 1.0 => Some(Some(Limit::Fraction(fraction))),
        Some(_) => None,
        None => bytes::parse(text)
            .filter(|&bytes| bytes > 0)
            .map(|bytes| Some(Limit::Bytes(bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits_are_bytes_or_parts() {
        let limit = |text: &str| Config::parse(&format!("limit:{text}")).map(|config| config.limit);
        assert_eq!(limit("50%"), Ok(Some(Limit::Fraction(0.5))));
        assert_eq!(limit("0.25"), Ok(Some(Limit::Fraction(0.25))));
        assert_eq!(limit("3MiB"), Ok(Some(Limit::Bytes(3 << 20))));
        assert_eq!(limit("none"), Ok(None));
        for bad in ["", "0", "0%", "101%", "1.5", "-1", "all", "nan", "0.0"] {
            assert!(limit(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn what_is_printed_can_be_read() {
        assert_eq!(Config::default().to_string(), "");
        for (key, _) in KEYS {
            let value = if key == "source" { "slabs" } else { "3145728" };
            let config = Config::parse(&format!("{key}:{value}")).expect("good");
            assert_eq!(config.to_string(), format!("{key}:{value}"));
        }
        let text = "limit:0.5,growth:1024,source:virtual_memory";
        assert_eq!(Config::parse(text).expect("good").to_string(), text);
    }

    #[test]
    fn a_bad_pair_changes_nothing_and_is_named() {
        let mut config = Config::parse("growth:4MiB").expect("good");
        let error = config.update("growth:8MiB,source:cloud").expect_err("bad");
        assert_eq!((error.key.as_str(), error.value.as_str()), ("source", "cloud"));
        assert_eq!(config.growth, 4 << 20);
        for (key, _) in KEYS {
            assert!(Config::default().set(key, "?").is_err(), "{key}");
        }
        assert!(
            Config::parse("colour:red")
                .expect_err("bad")
                .allowed
                .contains("magazine")
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = Config::parse(&text);
        }
    }
}
