//! One revocation list: parsed, verified, and kept as a set of serial numbers.

use rustls::pki_types::CertificateDer;
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Decode, Reader, SliceReader, Tag, TagNumber, Tagged};
use x509_cert::name::Name;
use x509_cert::time::Time;

use super::error::CrlError;
use super::extension::{self, Extension, content};
use super::framing;
use super::ids::{ca_id, sha256_hex};
use super::issuers::CrlIssuers;
use super::scope::{Scope, ScopedCertificate};
use super::serials::Serials;
use super::version::{CrlNumber, CrlVersion};
use crate::spki::{CertificateFields, Element, sha256};
use crate::tls::TlsFileError;
use crate::tls::signature::Signed;

/// The `reasonCode` of an entry whose key is compromised (RFC 5280, 5.3.1).
const KEY_COMPROMISE: u8 = 1;

/// A revocation list whose signature was verified.
#[derive(Debug)]
pub struct RevocationList {
    /// Distinguished name of the issuer.
    pub issuer: String,
    /// CRL number and `thisUpdate`.
    pub version: CrlVersion,
    /// `nextUpdate`, in seconds since the Unix epoch.
    pub next_update: u64,
    /// The content of the issuer's name, without the outer SEQUENCE.
    pub(super) issuer_name: Box<[u8]>,
    /// SubjectPublicKeyInfo of the issuer, in DER.
    pub(super) spki: Box<[u8]>,
    /// SHA-256 of the file in DER.
    pub(super) digest: [u8; 32],
    /// SHA-256 of issuer and key, in hex.
    pub(super) ca: String,
    /// SHA-256 of issuer, key and distribution point, in hex: equal for the lists that replace each
    /// other.
    pub(super) id: String,
    scope: Option<Scope>,
    serials: Serials,
}

impl RevocationList {
    /// The lists in a file, PEM or DER, each signed by one of `issuers`. They have the entries with
    /// the reason `keyCompromise`, and no others.
    ///
    /// # Errors
    /// Returns an error if the file has no list, or one that is not valid, of a kind that is not
    /// supported, or not signed by one of `issuers`.
    pub fn of_compromised_keys(
        file: &[u8],
        issuers: &CrlIssuers,
    ) -> Result<Vec<Self>, TlsFileError> {
        let mut lists = Vec::new();
        for (position, der) in (1..).zip(framing::ders(file)) {
            let list = Self::verify(&der?, issuers, |reason| reason == Some(KEY_COMPROMISE));
            lists.push(list.map_err(|source| TlsFileError::Crl { position, source })?);
        }
        framing::check_rest(file, lists.len())?;
        if lists.is_empty() { Err(TlsFileError::NoCrl) } else { Ok(lists) }
    }

    /// Verifies a list in DER, apart from its dates. Entries count if `counts` returns true for
    /// their `reasonCode`.
    ///
    /// # Errors
    /// Returns an error if the list is not valid, is of a kind that is not supported, or was not
    /// signed by one of `issuers`.
    pub(super) fn verify(
        der: &[u8],
        issuers: &CrlIssuers,
        counts: impl Fn(Option<u8>) -> bool,
    ) -> Result<Self, CrlError> {
        let signed = Signed::parse(der)?;
        let fields = Fields::parse(&signed)?;
        let issuer: Name = Name::from_der(fields.issuer)?;
        let issuer = super::bounded(issuer.to_string());
        let issuer_name = AnyRef::from_der(fields.issuer)?.value();
        let spki = issuers.signer(issuer_name, &signed, &issuer)?;
        let extensions = Extensions::parse(fields.extensions)?;
        let point = extensions.issuing_distribution_point;
        Ok(Self {
            issuer,
            version: CrlVersion { number: extensions.number, this_update: fields.this_update },
            next_update: fields.next_update,
            issuer_name: issuer_name.into(),
            spki: spki.into(),
            digest: sha256(der),
            ca: ca_id(fields.issuer, spki),
            id: sha256_hex(&[fields.issuer, spki, point.unwrap_or_default()]),
            scope: point.map(Scope::parse).transpose()?,
            serials: Serials::parse(fields.entries, counts)?,
        })
    }

    /// Number of revoked certificates.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.serials.len()
    }

    /// The distribution point that the list is limited to.
    #[must_use]
    pub fn distribution_point(&self) -> Option<String> {
        self.scope.as_ref().and_then(Scope::distribution_point).map(super::bounded)
    }

    /// Whether the list has the serial number with these content octets of an INTEGER.
    #[must_use]
    pub fn contains(&self, serial: &[u8]) -> bool {
        self.serials.contains(serial)
    }

    /// Whether the list has `certificate`, which the CA of the list has signed.
    #[must_use]
    pub fn revokes(&self, certificate: &CertificateDer<'_>) -> bool {
        // webpki reads no certificate of version 1.
        let fields = CertificateFields::new(certificate);
        let (Ok(fields), Ok(signed)) = (fields, Signed::parse(certificate)) else { return false };
        let is_own =
            Element::only(fields.issuer).is_some_and(|it| *it.content == *self.issuer_name);
        if !is_own || !self.contains(fields.serial) {
            return false;
        }
        let scoped = ScopedCertificate::parse(certificate);
        self.covers(|| scoped.as_ref()) && signed.verify(&self.spki).is_ok()
    }

    /// Whether the list covers a certificate of its issuer. `certificate` parses the certificate,
    /// and is called for a list with a scope only.
    pub(super) fn covers<'a>(
        &self,
        certificate: impl FnOnce() -> Option<&'a ScopedCertificate>,
    ) -> bool {
        match &self.scope {
            None => true,
            Some(scope) => certificate().is_some_and(|certificate| scope.covers(certificate)),
        }
    }

    /// Whether the list covers every certificate of its issuer.
    pub(super) fn covers_all(&self) -> bool {
        self.scope.is_none()
    }

    /// Whether the list is for certificates of CAs (RFC 5280, 6.3.3 (b)(2)).
    pub(super) fn may_cover_cas(&self) -> bool {
        self.scope.as_ref().is_none_or(|scope| !scope.only_user_certificates)
    }

    /// Whether `nextUpdate` is not later than `now`, in seconds since the Unix epoch.
    pub(super) fn has_expired(&self, now: u64) -> bool {
        self.next_update <= now
    }
}

/// The content of the issuer's name, without the outer SEQUENCE, in a list that may be unusable
/// otherwise; `None` if it cannot be found.
pub(super) fn issuer_name(der: &[u8]) -> Option<Box<[u8]>> {
    let name = AnyRef::from_der(Signed::parse(der).ok()?.message).ok()?.sequence(|reader| {
        if Tag::peek(reader)? == Tag::Integer {
            reader.tlv_bytes()?;
        }
        reader.tlv_bytes()?; // the signature algorithm
        let name = content(reader, Tag::Sequence)?;
        while !reader.is_finished() {
            reader.tlv_bytes()?;
        }
        Ok::<_, CrlError>(name.into())
    });
    name.ok()
}

/// The fields of `tbsCertList` (RFC 5280, 5.1.2), borrowed from the file.
struct Fields<'a> {
    /// The issuer's name in DER.
    issuer: &'a [u8],
    this_update: u64,
    next_update: u64,
    /// The content of `revokedCertificates`.
    entries: &'a [u8],
    /// The content of `crlExtensions`.
    extensions: &'a [u8],
}

impl<'a> Fields<'a> {
    fn parse(signed: &Signed<'a>) -> Result<Self, CrlError> {
        const EXTENSIONS: Tag = Tag::ContextSpecific { constructed: true, number: TagNumber(0) };
        AnyRef::from_der(signed.message)?.sequence(|reader| {
            if Tag::peek(reader)? != Tag::Integer || content(reader, Tag::Integer)? != [1] {
                return Err(CrlError::Version);
            }
            if content(reader, Tag::Sequence)? != signed.algorithm {
                return Err(CrlError::AlgorithmMismatch);
            }
            let issuer = reader.tlv_bytes()?;
            let this_update = time(reader)?;
            let next_update = match next_tag(reader)? {
                Some(Tag::UtcTime | Tag::GeneralizedTime) => time(reader)?,
                Some(_) | None => return Err(CrlError::NoNextUpdate),
            };
            let entries = match next_tag(reader)? {
                Some(Tag::Sequence) => content(reader, Tag::Sequence)?,
                Some(_) | None => &[],
            };
            let extensions = match next_tag(reader)? {
                Some(EXTENSIONS) => content(reader, EXTENSIONS)?,
                Some(_) | None => return Err(CrlError::Version),
            };
            Ok(Self { issuer, this_update, next_update, entries, extensions })
        })
    }
}

fn next_tag(reader: &SliceReader<'_>) -> Result<Option<Tag>, CrlError> {
    if reader.is_finished() { Ok(None) } else { Ok(Some(Tag::peek(reader)?)) }
}

fn time(reader: &mut SliceReader<'_>) -> Result<u64, CrlError> {
    let time: Time = reader.decode()?;
    Ok(time.to_unix_duration().as_secs())
}

/// The extensions of a list that keygate uses.
#[derive(Default)]
struct Extensions<'a> {
    number: Option<CrlNumber>,
    issuing_distribution_point: Option<&'a [u8]>,
}

impl<'a> Extensions<'a> {
    fn parse(extensions: &'a [u8]) -> Result<Self, CrlError> {
        let mut found = Self::default();
        AnyRef::from_der(extensions)?
            .sequence(|reader| {
                while !reader.is_finished() {
                    found.remember(&Extension::decode(reader)?)?;
                }
                Ok(())
            })
            .map(|()| found)
    }

    fn remember(&mut self, extension: &Extension<'a>) -> Result<(), CrlError> {
        let oid = extension.oid;
        let is_first = match oid {
            extension::CRL_NUMBER => {
                let number: AnyRef<'_> = AnyRef::from_der(extension.value)?;
                number.tag().assert_eq(Tag::Integer)?;
                let number = CrlNumber::from_integer(number.value()).ok_or(CrlError::Number)?;
                self.number.replace(number).is_none()
            }
            extension::ISSUING_DISTRIBUTION_POINT => {
                self.issuing_distribution_point.replace(extension.value).is_none()
            }
            extension::DELTA_CRL_INDICATOR => return Err(CrlError::Delta),
            extension::AUTHORITY_KEY_IDENTIFIER => true,
            _ if extension.is_critical => return Err(CrlError::CriticalExtension { oid }),
            _ => true,
        };
        if is_first { Ok(()) } else { Err(CrlError::DuplicateExtension { oid }) }
    }
}
