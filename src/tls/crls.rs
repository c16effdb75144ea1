//! Certificate revocation lists: verified when they are loaded, looked up in handshakes.
//!
//! A list is used only if a CA of the service signed it. Of the lists of one CA and distribution
//! point, the newest is used. A handshake looks a serial number up and verifies no list.

mod error;
mod extension;
mod framing;
mod issuers;
mod list;
mod scope;
mod serials;
mod signature;
mod version;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, UnixTime};

use self::scope::ScopedCertificate;
use super::TlsFileError;
use super::trust_anchors::without_byte_order_mark;
use crate::config::ExpiredCrl;
use crate::spki;
use crate::unix_time::rfc3339;

pub use self::error::{CrlError, IntermediateError};
pub use self::issuers::{CrlIssuers, issued_any};
pub use self::list::RevocationList;
pub use self::version::{CrlMark, CrlMarks, CrlNumber, CrlVersion};

/// Maximum time by which `thisUpdate` may lie in the future, in seconds: five minutes, for clocks
/// that differ.
pub const MAX_CLOCK_SKEW: u64 = 300;

/// The CA that signed a certificate of a verified path: the next certificate, or the trust anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct IssuerKey<'a> {
    /// Subject of the CA: the content of the `Name`, without the outer SEQUENCE, as
    /// [`webpki::Cert::subject`] gives it.
    pub(super) name: &'a [u8],
    /// SubjectPublicKeyInfo of the CA in DER, outer SEQUENCE included.
    pub(super) spki: &'a [u8],
}

/// The certificate revocation lists of a service's CAs. A clone shares the lists.
#[derive(Debug, Default, Clone)]
pub struct Crls {
    /// The lists by the name of their issuer.
    by_issuer: HashMap<Box<[u8]>, Vec<LoadedList>>,
    warnings: Vec<CrlWarning>,
}

/// A list and its place.
#[derive(Debug, Clone)]
struct LoadedList {
    list: Arc<RevocationList>,
    path: PathBuf,
    /// Position in the file, counted from 1.
    position: usize,
}

/// A list that is not as it should be, and does not prevent a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CrlWarning {
    /// The list has expired, and `expired_crl` is `"accept"`.
    Expired {
        /// The file.
        path: PathBuf,
        /// Distinguished name of the issuer.
        issuer: String,
        /// `nextUpdate`, in seconds since the Unix epoch.
        next_update: u64,
    },
    /// A newer list of the same issuer is used instead.
    Superseded {
        /// The file.
        path: PathBuf,
        /// Position in the file, counted from 1.
        position: usize,
        /// Distinguished name of the issuer.
        issuer: String,
        /// The version of the list.
        version: CrlVersion,
        /// The version of the list in use.
        newest: CrlVersion,
    },
    /// The issuer is no CA of the service.
    Unused {
        /// The file.
        path: PathBuf,
        /// Position in the file, counted from 1.
        position: usize,
        /// Distinguished name of the issuer.
        issuer: String,
    },
}

impl fmt::Display for CrlWarning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired { path, issuer, next_update } => write!(
                formatter,
                "{}: the list of {issuer} has expired at {} and is used, because expired_crl = \"accept\"",
                path.display(),
                rfc3339(*next_update)
            ),
            Self::Superseded { path, position, issuer, version, newest } => write!(
                formatter,
                "{}: the list at position {position}, of {issuer} ({version}), is superseded ({newest}); remove it",
                path.display()
            ),
            Self::Unused { path, position, issuer } => write!(
                formatter,
                "{}: the list at position {position} is not used, because {issuer} is no CA of this service; remove the list, or add the CA to client_auth.trust_anchors or, if it is an intermediate, to client_auth.intermediates",
                path.display()
            ),
        }
    }
}

impl Crls {
    /// Checks that `issuer` has not revoked `certificate`, which `issuer` signed. Without any list
    /// nothing is checked.
    ///
    /// # Errors
    /// Returns an error if the serial number is on a list of `issuer`, if no list covers the
    /// certificate, or if the lists that cover the certificate have expired at `now` and `expired`
    /// rejects expired lists.
    pub(super) fn check(
        &self,
        issuer: IssuerKey<'_>,
        certificate: &webpki::Cert<'_>,
        expired: ExpiredCrl,
        now: UnixTime,
    ) -> Result<(), CertificateError> {
        if self.by_issuer.is_empty() {
            return Ok(());
        }
        let scoped = OnceCell::new();
        let scoped =
            || scoped.get_or_init(|| ScopedCertificate::parse(&certificate.der())).as_ref();
        let mut status = Err(CertificateError::UnknownRevocationStatus);
        let lists = self.by_issuer.get(issuer.name).map_or(&[][..], Vec::as_slice);
        for LoadedList { list, .. } in lists {
            if *list.spki != *issuer.spki || !list.covers(scoped) {
                continue;
            }
            if list.contains(certificate.serial()) {
                return Err(CertificateError::Revoked);
            }
            if expired == ExpiredCrl::Accept || !list.has_expired(now.as_secs()) {
                status = Ok(());
            } else if status.is_err() {
                let next_update = Duration::from_secs(list.next_update);
                status = Err(CertificateError::ExpiredRevocationListContext {
                    time: now,
                    next_update: UnixTime::since_unix_epoch(next_update),
                });
            }
        }
        status
    }

    /// Whether a list of the CA with this certificate is in use.
    #[must_use]
    pub fn cover(&self, certificate: &CertificateDer<'_>) -> bool {
        let parsed = webpki::EndEntityCert::try_from(certificate);
        let (Ok(parsed), Ok(spki)) = (parsed, spki::of_certificate(certificate)) else {
            return false;
        };
        let lists = self.by_issuer.get(parsed.subject()).map_or(&[][..], Vec::as_slice);
        lists.iter().any(|loaded| *loaded.list.spki == *spki)
    }

    /// The lists in use and their files, in the order of issuers and paths.
    #[must_use]
    pub fn lists(&self) -> Vec<(&RevocationList, &Path)> {
        let lists = self.by_issuer.values().flatten();
        let mut lists: Vec<_> =
            lists.map(|loaded| (loaded.list.as_ref(), loaded.path.as_path())).collect();
        lists.sort_by(|(a, a_path), (b, b_path)| {
            (&a.issuer, a_path, &a.id).cmp(&(&b.issuer, b_path, &b.id))
        });
        lists
    }

    /// The lists that are not as they should be.
    #[must_use]
    pub fn warnings(&self) -> &[CrlWarning] {
        &self.warnings
    }

    /// The first `nextUpdate` later than `time`, both in seconds since the Unix epoch.
    #[must_use]
    pub fn next_update_after(&self, time: u64) -> Option<u64> {
        self.next_updates().filter(|next| *next > time).min()
    }

    /// The first `nextUpdate` of all lists, in seconds since the Unix epoch.
    #[must_use]
    pub fn next_update(&self) -> Option<u64> {
        self.next_updates().min()
    }

    /// The `nextUpdate` of each list, in seconds since the Unix epoch.
    pub(super) fn next_updates(&self) -> impl Iterator<Item = u64> {
        self.by_issuer.values().flatten().map(|loaded| loaded.list.next_update)
    }

    /// Whether both have the same lists, wherever they were read from.
    #[must_use]
    pub fn has_same_lists(&self, other: &Self) -> bool {
        let digests = |crls: &Self| {
            let mut digests: Vec<_> =
                crls.by_issuer.values().flatten().map(|loaded| loaded.list.digest).collect();
            digests.sort_unstable();
            digests
        };
        digests(self) == digests(other)
    }

    /// Raises `marks` to the versions of the lists.
    pub fn raise(&self, marks: &mut CrlMarks) {
        for LoadedList { list, .. } in self.by_issuer.values().flatten() {
            let RevocationList { issuer, version, .. } = list.as_ref();
            let mark = marks.entry(list.id.clone());
            let mark =
                mark.or_insert_with(|| CrlMark { issuer: issuer.clone(), version: *version });
            if mark.version.is_older_than(version) {
                mark.version = *version;
            }
        }
    }

    fn find(&self, digest: &[u8; 32]) -> Option<&Arc<RevocationList>> {
        let mut lists = self.by_issuer.values().flatten().map(|loaded| &loaded.list);
        lists.find(|list| list.digest == *digest)
    }
}

/// Verifies lists and collects the newest ones.
#[derive(Debug)]
pub struct CrlLoader<'a> {
    /// The CAs that may sign lists.
    pub issuers: &'a CrlIssuers,
    /// How to treat a list that has expired.
    pub expired: ExpiredCrl,
    /// The current time, in seconds since the Unix epoch.
    pub now: u64,
    /// The lists in use. They are not verified again, and stay in use although they have expired.
    pub in_use: Option<&'a Crls>,
    /// Whether each CA that has a list in use must keep one. Without a list its clients would be
    /// rejected.
    pub keep_issuers: bool,
    /// The newest versions that were in use.
    pub marks: &'a CrlMarks,
    /// The lists so far.
    pub crls: Crls,
}

/// Why files with lists cannot be used together, with the path of each file.
#[derive(Debug)]
pub struct CrlFileErrors {
    /// The first error.
    pub first: (PathBuf, TlsFileError),
    /// The other errors, in the order of paths.
    pub others: Vec<(PathBuf, TlsFileError)>,
}

impl CrlFileErrors {
    fn none_of(problems: impl IntoIterator<Item = (PathBuf, TlsFileError)>) -> Result<(), Self> {
        let mut problems = problems.into_iter();
        match problems.next() {
            None => Ok(()),
            Some(first) => Err(Self { first, others: problems.collect() }),
        }
    }
}

impl CrlLoader<'_> {
    /// Adds the lists in the content of the file at `path`, PEM or DER. Lists of other CAs are not
    /// used.
    ///
    /// # Errors
    /// Returns an error if the PEM is broken, holds no list, or holds one that cannot be read or
    /// used, or if another part of the file may hold a list.
    pub fn add(&mut self, path: &Path, file: &[u8]) -> Result<(), TlsFileError> {
        let file = without_byte_order_mark(file);
        let mut position = 0;
        for der in framing::ders(file) {
            position += 1;
            let der = der?;
            let path = path.to_owned();
            match self.verify(&der) {
                Ok(list) => self.insert(LoadedList { list, path, position }),
                Err(CrlError::UnknownIssuer { issuer }) => {
                    self.crls.warnings.push(CrlWarning::Unused { path, position, issuer });
                }
                Err(source) => return Err(TlsFileError::Crl { position, source }),
            }
        }
        framing::check_rest(file, position)?;
        if position == 0 { Err(TlsFileError::NoCrl) } else { Ok(()) }
    }

    /// The verified list, which is not dated in the future.
    fn verify(&self, der: &[u8]) -> Result<Arc<RevocationList>, CrlError> {
        if let Some(list) = self.in_use.and_then(|crls| crls.find(&list::sha256(der))) {
            // A CA that is no longer trusted must not keep its trust because its list is left over.
            return match self.issuers.contains_signer(&list.issuer_name, &list.spki) {
                true => Ok(Arc::clone(list)),
                false => Err(CrlError::UnknownIssuer { issuer: list.issuer.clone() }),
            };
        }
        let list = RevocationList::verify(der, self.issuers)?;
        let this_update = list.version.this_update;
        if this_update > self.now.saturating_add(MAX_CLOCK_SKEW) {
            return Err(CrlError::Future { issuer: list.issuer, this_update });
        }
        Ok(Arc::new(list))
    }

    /// Keeps the newer one of `added` and of the list that it may replace.
    fn insert(&mut self, added: LoadedList) {
        let lists = self.crls.by_issuer.entry(added.list.issuer_name.clone()).or_default();
        let Some(known) = lists.iter_mut().find(|known| known.list.id == added.list.id) else {
            lists.push(added);
            return;
        };
        if known.list.digest == added.list.digest {
            return;
        }
        let older =
            if known.is_replaced_by(&added) { std::mem::replace(known, added) } else { added };
        self.crls.warnings.push(CrlWarning::Superseded {
            path: older.path,
            position: older.position,
            issuer: older.list.issuer.clone(),
            version: older.list.version,
            newest: known.list.version,
        });
    }

    /// The lists, none of which is older than its mark.
    ///
    /// # Errors
    /// Returns an error if no list is used, if a CA has lost its list, if a list is older than its
    /// mark, or if a list that is not in use yet has expired and `expired` rejects it.
    pub fn finish(mut self) -> Result<Crls, CrlFileErrors> {
        let lost = self.lost_issuer();
        if self.crls.by_issuer.is_empty() || lost.is_some() {
            let unused = self.crls.warnings.iter().filter_map(|warning| match warning {
                CrlWarning::Unused { path, position, issuer } => {
                    let source = CrlError::UnknownIssuer { issuer: issuer.clone() };
                    Some((path.clone(), TlsFileError::Crl { position: *position, source }))
                }
                CrlWarning::Expired { .. } | CrlWarning::Superseded { .. } => None,
            });
            let lost = lost.map(|lost| {
                let issuer = lost.list.issuer.clone();
                (lost.path.clone(), TlsFileError::CrlMissing { issuer })
            });
            CrlFileErrors::none_of(unused.chain(lost))?;
        }
        let mut lists: Vec<_> = self.crls.by_issuer.values().flatten().collect();
        lists.sort_by_key(|loaded| (&loaded.path, loaded.position));
        let (mut problems, mut warnings) = (Vec::new(), Vec::new());
        for LoadedList { list, path, position } in lists {
            if let Err(source) = self.check_version(list).and_then(|()| self.check_expiry(list)) {
                problems.push((path.clone(), TlsFileError::Crl { position: *position, source }));
            }
            if list.has_expired(self.now) && self.expired == ExpiredCrl::Accept {
                let (path, issuer) = (path.clone(), list.issuer.clone());
                warnings.push(CrlWarning::Expired { path, issuer, next_update: list.next_update });
            }
        }
        CrlFileErrors::none_of(problems)?;
        self.crls.warnings.append(&mut warnings);
        Ok(self.crls)
    }

    /// A list in use whose CA has no list any more.
    fn lost_issuer(&self) -> Option<&LoadedList> {
        let in_use = self.in_use.filter(|_| self.keep_issuers)?;
        in_use.by_issuer.values().flatten().find(|loaded| {
            let RevocationList { issuer_name, spki, .. } = loaded.list.as_ref();
            let lists = self.crls.by_issuer.get(issuer_name).map_or(&[][..], Vec::as_slice);
            self.issuers.contains_signer(issuer_name, spki)
                && !lists.iter().any(|known| known.list.spki == *spki)
        })
    }

    fn check_version(&self, list: &RevocationList) -> Result<(), CrlError> {
        let (version, issuer) = (list.version, || list.issuer.clone());
        match self.marks.get(&list.id) {
            Some(known) if version.is_older_than(&known.version) => {
                Err(CrlError::Rollback { issuer: issuer(), version, known: known.version })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_expiry(&self, list: &RevocationList) -> Result<(), CrlError> {
        let is_in_use = self.in_use.is_some_and(|crls| crls.find(&list.digest).is_some());
        let is_rejected = self.expired == ExpiredCrl::Reject && list.has_expired(self.now);
        if !is_rejected || is_in_use {
            return Ok(());
        }
        let (issuer, next_update) = (list.issuer.clone(), list.next_update);
        Err(CrlError::Expired { issuer, next_update })
    }
}

impl LoadedList {
    /// Whether `other`, of the same issuer and distribution point, is newer. Of two lists of the
    /// same version, the one with more entries counts, so that the order of files does not matter.
    fn is_replaced_by(&self, other: &Self) -> bool {
        let (version, newer) = (&self.list.version, &other.list.version);
        if version == newer {
            let rank = |loaded: &Self| (loaded.list.entries(), loaded.list.digest);
            return rank(self) < rank(other);
        }
        version.is_older_than(newer)
    }
}

/// Maximum length of a name in a message, in characters; the rest is cut.
const MAX_NAME_LENGTH: usize = 256;

fn bounded(name: String) -> String {
    match name.char_indices().nth(MAX_NAME_LENGTH) {
        None => name,
        Some(_) => name.chars().take(MAX_NAME_LENGTH).chain(['…']).collect(),
    }
}
