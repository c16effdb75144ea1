//! Sources: of files, of proofs, and the collector of traces.

use std::path::PathBuf;
use std::time::Duration;

use super::{FileUrl, Form, Input, Taken};
use crate::config::fetch::{RawCrl, RawFetch};
use crate::config::keys::Takes;
use crate::config::list::{RawList, RawListFormat};
use crate::config::upstream::RawUpstreamTls;
use crate::config::{
    BlocklistConfig, ClientCertificateFiles, ConfirmConfig, CrlConfig, FetchConfig, FilterConfig,
    ListConfig, ListFormat, TracesConfig, UpstreamTlsConfig,
};

/// Whether this build can export traces.
const CAN_EXPORT: bool = cfg!(feature = "opentelemetry");
/// Default of `timeout` for a source of CRLs, 5 min: other files wait until the download ends.
const CRL_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Default of `max_size` for a list of fingerprints, in bytes, 16 MiB.
pub(in crate::config) const MAX_FINGERPRINTS_SIZE: u64 = 16 << 20;

impl Takes for FetchConfig {
    type Value = Self;

    fn form() -> Form {
        RawFetch::form()
    }

    fn take(input: &Input<'_>) -> Taken<Self> {
        let raw = RawFetch::take(input)?;
        let of_tls = [
            ("certificate", raw.certificate.is_some()),
            ("trust_anchors", raw.trust_anchors.is_some()),
        ];
        for (key, _) in of_tls.into_iter().filter(|(_, is_set)| !raw.url.is_secure && *is_set) {
            input.report_at(key, "only for https://; remove it, or change the url");
        }
        let source = Self {
            identity: identity(input, raw.certificate, raw.private_key)?,
            url: raw.url,
            trust_anchors: raw.trust_anchors,
            headers: raw.headers,
            proxy: raw.proxy,
            redirect_hosts: raw.redirect_hosts,
            checksum: raw.checksum,
            connect_timeout: raw.connect_timeout,
            stall_timeout: raw.stall_timeout,
            timeout: raw.timeout,
        };
        if source.headers.is_some() && !source.is_authenticated() {
            let problem = "http:// would send the headers to another machine in clear text; use https://, or remove it";
            input.report_at("headers", problem);
        }
        Ok(source)
    }
}

/// A source of CRLs: a URL, or a table.
#[derive(Debug)]
pub(in crate::config) struct CrlSource;

impl Takes for CrlSource {
    type Value = FetchConfig;

    fn form() -> Form {
        RawFetch::form().or_text()
    }

    fn take(input: &Input<'_>) -> Taken<FetchConfig> {
        if !input.is_table() {
            input.text::<Self>()?;
            let url = FileUrl::take(input)?;
            return Ok(FetchConfig { timeout: CRL_TIMEOUT, ..FetchConfig::at(url) });
        }
        let mut source = FetchConfig::take(input)?;
        if !input.sets("timeout") {
            source.timeout = CRL_TIMEOUT;
        }
        if source.checksum {
            input.report_at("checksum", "a CRL needs none, because its CA signs it; remove it");
        }
        Ok(source)
    }
}

impl Takes for CrlConfig {
    type Value = Self;

    fn form() -> Form {
        RawCrl::form().or_text()
    }

    fn take(input: &Input<'_>) -> Taken<Self> {
        if !input.is_table() {
            input.text::<Self>()?; // the error of another type names the table, too
            return PathBuf::take(input).map(|path| Self { path, sources: Vec::new() });
        }
        let RawCrl { path, source } = RawCrl::take(input)?;
        if source.is_empty() {
            return Err(
                input.report_at("source", "empty; give a URL, or the path of the file alone")
            );
        }
        Ok(Self { path, sources: source })
    }
}

impl FetchConfig {
    /// Whether nobody on the way can replace the file or read the headers.
    fn is_authenticated(&self) -> bool {
        self.url.is_secure || (self.url.is_authenticated() && self.proxy.is_none())
    }
}

/// Checks that nobody on the way can replace a file without a signature.
fn protection(source: Option<&FetchConfig>, minisign_key: Option<&PathBuf>, input: &Input<'_>) {
    if minisign_key.is_none() && source.is_some_and(|source| !source.is_authenticated()) {
        let problem = "http:// to another machine lets anybody on the way replace the file; use https://, or set minisign_key";
        input.report_at("source.url", problem);
    }
}

/// Checks the source of a filter.
pub(in crate::config) fn filter(filter: &FilterConfig, input: &Input<'_>) {
    protection(filter.source.as_ref(), filter.minisign_key.as_ref(), input);
}

impl Takes for ListConfig {
    type Value = Self;

    fn form() -> Form {
        RawList::form()
    }

    fn take(input: &Input<'_>) -> Taken<Self> {
        let raw = RawList::take(input)?;
        protection(raw.source.as_ref(), raw.minisign_key.as_ref(), input);
        let (format, max_size) = match raw.format {
            RawListFormat::Badkeys => {
                if raw.source.as_ref().is_some_and(|source| source.url.is_blocklist()) {
                    let problem = "the URL of a list; with format = \"badkeys\" give the URL of badkeysdata.json, which names the list";
                    input.report_at("source.url", problem);
                }
                let settings = BlocklistConfig { max_age: raw.max_age, rollback: raw.rollback };
                (ListFormat::Badkeys(settings), raw.max_size)
            }
            RawListFormat::Fingerprints => {
                for key in ["max_age", "rollback"].into_iter().filter(|key| input.sets(key)) {
                    let problem = "only for format = \"badkeys\"; remove it, or set the format";
                    input.report_at(key, problem);
                }
                let is_default = !input.sets("max_size");
                let max_size = if is_default { MAX_FINGERPRINTS_SIZE } else { raw.max_size };
                (ListFormat::Fingerprints, max_size)
            }
        };
        Ok(Self {
            name: raw.name,
            path: raw.path,
            max_size,
            format,
            min_records: raw.min_records,
            shrink: raw.shrink,
            canaries: raw.canaries,
            max_new_hits: raw.max_new_hits,
            source: raw.source,
            minisign_key: raw.minisign_key,
        })
    }
}

impl Takes for UpstreamTlsConfig {
    type Value = Self;

    fn form() -> Form {
        RawUpstreamTls::form()
    }

    fn take(input: &Input<'_>) -> Taken<Self> {
        let raw = RawUpstreamTls::take(input)?;
        Ok(Self {
            trust_anchors: raw.trust_anchors,
            identity: identity(input, raw.certificate, raw.private_key)?,
            server_name: raw.server_name,
            key_exchange: raw.key_exchange,
        })
    }
}

/// The client certificate of the table.
fn identity(
    input: &Input<'_>,
    certificate: Option<PathBuf>,
    private_key: Option<PathBuf>,
) -> Taken<Option<ClientCertificateFiles>> {
    match (certificate, private_key) {
        (Some(certificate), Some(private_key)) => {
            Ok(Some(ClientCertificateFiles { certificate, private_key }))
        }
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => {
            let problem = "certificate and private_key belong together; give both or none";
            Err(input.report(problem))
        }
    }
}

/// Checks the source of proofs.
pub(in crate::config) fn confirm(confirm: &ConfirmConfig, input: &Input<'_>) {
    let (url, proofs) = (confirm.url.as_ref(), confirm.proofs.as_ref());
    if url.is_none() && proofs.is_none() {
        input.report("there is nothing to ask: give url, proofs, or both");
    }
    if url.is_some_and(|url| url.is_secure) && confirm.trust_anchors.is_none() {
        let problem = "the key is missing; https:// needs the CAs of the source, such as \"/etc/ssl/certs/ca-certificates.crt\"";
        input.report_at("trust_anchors", problem);
    }
    if confirm.api_key.is_some() {
        if url.is_none() {
            let problem = "there is no URL that the key is for; give url, or remove it";
            input.report_at("api_key", problem);
        }
        if url.is_some_and(|url| !url.is_authenticated()) {
            let problem = "http:// would send the key to another machine in clear text; use https://, or remove it";
            input.report_at("api_key", problem);
        }
    }
    if confirm.directory_is_complete {
        if proofs.is_none() {
            let problem = "there is no directory; give proofs, or set it to false";
            input.report_at("directory_is_complete", problem);
        } else if url.is_some() {
            let problem = "the url would never be asked; remove one of them";
            input.report_at("directory_is_complete", problem);
        }
    }
}

/// Checks the collector of traces.
pub(in crate::config) fn traces(traces: &TracesConfig, input: &Input<'_>) {
    collector(traces, input, CAN_EXPORT);
}

/// `can_export` is whether this build can export traces.
pub(super) fn collector(traces: &TracesConfig, input: &Input<'_>, can_export: bool) {
    if !can_export {
        input.report("this build of keygate cannot export traces; build it with the cargo feature opentelemetry, which packages have, or remove the table");
    }
    if traces.endpoint.is_secure && traces.trust_anchors.is_none() {
        let problem = "the key is missing; https:// needs the CAs of the collector, such as \"/etc/ssl/certs/ca-certificates.crt\"";
        input.report_at("trust_anchors", problem);
    }
    if !traces.endpoint.is_secure && traces.trust_anchors.is_some() {
        let problem = "only for https://; remove it, or change the endpoint";
        input.report_at("trust_anchors", problem);
    }
    if !traces.endpoint.is_authenticated() && traces.headers.is_some() {
        let problem = "http:// would send the headers to another machine in clear text; use https://, or remove it";
        input.report_at("headers", problem);
    }
}
