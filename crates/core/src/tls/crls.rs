//! Certificate revocation lists: verified when they are loaded, looked up in handshakes.
//!
//! A list is used only if a CA of the service signed it. The newest list of a CA and distribution
//! point is used. A handshake looks a serial number up and verifies no list.

mod error;
mod extension;
mod framing;
mod ids;
mod issuers;
mod list;
mod loader;
mod scope;
mod serials;
mod version;
mod warning;

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};

use self::scope::ScopedCertificate;
use super::certificate::bounded;
use crate::spki;
use crate::tls::ExpiredCrl;

pub use self::error::{CrlError, IntermediateError};
pub use self::issuers::{CrlIssuers, issued_any};
pub use self::list::RevocationList;
pub use self::loader::{CrlLoader, CrlUpdate};
pub use self::version::{CrlMark, CrlMarks, CrlNumber, CrlVersion};
pub use self::warning::CrlWarning;

/// Maximum time by which `thisUpdate` may lie in the future, in seconds: five minutes, for clocks
/// that differ.
pub const MAX_CLOCK_SKEW: u64 = 300;

/// The CA that signed a certificate of a verified path: the next certificate, or the trust anchor.
#[derive(Debug, Clone, Copy)]
pub(super) struct IssuerKey<'a> {
    /// Subject of the CA: the content of the `Name`, without the outer SEQUENCE, as
    /// [`webpki::Cert::subject`] gives it.
    pub(super) name: &'a [u8],
    /// SubjectPublicKeyInfo of the CA in DER, outer SEQUENCE included; `None` for any CA of the
    /// name.
    pub(super) spki: Option<&'a [u8]>,
}

/// The certificate revocation lists of a service's CAs. A clone shares the lists.
#[derive(Debug, Default, Clone)]
pub struct Crls {
    /// The lists by the name of their issuer.
    by_issuer: HashMap<Box<[u8]>, Vec<LoadedList>>,
    /// Whether lists are configured, so that a certificate that no list covers is rejected.
    is_required: bool,
    /// The issuers of lists that are not used, because they may sign no lists of the service, and
    /// the path and SHA-256 of a file with a list of each.
    unused: BTreeMap<Box<[u8]>, (PathBuf, [u8; 32])>,
    warnings: Vec<CrlWarning>,
}

/// A list and its place.
#[derive(Debug, Clone)]
struct LoadedList {
    list: Arc<RevocationList>,
    path: PathBuf,
    /// SHA-256 of the file.
    file: [u8; 32],
    /// Position in the file, counted from 1.
    position: usize,
}

/// New lists of an issuer.
#[derive(Debug)]
pub struct CrlChange {
    /// Name of the issuer, without the outer SEQUENCE.
    pub issuer: Box<[u8]>,
    /// Path of the first file.
    pub path: PathBuf,
    /// SHA-256 of each file, in the order of their paths.
    pub files: Vec<[u8; 32]>,
}

impl Crls {
    /// Checks that `issuer` has not revoked `certificate`, which `issuer` signed. Nothing is
    /// checked if no lists are configured.
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
    ) -> Result<(), webpki::Error> {
        if !self.is_required {
            return Ok(());
        }
        let scoped = OnceCell::new();
        let scoped =
            || scoped.get_or_init(|| ScopedCertificate::parse(&certificate.der())).as_ref();
        let mut status = Err(webpki::Error::UnknownRevocationStatus);
        for list in self.lists_of(issuer).filter(|list| list.covers(scoped)) {
            if list.contains(certificate.serial()) {
                return Err(webpki::Error::CertRevoked);
            }
            if expired == ExpiredCrl::Accept || !list.has_expired(now.as_secs()) {
                status = Ok(());
            } else if status.is_err() {
                let next_update = Duration::from_secs(list.next_update);
                let next_update = UnixTime::since_unix_epoch(next_update);
                status = Err(webpki::Error::CrlExpired { time: now, next_update });
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
        self.has_list(IssuerKey { name: parsed.subject(), spki: Some(spki) })
    }

    /// Whether a list of this CA is in use.
    pub(super) fn has_list(&self, ca: IssuerKey<'_>) -> bool {
        self.lists_of(ca).next().is_some()
    }

    /// Whether a list in the files names this CA, also one that is not used.
    pub(super) fn name(&self, ca: IssuerKey<'_>) -> bool {
        self.has_list(ca) || self.unused.contains_key(ca.name)
    }

    /// Whether a list of this CA for the certificates of CAs is in use, whichever it covers, or a
    /// list that is not used names the CA: it may revoke them.
    pub(super) fn has_list_of_cas(&self, ca: IssuerKey<'_>) -> bool {
        self.unused.contains_key(ca.name) || self.lists_of(ca).any(RevocationList::may_cover_cas)
    }

    fn lists_of(&self, ca: IssuerKey<'_>) -> impl Iterator<Item = &RevocationList> {
        let lists = self.by_issuer.get(ca.name).map_or(&[][..], Vec::as_slice);
        let lists = lists.iter().map(|loaded| loaded.list.as_ref());
        lists.filter(move |list| ca.spki.is_none_or(|spki| *list.spki == *spki))
    }

    /// Whether a list of the CA that signed `certificate` has its serial number.
    #[must_use]
    pub fn revoke(&self, certificate: &CertificateDer<'_>) -> bool {
        self.by_issuer.values().flatten().any(|loaded| loaded.list.revokes(certificate))
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
        self.is_required == other.is_required
            && self.unused.keys().eq(other.unused.keys())
            && digests(self) == digests(other)
    }

    /// The issuers with a list that `before` lacks. A list that is not used counts if `before` does
    /// not name its issuer, because it rejects a pin of that issuer.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<CrlChange> {
        let changes = self.by_issuer.iter().filter_map(|(issuer, lists)| {
            let is_new = |loaded: &&LoadedList| before.find(&loaded.list.digest).is_none();
            let files = lists.iter().filter(is_new).map(|loaded| (&loaded.path, loaded.file));
            let files: BTreeMap<_, _> = files.collect();
            let path = (*files.keys().next()?).clone();
            Some(CrlChange { issuer: issuer.clone(), path, files: files.into_values().collect() })
        });
        let mut changes: Vec<_> = changes.collect();
        let is_known = |issuer: &[u8]| {
            before.unused.contains_key(issuer) || before.by_issuer.contains_key(issuer)
        };
        let unused = self
            .unused
            .iter()
            .filter(|(issuer, _)| !is_known(issuer) && !self.by_issuer.contains_key(*issuer));
        changes.extend(unused.map(|(issuer, (path, file))| CrlChange {
            issuer: issuer.clone(),
            path: path.clone(),
            files: vec![*file],
        }));
        changes.sort_by(|one, other| (&one.path, &one.issuer).cmp(&(&other.path, &other.issuer)));
        changes
    }

    /// The lists that `before` lacks, such as `a.crl (CN=CA, CRL number 7)`.
    pub fn names_since(&self, before: &Self) -> impl Iterator<Item = String> {
        let lists = self.lists().into_iter();
        lists.filter(|(list, _)| before.find(&list.digest).is_none()).map(|(list, path)| {
            let number = list.version.number.map(|number| format!(", CRL number {number}"));
            format!("{} ({}{})", path.display(), list.issuer, number.unwrap_or_default())
        })
    }

    /// Takes the lists of `issuer` from `other` in place of its own, also those that are not used.
    pub fn take_lists(&mut self, issuer: &[u8], other: &Self) {
        self.by_issuer.remove(issuer);
        let lists = other.by_issuer.get_key_value(issuer);
        self.by_issuer.extend(lists.map(|(issuer, lists)| (issuer.clone(), lists.clone())));
        self.unused.remove(issuer);
        let unused = other.unused.get_key_value(issuer);
        self.unused.extend(unused.map(|(issuer, file)| (issuer.clone(), file.clone())));
    }

    /// The SHA-256 and the path of each file with a list in use.
    pub fn files(&self) -> impl Iterator<Item = ([u8; 32], &Path)> {
        self.by_issuer.values().flatten().map(|loaded| (loaded.file, loaded.path.as_path()))
    }

    /// Names the file in the mark of each list as its file: a copy has another path.
    pub fn name_files(&mut self, marks: &CrlMarks) {
        for loaded in self.by_issuer.values_mut().flatten() {
            let file = marks.get(&loaded.list.id).and_then(|mark| mark.file.as_ref());
            file.into_iter().for_each(|file| loaded.path.clone_from(file));
        }
    }

    /// Raises `marks` to the versions of the lists, and records which of them are in use. While a
    /// file has a list that is not used, its issuer has a mark, too, without names.
    pub fn raise(&self, marks: &mut CrlMarks) {
        marks.retain(|_, mark| !mark.issuer.is_empty() || !mark.ca.is_empty());
        marks.values_mut().for_each(|mark| mark.file = None);
        for LoadedList { list, path, .. } in self.by_issuer.values().flatten() {
            let RevocationList { issuer, ca, version, .. } = list.as_ref();
            let mark = marks.entry(list.id.clone()).or_insert_with(|| CrlMark {
                issuer: issuer.clone(),
                ca: ca.clone(),
                file: None,
                version: *version,
            });
            mark.file = Some(path.clone());
            mark.ca.clone_from(ca);
            if mark.version.is_older_than(version) {
                mark.version = *version;
            }
        }
        for issuer in self.unused.keys() {
            marks.entry(ids::unused_issuer_id(issuer)).or_default();
        }
    }

    fn find(&self, digest: &[u8; 32]) -> Option<&Arc<RevocationList>> {
        let mut lists = self.by_issuer.values().flatten().map(|loaded| &loaded.list);
        lists.find(|list| list.digest == *digest)
    }
}
