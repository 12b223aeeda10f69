//! The configuration of a pool from keyword arguments.

use super::args::Amount;
use crate::config::Config;
use crate::error::ConfigError;

/// Keys of the configuration as keyword arguments; None leaves what `FLAGSTONE_CONF` says.
pub struct Settings {
    pub limit: Option<Amount>,
    pub growth: Option<Amount>,
    pub magazine: Option<Amount>,
    pub source: Option<String>,
    pub reserve: Option<Amount>,
}

impl Settings {
    pub fn config(self) -> Result<Config, ConfigError> {
        let mut config = Config::from_env()?;
        let keys = [
            ("limit", self.limit),
            ("growth", self.growth),
            ("magazine", self.magazine),
            ("source", self.source.map(Amount)),
            ("reserve", self.reserve),
        ];
        for (key, value) in keys {
            if let Some(Amount(value)) = value {
                config.set(key, &value)?;
            }
        }
        Ok(config)
    }
}
