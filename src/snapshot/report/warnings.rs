//! The warnings about what is in use, as conditions of the status.

use keygate_core::tls::CrlWarning;
use serde::Serialize;

use crate::snapshot::credential_owner::CredentialOwner;
use crate::snapshot::warning::{PeriodProblem, Warning};

/// A warning about what is in use, as `keygate validate` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WarningReport {
    /// `service`, `authorizer`, `filter`, `list`, or `configuration` if it belongs to none of them.
    pub kind: &'static str,
    /// Name in the configuration; `None` for the configuration itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The whole warning.
    pub text: String,
    /// Whether the report has the condition in another place, such as an expiry.
    #[serde(skip)]
    pub is_elsewhere: bool,
}

impl WarningReport {
    pub(in crate::snapshot) fn of(warning: &Warning) -> Self {
        let (kind, name) = subject(warning);
        let name = name.map(str::to_owned);
        Self { kind, name, text: warning.to_string(), is_elsewhere: is_elsewhere(warning) }
    }

    /// A warning about the configuration itself.
    #[must_use]
    pub fn of_configuration(text: String) -> Self {
        Self { kind: "configuration", name: None, text, is_elsewhere: false }
    }

    /// The warning without its subject.
    #[must_use]
    pub fn problem(&self) -> &str {
        let subject = self.name.as_ref().map(|name| format!("{} {name:?}: ", self.kind));
        subject.and_then(|subject| self.text.strip_prefix(&subject)).unwrap_or(&self.text)
    }
}

fn subject(warning: &Warning) -> (&'static str, Option<&str>) {
    match warning {
        Warning::AgelessList { list, .. }
        | Warning::DeprecatedList { list }
        | Warning::EmptyList { list }
        | Warning::LastGoodListInUse { list, .. }
        | Warning::StaleList { list, .. } => ("list", Some(list)),
        Warning::CertificatePeriod { file, .. }
        | Warning::CrlMissing { file, .. }
        | Warning::IntermediatesUnused { file }
        | Warning::NameNotCovered { file, .. }
        | Warning::TrustAnchorPeriod { file, .. }
        | Warning::TrustAnchorUnusable { file, .. } => of_owner(&file.owner),
        Warning::Crl { owner, .. }
        | Warning::LastGoodFilesInUse { owner, .. }
        | Warning::OpenAccess { owner, .. } => of_owner(owner),
        Warning::EmptyFilter { filter } | Warning::LastGoodInUse { filter, .. } => {
            ("filter", Some(filter))
        }
        Warning::OwnKey(key) => of_owner(&key.owner),
        Warning::UnsafePermissions(_) => ("configuration", None),
    }
}

fn of_owner(owner: &CredentialOwner) -> (&'static str, Option<&str>) {
    match owner {
        CredentialOwner::Authorizer(name) => ("authorizer", Some(name)),
        CredentialOwner::Service(name) => ("service", Some(name)),
    }
}

/// Whether expiries, rejections or the metric of own keys have the condition.
fn is_elsewhere(warning: &Warning) -> bool {
    let is_expiry = |problem: &PeriodProblem| match problem {
        PeriodProblem::Expired(_) | PeriodProblem::ExpiresSoon(_) | PeriodProblem::Unreadable => {
            true
        }
        PeriodProblem::NotYetValid(_) => false,
    };
    match warning {
        // Expiries have the first certificate of a chain.
        Warning::CertificatePeriod { position, problem, .. } => {
            *position == 1 && is_expiry(problem)
        }
        Warning::Crl { problem, .. } => matches!(problem, CrlWarning::Expired { .. }),
        Warning::LastGoodFilesInUse { .. }
        | Warning::LastGoodInUse { .. }
        | Warning::LastGoodListInUse { .. }
        | Warning::OwnKey(_)
        | Warning::StaleList { .. } => true,
        Warning::TrustAnchorPeriod { problem, .. } => is_expiry(problem),
        Warning::AgelessList { .. }
        | Warning::CrlMissing { .. }
        | Warning::DeprecatedList { .. }
        | Warning::EmptyFilter { .. }
        | Warning::EmptyList { .. }
        | Warning::IntermediatesUnused { .. }
        | Warning::NameNotCovered { .. }
        | Warning::OpenAccess { .. }
        | Warning::TrustAnchorUnusable { .. }
        | Warning::UnsafePermissions(_) => false,
    }
}
