//! Converts `source` of filters and lists.

use std::path::PathBuf;

use super::Checker;
use crate::config::raw::RawFetch;
use crate::config::units::quoted;
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
        let url = SourceUrl::parse_file(&raw.url);
        if url.is_none() {
            let problem = format!(
                "{} is not the URL of a file; write \"https://HOST/FILE\", with a port if needed",
                quoted(&SourceUrl::without_credentials(&raw.url))
            );
            self.invalid(at("url"), problem);
        }
        if let Some(url) = &url {
            let is_authenticated = url.is_secure || (url.is_authenticated() && raw.proxy.is_none());
            if !is_authenticated && protection == Protection::None {
                let problem = "http:// to another machine lets anybody on the way replace the file; use https://, or set minisign_key";
                self.conflict(at("url"), problem);
            }
            if !is_authenticated && raw.headers.is_some() {
                let problem = "http:// would send the headers to another machine in clear text; use https://, or remove it";
                self.conflict(at("headers"), problem);
            }
            let of_tls = [("certificate", &raw.certificate), ("trust_anchors", &raw.trust_anchors)];
            for (key, _) in of_tls.iter().filter(|(_, path)| !url.is_secure && path.is_some()) {
                self.conflict(at(key), "only for https://; remove it, or change the url");
            }
        }
        let file =
            |key: &str, path: &Option<PathBuf>| path.as_ref().map(|path| self.path(&at(key), path));
        let (certificate, private_key) = (raw.certificate.as_deref(), raw.private_key.as_deref());
        Some(FetchConfig {
            trust_anchors: file("trust_anchors", &raw.trust_anchors),
            headers: file("headers", &raw.headers),
            identity: self.identity(&format!("{path}.source"), certificate, private_key),
            proxy: raw.proxy.as_deref().and_then(|text| self.proxy(&at("proxy"), text)),
            redirect_hosts: self.redirect_hosts(&at("redirect_hosts"), &raw.redirect_hosts),
            checksum: raw.checksum,
            connect_timeout: raw.connect_timeout.0,
            stall_timeout: raw.stall_timeout.0,
            timeout: raw.timeout.0,
            ..FetchConfig::at(url?)
        })
    }

    fn proxy(&self, path: &str, text: &str) -> Option<SourceUrl> {
        let proxy = SourceUrl::parse(text).filter(|url| !url.is_secure && url.path.is_empty());
        if proxy.is_none() {
            let problem = "not the URL of an HTTP proxy; write \"http://HOST:PORT\"";
            self.invalid(path, problem);
        }
        proxy
    }

    /// The hosts in the form of [`SourceUrl::authority`], in lower case.
    fn redirect_hosts(&self, path: &str, hosts: &[String]) -> Vec<String> {
        let authority = |(index, host): (usize, &String)| {
            let url = SourceUrl::parse(&format!("https://{host}"));
            let url = url.filter(|url| url.path.is_empty() && !host.ends_with('/'));
            if url.is_none() {
                let problem = format!(
                    "{} is not a host; write a name or an address, with a port if it is not 443",
                    quoted(host)
                );
                self.invalid(format!("{path}[{index}]"), problem);
            }
            Some(url?.authority().to_ascii_lowercase())
        };
        hosts.iter().enumerate().filter_map(authority).collect()
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
        let found = source(
            "url = \"https://a/b?sig=c\", redirect_hosts = [\"C.example:443\", \"[::1]:8443\"]",
        );
        let found = found.unwrap();
        assert_eq!(found.redirect_hosts, ["c.example", "[::1]:8443"]);
        assert_eq!(
            (found.url.to_string(), &*found.url.query),
            ("https://a/b".to_owned(), "?sig=c")
        );
        // A signed file needs no authenticated server. Headers do.
        let headers = "path = \"lost.pkbf\"\nminisign_key = \"keys.pub\"\n\
                       source = { url = \"http://a.example/a\", headers = \"b\" }";
        let error = parse(&changed("path = \"lost.pkbf\"", headers)).unwrap_err().to_string();
        assert!(error.contains("source.headers: http:// would send"), "{error}");
        let signed = "path = \"lost.pkbf\"\nminisign_key = \"keys.pub\"\n\
                      source = { url = \"http://a.example/a\" }";
        parse(&changed("path = \"lost.pkbf\"", signed)).unwrap();
        for (table, problem) in [
            ("url = \"http://a.example/a\"", "source.url: http:// to another machine"),
            ("url = \"https://a.example\"", "source.url: \"https://a.example\" is not the URL"),
            ("url = \"https://a.example/\"", "is not the URL of a file"),
            ("url = \"https://u:pw@a/b?sig=c#d\"", "source.url: \"https://a/b\" is not the URL"),
            ("url = \"file:///etc/passwd\"", "is not the URL of a file"),
            ("url = \"http://[::1]/a\", trust_anchors = \"ca.pem\"", "only for https://"),
            ("url = \"https://a/b\", timeout = \"0s\"", "source.timeout: 0 would expire at once"),
            ("url = \"https://a/b\", mirror = \"c\"", "no key \"mirror\""),
            ("url = \"https://a/b\", proxy = \"c\"", "source.proxy: not the URL of an HTTP proxy"),
            ("url = \"https://a/b\", proxy = \"http://user@c\"", "source.proxy: not the URL"),
            (
                "url = \"http://localhost/b\", proxy = \"http://c\"",
                "source.url: http:// to another",
            ),
            ("url = \"https://a/b\", certificate = \"c\"", "belong together"),
            (
                "url = \"http://[::1]/b\", certificate = \"c\", private_key = \"d\"",
                "source.certificate: only for https://",
            ),
            (
                "url = \"https://a/b\", redirect_hosts = [\"c/d\"]",
                "source.redirect_hosts: \"c/d\" is not a host",
            ),
            ("checksum = true", "source.url: the key is missing"),
        ] {
            let found = source(table).unwrap_err();
            assert!(found.contains(problem), "{table}: {found}");
        }
    }
}
