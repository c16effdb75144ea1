//! URLs that keys take: sources, collectors and proxies.

use super::SourceUrl;
use super::keys::texts;
use super::message::quoted;

/// Path of the collector of traces if the URL has none (OTLP/HTTP, "OTLP/HTTP Request").
const TRACES_PATH: &str = "/v1/traces";

/// `text` without credentials, in quotes.
fn shown(text: &str) -> String {
    quoted(&SourceUrl::without_credentials(text))
}

texts! {
    /// The base URL of a source of proofs.
    BaseUrl => SourceUrl = |text| {
        let problem = "is not the URL of a source; write \"https://HOST\", with a port or a path if needed";
        SourceUrl::parse(text).ok_or_else(|| format!("{} {problem}", shown(text)))
    };
    /// The URL of a collector of traces.
    Endpoint => SourceUrl = |text| match SourceUrl::parse(text) {
        Some(url) if url.path.is_empty() => Ok(SourceUrl { path: TRACES_PATH.to_owned(), ..url }),
        Some(url) => Ok(url),
        None => {
            let remedy = format!("\"https://HOST:4318\", with a path if it is not {TRACES_PATH}");
            Err(format!("{} is not the URL of a collector; write {remedy}", shown(text)))
        }
    };
    /// The URL of a file.
    FileUrl => SourceUrl = |text| {
        let problem = "is not the URL of a file; write \"https://HOST/FILE\", with a port if needed";
        SourceUrl::parse_file(text).ok_or_else(|| format!("{} {problem}", shown(text)))
    };
    /// The URL of an HTTP proxy.
    ProxyUrl => SourceUrl = |text| {
        let url = SourceUrl::parse(text).filter(|url| !url.is_secure && url.path.is_empty());
        url.ok_or_else(|| "not the URL of an HTTP proxy; write \"http://HOST:PORT\"".to_owned())
    };
    /// A host in the form of [`SourceUrl::authority`], in lower case.
    RedirectHost => String = |text| {
        let url = SourceUrl::parse(&format!("https://{text}"));
        let url = url.filter(|url| url.path.is_empty() && !text.ends_with('/'));
        let problem = "is not a host; write a name or an address, with a port if it is not 443";
        let host = url.map(|url| url.authority().to_ascii_lowercase());
        host.ok_or_else(|| format!("{} {problem}", shown(text)))
    };
}
