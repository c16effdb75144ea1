//! Sources: of files, of proofs, and the collector of traces.

use std::path::PathBuf;
use std::time::Duration;

use super::Input;
use crate::config::fetch::{CrlSource, RawCrl};
use crate::config::keys::takes;
use crate::config::list::MAX_FINGERPRINTS_SIZE;
use crate::config::urls::FileUrl;
use crate::config::{
    ConfirmConfig, CrlConfig, FetchConfig, FilterConfig, ListConfig, ListFormat, TracesConfig,
    UpstreamTlsConfig,
};

/// Whether this build can export traces.
const CAN_EXPORT: bool = cfg!(feature = "opentelemetry");
/// Default of `timeout` for a source of CRLs, 5 min: other files wait until the download ends.
const CRL_TIMEOUT: Duration = Duration::from_secs(5 * 60);

impl FetchConfig {
    /// Checks the source of a file.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        let of_tls = [
            ("certificate", self.certificate.is_some()),
            ("trust_anchors", self.trust_anchors.is_some()),
        ];
        for (key, _) in of_tls.into_iter().filter(|(_, is_set)| !self.url.is_secure && *is_set) {
            input.report_at(key, "only for https://; remove it, or change the url");
        }
        both_files(input, self.certificate.as_ref(), self.private_key.as_ref());
        if self.headers.is_some() && !self.is_authenticated() {
            let problem = "http:// would send the headers to another machine in clear text; use https://, or remove it";
            input.report_at("headers", problem);
        }
    }
}

takes! {
    CrlSource => FetchConfig, FetchConfig::form().or_text(), |input| {
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
    };
    CrlConfig => Self, RawCrl::form().or_text(), |input| {
        if !input.is_table() {
            input.text::<Self>()?; // the error of another type names the table, too
            return PathBuf::take(input).map(|path| Self { path, sources: Vec::new() });
        }
        let RawCrl { path, source } = RawCrl::take(input)?;
        if source.is_empty() {
            let problem = "empty; give a URL, or the path of the file alone";
            return Err(input.report_at("source", problem));
        }
        Ok(Self { path, sources: source })
    };
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

impl FilterConfig {
    /// Checks the source of a filter.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        protection(self.source.as_ref(), self.minisign_key.as_ref(), input);
    }
}

impl ListConfig {
    /// Checks the source of a list and the keys for its format. The default of `max_size` depends on it.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        protection(self.source.as_ref(), self.minisign_key.as_ref(), input);
        match self.format {
            ListFormat::Badkeys => {
                if self.source.as_ref().is_some_and(|source| source.url.is_blocklist()) {
                    let problem = "the URL of a list; with format = \"badkeys\" give the URL of badkeysdata.json, which names the list";
                    input.report_at("source.url", problem);
                }
            }
            ListFormat::Fingerprints => {
                for key in ["max_age", "rollback"].into_iter().filter(|key| input.sets(key)) {
                    let problem = "only for format = \"badkeys\"; remove it, or set the format";
                    input.report_at(key, problem);
                }
                if !input.sets("max_size") {
                    self.max_size = MAX_FINGERPRINTS_SIZE;
                }
            }
        }
    }
}

impl UpstreamTlsConfig {
    /// Checks TLS towards the servers of an upstream.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        both_files(input, self.certificate.as_ref(), self.private_key.as_ref());
    }
}

/// Checks that a client certificate has its key.
fn both_files(input: &Input<'_>, certificate: Option<&PathBuf>, private_key: Option<&PathBuf>) {
    if certificate.is_some() != private_key.is_some() {
        input.report("certificate and private_key belong together; give both or none");
    }
}

impl ConfirmConfig {
    /// Checks the source of proofs.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        let (url, proofs) = (self.url.as_ref(), self.proofs.as_ref());
        if url.is_none() && proofs.is_none() {
            input.report("there is nothing to ask: give url, proofs, or both");
        }
        if url.is_some_and(|url| url.is_secure) && self.trust_anchors.is_none() {
            let problem = "the key is missing; https:// needs the CAs of the source, such as \"/etc/ssl/certs/ca-certificates.crt\"";
            input.report_at("trust_anchors", problem);
        }
        if self.api_key.is_some() {
            if url.is_none() {
                let problem = "there is no URL that the key is for; give url, or remove it";
                input.report_at("api_key", problem);
            }
            if url.is_some_and(|url| !url.is_authenticated()) {
                let problem = "http:// would send the key to another machine in clear text; use https://, or remove it";
                input.report_at("api_key", problem);
            }
        }
        if self.directory_is_complete {
            if proofs.is_none() {
                let problem = "there is no directory; give proofs, or set it to false";
                input.report_at("directory_is_complete", problem);
            } else if url.is_some() {
                let problem = "the url would never be asked; remove one of them";
                input.report_at("directory_is_complete", problem);
            }
        }
    }
}

impl TracesConfig {
    /// Checks the collector of traces.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        collector(self, input, CAN_EXPORT);
    }
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
