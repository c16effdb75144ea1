//! A configuration for tests: one filter `lost` and one service `orders`.

use std::path::Path;

use super::{Config, ConfigError};

/// The shortest useful configuration.
pub(crate) const MINIMAL: &str = include_str!("../../tests/vectors/minimal.toml");

/// The configuration with this text, in `/etc/keygate`.
pub(crate) fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("/etc/keygate/keygate.toml"), text)
}

/// [`MINIMAL`] with one piece replaced by another.
pub(crate) fn changed(from: &str, to: &str) -> String {
    assert!(MINIMAL.contains(from), "{from} is not in the example");
    MINIMAL.replacen(from, to, 1)
}
