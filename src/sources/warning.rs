//! Conditions that an operator must mend although keygate can start with them.
//!
//! `keygate validate` prints them, `keygate run` logs them, and the status has them. A new condition
//! is a constructor here, and is collected by `Loader::warnings`.

mod period;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use humantime::format_duration;
use keygate_core::tls::CrlWarning;
use keygate_core::unix_time::dated;
use serde::Serialize;
use tracing::warn;

pub use self::period::PeriodProblem;
pub(super) use self::period::expires_soon_from;

use super::file_rejection::FileRejection;
use super::operator_decision::GuardFile;
use super::own_key::OwnKey;
use super::private_key::ExposedKeyFile;
use crate::config::{CredentialOwner, KeyPlace, OpenAccess};
use crate::metrics::Label;

/// End of the reason of a rejection at a start.
pub(super) const COPY_IN_USE: &str = "; the last good one in state.dir is in use";

/// A condition that an operator must mend although keygate can start with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// `service`, `authorizer`, `filter`, `list`, or `configuration` if it belongs to none of them.
    pub kind: &'static str,
    /// Name in the configuration; `None` for the configuration itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The whole warning.
    pub text: String,
    /// Whether the report has the condition in another place: an expiry, a rejection or a metric.
    #[serde(skip)]
    pub is_elsewhere: bool,
    /// Whether no client of the service gets in.
    #[serde(skip)]
    pub is_outage: bool,
    /// The message of the log line.
    #[serde(skip)]
    event: &'static str,
    /// Class of the rejection of a file.
    #[serde(skip)]
    reason: Option<&'static str>,
    /// Age and maximum age of a list.
    #[serde(skip)]
    age: Option<(Duration, Duration)>,
    /// The key of the configuration that the warning is about.
    #[serde(skip)]
    pub(crate) place: Option<KeyPlace>,
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
        let named = |kind| self.name.as_ref().filter(|_| self.kind == kind);
        warn!(
            filter = named("filter"),
            list = named("list"),
            reason = self.reason,
            age = self.age.map(|(age, _)| format_duration(age).to_string()),
            max_age = self.age.map(|(_, max_age)| format_duration(max_age).to_string()),
            problem = self.text,
            "{}",
            self.event
        );
    }

    /// The warning without its subject.
    #[must_use]
    pub fn problem(&self) -> &str {
        let subject = self.name.as_ref().map(|name| format!("{} {name:?}: ", self.kind));
        subject.and_then(|subject| self.text.strip_prefix(&subject)).unwrap_or(&self.text)
    }

    fn new(kind: &'static str, name: &str, event: &'static str, text: String) -> Self {
        let (name, is_elsewhere, is_outage) = (Some(name.to_owned()), false, false);
        Self {
            kind,
            name,
            text,
            is_elsewhere,
            is_outage,
            event,
            reason: None,
            age: None,
            place: None,
        }
    }

    fn about_guard(file: GuardFile, name: &str, event: &'static str, problem: &str) -> Self {
        let kind = file.as_str();
        Self::new(kind, name, event, format!("{kind} {name:?}: {problem}"))
    }

    fn about_owner(owner: &CredentialOwner, event: &'static str, text: String) -> Self {
        let kind = match owner {
            CredentialOwner::Authorizer(_) => "authorizer",
            CredentialOwner::Service(_) => "service",
        };
        Self::new(kind, owner.name(), event, text)
    }

    fn about_file(file: &CertificateFile, event: &'static str, problem: &str) -> Self {
        Self::about_owner(&file.owner, event, format!("{file}: {problem}"))
    }

    fn elsewhere(self, is_elsewhere: bool) -> Self {
        Self { is_elsewhere, ..self }
    }

    /// `max_age` is set for a list whose age is unknown: it has no date, or `date` in seconds since
    /// the Unix epoch lies in the future.
    pub(super) fn ageless_list(list: &str, date: Option<u64>) -> Self {
        let problem = match date {
            None => "there is no badkeysdata.json with a date beside the file, so that its age is \
                     unknown; fetch it too, or remove max_age"
                .to_owned(),
            Some(date) => format!(
                "its date {} is in the future, so that its age is unknown; correct the clock, or \
                 fetch the list again",
                dated(date)
            ),
        };
        Self::about_guard(
            GuardFile::List,
            list,
            "the age of the list is unknown, it counts as stale",
            &problem,
        )
    }

    /// A certificate of a service has expired, expires soon, or is not valid yet. `position` is that
    /// in the file, counted from 1. Expiries have the first certificate of a chain.
    pub(super) fn certificate_period(
        file: &CertificateFile,
        position: usize,
        problem: PeriodProblem,
    ) -> Self {
        let event = match problem {
            PeriodProblem::ExpiresSoon(_) => "certificate expires soon",
            PeriodProblem::Expired(_)
            | PeriodProblem::NotYetValid(_)
            | PeriodProblem::Unreadable => "certificate is not valid now",
        };
        Self::about_file(file, event, &format!("certificate {position} {problem}"))
            .elsewhere(position == 1 && problem.is_expiry())
    }

    /// A warning about the configuration itself, which is printed and not logged.
    #[must_use]
    pub fn configuration(text: String) -> Self {
        Self { kind: "configuration", name: None, ..Self::new("", "", "", text) }
    }

    /// A CRL of a service has expired, is superseded by another one, or is of another CA.
    pub(super) fn crl(owner: &CredentialOwner, problem: &CrlWarning) -> Self {
        let event = match problem {
            CrlWarning::Expired { .. } => "certificate revocation list has expired",
            CrlWarning::Superseded { .. } => "certificate revocation list is superseded",
            CrlWarning::Unused { .. } => "certificate revocation list is not used",
        };
        Self::about_owner(owner, event, format!("{owner}: client_auth.crls {problem}"))
            .elsewhere(matches!(problem, CrlWarning::Expired { .. }))
    }

    /// A CA has no CRL, although CRLs are configured. The certificates that it issues are rejected:
    /// all of them if `is_outage`, because no other CA has one.
    pub(super) fn crl_missing(file: &CertificateFile, subject: &str, is_outage: bool) -> Self {
        let problem = format!(
            "client_auth.crls has no list of {subject}, so that every client that it issued is \
             rejected, and a CA that it revoked is not; add its list"
        );
        let warning = Self::about_file(file, "certificate revocation list is missing", &problem);
        Self { is_outage, ..warning }
    }

    /// The publisher of a list calls its format deprecated.
    pub(super) fn deprecated_list(list: &str) -> Self {
        Self::about_guard(
            GuardFile::List,
            list,
            "the format of the list is deprecated, it may not be updated any more",
            "badkeysdata.json calls its format deprecated, so that it may not be updated any more; \
             look for a newer keygate",
        )
    }

    /// A filter or list that is in use has no entries: no key is a hit.
    pub(super) fn empty(file: GuardFile, name: &str) -> Self {
        let (event, command) = match file {
            GuardFile::Filter => ("the filter in use has no entries", "keygate filter add"),
            GuardFile::List | GuardFile::Service => {
                ("the list in use has no entries", "keygate key --lists")
            }
        };
        let problem = format!(
            "it has no entries, so no key is a hit; add keys with `{command}`, or remove the {}",
            file.as_str()
        );
        Self::about_guard(file, name, event, &problem)
    }

    /// An intermediate is revoked.
    pub(super) fn intermediate_revoked(file: &CertificateFile, subject: &str) -> Self {
        let problem = format!(
            "{subject} is revoked by a list in use, so that every client that it issued is rejected; if \
             intended, remove it"
        );
        Self::about_file(file, "intermediate is revoked, its clients are rejected", &problem)
    }

    /// Intermediates without CRLs have no effect.
    pub(super) fn intermediates_unused(file: &CertificateFile) -> Self {
        Self::about_file(
            file,
            "intermediates have no effect without revocation lists",
            "it has no effect without client_auth.crls; add the lists, or remove the key",
        )
    }

    /// Files with the CAs or CRLs of clients are rejected because of `error`, and the copies in the
    /// state directory are in use.
    pub(super) fn last_good_files(owner: &CredentialOwner, error: &str) -> Self {
        let event = "files rejected at the start, using the last good ones";
        Self::about_owner(owner, event, format!("{error}{COPY_IN_USE}")).elsewhere(true)
    }

    /// The file of a filter or list is rejected, and the copy in the state directory is in use.
    pub(super) fn last_good(
        file: GuardFile,
        name: &str,
        path: &Path,
        error: &FileRejection,
    ) -> Self {
        let event = match file {
            GuardFile::Filter => "filter file rejected at the start, using the last good filter",
            GuardFile::List | GuardFile::Service => {
                "list file rejected at the start, using the last good list"
            }
        };
        let (path, kind) = (path.display(), file.as_str());
        let problem = format!("{path}: {error}; the last good {kind} in state.dir is in use");
        let warning = Self::about_guard(file, name, event, &problem).elsewhere(true);
        Self { reason: Some(error.reason().as_str()), ..warning }
    }

    /// The certificate of a service is not valid for one of its server names. TLS clients that
    /// request that name abort the handshake.
    pub(super) fn name_not_covered(file: &CertificateFile, name: &str) -> Self {
        let problem = format!(
            "the certificate is not valid for server name {name:?}; issue one with that name, or \
             correct server_names"
        );
        Self::about_file(file, "certificate lacks a server name", &problem)
    }

    /// Peers that nobody has chosen may ask an authorizer.
    pub(super) fn open_access(owner: &CredentialOwner, access: OpenAccess) -> Self {
        let text = match access {
            OpenAccess::Mode(mode) => format!(
                "{owner}: socket_mode {mode:04o} lets every user of the machine ask about copied \
                 certificates; set askers.uids, or socket_mode = \"0660\" with socket_group"
            ),
            OpenAccess::Network(network) => format!(
                "{owner}: askers.from has {network}, so that strangers may ask about copied \
                 certificates; name the networks of the hosts, or set tls.client_ca"
            ),
        };
        Self::about_owner(owner, "authorizer is open to other peers", text)
    }

    /// A key of a service that is weak, in a filter or on a list.
    pub(crate) fn own_key(key: &OwnKey) -> Self {
        Self::about_owner(&key.owner, "own key is compromised", key.to_string()).elsewhere(true)
    }

    /// A filter or list in use is older than its `max_age`.
    pub(super) fn stale(file: GuardFile, name: &str, age: Duration, max_age: Duration) -> Self {
        let event = match file {
            GuardFile::Filter => "the filter in use is stale: keys that leaked since are not in it",
            GuardFile::List | GuardFile::Service => {
                "the list in use is stale: keys that leaked since are not on it"
            }
        };
        let (days, maximum) = (age.as_secs() / 86_400, format_duration(max_age));
        let problem = format!(
            "it is {days} days old, and max_age is {maximum}, so that keys that leaked since are \
             not on it; fetch it again"
        );
        let warning = Self::about_guard(file, name, event, &problem).elsewhere(true);
        Self { age: Some((age, max_age)), ..warning }
    }

    /// A CA of clients has expired, expires soon, or is not valid yet. Outside its validity, its
    /// clients are rejected.
    pub(super) fn trust_anchor_period(
        file: &CertificateFile,
        subject: &str,
        problem: PeriodProblem,
    ) -> Self {
        let event = match problem {
            PeriodProblem::ExpiresSoon(_) => "trust anchor expires soon",
            PeriodProblem::Expired(_)
            | PeriodProblem::NotYetValid(_)
            | PeriodProblem::Unreadable => {
                "trust anchor is not valid now, its clients are rejected"
            }
        };
        Self::about_file(file, event, &format!("the CA {subject} {problem}"))
            .elsewhere(problem.is_expiry())
    }

    /// A CA or pinned certificate that no client can be verified with. `problem` names it and says
    /// why.
    pub(super) fn trust_anchor_unusable(file: &CertificateFile, problem: &str) -> Self {
        let event = "trust anchor cannot be used, its clients are rejected";
        Self::about_file(file, event, problem)
    }

    /// Each of several CAs may vouch for any client that a rule by name admits. `first` is one of
    /// them, and `bounds` are the keys for its entry.
    pub(super) fn unbound_ca(
        file: &CertificateFile,
        (first, others): (&str, usize),
        rule: &str,
        bounds: &str,
    ) -> Self {
        let others = match others {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let problem = format!(
            "the CA {first}{others} may vouch for every name, such as that of the rule {rule}; give \
             each CA a file of its own and the names that it may vouch for: \
             cas = [{{ file = \"ca-1.pem\", {bounds} }}]"
        );
        let (owner, event) = (&file.owner, "each of several CAs may vouch for every name");
        let place = KeyPlace::in_table(owner.table(), owner.name(), file.key);
        Self { place: Some(place), ..Self::about_file(file, event, &problem) }
    }

    /// A private key file with unsafe permissions.
    pub(crate) fn unsafe_permissions(file: &ExposedKeyFile) -> Self {
        let event = "private key file has unsafe permissions";
        Self { event, ..Self::configuration(file.to_string()) }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl fmt::Display for CertificateFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, key, path } = self;
        write!(formatter, "{owner}: {key} {}", path.display())
    }
}
