//! The policy in use: the action for each verdict.

use keygate_core::guard::Policy;
use serde::Serialize;

/// The actions of a service or authorizer by verdict.
#[derive(Debug, Clone, Serialize)]
pub struct PolicyReport {
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
    /// Number of rules by name; `null` without them, when every client of the CAs is admitted.
    pub rules: Option<usize>,
    /// The first rules by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub first_rules: Vec<String>,
}

impl PolicyReport {
    pub(crate) fn new(policy: &Policy) -> Self {
        let (rules, first) = policy.allow.as_ref().map(|allow| allow.summary()).unzip();
        Self {
            rules,
            first_rules: first.unwrap_or_default().to_vec(),
            on_cleared: policy.on_cleared.as_str(),
            on_confirmed: policy.on_confirmed.as_str(),
            on_listed: policy.on_listed.as_str(),
            on_probable: policy.on_probable.as_str(),
            on_unchecked: policy.on_unchecked.as_str(),
            on_weak: policy.on_weak.as_str(),
        }
    }
}
