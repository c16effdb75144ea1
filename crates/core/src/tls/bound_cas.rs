//! The CAs that may vouch for some names only.
//!
//! The key identifies a CA. Every other certificate for the key, such as a cross-signed one, has the
//! same bounds. `docs/decisions/client-cas.md` has the reasons.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::CertificateError;
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

use super::path_rules::subject_of;
use super::verification_error::ClientProblem;
use crate::guard::{NameBounds, NameKinds, VouchedNames};
use crate::spki;

/// The CAs of a verifier that may vouch for some names only. Any other CA vouches for all.
#[derive(Debug, Clone, Default)]
pub struct BoundCas {
    entries: Vec<Arc<NameBounds>>,
    /// The kinds of names that count, whatever entries list them.
    kinds: NameKinds,
    /// The entries of a CA or pin, by each encoding of its key.
    by_key: HashMap<Box<[u8]>, SmallVec<[usize; 1]>>,
}

impl BoundCas {
    /// No CA yet. Names of `kinds`, and of the kinds that an entry lists, must be within the bounds
    /// of the CAs on the path. SPIFFE IDs always must.
    #[must_use]
    pub fn new(kinds: NameKinds) -> Self {
        Self { kinds, ..Self::default() }
    }

    /// Binds `certificates` to the names in `bounds`. A certificate that is bound twice may vouch
    /// for the names of either.
    pub fn bind(&mut self, certificates: &[CertificateDer<'_>], bounds: &Arc<NameBounds>) {
        let entry = self.entries.len();
        self.entries.push(Arc::clone(bounds));
        self.kinds = self.kinds.union(bounds.kinds());
        for certificate in certificates {
            // Another CA may have certified the key in another encoding.
            spki::for_each_related(key_of(certificate), |_, key| {
                self.by_key.entry(key.into()).or_default().push(entry);
            });
        }
    }

    /// Whether `ca` may vouch for some names only.
    #[must_use]
    pub fn binds(&self, ca: &CertificateDer<'_>) -> bool {
        self.by_key.contains_key(key_of(ca))
    }

    /// The CAs that may vouch for `leaf`.
    pub(super) fn vouchers<'a>(&'a self, leaf: &'a CertificateDer<'_>) -> Vouchers<'a> {
        let names = VouchedNames::of(leaf, self.kinds);
        let may_vouch = self.entries.iter().map(|bounds| names.are_within(bounds)).collect();
        Vouchers { cas: self, names, may_vouch }
    }
}

/// The CAs that may vouch for one certificate.
pub(super) struct Vouchers<'a> {
    cas: &'a BoundCas,
    names: VouchedNames<'a>,
    /// For each entry, whether all names of the certificate are within its bounds.
    may_vouch: SmallVec<[bool; 16]>,
}

impl Vouchers<'_> {
    /// Whether `ca`, or a pin, may vouch for all names of the certificate.
    pub(super) fn include(&self, ca: &[u8]) -> bool {
        match self.cas.by_key.get(key_of(ca)) {
            None => !matches!(self.names, VouchedNames::TwoTrustDomains),
            Some(entries) => entries.iter().any(|entry| self.may_vouch.get(*entry) == Some(&true)),
        }
    }

    /// The error for a certificate on whose path `ca` is, if `ca` may not vouch for it.
    pub(super) fn check(&self, ca: &[u8]) -> Result<(), CertificateError> {
        if self.include(ca) {
            return Ok(());
        }
        let entries = self.cas.by_key.get(key_of(ca)).into_iter().flatten();
        let bounds = entries.filter_map(|entry| self.cas.entries.get(*entry));
        let name = self.names.beyond(bounds.map(AsRef::as_ref));
        let ca = subject_of(ca).chars().take(100).collect(); // a line of the log has room for both
        Err(ClientProblem::NotVouched { ca, name }.into())
    }
}

/// The key of a CA. A certificate whose key cannot be read is no trust anchor, and on no path.
fn key_of(ca: &[u8]) -> &[u8] {
    spki::of_certificate(ca).unwrap_or_default()
}

#[cfg(test)]
mod tests;
