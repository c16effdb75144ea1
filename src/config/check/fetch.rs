//! Converts `source` of filters and lists.

use std::path::PathBuf;

use super::Checker;
use crate::config::raw::RawFetch;
use crate::config::{FetchConfig, SourceUrl};

/// What protects a file from a change on its way, besides TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protection {
    None,
    /// A signature with a key that the operator has chosen.
    Signature,
}

impl Protection {
    /// The protection of a file that must be signed with one of these keys, if there are any.
    pub(super) fn of(minisign_key: Option<&PathBuf>) -> Self {
        if minisign_key.is_some() { Self::Signature } else { Self::None }
    }
}

impl Checker<'_> {
    /// The source of the filter or list at `path`.
    pub(super) fn source(
        &self,
        path: &str,
        raw: Option<&RawFetch>,
        protection: Protection,
    ) -> Option<FetchConfig> {
        let raw = raw?;
        let at = |key: &str| format!("{path}.source.{key}");
        let url = SourceUrl::parse(&raw.url).filter(|url| !url.path.is_empty());
        if url.is_none() {
            let problem = format!(
                "{:?} is not the URL of a file; write \"https://HOST/FILE\", with a port if needed",
                raw.url
            );
            self.invalid(at("url"), problem);
        }
        if let Some(url) = &url {
            if !url.is_authenticated() && protection == Protection::None {
                let problem = "http:// to another machine lets anybody on the way replace the file; use https://, or set minisign_key";
                self.conflict(at("url"), problem);
            }
            if !url.is_secure && raw.trust_anchors.is_some() {
                let problem = "only for https://; remove it, or change the url";
                self.conflict(at("trust_anchors"), problem);
            }
        }
        let trust_anchors = raw.trust_anchors.as_ref();
        Some(FetchConfig {
            trust_anchors: trust_anchors.map(|file| self.path(&at("trust_anchors"), file)),
            checksum: raw.checksum,
            connect_timeout: self.positive(&at("connect_timeout"), raw.connect_timeout),
            stall_timeout: self.positive(&at("stall_timeout"), raw.stall_timeout),
            timeout: self.positive(&at("timeout"), raw.timeout),
            ..FetchConfig::at(url?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::example::{changed, parse};

    fn source(table: &str) -> Result<FetchConfig, String> {
        let text = changed(
            "path = \"lost.pkbf\"",
            &format!("path = \"lost.pkbf\"\nsource = {{ {table} }}"),
        );
        let config = parse(&text).map_err(|error| error.to_string())?;
        Ok(config.filters[0].source.clone().unwrap())
    }

    #[test]
    fn a_source_is_a_file_and_its_server_is_authenticated() {
        let found = source("url = \"https://a.example:8443/b/lost.pkbf\"").unwrap();
        assert_eq!(found, FetchConfig::at(found.url.clone()));
        assert_eq!(found.url.to_string(), "https://a.example:8443/b/lost.pkbf");
        for url in ["http://127.0.0.1:8080/a", "http://localhost/a"] {
            source(&format!("url = {url:?}")).unwrap();
        }
        // A signed file needs no authenticated server.
        let signed = "path = \"lost.pkbf\"\nminisign_key = \"keys.pub\"\n\
                      source = { url = \"http://a.example/a\" }";
        parse(&changed("path = \"lost.pkbf\"", signed)).unwrap();
        for (table, problem) in [
            ("url = \"http://a.example/a\"", "source.url: http:// to another machine"),
            ("url = \"https://a.example\"", "source.url: \"https://a.example\" is not the URL"),
            ("url = \"https://a.example/\"", "is not the URL of a file"),
            ("url = \"https://a.example/a?b\"", "is not the URL of a file"),
            ("url = \"file:///etc/passwd\"", "is not the URL of a file"),
            ("url = \"http://[::1]/a\", trust_anchors = \"ca.pem\"", "only for https://"),
            ("url = \"https://a/b\", timeout = \"0s\"", "source.timeout: 0 would expire at once"),
            ("url = \"https://a/b\", proxy = \"c\"", "no key \"proxy\""),
            ("checksum = true", "source.url: the key is missing"),
        ] {
            let found = source(table).unwrap_err();
            assert!(found.contains(problem), "{table}: {found}");
        }
    }
}
