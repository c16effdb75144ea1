//! The metadata of a blocklist: the names of its collections, its date and its SHA-256.

use std::io;
use std::sync::Arc;

use data_encoding::HEXLOWER_PERMISSIVE;
use serde::Deserialize;
use toml_datetime::{Datetime, Offset};
use x509_cert::der::DateTime;

use super::Findings;
use crate::json::{self, JsonError};
use crate::regular_file;

/// The format of the list that is read here.
const FORMAT: i64 = 0;
/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 64;
/// Maximum length of a value in an error, in characters; the rest is cut.
const MAX_SHOWN: usize = 80;

/// The content of `badkeysdata.json`, as far as it is about `blocklist.dat`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Date of the list, in seconds since the Unix epoch.
    pub date: Option<u64>,
    /// Where the list can be downloaded, as it is written; `None` if it is not published any more.
    pub blocklist_url: Option<String>,
    /// SHA-256 of the unpacked `blocklist.dat`.
    pub blocklist_sha256: Option<[u8; 32]>,
    /// The names of the collections.
    pub findings: Findings,
    /// Whether the format of the list is deprecated, so that it may not be updated any more.
    pub is_deprecated: bool,
    /// The text of `deprecated` for people: at most 80 printable ASCII characters, and empty
    /// without a text.
    pub deprecation: String,
}

/// Why a metadata file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// The format of the list is another one.
    #[error(
        "bkformat: {found}, and keygate reads 0: the list has another format; look for a newer keygate"
    )]
    Format {
        /// The value.
        found: i64,
    },
    /// The file is no JSON, or a member is missing or of another type.
    #[error("not the metadata of a blocklist: {0}; fetch the file again")]
    Json(#[from] JsonError),
    /// The file cannot be read.
    #[error("{}", regular_file::explain_with_remedy(.0, "fetch the file again"))]
    Read(#[from] io::Error),
    /// A member has a value that is not valid.
    #[error("{member}: {found:?} {problem}; fetch the file again")]
    Value {
        /// The path of the member.
        member: String,
        /// The value, shortened.
        found: String,
        /// Why the value is not valid.
        problem: &'static str,
    },
}

impl MetadataError {
    fn new(member: impl Into<String>, found: &str, problem: &'static str) -> Self {
        let found = found.chars().take(MAX_SHOWN).collect();
        Self::Value { member: member.into(), found, problem }
    }
}

#[derive(Deserialize)]
struct RawMetadata {
    date: Option<String>,
    blocklist_url: Option<String>,
    blocklist_sha256: Option<String>,
    blocklists: Vec<RawCollection>,
    #[serde(default)]
    deprecated: serde_json::Value,
}

#[derive(Deserialize)]
struct RawCollection {
    id: u8,
    name: String,
}

/// Only the format, which is checked before anything else: another format may have other members.
#[derive(Deserialize)]
struct RawFormat {
    bkformat: i64,
}

impl Metadata {
    /// Parses the content of `badkeysdata.json`. Unknown members are ignored.
    ///
    /// # Errors
    /// Returns an error if it is no JSON, if `bkformat` is not 0, or if the date, the SHA-256, the
    /// number or the name of a collection is not valid.
    pub fn parse(json: &[u8]) -> Result<Self, MetadataError> {
        let format: RawFormat = json::parse(json)?;
        if format.bkformat != FORMAT {
            return Err(MetadataError::Format { found: format.bkformat });
        }
        let raw: RawMetadata = json::parse(json)?;
        let is_deprecated =
            !matches!(raw.deprecated, serde_json::Value::Null | serde_json::Value::Bool(false));
        Ok(Self {
            is_deprecated,
            deprecation: printable(raw.deprecated.as_str()),
            blocklist_url: raw.blocklist_url,
            date: raw.date.as_deref().map(date).transpose()?,
            blocklist_sha256: raw.blocklist_sha256.as_deref().map(sha256).transpose()?,
            findings: findings(raw.blocklists)?,
        })
    }
}

/// The names of `collections`, each checked.
fn findings(collections: Vec<RawCollection>) -> Result<Findings, MetadataError> {
    let mut names: Vec<(u8, Arc<str>)> = Vec::new();
    for (index, RawCollection { id, name }) in collections.into_iter().enumerate() {
        if names.iter().any(|(known, _)| *known == id) {
            let member = format!("blocklists[{index}].id");
            return Err(MetadataError::new(member, &id.to_string(), "is given twice"));
        }
        if !is_plain(&name) {
            let problem = "is not 1 to 64 letters, digits, '.', '-', '_', '/', '+' and ':'";
            return Err(MetadataError::new(format!("blocklists[{index}].name"), &name, problem));
        }
        names.push((id, name.into()));
    }
    Ok(names.into_iter().collect())
}

/// Whether a name needs no quoting in header fields and logs.
fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_/+:".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain)
}

/// The printable ASCII characters of a text, shortened.
fn printable(text: Option<&str>) -> String {
    let printable = |it: &char| it.is_ascii_graphic() || *it == ' ';
    text.unwrap_or_default().chars().filter(printable).take(MAX_SHOWN).collect()
}

fn sha256(text: &str) -> Result<[u8; 32], MetadataError> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).unwrap_or_default();
    let invalid = |_| MetadataError::new("blocklist_sha256", text, "is not 64 hex digits");
    bytes.try_into().map_err(invalid)
}

/// A date of ISO 8601, in seconds since the Unix epoch. Without a time it is the start of the day,
/// without an offset it is UTC.
fn date(text: &str) -> Result<u64, MetadataError> {
    let problem = "is not a date of ISO 8601, such as \"2026-08-20\"";
    let invalid = || MetadataError::new("date", text, problem);
    let parsed: Datetime = text.parse().map_err(|_| invalid())?;
    let date = parsed.date.ok_or_else(invalid)?;
    let time = parsed.time.map(|time| (time.hour, time.minute, time.second.unwrap_or(0)));
    let (hour, minute, second) = time.unwrap_or_default();
    let at = DateTime::new(date.year, date.month, date.day, hour, minute, second);
    let at = at.map_err(|_| invalid())?.unix_duration().as_secs();
    let minutes = match parsed.offset {
        Some(Offset::Custom { minutes }) => i64::from(minutes),
        Some(Offset::Z) | None => 0,
    };
    at.checked_add_signed(-minutes * 60).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn with(member: &str, value: &str) -> Result<Metadata, MetadataError> {
        let mut members = vec![
            ("bkformat", "0".to_owned()),
            ("date", "\"2026-08-20\"".to_owned()),
            ("blocklist_url", "\"https://update.example/v0/blocklist.dat.xz\"".to_owned()),
            ("blocklist_sha256", format!("{SHA256:?}")),
            ("blocklists", collections(&[("1", "\"debianssl\""), ("99", "\"new\"")])),
        ];
        members.retain(|(name, _)| *name != member);
        if !value.is_empty() {
            members.push((member, value.to_owned()));
        }
        let members: Vec<_> =
            members.iter().map(|(name, value)| format!("{name:?}: {value}")).collect();
        Metadata::parse(format!("{{{}}}", members.join(", ")).as_bytes())
    }

    fn collections(all: &[(&str, &str)]) -> String {
        let all = all.iter().map(|(id, name)| {
            format!(
                r#"{{"id": {id}, "name": {name}, "type": "github", "repo": "a/b", "path": "main"}}"#
            )
        });
        format!("[{}]", all.collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn the_members_are_read_and_others_are_ignored() {
        let metadata = with("deprecated", "").unwrap();
        assert_eq!(metadata.date, Some(1_787_184_000)); // 2026-08-20T00:00:00Z
        assert_eq!(metadata.blocklist_sha256.unwrap()[..2], [0xe3, 0xb0]);
        assert!(!metadata.is_deprecated);
        let names: Vec<_> = metadata.findings.iter().collect();
        assert_eq!(names, [(1, "debianssl"), (99, "new")]);
        assert_eq!(&*metadata.findings.name(99), "new");
        assert_eq!(&*metadata.findings.name(7), "id7", "an unknown number is still a hit");
        for (value, is_deprecated) in [("false", false), ("true", true), ("\"soon\"", true)] {
            assert_eq!(with("deprecated", value).unwrap().is_deprecated, is_deprecated);
        }
        assert_eq!(with("date", "").unwrap().date, None);
        assert_eq!(with("blocklist_sha256", "").unwrap().blocklist_sha256, None);
        assert_eq!(with("blocklists", "[]").unwrap().findings, Findings::default());
    }

    #[test]
    fn a_date_has_a_time_and_an_offset_if_they_are_given() {
        let seconds = |text: &str| with("date", &format!("{text:?}")).unwrap().date.unwrap();
        let midnight = 1_787_184_000;
        for (text, after) in [
            ("2026-08-20", 0),
            ("2026-08-20T01:00:00Z", 3600),
            ("2026-08-20 01:00:00.123456+00:00", 3600),
            ("2026-08-20T01:00:00", 3600),
            ("2026-08-20T03:30:00+02:30", 3600),
            ("2026-08-19T23:00:00-02:00", 3600),
        ] {
            assert_eq!(seconds(text), midnight + after, "{text}");
        }
    }

    #[test]
    fn an_error_names_the_member_and_its_value() {
        let long = format!("\"{}\"", "x".repeat(65));
        for (member, value, problem) in [
            ("bkformat", "1", "bkformat: 1, and keygate reads 0"),
            ("bkformat", "", "blocklist: missing field `bkformat` at line 1"),
            ("bkformat", "\"0\"", "blocklist: bkformat: invalid type: string \"0\", expected i64"),
            ("date", "\"soon\"", "date: \"soon\" is not a date"),
            ("date", "\"2026-02-30\"", "date: \"2026-02-30\" is not"),
            ("date", "\"01:00:00\"", "date: \"01:00:00\" is not"),
            ("date", "\"0000-01-01T00:00:00Z\"", "date: \"0000-01-01T00:00:00Z\" is not"),
            ("date", "\"1970-01-01T00:00:00+01:00\"", "is not a date"),
            (
                "date",
                "7",
                "blocklist: date: invalid type: integer `7`, expected a string at line 1 column",
            ),
            ("blocklist_sha256", "\"e3b0\"", "blocklist_sha256: \"e3b0\" is not 64 hex digits"),
            ("blocklists", "", "blocklist: missing field `blocklists` at line 1"),
            (
                "blocklists",
                "{}",
                "blocklist: blocklists: invalid type: map, expected a sequence at line 1",
            ),
            (
                "blocklists",
                &collections(&[("1", "\"a\""), ("\"2\"", "\"b\"")]),
                "blocklist: blocklists[1].id: invalid type: string \"2\", expected u8",
            ),
            (
                "blocklists",
                &collections(&[("256", "\"a\"")]),
                "blocklists[0].id: invalid value: integer `256`",
            ),
            (
                "blocklists",
                &collections(&[("-1", "\"a\"")]),
                "blocklists[0].id: invalid value: integer `-1`",
            ),
            (
                "blocklists",
                &collections(&[("1", "\"a\""), ("1", "\"b\"")]),
                "blocklists[1].id: \"1\" is given twice",
            ),
            ("blocklists", &collections(&[("1", "\"\"")]), "blocklists[0].name: \"\" is not"),
            ("blocklists", &collections(&[("1", "\"a\\\"b\"")]), "blocklists[0].name: \"a\\\"b\""),
            ("blocklists", &collections(&[("1", "\"a\\nb\"")]), "blocklists[0].name: \"a\\nb\""),
            ("blocklists", &collections(&[("1", &long)]), "blocklists[0].name: \"xxx"),
        ] {
            let error = with(member, value).unwrap_err().to_string();
            assert!(error.contains(problem), "{member} {value}: {error}");
            let has_remedy =
                error.contains("fetch the file again") || error.contains("newer keygate");
            assert!(has_remedy, "{error}");
        }
        for text in ["", "[]", "{", "null", "\u{feff}{}"] {
            let error = Metadata::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("not the metadata of a blocklist: "), "{text}: {error}");
        }
    }
}
