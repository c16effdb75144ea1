//! Rules for DNS names (RFC 9525, section 6.3).

use std::collections::HashSet;

use super::AllowRuleError;

/// Maximum length of a host name, in bytes, and of one label (RFC 1035, section 2.3.4).
pub(super) const MAX_HOST_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Host names in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DnsRules {
    hosts: HashSet<Box<str>>,
    /// The names behind `*.`, which stands for one label.
    parents: HashSet<Box<str>>,
}

impl DnsRules {
    pub(super) fn add(&mut self, rule: &str) -> Result<(), AllowRuleError> {
        let rule = without_root(rule);
        match rule.strip_prefix("*.") {
            Some(parent) => self.parents.insert(host_name(parent, 2)?),
            None => self.hosts.insert(host_name(rule, 0)?),
        };
        Ok(())
    }

    /// Whether a rule names this DNS name of a certificate. A certificate with a wildcard needs a
    /// rule with the same one, because a rule for one host does not name all hosts.
    pub(super) fn contains(&self, name: &[u8]) -> bool {
        if self.hosts.is_empty() && self.parents.is_empty() {
            return false;
        }
        let mut buffer = [0; MAX_HOST_NAME];
        let Some(name) = canonical(name, &mut buffer) else { return false };
        let parent = name.split_once('.').map(|(_, parent)| parent);
        self.hosts.contains(name) || parent.is_some_and(|parent| self.parents.contains(parent))
    }
}

/// Host names, also with one or any number of labels in front.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HostBounds {
    names: DnsRules,
    /// The names behind `**.`, which stands for one or more labels.
    ancestors: HashSet<Box<str>>,
}

impl HostBounds {
    pub(super) fn add(&mut self, name: &str) -> Result<(), AllowRuleError> {
        let Some(ancestor) = name.strip_prefix("**.") else { return self.names.add(name) };
        self.ancestors.insert(host_name(without_root(ancestor), 2)?);
        Ok(())
    }

    /// Whether this DNS name of a certificate, or all names that its wildcard stands for, are
    /// within these.
    pub(super) fn contains(&self, name: &[u8]) -> bool {
        let mut buffer = [0; MAX_HOST_NAME];
        self.names.contains(name)
            || canonical(name, &mut buffer).is_some_and(|name| {
                let mut dots = name.rmatch_indices('.');
                dots.any(|(dot, _)| self.ancestors.contains(name.get(dot + 1..).unwrap_or(name)))
            })
    }
}

/// `name` without the dot of a fully qualified name.
fn without_root(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// The host name of a rule in lower case. `prefix` is the length of a wildcard in front of it.
fn host_name(name: &str, prefix: usize) -> Result<Box<str>, AllowRuleError> {
    let is_valid = is_host_name(name) && name.len().saturating_add(prefix) <= MAX_HOST_NAME;
    is_valid.then(|| name.to_ascii_lowercase().into()).ok_or(AllowRuleError::Dns)
}

/// A host name in lower case, with a wildcard of the certificate in front or without one.
fn canonical<'a>(name: &[u8], buffer: &'a mut [u8]) -> Option<&'a str> {
    let name = lower_case(name, buffer)?;
    is_host_name(name.strip_prefix("*.").unwrap_or(name)).then_some(name)
}

/// `name` in lower case, as far as it is in ASCII; `None` if it is longer than `buffer`.
pub(super) fn lower_case<'a>(name: &[u8], buffer: &'a mut [u8]) -> Option<&'a str> {
    let lower = buffer.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    str::from_utf8(lower).ok()
}

/// Whether `name` is a host name: labels of letters, digits, `-` and `_`, which programs use
/// although RFC 1123 has no `_`. The last label is not a number, because an IPv4 address is not a
/// host name.
pub(super) fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    name.len() <= MAX_HOST_NAME
        && name.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}
