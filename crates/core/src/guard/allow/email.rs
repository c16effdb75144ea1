//! Rules for email addresses (RFC 5280, section 7.5).

use std::collections::HashSet;

use super::AllowRuleError;
use super::dns::{MAX_HOST_NAME, is_host_name};

/// Maximum length of the local part, in bytes (RFC 5321, section 4.5.3.1.1).
const MAX_LOCAL_PART: usize = 64;
/// Letters that a local part without quotes cannot have (RFC 5322, section 3.2.3).
const SPECIALS: &[u8] = b"()<>[]:;@\\,\"";

/// Email addresses whose host is in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct EmailRules(HashSet<Box<str>>);

impl EmailRules {
    pub(super) fn add(&mut self, rule: &str) -> Result<(), AllowRuleError> {
        let mut buffer = [0; MAX_LOCAL_PART + 1 + MAX_HOST_NAME];
        let address = normalized(rule.as_bytes(), &mut buffer).ok_or(AllowRuleError::Email)?;
        // A local part may have '*' (RFC 5322), but the author of the rule means a wildcard.
        if address.contains('*') {
            return Err(AllowRuleError::Email);
        }
        self.0.insert(address.into());
        Ok(())
    }

    /// Whether a rule names this address. The local part is compared byte for byte.
    pub(super) fn contains(&self, address: &[u8]) -> bool {
        let mut buffer = [0; MAX_LOCAL_PART + 1 + MAX_HOST_NAME];
        !self.0.is_empty()
            && normalized(address, &mut buffer).is_some_and(|address| self.0.contains(address))
    }
}

/// The result of `check` for the host of an address, in lower case; `false` if it is no address.
pub(super) fn with_host(address: &[u8], check: impl FnOnce(&str) -> bool) -> bool {
    let mut buffer = [0; MAX_LOCAL_PART + 1 + MAX_HOST_NAME];
    let address = normalized(address, &mut buffer).and_then(|it| it.rsplit_once('@'));
    address.is_some_and(|(_, host)| check(host))
}

/// `address` with its host in lower case; `None` if it is not a local part and a host name. Quotes,
/// a list of addresses and a scheme are not accepted.
fn normalized<'a>(address: &[u8], buffer: &'a mut [u8]) -> Option<&'a str> {
    let copy = buffer.get_mut(..address.len())?;
    copy.copy_from_slice(address);
    let at = copy.iter().rposition(|byte| *byte == b'@')?;
    copy.get_mut(at..)?.make_ascii_lowercase();
    let address = str::from_utf8(copy).ok()?;
    let (local, host) = address.rsplit_once('@')?;
    let is_local = (1..=MAX_LOCAL_PART).contains(&local.len())
        && local.bytes().all(|byte| byte.is_ascii_graphic() && !SPECIALS.contains(&byte));
    (is_local && is_host_name(host)).then_some(address)
}
