//! Checks the table of the source of proofs.

use std::path::Path;

use super::Checker;
use crate::config::confirm::{CanaryConfig, ConfirmConfig, SourceUrl};
use crate::config::units::quoted;
use crate::config::{FilterConfig, raw};

impl Checker<'_> {
    pub(super) fn confirm(&self, raw: raw::RawConfirm, filters: &[FilterConfig]) -> ConfirmConfig {
        let path = |key: &str, path: &Path| self.path(&format!("confirm.{key}"), path);
        if raw.url.is_none() && raw.proofs.is_none() {
            let problem = "there is nothing to ask: give url, proofs, or both";
            self.conflict("confirm", problem);
        }
        let url = raw.url.as_deref().and_then(|url| self.source_url(url));
        if url.as_ref().is_some_and(|url| url.is_secure) && raw.trust_anchors.is_none() {
            let problem = "the key is missing; https:// needs the CAs of the source, such as \"/etc/ssl/certs/ca-certificates.crt\"";
            self.conflict("confirm.trust_anchors", problem);
        }
        if raw.api_key.is_some() {
            let at = "confirm.api_key";
            if raw.url.is_none() {
                self.conflict(at, "there is no URL that the key is for; give url, or remove it");
            } else if url.as_ref().is_some_and(|url| !url.is_authenticated()) {
                let problem = "http:// would send the key to another machine in clear text; use https://, or remove it";
                self.conflict(at, problem);
            }
        }
        if raw.directory_is_complete {
            let at = "confirm.directory_is_complete";
            if raw.proofs.is_none() {
                self.conflict(at, "there is no directory; give proofs, or set it to false");
            } else if raw.url.is_some() {
                self.conflict(at, "the url would never be asked; remove one of them");
            }
        }
        ConfirmConfig {
            filters: self.confirmed_filters(raw.filters, filters),
            url,
            trust_anchors: raw.trust_anchors.map(|it| path("trust_anchors", &it)),
            api_key: raw.api_key.map(|it| path("api_key", &it)),
            proofs: raw.proofs.map(|it| path("proofs", &it)),
            directory_is_complete: raw.directory_is_complete,
            canary: match raw.canary.to_str() {
                Some("off") => CanaryConfig::Off,
                Some("published") => CanaryConfig::Published,
                Some(_) | None => CanaryConfig::File(path("canary", &raw.canary)),
            },
            wait: raw.wait.0,
            timeout: raw.timeout.0,
            cleared_ttl: raw.cleared_ttl.0,
            stale_for: raw.stale_for.0,
            rate: raw.rate.0,
        }
    }

    /// Checks the names of the filters. Without names, the only filter is meant.
    fn confirmed_filters(&self, names: Vec<String>, filters: &[FilterConfig]) -> Vec<String> {
        for (index, name) in names.iter().enumerate() {
            if !filters.iter().any(|filter| filter.name == *name) {
                let known: Vec<_> = filters.iter().map(|it| format!("{:?}", it.name)).collect();
                let known = known.join(", ");
                let problem = format!(
                    "{} is not the name of a filter in [[filters]]; give {known}",
                    quoted(name)
                );
                self.conflict(format!("confirm.filters[{index}]"), problem);
            }
        }
        match (names.is_empty(), filters) {
            (false, _) => names,
            (true, [only]) => vec![only.name.clone()],
            (true, []) => {
                let problem = "there is no filter, and a source answers for hits in filters only; add a [[filters]] table, or remove [confirm]";
                self.conflict("confirm", problem);
                names
            }
            (true, _) => {
                let problem = "there are several filters; name those that the source answers for, because it must not clear the hits of others";
                self.conflict("confirm.filters", problem);
                names
            }
        }
    }

    fn source_url(&self, text: &str) -> Option<SourceUrl> {
        let url = SourceUrl::parse(text);
        if url.is_none() {
            let problem = format!(
                "{} is not the URL of a source; write \"https://HOST\", with a port or a path if needed",
                quoted(&SourceUrl::without_credentials(text))
            );
            self.invalid("confirm.url", problem);
        }
        url
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::example::{MINIMAL, parse};

    /// Why a configuration with this table is rejected.
    fn problem(confirm: &str) -> Option<String> {
        let config = parse(&format!("{MINIMAL}[confirm]\n{confirm}"));
        config.err().map(|error| error.to_string())
    }

    #[test]
    fn an_api_key_is_never_sent_to_another_machine_in_clear_text() {
        for (table, problem_of_key) in [
            ("url = \"https://a.example\"\ntrust_anchors = \"ca.pem\"", None),
            ("url = \"http://127.0.0.1\"", None),
            ("url = \"http://localhost:8080\"", None),
            ("url = \"http://a.example\"", Some("in clear text")),
            ("url = \"http://10.0.0.1:8080\"", Some("in clear text")),
            ("proofs = \"proofs\"", Some("there is no URL")),
        ] {
            assert_eq!(problem(table), None);
            let found = problem(&format!("{table}\napi_key = \"api.key\""));
            match problem_of_key {
                None => assert_eq!(found, None, "{table}"),
                Some(expected) => {
                    let found = found.unwrap();
                    assert!(
                        found.contains("confirm.api_key") && found.contains(expected),
                        "{found}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_url_of_a_source_has_a_scheme_and_a_host() {
        for (text, written) in [
            ("https://v1.pwnedkeys.com", "https://v1.pwnedkeys.com"),
            ("https://v1.pwnedkeys.com/", "https://v1.pwnedkeys.com"),
            ("https://mirror.example:8443/keys/", "https://mirror.example:8443/keys"),
            ("http://127.0.0.1:80", "http://127.0.0.1"),
            ("http://[::1]:8080/a/b", "http://[::1]:8080/a/b"),
        ] {
            assert_eq!(SourceUrl::parse(text).unwrap().to_string(), written);
        }
        for text in [
            "",
            "/",
            "v1.pwnedkeys.com",
            "ftp://a",
            "https://",
            "https://a/?q",
            "https://a@b",
            "https://a/#b",
            "https://a:0",
            "https://a:x",
            "https://a b",
            "https:///a",
            "https://a:",
        ] {
            assert_eq!(SourceUrl::parse(text), None, "{text}");
        }
    }

    #[test]
    fn tls_and_loopback_are_authenticated() {
        for (text, expected) in [
            ("https://a.example", true),
            ("http://a.example", false),
            ("http://10.0.0.1", false),
            ("http://127.0.0.1", true),
            ("http://[::1]", true),
            ("http://LOCALHOST:1", true),
            ("http://localhost.example", false),
        ] {
            assert_eq!(SourceUrl::parse(text).unwrap().is_authenticated(), expected, "{text}");
        }
    }
}
