//! Certificate revocation lists out of PEM or DER, checked once so that a verifier built from them
//! cannot fail.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rustls::CertificateError;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use webpki::{CertRevocationList, OwnedCertRevocationList};
use x509_cert::crl::CertificateList;
use x509_cert::der::Decode;

use super::{TlsFileError, TrustAnchors};
use crate::config::ExpiredCrl;

/// The CA that signed a certificate of a verified path: the next certificate, or the trust anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct IssuerKey<'a> {
    /// Subject of the CA: the content of the `Name`, without the outer SEQUENCE, as
    /// [`webpki::Cert::subject`] gives it.
    pub(super) name: &'a [u8],
    /// SubjectPublicKeyInfo of the CA in DER, outer SEQUENCE included.
    pub(super) spki: &'a [u8],
}

/// The certificate revocation lists of a service's CAs.
#[derive(Debug, Default)]
pub struct Crls {
    /// The lists in DER.
    pub lists: Vec<CertificateRevocationListDer<'static>>,
    /// The earliest `nextUpdate` of all lists, since the Unix epoch.
    pub next_update: Option<Duration>,
    /// The latest `thisUpdate` of each CA's lists, since the Unix epoch, by the CA's name.
    this_update: HashMap<String, Duration>,
    parsed: Vec<(CertRevocationList<'static>, Option<Duration>)>,
}

impl Crls {
    /// Checks that `issuer` has not revoked `certificate`, which `issuer` signed. Without any list
    /// nothing is checked.
    ///
    /// # Errors
    /// Returns an error if the serial number is on a list of `issuer`, if no list covers `issuer`,
    /// or if the list has expired at `now` and `expired` rejects expired lists.
    pub(super) fn check(
        &self,
        issuer: IssuerKey<'_>,
        certificate: &webpki::Cert<'_>,
        expired: ExpiredCrl,
        now: UnixTime,
    ) -> Result<(), CertificateError> {
        if self.lists.is_empty() {
            return Ok(());
        }
        let covers = |(list, _): &&(CertRevocationList<'_>, _)| list.issuer() == issuer.name;
        let mut covering = self.parsed.iter().filter(covers).peekable();
        if covering.peek().is_none() {
            return Err(CertificateError::UnknownRevocationStatus);
        }
        for (list, next_update) in covering {
            let is_expired = next_update.is_none_or(|next| next.as_secs() <= now.as_secs());
            if is_expired && expired == ExpiredCrl::Reject {
                return Err(CertificateError::ExpiredRevocationList);
            }
            match list.find_serial(certificate.serial()) {
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => return Err(CertificateError::Revoked),
            }
        }
        Ok(())
    }

    /// Adds the lists in a file, PEM or DER, for clients of `anchors`.
    ///
    /// # Errors
    /// Returns an error if the PEM is broken, holds no list, or holds one that cannot be used.
    pub fn add(&mut self, file: &[u8], anchors: &TrustAnchors) -> Result<(), TlsFileError> {
        let lists = lists(file)?;
        if lists.is_empty() {
            return Err(TlsFileError::NoCrl);
        }
        for (position, list) in (1..).zip(lists) {
            let parsed: CertificateList = CertificateList::from_der(&list)
                .map_err(|source| TlsFileError::CrlEncoding { position, source })?;
            // The verifier has a CRL decoder of its own, which must accept the list as well.
            WebPkiClientVerifier::builder_with_provider(
                Arc::clone(&anchors.store),
                Arc::new(default_provider()),
            )
            .with_crls([list.clone()])
            .build()
            .map_err(|source| TlsFileError::CrlUnsupported { position, source })?;
            let issuer = parsed.tbs_cert_list.issuer.to_string();
            let latest = self.this_update.entry(issuer).or_default();
            *latest = parsed.tbs_cert_list.this_update.to_unix_duration().max(*latest);
            let next = parsed.tbs_cert_list.next_update.map(|next| next.to_unix_duration());
            self.next_update = self.next_update.into_iter().chain(next).min();
            let usable = OwnedCertRevocationList::from_der(&list);
            self.parsed.extend(usable.map(|list| (CertRevocationList::from(list), next)));
            self.lists.push(list);
        }
        Ok(())
    }

    /// Checks that no CA's lists are older than in `before`. An older list would admit clients that
    /// the CA has revoked since.
    ///
    /// # Errors
    /// Returns the first CA whose lists are older.
    pub fn ensure_not_older_than(&self, before: &Self) -> Result<(), TlsFileError> {
        let is_older = |(issuer, latest): &(&String, &Duration)| {
            before.this_update.get(*issuer).is_some_and(|known| *latest < known)
        };
        match self.this_update.iter().find(is_older) {
            None => Ok(()),
            Some((issuer, _)) => Err(TlsFileError::CrlRollback { issuer: issuer.clone() }),
        }
    }
}

fn lists(file: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsFileError> {
    if file.first() == Some(&DER_SEQUENCE) {
        return Ok(vec![CertificateRevocationListDer::from(file.to_vec())]);
    }
    let lists = CertificateRevocationListDer::pem_slice_iter(file);
    lists.collect::<Result<_, _>>().map_err(TlsFileError::Pem)
}

/// The first byte of every list in DER; PEM begins with a dash or with text.
const DER_SEQUENCE: u8 = 0x30;
