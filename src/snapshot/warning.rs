//! Conditions that an operator must mend although keygate can start with them.
//!
//! `keygate validate` prints them, and `keygate run` logs them. A new condition is a variant here,
//! and is collected by [`super::Loader::warnings`].

mod period;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use keygate_core::tls::CrlWarning;
use keygate_core::unix_time::dated;
use tracing::warn;

pub use self::period::PeriodProblem;
pub(super) use self::period::expires_soon_from;

use super::credential_owner::CredentialOwner;
use super::list_rejection_reason::ListRejectionReason;
use super::load::own_key::OwnKey;
use super::load::private_key::ExposedKeyFile;
use super::rejection_reason::RejectionReason;
use crate::config::OpenAccess;
use crate::metrics::Label;

/// End of the reason of a rejection at a start.
pub(super) const COPY_IN_USE: &str = "; the last good one in state.dir is in use";

/// A condition that an operator must mend although keygate can start with it.
#[derive(Debug, Clone)]
pub enum Warning {
    /// `max_age` is set for a list whose age is unknown.
    AgelessList {
        /// Name of the list.
        list: String,
        /// The date of the list, which lies in the future, in seconds since the Unix epoch. `None`
        /// if it has no date.
        date: Option<u64>,
    },
    /// A certificate of a service has expired, expires soon, or is not valid yet.
    CertificatePeriod {
        /// The file with the certificate.
        file: CertificateFile,
        /// Position of the certificate in the file, counted from 1.
        position: usize,
        /// The reason for the warning.
        problem: PeriodProblem,
    },
    /// A CRL of a service has expired, is superseded by another one, or is of another CA.
    Crl {
        /// The service or authorizer.
        owner: CredentialOwner,
        /// The reason for the warning.
        problem: CrlWarning,
    },
    /// A CA has no CRL, although CRLs are configured. The certificates that it issues are rejected.
    CrlMissing {
        /// The file with the CA.
        file: CertificateFile,
        /// Distinguished name of the CA.
        subject: String,
    },
    /// The publisher of a list calls its format deprecated.
    DeprecatedList {
        /// Name of the list.
        list: String,
    },
    /// A filter that is in use has no entries: no key is a hit.
    EmptyFilter {
        /// Name of the filter.
        filter: String,
    },
    /// A list that is in use has no entries: no key is a hit.
    EmptyList {
        /// Name of the list.
        list: String,
    },
    /// Files with the CAs or CRLs of clients are rejected, and the copies in the state directory are
    /// in use.
    LastGoodFilesInUse {
        /// The service or authorizer.
        owner: CredentialOwner,
        /// Why the files are rejected.
        error: String,
    },
    /// The file of a filter is rejected, and the copy in the state directory is in use.
    LastGoodInUse {
        /// Name of the filter.
        filter: String,
        /// Path of the rejected file.
        path: PathBuf,
        /// Class of the rejection.
        reason: RejectionReason,
        /// Why the file is rejected.
        error: String,
    },
    /// The file of a list is rejected, and the copy in the state directory is in use.
    LastGoodListInUse {
        /// Name of the list.
        list: String,
        /// Path of the rejected file.
        path: PathBuf,
        /// Class of the rejection.
        reason: ListRejectionReason,
        /// Why the file is rejected.
        error: String,
    },
    /// Intermediates without CRLs have no effect.
    IntermediatesUnused {
        /// The file with the intermediates.
        file: CertificateFile,
    },
    /// The certificate of a service is not valid for one of its server names. TLS clients that
    /// request that name abort the handshake.
    NameNotCovered {
        /// The file with the certificate.
        file: CertificateFile,
        /// The server name as configured.
        name: String,
    },
    /// Peers that nobody has chosen may ask an authorizer.
    OpenAccess {
        /// The authorizer.
        owner: CredentialOwner,
        /// Why they may ask.
        access: OpenAccess,
    },
    /// A key of a service that is weak, in a filter or on a list.
    OwnKey(Box<OwnKey>),
    /// A list in use is older than its `max_age`.
    StaleList {
        /// Name of the list.
        list: String,
        /// Age of the list.
        age: Duration,
        /// The maximum age.
        max_age: Duration,
    },
    /// A CA of clients has expired, expires soon, or is not valid yet. Outside its validity, its
    /// clients are rejected.
    TrustAnchorPeriod {
        /// The file with the CA.
        file: CertificateFile,
        /// Distinguished name of the CA.
        subject: String,
        /// The reason for the warning.
        problem: PeriodProblem,
    },
    /// A CA or pinned certificate that no client can be verified with.
    TrustAnchorUnusable {
        /// The file with the certificate.
        file: CertificateFile,
        /// The certificate, and why it admits nobody.
        problem: String,
    },
    /// A private key file with unsafe permissions.
    UnsafePermissions(ExposedKeyFile),
}

/// A certificate file of a service.
#[derive(Debug, Clone)]
pub struct CertificateFile {
    /// The service or authorizer.
    pub owner: CredentialOwner,
    /// Configuration key that names the file.
    pub key: &'static str,
    /// Path of the file.
    pub path: PathBuf,
}

impl Warning {
    /// Writes the warning to the log.
    pub(crate) fn log(&self) {
        let problem = self;
        match self {
            Self::CertificatePeriod { problem: PeriodProblem::ExpiresSoon(_), .. } => {
                warn!(%problem, "certificate expires soon");
            }
            Self::CertificatePeriod { .. } => warn!(%problem, "certificate is not valid now"),
            Self::Crl { problem: CrlWarning::Expired { .. }, .. } => {
                warn!(%problem, "certificate revocation list has expired");
            }
            Self::Crl { problem: CrlWarning::Superseded { .. }, .. } => {
                warn!(%problem, "certificate revocation list is superseded");
            }
            Self::Crl { problem: CrlWarning::Unused { .. }, .. } => {
                warn!(%problem, "certificate revocation list is not used");
            }
            Self::CrlMissing { .. } => warn!(%problem, "certificate revocation list is missing"),
            Self::IntermediatesUnused { .. } => {
                warn!(%problem, "intermediates have no effect without revocation lists");
            }
            Self::EmptyFilter { .. } => warn!(%problem, "the filter in use has no entries"),
            Self::EmptyList { .. } => warn!(%problem, "the list in use has no entries"),
            Self::LastGoodFilesInUse { .. } => {
                warn!(%problem, "files rejected at the start, using the last good ones");
            }
            Self::LastGoodInUse { filter, reason, .. } => {
                let reason = reason.as_str();
                warn!(%filter, reason, %problem, "filter file rejected at the start, using the last good filter");
            }
            Self::LastGoodListInUse { list, reason, .. } => {
                let reason = reason.as_str();
                warn!(%list, reason, %problem, "list file rejected at the start, using the last good list");
            }
            Self::NameNotCovered { .. } => warn!(%problem, "certificate lacks a server name"),
            Self::OpenAccess { .. } => warn!(%problem, "authorizer is open to other peers"),
            Self::OwnKey(_) => warn!(%problem, "own key is compromised"),
            Self::TrustAnchorPeriod { problem: PeriodProblem::ExpiresSoon(_), .. } => {
                warn!(%problem, "trust anchor expires soon");
            }
            Self::TrustAnchorPeriod { .. } => {
                warn!(%problem, "trust anchor is not valid now, its clients are rejected");
            }
            Self::TrustAnchorUnusable { .. } => {
                warn!(%problem, "trust anchor cannot be used, its clients are rejected");
            }
            Self::AgelessList { list, .. } => {
                warn!(%list, %problem, "the age of the list is unknown, it counts as stale");
            }
            Self::DeprecatedList { list } => {
                warn!(
                    %list,
                    %problem,
                    "the format of the list is deprecated, it may not be updated any more"
                );
            }
            Self::StaleList { list, age, max_age } => warn!(
                %list,
                age = %humantime::format_duration(*age),
                max_age = %humantime::format_duration(*max_age),
                "the list in use is stale: keys that leaked since are not on it"
            ),
            Self::UnsafePermissions(_) => {
                warn!(%problem, "private key file has unsafe permissions");
            }
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CertificatePeriod { file, position, problem } => {
                write!(formatter, "{file}: certificate {position} {problem}")
            }
            Self::Crl { owner, problem } => {
                write!(formatter, "{owner}: client_auth.crls {problem}")
            }
            Self::CrlMissing { file, subject } => write!(
                formatter,
                "{file}: client_auth.crls has no list of {subject}, so that every client that it \
                 issued is rejected, and a CA that it revoked is not; add its list"
            ),
            Self::IntermediatesUnused { file } => write!(
                formatter,
                "{file}: it has no effect without client_auth.crls; add the lists, or remove the key"
            ),
            Self::EmptyFilter { filter } => {
                write!(
                    formatter,
                    "filter {filter:?}: it has no entries, so no key is a hit; add keys with \
                     `keygate filter add`, or remove the filter"
                )
            }
            Self::EmptyList { list } => write!(
                formatter,
                "list {list:?}: it has no entries, so no key is a hit; add keys with `keygate key \
                 --lists`, or remove the list"
            ),
            Self::LastGoodFilesInUse { error, .. } => {
                write!(formatter, "{error}{COPY_IN_USE}")
            }
            Self::LastGoodInUse { filter, path, error, .. } => write!(
                formatter,
                "filter {filter:?}: {}: {error}; the last good filter in state.dir is in use",
                path.display()
            ),
            Self::LastGoodListInUse { list, path, error, .. } => write!(
                formatter,
                "list {list:?}: {}: {error}; the last good list in state.dir is in use",
                path.display()
            ),
            Self::NameNotCovered { file, name } => write!(
                formatter,
                "{file}: the certificate is not valid for server name {name:?}; \
                 issue one with that name, or correct server_names"
            ),
            Self::OpenAccess { owner, access: OpenAccess::Mode(mode) } => write!(
                formatter,
                "{owner}: socket_mode {mode:04o} lets every user of the machine ask about copied \
                 certificates; set askers.uids, or socket_mode = \"0660\" with socket_group"
            ),
            Self::OpenAccess { owner, access: OpenAccess::Network(network) } => write!(
                formatter,
                "{owner}: askers.from has {network}, so that strangers may ask about copied \
                 certificates; name the networks of the hosts, or set tls.client_ca"
            ),
            Self::OwnKey(key) => key.fmt(formatter),
            Self::TrustAnchorPeriod { file, subject, problem } => {
                write!(formatter, "{file}: the CA {subject} {problem}")
            }
            Self::TrustAnchorUnusable { file, problem } => write!(formatter, "{file}: {problem}"),
            Self::AgelessList { list, date: None } => write!(
                formatter,
                "list {list:?}: there is no badkeysdata.json with a date beside the file, so that \
                 its age is unknown; fetch it too, or remove max_age"
            ),
            Self::AgelessList { list, date: Some(date) } => write!(
                formatter,
                "list {list:?}: its date {} is in the future, so that its age is unknown; correct \
                 the clock, or fetch the list again",
                dated(*date)
            ),
            Self::DeprecatedList { list } => write!(
                formatter,
                "list {list:?}: badkeysdata.json calls its format deprecated, so that it may not \
                 be updated any more; look for a newer keygate"
            ),
            Self::StaleList { list, age, max_age } => {
                let days = age.as_secs() / 86_400;
                let max_age = humantime::format_duration(*max_age);
                write!(
                    formatter,
                    "list {list:?}: it is {days} days old, and max_age is {max_age}, so that keys \
                     that leaked since are not on it; fetch it again"
                )
            }
            Self::UnsafePermissions(file) => file.fmt(formatter),
        }
    }
}

impl fmt::Display for CertificateFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, key, path } = self;
        write!(formatter, "{owner}: {key} {}", path.display())
    }
}
