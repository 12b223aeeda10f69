//! The pool's settings, from code or from `key:value,key:value`.
#![forbid(unsafe_code)]

use crate::bytes;
use crate::driver::PoolOptions;
use crate::error::ConfigError;
use std::fmt;
use std::time::Duration;

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
    /// Slabs from a pool of the driver's own; an error where the device has none.
    DriverPool,
}

/// When a stream that needs memory may be made to wait, on the device, for what other streams still do with memory that is free
/// but for that. No host thread waits. The driver's own pools do so before they grow
/// (`CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dependencies {
    /// Never: a request that would fail waits on the host instead.
    Off,
    /// Before a request fails.
    Pressure,
    /// Before a request fails; and before memory is taken, but only for work behind which the other stream was given more that
    /// memory waits for. So the two streams still work at the same time, as with two buffers that are used in turn.
    #[default]
    Overlap,
    /// Before memory is taken from the driver: the least memory, and the most waiting.
    Growth,
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
    /// The largest piece of physical memory that is taken with virtual memory, in bytes, rounded up to the device's granularity.
    /// Smaller ones are free as a whole more often, and cost more calls: about 0.2 ms each. 0 lets the pool choose.
    pub handle: u64,
    /// The most that one thread keeps ready for one stream, in bytes: up to half of it in blocks above 1 MiB, once its stream has
    /// what it needs, and an eighth in smaller ones. As much may wait on its list of blocks freed by other threads. 0
    /// switches magazines off. Default 64 MiB.
    pub magazine: u64,
    /// Where memory comes from.
    pub source: Source,
    /// What a pool of the driver's own keeps and gives out again, for [`Source::DriverPool`]. Default: as the driver makes it.
    pub driver_pool: PoolOptions,
    /// Whether free memory is mapped to where it is wanted. Off, it stays where it is until a request would fail otherwise:
    /// for comparison, and for programs that must not see memory at two addresses. Default on.
    pub remap: bool,
    /// Bytes to take when the pool is made. Default 0.
    pub reserve: u64,
    /// When streams may be made to wait for each other's memory. Default [`Dependencies::Overlap`].
    pub dependencies: Dependencies,
    /// The most that the pool holds idle, in bytes: what is above goes back to the driver once the device is done with it.
    /// Default: no ceiling.
    pub cache: Option<u64>,
    /// Memory that was idle for so long goes back to the driver. Looked at when memory is asked for that no magazine
    /// has, and by [`Pool::release_idle`](crate::Pool::release_idle). Default: never.
    pub release_after: Option<Duration>,
    /// What the pool leaves free on the device for others, each time that it grows. Default: nothing.
    pub headroom: Option<Limit>,
    /// The most that one step of a request that is short of memory waits for the device. What the step would have set
    /// free is not used then, and the next step is taken. Default 60 s; `None` waits as long as the device works.
    pub wait: Option<Duration>,
    /// What memory is filled with, byte by byte and in the order of its stream, when a block is given out and when it is freed:
    /// who reads either finds this. 0 lets no data go from one use to the next. No request is a hit then. Default: not at all.
    pub poison: Option<u8>,
    /// Each block gets pages of its own, so that it ends where they end, with addresses behind it that have no memory; freed, its
    /// own have none either, until those of more than so many bytes were freed after it. For finding who uses what he has not:
    /// every free waits for the device. Needs virtual memory management. Default: not at all.
    pub guard: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: None,
            growth: 0,
            handle: 0,
            magazine: 64 << 20,
            source: Source::Auto,
            driver_pool: PoolOptions::default(),
            remap: true,
            reserve: 0,
            dependencies: Dependencies::Overlap,
            cache: None,
            release_after: None,
            headroom: None,
            wait: Some(Duration::from_secs(60)),
            poison: None,
            guard: None,
        }
    }
}

/// The keys that [`Config::set`] knows, each with what is allowed.
pub const KEYS: [(&str, &str); 18] = [
    (
        "limit",
        "bytes as 2147483648 or 2GiB, or a fraction as 0.5 or 50%, or none",
    ),
    ("growth", "bytes as 20MiB, or 0 to let the pool choose"),
    ("handle", "bytes as 2MiB, or 0 to let the pool choose"),
    ("magazine", "bytes as 64MiB, or 0 for none"),
    ("source", "auto, virtual_memory, slabs or driver_pool"),
    ("remap", "on or off"),
    ("release_threshold", "bytes as 64MiB"),
    ("reuse_event_dependencies", "on or off"),
    ("reuse_opportunistic", "on or off"),
    ("reuse_internal_dependencies", "on or off"),
    ("reserve", "bytes as 4GiB"),
    ("dependencies", "off, pressure, overlap or growth"),
    ("cache", "bytes as 1GiB, or none"),
    ("release_after", "seconds as 30 or 0.5, or none"),
    ("headroom", "bytes as 512MiB, or a fraction as 0.1 or 10%, or none"),
    ("wait", "seconds as 60 or 0.5, or none"),
    ("poison", "a byte as 0, 165 or 0xa5, or none"),
    ("guard", "bytes of addresses as 64GiB, or none"),
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

    /// The value of a key, as [`Self::set`] takes it; empty for a key that there is not.
    pub(crate) fn value(&self, key: &str) -> String {
        let limit = |limit: Option<Limit>| match limit {
            None => "none".to_owned(),
            Some(Limit::Bytes(bytes)) => bytes.to_string(),
            Some(Limit::Fraction(fraction)) => format!("{fraction:?}"),
        };
        let seconds =
            |time: Option<Duration>| time.map_or_else(|| "none".to_owned(), |time| time.as_secs_f64().to_string());
        let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
        match key {
            "limit" => limit(self.limit),
            "growth" => self.growth.to_string(),
            "handle" => self.handle.to_string(),
            "magazine" => self.magazine.to_string(),
            "reserve" => self.reserve.to_string(),
            "dependencies" => match self.dependencies {
                Dependencies::Off => "off",
                Dependencies::Pressure => "pressure",
                Dependencies::Overlap => "overlap",
                Dependencies::Growth => "growth",
            }
            .to_owned(),
            "cache" => limit(self.cache.map(Limit::Bytes)),
            "release_after" => seconds(self.release_after),
            "headroom" => limit(self.headroom),
            "wait" => seconds(self.wait),
            "poison" => self.poison.map_or_else(|| "none".to_owned(), |byte| byte.to_string()),
            "guard" => limit(self.guard.map(Limit::Bytes)),
            "source" => match self.source {
                Source::Auto => "auto",
                Source::VirtualMemory => "virtual_memory",
                Source::Slabs => "slabs",
                Source::DriverPool => "driver_pool",
            }
            .to_owned(),
            "remap" => switch(self.remap),
            "release_threshold" => self.driver_pool.release_threshold.to_string(),
            "reuse_event_dependencies" => switch(self.driver_pool.follow_event_dependencies),
            "reuse_opportunistic" => switch(self.driver_pool.allow_opportunistic),
            "reuse_internal_dependencies" => switch(self.driver_pool.allow_internal_dependencies),
            _ => String::new(),
        }
    }

    /// The keys whose values differ from the defaults, with their values as [`Self::set`] takes them.
    pub fn changes(&self) -> impl Iterator<Item = (&'static str, String)> {
        let default = Self::default();
        let values = KEYS.map(|(key, _)| (key, self.value(key), default.value(key)));
        let changed = values.into_iter().filter(|(_, value, default)| value != default);
        changed.map(|(key, value, _)| (key, value))
    }

    /// Sets one key.
    ///
    /// # Errors
    /// As [`Self::parse`]; nothing was changed then.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let allowed = KEYS.iter().find(|(name, _)| *name == key).map(|(_, allowed)| *allowed);
        let known = || format!("key:value, with the keys {}", KEYS.map(|(name, _)| name).join(", "));
        let refuse = || ConfigError {
            key: key.to_owned(),
            value: value.to_owned(),
            allowed: allowed.map_or_else(known, str::to_owned),
        };
        match key {
            "limit" => self.limit = parse_limit(value).ok_or_else(refuse)?,
            "growth" => self.growth = bytes::parse(value).ok_or_else(refuse)?,
            "handle" => self.handle = bytes::parse(value).ok_or_else(refuse)?,
            "magazine" => self.magazine = bytes::parse(value).ok_or_else(refuse)?,
            "reserve" => self.reserve = bytes::parse(value).ok_or_else(refuse)?,
            "remap" => self.remap = parse_switch(value).ok_or_else(refuse)?,
            "release_threshold" => {
                self.driver_pool.release_threshold = bytes::parse(value).ok_or_else(refuse)?;
            }
            "reuse_event_dependencies" => {
                self.driver_pool.follow_event_dependencies = parse_switch(value).ok_or_else(refuse)?;
            }
            "reuse_opportunistic" => {
                self.driver_pool.allow_opportunistic = parse_switch(value).ok_or_else(refuse)?;
            }
            "reuse_internal_dependencies" => {
                self.driver_pool.allow_internal_dependencies = parse_switch(value).ok_or_else(refuse)?;
            }
            "dependencies" => {
                self.dependencies = match value {
                    "off" => Dependencies::Off,
                    "pressure" => Dependencies::Pressure,
                    "overlap" => Dependencies::Overlap,
                    "growth" => Dependencies::Growth,
                    _ => return Err(refuse()),
                }
            }
            "cache" => self.cache = parse_optional(value, bytes::parse).ok_or_else(refuse)?,
            "release_after" => self.release_after = parse_optional(value, parse_seconds).ok_or_else(refuse)?,
            "headroom" => self.headroom = parse_limit(value).ok_or_else(refuse)?,
            "wait" => self.wait = parse_optional(value, parse_seconds).ok_or_else(refuse)?,
            "poison" => self.poison = parse_optional(value, parse_byte).ok_or_else(refuse)?,
            "guard" => self.guard = parse_optional(value, bytes::parse).ok_or_else(refuse)?,
            "source" => {
                self.source = match value {
                    "auto" => Source::Auto,
                    "virtual_memory" => Source::VirtualMemory,
                    "slabs" => Source::Slabs,
                    "driver_pool" => Source::DriverPool,
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
        let mut comma = "";
        for (key, value) in self.changes() {
            write!(f, "{comma}{key}:{value}")?;
            comma = ",";
        }
        Ok(())
    }
}

/// A value, or `Some(None)` for "none".
fn parse_optional<T>(text: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<Option<T>> {
    match text {
        "none" => Some(None),
        text => parse(text).map(Some),
    }
}

fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// A byte, decimal or hexadecimal.
fn parse_byte(text: &str) -> Option<u8> {
    // No sign: `parse` would take one.
    let digits = |text: &str, radix| {
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        plain.then(|| u8::from_str_radix(text, radix).ok()).flatten()
    };
    match text.strip_prefix("0x") {
        Some(hexadecimal) => digits(hexadecimal, 16),
        None => digits(text, 10),
    }
}

/// A time in seconds.
fn parse_seconds(text: &str) -> Option<Duration> {
    // As limits, a number that begins with a digit: no sign, and no word for infinity.
    let number = text.starts_with(|first: char| first.is_ascii_digit());
    let seconds = number.then(|| text.parse::<f64>().ok()).flatten()?;
    Duration::try_from_secs_f64(seconds).ok()
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
    fn a_byte_is_decimal_or_hexadecimal() {
        let poison = |text: &str| Config::parse(&format!("poison:{text}")).map(|config| config.poison);
        assert_eq!(poison("0"), Ok(Some(0)));
        assert_eq!(poison("0xa5"), Ok(Some(0xa5)));
        assert_eq!(poison("255"), Ok(Some(255)));
        assert_eq!(poison("none"), Ok(None));
        for bad in ["", "256", "0x100", "-1", "+1", "0x", "0x-1", "a5", "1.0"] {
            assert!(poison(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn what_is_printed_can_be_read() {
        assert_eq!(Config::default().to_string(), "");
        for (key, _) in KEYS {
            let value = match key {
                "source" => "slabs",
                "dependencies" => "growth",
                "remap" | "reuse_event_dependencies" | "reuse_opportunistic" | "reuse_internal_dependencies" => "off",
                "poison" => "165",
                _ => "3145728",
            };
            let config = Config::parse(&format!("{key}:{value}")).expect("good");
            assert_eq!(config.to_string(), format!("{key}:{value}"));
        }
        let text = "limit:0.5,growth:1024,source:virtual_memory";
        assert_eq!(Config::parse(text).expect("good").to_string(), text);
    }

    #[test]
    fn times_are_seconds_and_what_is_optional_can_be_none() {
        let config = Config::parse("wait:0.25,release_after:30,cache:1GiB,headroom:10%").expect("good");
        assert_eq!(config.wait, Some(Duration::from_millis(250)));
        assert_eq!(config.release_after, Some(Duration::from_secs(30)));
        assert_eq!(config.cache, Some(1 << 30));
        assert_eq!(config.headroom, Some(Limit::Fraction(0.1)));
        let config = Config::parse("wait:none,release_after:none,cache:none,headroom:none").expect("good");
        assert_eq!((config.wait, config.release_after), (None, None));
        assert_eq!((config.cache, config.headroom), (None, None));
        for bad in ["-1", "inf", "nan", "", "1s", "1e400"] {
            assert!(Config::parse(&format!("wait:{bad}")).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn the_drivers_pool_has_its_settings() {
        let text = "source:driver_pool,release_threshold:64MiB,reuse_event_dependencies:off,reuse_opportunistic:on,\
                    reuse_internal_dependencies:off,remap:off";
        let config = Config::parse(text).expect("good");
        assert_eq!((config.source, config.remap), (Source::DriverPool, false));
        let expected = PoolOptions {
            release_threshold: 64 << 20,
            follow_event_dependencies: false,
            allow_opportunistic: true,
            allow_internal_dependencies: false,
        };
        assert_eq!(config.driver_pool, expected);
        assert!(Config::parse("remap:yes").is_err());
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
        // A part of what has no parts is not 0, which means something else.
        for key in ["growth", "handle", "magazine", "reserve", "cache", "guard"] {
            assert!(Config::default().set(key, "0.5").is_err(), "{key}");
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
