//! Any text as a configuration: a checked model, or an error with the file's name.

#![no_main]

use std::path::Path;

use keygate::config::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = Config::parse(Path::new("/etc/keygate/keygate.toml"), text) {
        assert!(error.to_string().starts_with("/etc/keygate/keygate.toml:"));
    }
});
