//! Reports everything in use and the last reload of each file, for `/status` and the status page.
//!
//! Times are in seconds since the Unix epoch.

mod rejections;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use self::rejections::Rejection;
use super::expiry::Expiry;
use super::last_question::LastQuestion;
use super::load::signed::LoadedList;
use crate::config::{AuthorizerConfig, ServiceConfig};
use crate::guard::{ExactList, Exception, NamedFilter};
use crate::metrics::{Label, ReloadResult};
use crate::pkbf::FilterSummary;
use crate::signature::FileSignature;
use crate::tls::{Crls, RevocationList};

/// Everything that a reload can change.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Number of the snapshot in use.
    pub generation: u64,
    /// Path of the configuration; `None` if it has no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration_path: Option<String>,
    /// The last attempt to read the configuration again; `None` before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<ReloadReport>,
    /// The settings that differ from those of the start and take effect only after a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restart_needed: Vec<&'static str>,
    /// The filters, in the order of the configuration.
    pub filters: Vec<FilterReport>,
    /// The lists, in the order of the configuration.
    pub lists: Vec<ListReport>,
    /// The checks of weak keys that are made; none if they are off.
    pub weak_keys: Vec<&'static str>,
    /// The exceptions, in the order of the configuration.
    pub exceptions: Vec<ExceptionReport>,
    /// The services, in the order of the configuration.
    pub services: Vec<ServiceReport>,
    /// The authorizers, in the order of the configuration.
    pub authorizers: Vec<AuthorizerReport>,
    /// What expires, earliest first.
    pub expiries: Vec<Expiry>,
}

impl Report {
    /// The checks of weak keys in one line.
    #[must_use]
    pub fn weak_keys_text(&self) -> String {
        if self.weak_keys.is_empty() { "not checked".to_owned() } else { self.weak_keys.join(", ") }
    }
}

/// A filter in use and the last attempt to read its file.
#[derive(Debug, Clone, Serialize)]
pub struct FilterReport {
    /// Name of the filter.
    pub name: String,
    /// Properties of the filter in use.
    #[serde(flatten)]
    pub summary: FilterSummary,
    /// When the filter was put in use.
    pub loaded: u64,
    /// Whether the filter is older than `max_age`.
    pub stale: bool,
    /// Whether the filter comes from the state directory, because its file was rejected at the
    /// start.
    pub last_good_in_use: bool,
    /// The last attempt to read the file.
    pub last_reload: ReloadReport,
    /// The last attempt that ended with a rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_rejection: Option<ReloadReport>,
    /// The update that waits for the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingReport>,
    /// The signature of the filter in use, if `minisign_key` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<SignatureReport>,
}

/// A signature that was verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SignatureReport {
    /// The id of the key that made the signature, in hex.
    pub key_id: String,
    /// The trusted comment, at most 200 characters of it.
    pub comment: String,
}

impl SignatureReport {
    /// A verified signature.
    pub(crate) fn of(signature: &FileSignature) -> Self {
        Self { key_id: signature.key_id(), comment: signature.comment() }
    }
}

impl std::fmt::Display for SignatureReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({})", self.key_id, self.comment)
    }
}

/// A list in use and the last attempt to read its file.
#[derive(Debug, Clone, Serialize)]
pub struct ListReport {
    /// Name of the list.
    pub name: String,
    /// Path of the file.
    pub path: String,
    /// `badkeys` or `fingerprints`.
    pub format: &'static str,
    /// Number of entries.
    pub entries: usize,
    /// Date of a blocklist by its metadata, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<u64>,
    /// SHA-256 of a blocklist, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The signature of the list in use, if `minisign_key` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<SignatureReport>,
    /// Whether the list is older than `max_age`, or of unknown age.
    pub stale: bool,
    /// Whether the list comes from the state directory, because its file was rejected at the start.
    pub last_good_in_use: bool,
    /// The last attempt to read the file.
    pub last_reload: ReloadReport,
}

impl ListReport {
    /// A list read from `path`.
    pub(super) fn new(
        LoadedList { list, signed }: &LoadedList,
        path: &Path,
        stale: bool,
        last_reload: ReloadReport,
    ) -> Self {
        let (format, updated, sha256) = match list {
            ExactList::Badkeys(list) => {
                ("badkeys", list.date, Some(data_encoding::HEXLOWER.encode(&list.sha256)))
            }
            ExactList::Fingerprints(_) => ("fingerprints", None, None),
        };
        let (name, path) = (list.name().to_string(), path.display().to_string());
        let signature = signed.as_ref().map(|signed| SignatureReport::of(&signed.signature));
        Self {
            name,
            path,
            format,
            entries: list.len(),
            updated,
            sha256,
            signature,
            stale,
            last_good_in_use: false,
            last_reload,
        }
    }
}

/// An exception, and whether it has expired.
#[derive(Debug, Clone, Serialize)]
pub struct ExceptionReport {
    /// Fingerprint of the key, or `rsa-modulus:` or `ec-x:` and a digest, in hex.
    pub fingerprint: String,
    /// When the exception expires.
    pub until: u64,
    /// Reason in the configuration.
    pub reason: String,
    /// Whether the exception has expired.
    pub expired: bool,
}

impl ExceptionReport {
    /// An exception that expires at `until`.
    pub(super) fn new(exception: &Exception, until: u64, expired: bool) -> Self {
        let (fingerprint, reason) = (exception.key.to_string(), exception.reason.clone());
        Self { fingerprint, until, reason, expired }
    }
}

/// An update that waits for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingReport {
    /// SHA-256 of the file, in hex.
    pub sha256: String,
    /// Revision in the header.
    pub revision: u32,
    /// Last change according to the header.
    pub updated: u64,
    /// Number of entries according to the header.
    pub entries: u32,
    /// Number of recent clients that the update would reject.
    pub new_hits: usize,
    /// Limit in the configuration, if there is one.
    pub max_new_hits: Option<usize>,
    /// Some of the recent clients that the update would reject.
    pub clients: Vec<AffectedClient>,
}

/// A recent client that an update would reject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AffectedClient {
    /// Name of the service that admitted the client.
    pub service: String,
    /// Fingerprint of the client's own key, in hex.
    pub fingerprint: String,
    /// Subject of the client's certificate.
    pub subject: String,
}

impl std::fmt::Display for AffectedClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {} ({})", self.fingerprint, self.subject, self.service)
    }
}

impl WaitingReport {
    /// The clients as one text, for a log line.
    pub(super) fn client_list(&self) -> String {
        let clients: Vec<String> = self.clients.iter().map(ToString::to_string).collect();
        clients.join(", ")
    }

    /// An update that would reject `new_hits` recent clients, among them `clients`.
    pub(super) fn new(
        update: &NamedFilter,
        new_hits: usize,
        max_new_hits: Option<usize>,
        clients: Vec<AffectedClient>,
    ) -> Self {
        let header = update.filter.header();
        Self {
            sha256: data_encoding::HEXLOWER.encode(&update.sha256),
            revision: header.revision,
            updated: header.updated_at,
            entries: header.entry_count,
            new_hits,
            max_new_hits,
            clients,
        }
    }
}

/// A service in use and the last attempt to read its files.
#[derive(Debug, Clone, Serialize)]
pub struct ServiceReport {
    /// Name of the service.
    pub name: String,
    /// Address that the service listens on, as configured.
    pub listen: String,
    /// Server names; empty for the default service of an address.
    pub server_names: Vec<String>,
    /// Addresses of the upstream servers.
    pub upstream: Vec<String>,
    /// Maximum number of open client connections.
    pub max_connections: usize,
    /// The action for a key that the source of proofs clears.
    pub on_cleared: &'static str,
    /// The action for a key whose compromise is proved.
    pub on_confirmed: &'static str,
    /// The action for a key on a list.
    pub on_listed: &'static str,
    /// The action for a key in a filter.
    pub on_probable: &'static str,
    /// The action for a client whose key cannot be checked.
    pub on_unchecked: &'static str,
    /// The action for an RSA key that anybody can factor.
    pub on_weak: &'static str,
    /// When the server certificate expires.
    pub certificate_not_after: u64,
    /// Expiry of the client CA that expires first, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_anchor_not_after: Option<u64>,
    /// When the client certificate for the upstream expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_certificate_not_after: Option<u64>,
    /// When the first CRL expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crl_next_update: Option<u64>,
    /// The CRLs in use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub crls: Vec<CrlReport>,
    /// The last attempt to read the files of the service.
    pub last_reload: ReloadReport,
}

/// An authorizer and the last attempt to read its files.
#[derive(Debug, Clone, Serialize)]
pub struct AuthorizerReport {
    /// Name of the authorizer.
    pub name: String,
    /// Address that askers connect to.
    pub listen: String,
    /// Protocol of the questions.
    pub protocol: &'static str,
    /// Where a question has the client's certificate.
    pub certificate_from: String,
    /// Whether the authorizer verifies the certificates of clients itself.
    pub verifies: bool,
    /// Decision for a cleared key.
    pub on_cleared: &'static str,
    /// Decision for a key that is proved to be compromised.
    pub on_confirmed: &'static str,
    /// Decision for a key on a list.
    pub on_listed: &'static str,
    /// Decision for a key in a filter.
    pub on_probable: &'static str,
    /// Decision for a key that could not be checked.
    pub on_unchecked: &'static str,
    /// Decision for an RSA key that anybody can factor.
    pub on_weak: &'static str,
    /// When the last question was asked; `null` before the first one.
    pub last_question: LastQuestion,
    /// When the own certificate expires; `null` without TLS.
    pub certificate_not_after: Option<u64>,
    /// When the first CA of clients or askers expires.
    pub trust_anchor_not_after: Option<u64>,
    /// When the first CRL expires.
    pub crl_next_update: Option<u64>,
    /// The CRLs in use.
    pub crls: Vec<CrlReport>,
    /// The last attempt to read the files.
    pub last_reload: ReloadReport,
}

impl AuthorizerReport {
    /// An authorizer with this `config`.
    pub(super) fn new(
        config: &AuthorizerConfig,
        expiry: CertificateExpiry,
        crls: &Crls,
        last_question: LastQuestion,
        last_reload: ReloadReport,
    ) -> Self {
        let policy = &config.policy;
        Self {
            name: config.name.clone(),
            listen: config.listen.to_string(),
            protocol: config.protocol.as_str(),
            certificate_from: config.certificate_from.to_string(),
            verifies: config.client_auth.trust_anchors.is_some(),
            on_cleared: policy.on_cleared.as_str(),
            on_confirmed: policy.on_confirmed.as_str(),
            on_listed: policy.on_listed.as_str(),
            on_probable: policy.on_probable.as_str(),
            on_unchecked: policy.on_unchecked.as_str(),
            on_weak: policy.on_weak.as_str(),
            last_question,
            certificate_not_after: expiry.server,
            trust_anchor_not_after: expiry.trust_anchor,
            crl_next_update: expiry.crl,
            crls: crls.lists().into_iter().map(|(list, path)| CrlReport::new(list, path)).collect(),
            last_reload,
        }
    }
}

/// A CRL in use.
#[derive(Debug, Clone, Serialize)]
pub struct CrlReport {
    /// Distinguished name of the issuer.
    pub issuer: String,
    /// The distribution point that the CRL is limited to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution_point: Option<String>,
    /// Path of the file.
    pub path: String,
    /// CRL number; hexadecimal after `0x` if it has more than 64 bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<String>,
    /// When the CRL was issued.
    pub this_update: u64,
    /// When the CRL expires.
    pub next_update: u64,
    /// Number of revoked certificates.
    pub entries: usize,
}

impl CrlReport {
    /// The CRL `list`, read from `path`.
    fn new(list: &RevocationList, path: &Path) -> Self {
        Self {
            issuer: list.issuer.clone(),
            distribution_point: list.distribution_point(),
            path: path.display().to_string(),
            number: list.version.number.map(|number| number.to_string()),
            this_update: list.version.this_update,
            next_update: list.next_update,
            entries: list.entries(),
        }
    }
}

/// Expiry of the certificates and CRLs of a service, in seconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct CertificateExpiry {
    /// Expiry of the server certificate; `None` for an authorizer without TLS.
    pub(super) server: Option<u64>,
    /// Expiry of the client CA that expires first.
    pub(super) trust_anchor: Option<u64>,
    /// Expiry of the client certificate for the upstream, if there is one.
    pub(super) upstream_client: Option<u64>,
    /// Expiry of the first CRL that expires.
    pub(super) crl: Option<u64>,
}

/// Result of an attempt to read a file.
#[derive(Debug, Clone, Serialize)]
pub struct ReloadReport {
    /// `loaded`, `unchanged` or `refused`.
    pub result: &'static str,
    /// Class of the rejection of a filter or of a CRL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// Why the file was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When the attempt was made.
    pub at: u64,
}

impl ReloadReport {
    /// An attempt at the time `at` without an error.
    pub(super) fn done(result: ReloadResult, at: u64) -> Self {
        Self { result: result.as_str(), reason: None, error: None, at }
    }

    /// An attempt at the time `at` that ended with a rejection.
    pub(super) fn rejected(reason: Option<&'static str>, error: String, at: u64) -> Self {
        let result = ReloadResult::Rejected.as_str();
        Self { result, reason, error: Some(error), at }
    }
}

impl FilterReport {
    /// A filter read from `path` and put in use at `loaded`; nothing waits.
    pub(super) fn new(
        named: &NamedFilter,
        path: &Path,
        loaded: u64,
        last_reload: ReloadReport,
    ) -> Self {
        Self {
            name: named.name.to_string(),
            summary: FilterSummary::of(path, &named.filter, &named.sha256),
            loaded,
            stale: false,
            last_good_in_use: false,
            last_reload,
            last_rejection: None,
            waiting: None,
            signature: None,
        }
    }
}

impl ServiceReport {
    /// A service with this `config`.
    pub(super) fn new(
        config: &ServiceConfig,
        expiry: CertificateExpiry,
        crls: &Crls,
        last_reload: ReloadReport,
    ) -> Self {
        Self {
            crls: crls.lists().into_iter().map(|(list, path)| CrlReport::new(list, path)).collect(),
            name: config.name.clone(),
            listen: config.listen.to_string(),
            server_names: config.server_names.clone(),
            upstream: config.upstream.servers.iter().map(ToString::to_string).collect(),
            max_connections: config.limits.max_connections,
            on_cleared: config.policy.on_cleared.as_str(),
            on_confirmed: config.policy.on_confirmed.as_str(),
            on_listed: config.policy.on_listed.as_str(),
            on_probable: config.policy.on_probable.as_str(),
            on_unchecked: config.policy.on_unchecked.as_str(),
            on_weak: config.policy.on_weak.as_str(),
            certificate_not_after: expiry.server.unwrap_or_default(),
            trust_anchor_not_after: expiry.trust_anchor,
            upstream_certificate_not_after: expiry.upstream_client,
            crl_next_update: expiry.crl,
            last_reload,
        }
    }
}
