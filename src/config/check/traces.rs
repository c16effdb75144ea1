//! Checks the table of the traces.

use super::Checker;
use crate::config::raw::RawTraces;
use crate::config::units::quoted;
use crate::config::{SourceUrl, TracesConfig};

/// Whether this build can export traces.
pub(super) const CAN_EXPORT: bool = cfg!(feature = "opentelemetry");
/// Path of the endpoint if the URL has none (OTLP/HTTP, "OTLP/HTTP Request").
const DEFAULT_PATH: &str = "/v1/traces";
/// Maximum length of `service_name`, in bytes.
const MAX_SERVICE_NAME: usize = 255;

impl Checker<'_> {
    /// Checks the table; `can_export` is whether this build can export traces.
    pub(super) fn traces(&self, raw: RawTraces, can_export: bool) -> Option<TracesConfig> {
        if !can_export {
            let problem = "this build of keygate cannot export traces; build it with the cargo feature opentelemetry, which packages have, or remove the table";
            self.invalid("traces", problem);
        }
        let at = |key: &str| format!("traces.{key}");
        let endpoint = self.endpoint(&raw.endpoint);
        if let Some(endpoint) = &endpoint {
            if endpoint.is_secure && raw.trust_anchors.is_none() {
                let problem = "the key is missing; https:// needs the CAs of the collector, such as \"/etc/ssl/certs/ca-certificates.crt\"";
                self.conflict(at("trust_anchors"), problem);
            }
            if !endpoint.is_secure && raw.trust_anchors.is_some() {
                let problem = "only for https://; remove it, or change the endpoint";
                self.conflict(at("trust_anchors"), problem);
            }
            if !endpoint.is_authenticated() && raw.headers.is_some() {
                let problem = "http:// would send the headers to another machine in clear text; use https://, or remove it";
                self.conflict(at("headers"), problem);
            }
        }
        let name = &raw.service_name;
        if name.trim().is_empty()
            || name.len() > MAX_SERVICE_NAME
            || name.chars().any(char::is_control)
        {
            let problem = format!(
                "{} is no name; write 1 to {MAX_SERVICE_NAME} characters, such as \"keygate\"",
                quoted(name)
            );
            self.invalid(at("service_name"), problem);
        }
        let file = |key: &str, path| self.path(&at(key), path);
        Some(TracesConfig {
            trust_anchors: raw.trust_anchors.as_deref().map(|path| file("trust_anchors", path)),
            headers: raw.headers.as_deref().map(|path| file("headers", path)),
            service_name: raw.service_name,
            sample_one_in: raw.sample_one_in.0,
            parent_based: raw.parent_based,
            max_spans_per_second: raw.max_spans_per_second.0,
            max_queue: raw.max_queue.0,
            interval: raw.interval.0,
            timeout: raw.timeout.0,
            endpoint: endpoint?,
        })
    }

    fn endpoint(&self, text: &str) -> Option<SourceUrl> {
        let Some(mut url) = SourceUrl::parse(text) else {
            let problem = format!(
                "{} is not the URL of a collector; write \"https://HOST:4318\", with a path if it is not {DEFAULT_PATH}",
                quoted(&SourceUrl::without_credentials(text))
            );
            self.invalid("traces.endpoint", problem);
            return None;
        };
        if url.path.is_empty() {
            url.path = DEFAULT_PATH.to_owned();
        }
        Some(url)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::document::Document;
    use crate::config::example::{MINIMAL, parse};
    use crate::config::form::decode;

    fn traces(table: &str) -> Result<TracesConfig, String> {
        let config = parse(&format!("{MINIMAL}[traces]\n{table}"));
        Ok(config.map_err(|error| error.to_string())?.traces.unwrap())
    }

    #[cfg(feature = "opentelemetry")]
    #[test]
    fn a_collector_has_a_url_and_secrets_for_it_are_encrypted() {
        for (url, sent_to) in [
            ("https://collector.example:4318", "https://collector.example:4318/v1/traces"),
            ("https://collector.example:4318/", "https://collector.example:4318/v1/traces"),
            (
                "https://collector.example/otlp/v1/traces",
                "https://collector.example/otlp/v1/traces",
            ),
        ] {
            let found = traces(&format!("endpoint = {url:?}\ntrust_anchors = \"ca.pem\"")).unwrap();
            assert_eq!(found.endpoint.to_string(), sent_to);
        }
        let of_this_machine = "endpoint = \"http://localhost:4318\"\nheaders = \"fields\"";
        traces(of_this_machine).unwrap();
        traces("endpoint = \"http://collector.example:4318\"").unwrap();
        for (table, problem) in [
            ("", "traces.endpoint: the key is missing"),
            ("endpoint = \"collector:4318\"", "traces.endpoint: \"collector:4318\" is not the URL"),
            (
                "endpoint = \"https://a\"",
                "traces.trust_anchors: the key is missing; https:// needs",
            ),
            ("endpoint = \"http://a\"\ntrust_anchors = \"b\"", "traces.trust_anchors: only for"),
            ("endpoint = \"http://a\"\nheaders = \"b\"", "traces.headers: http:// would send"),
            ("endpoint = \"http://a\"\nservice_name = \" \"", "traces.service_name: \" \" is no"),
            ("endpoint = \"http://a\"\ninterval = \"0s\"", "traces.interval: 0 would expire"),
            ("endpoint = \"http://a\"\ntimeout = \"0s\"", "traces.timeout: 0 would expire"),
            ("endpoint = \"http://a\"\nmax_queue = 0", "traces.max_queue: 0 is not between"),
        ] {
            let found = traces(table).unwrap_err();
            assert!(found.contains(problem), "{table}: {found}");
        }
    }

    #[test]
    fn a_build_without_the_feature_rejects_the_table() {
        let document = Document::parse("[traces]\nendpoint = \"http://localhost\"").unwrap();
        let checker = Checker::new(Path::new("keygate.toml"), &document);
        let raw: RawTraces = decode(&document, "traces").unwrap();
        checker.traces(raw, false);
        let problems = checker.invalid.into_inner();
        let [(path, problem)] = problems.as_slice() else { panic!("{problems:?}") };
        assert_eq!(path, "traces");
        assert!(problem.contains("with the cargo feature opentelemetry"), "{problem}");
        if !CAN_EXPORT {
            assert!(traces("endpoint = \"http://localhost\"").unwrap_err().contains(problem));
        }
    }
}
