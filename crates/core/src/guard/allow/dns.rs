//! Rules for DNS names (RFC 9525, section 6.3).

use std::collections::HashSet;
use std::net::IpAddr;

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
        let rule = rule.strip_suffix('.').unwrap_or(rule);
        let (name, rules) = match rule.strip_prefix("*.") {
            Some(parent) => (parent, &mut self.parents),
            None => (rule, &mut self.hosts),
        };
        if !name.is_ascii() {
            return Err(AllowRuleError::DnsNotAscii);
        } else if name.contains('*') {
            return Err(AllowRuleError::DnsWildcard);
        } else if name.parse::<IpAddr>().is_ok() || name.starts_with('[') {
            return Err(AllowRuleError::DnsAddress);
        } else if !is_host_name(name) || rule.len() > MAX_HOST_NAME {
            return Err(AllowRuleError::Dns);
        }
        rules.insert(name.to_ascii_lowercase().into());
        Ok(())
    }

    /// Whether a rule names this DNS name of a certificate. A certificate with a wildcard needs a
    /// rule with the same one, because a rule for one host does not name all hosts.
    pub(super) fn contains(&self, name: &[u8]) -> bool {
        if self.hosts.is_empty() && self.parents.is_empty() {
            return false;
        }
        let mut buffer = [0; MAX_HOST_NAME];
        let Some(name) = lower_case(name, &mut buffer) else { return false };
        if !is_host_name(name.strip_prefix("*.").unwrap_or(name)) {
            return false;
        }
        let parent = name.split_once('.').map(|(_, parent)| parent);
        self.hosts.contains(name) || parent.is_some_and(|parent| self.parents.contains(parent))
    }
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
