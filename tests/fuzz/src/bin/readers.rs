//! Any bytes as a recorded trace of any format: a trace that can be replayed and written, or an error.

#![no_main]

use flagstone::trace::{Format, Trace};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match Trace::read("fuzzed", bytes) {
        Ok(trace) => {
            assert!(trace.events().is_sorted_by_key(|event| event.time));
            // What was read can be written, and read again as the same.
            let mut written = Vec::new();
            trace.write(&mut written).expect("memory takes everything");
            let again = Trace::read("written", written.as_slice()).expect("our own format");
            if trace.format() == Format::Events {
                assert_eq!(again.events(), trace.events());
            }
            assert_eq!(again.events().len(), trace.events().len());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
