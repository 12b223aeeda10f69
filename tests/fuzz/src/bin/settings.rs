//! Any text as `FLAGSTONE_CONF`: settings, or an error that names a key and what is allowed.

#![no_main]

use flagstone::{Config, Error};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = Config::parse(text) {
        let said = error.to_string();
        assert!(!said.is_empty());
        assert!(matches!(Error::from(error), Error::Config(_)));
    }
});
