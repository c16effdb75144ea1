//! The level of the log: one for all lines, and others for parts of keygate.

use std::str::FromStr;

use super::message::{quoted, suggestion};

/// The target of the lines about rejected and flagged clients.
const CLIENT_KEY: &str = "keygate::client_key";

/// Words for a level.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// A checked `log.level`.
///
/// The lines about rejected and flagged clients are written at every level. Only a part of its own,
/// `keygate::client_key=off`, leaves them out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLevel(String);

/// A `log.level` that is not valid. An unknown word would otherwise silence the log.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is not a level{}", quoted(.0), remedy(.0))]
pub struct LogLevelError(String);

/// The level that `part` resembles, or else all of them.
fn remedy(part: &str) -> String {
    let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
    match suggestion(level, &LEVELS) {
        similar if !similar.is_empty() && !LEVELS.contains(&level) => similar,
        _ => "; write one of error, warn, info, debug or trace, and after it parts of keygate with a \
              level, such as \"info,keygate::proxy=debug\""
            .to_owned(),
    }
}

impl LogLevel {
    /// The directives for the log's filter.
    #[must_use]
    pub fn directives(&self) -> &str {
        &self.0
    }
}

impl Default for LogLevel {
    fn default() -> Self {
        Self(format!("info,{CLIENT_KEY}=warn"))
    }
}

impl FromStr for LogLevel {
    type Err = LogLevelError;

    fn from_str(text: &str) -> Result<Self, LogLevelError> {
        let mut directives = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (target, level) = part.split_once('=').unwrap_or(("keygate", part));
            let is_part = target == "keygate"
                || target.strip_prefix("keygate::").is_some_and(|path| {
                    let is_path_byte =
                        |it: u8| it.is_ascii_lowercase() || b"_:0123456789".contains(&it);
                    !path.is_empty() && path.bytes().all(is_path_byte)
                });
            // Only a named part can be silenced, because that is no mistake.
            let is_level = LEVELS.contains(&level) || (level == "off" && target != "keygate");
            if !is_part || !is_level {
                return Err(LogLevelError(part.to_owned()));
            }
            directives.push(part.to_owned());
        }
        if !directives.iter().any(|part| part.starts_with(CLIENT_KEY)) {
            directives.push(format!("{CLIENT_KEY}=warn"));
        }
        Ok(Self(directives.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_parts_of_keygate_are_valid() {
        for text in ["error", "info", "trace", "info,keygate::proxy=debug", "keygate=debug"] {
            let level: LogLevel = text.parse().unwrap();
            assert_eq!(level.directives(), format!("{text},keygate::client_key=warn"));
        }
        let explicit = "info,keygate::client_key=off";
        assert_eq!(explicit.parse::<LogLevel>().unwrap().directives(), explicit);
    }

    #[test]
    fn an_unknown_word_is_an_error_that_names_it() {
        for (text, word) in [
            ("warning", "warning"),
            ("", ""),
            ("off", "off"),
            ("keygate=off", "keygate=off"),
            ("INFO", "INFO"),
            ("info,keygat=debug", "keygat=debug"),
            ("info,keygate::proxy=verbose", "keygate::proxy=verbose"),
            ("info,keygate::=debug", "keygate::=debug"),
            ("info,[span]=debug", "[span]=debug"),
        ] {
            assert_eq!(text.parse::<LogLevel>(), Err(LogLevelError(word.to_owned())), "{text}");
        }
    }
}
