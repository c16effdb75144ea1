//! Conditions that an operator must mend although keygate can start with them.
//!
//! `keygate validate` prints them, `keygate run` logs them, and the status has them. A condition is
//! found where its files are known, and is collected by `Loader::warnings`.

mod period;

use std::fmt;
use std::time::Duration;

use humantime::format_duration;
use serde::Serialize;
use tracing::warn;

pub use self::period::PeriodProblem;
pub(super) use self::period::expires_soon_from;

use super::operator_decision::GuardFile;
use super::own_key::OwnKey;
use super::private_key::ExposedKeyFile;
use crate::config::{CredentialOwner, KeyPlace};

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
    pub(super) event: &'static str,
    /// Class of the rejection of a file.
    #[serde(skip)]
    pub(super) reason: Option<&'static str>,
    /// Age and maximum age of a filter or list.
    #[serde(skip)]
    pub(super) age: Option<(Duration, Duration)>,
    /// The key of the configuration that the warning is about.
    #[serde(skip)]
    pub(crate) place: Option<KeyPlace>,
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

    /// A filter or list in use.
    pub(super) fn about_guard(
        file: GuardFile,
        name: &str,
        event: &'static str,
        problem: &str,
    ) -> Self {
        let kind = file.as_str();
        Self::new(kind, name, event, format!("{kind} {name:?}: {problem}"))
    }

    /// Products of primes for moduli of this size were left out.
    pub(crate) fn oversize_products(bits: u64) -> Self {
        let text = format!(
            "the lists have too many products of primes for moduli of {bits} bits; those of later lists \
             are left out, and RSA keys of this size without a prime of the others are unchecked; \
             remove products"
        );
        let event = "products of primes are left out";
        Self { event, ..Self::configuration(text) }
    }

    /// Lists without keys, and no filter.
    pub(crate) fn products_alone() -> Self {
        let text = "the lists have products of primes and no keys, and there is no filter, so every \
                    other key is unchecked, which policy.on_unchecked rejects if it is not set; add a \
                    filter or a list of keys";
        let event = "only products of primes are configured";
        Self { event, ..Self::configuration(text.to_owned()) }
    }

    /// A service, an authorizer or the address for readers. `text` names it.
    pub(super) fn about_owner(owner: &CredentialOwner, event: &'static str, text: String) -> Self {
        let kind = match owner {
            CredentialOwner::Authorizer(_) => "authorizer",
            CredentialOwner::Readers => return Self { event, ..Self::configuration(text) },
            CredentialOwner::Service(_) => "service",
        };
        Self::new(kind, owner.name(), event, text)
    }

    /// The warning, whose condition the report also has in another place if `is_elsewhere`.
    pub(super) fn elsewhere(self, is_elsewhere: bool) -> Self {
        Self { is_elsewhere, ..self }
    }

    /// A warning about the configuration itself, which is printed and not logged.
    #[must_use]
    pub fn configuration(text: String) -> Self {
        Self { kind: "configuration", name: None, ..Self::new("", "", "", text) }
    }

    /// A key of a service that is weak, in a filter or on a list.
    pub(crate) fn own_key(key: &OwnKey) -> Self {
        Self::about_owner(&key.owner, "own key is compromised", key.to_string()).elsewhere(true)
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
