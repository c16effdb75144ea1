//! Checks the exceptions.

use std::collections::HashSet;
use std::time::UNIX_EPOCH;

use keygate_core::guard::Exception;
use keygate_core::spki::{Fingerprint, KeyDigest};

use super::Checker;
use crate::config::units::quoted;
use crate::config::{raw, units};

impl Checker<'_> {
    pub(super) fn exception(&self, path: &str, raw: &raw::RawException) -> Exception {
        let key = KeyDigest::parse(&raw.fingerprint).unwrap_or_else(|| {
            let found = &raw.fingerprint;
            let problem = format!(
                "{} is not the SHA-256 of a key, in hex or base64, nor rsa-modulus: or ec-x: and one; `keygate key --lists` prints it",
                quoted(found)
            );
            self.invalid(format!("{path}.fingerprint"), problem);
            Fingerprint::of(found.as_bytes()).into()
        });
        let until = units::moment(raw.until).unwrap_or_else(|| {
            let found = raw.until;
            let problem = format!("{found}: write a date, such as 2026-12-31, or a time with an offset, such as 2026-12-31T12:00:00Z");
            self.invalid(format!("{path}.until"), problem);
            UNIX_EPOCH
        });
        if raw.reason.trim().is_empty() {
            self.invalid(format!("{path}.reason"), "empty; give the reason for the exception");
        }
        Exception { key, until, reason: raw.reason.clone() }
    }

    pub(super) fn fingerprints_once(&self, exceptions: &[Exception]) {
        let mut known = HashSet::new();
        for (index, exception) in exceptions.iter().enumerate() {
            if !known.insert(exception.key) {
                let problem = format!("{} occurs twice; remove one of the two", exception.key);
                self.invalid(format!("exceptions[{index}].fingerprint"), problem);
            }
        }
    }
}
