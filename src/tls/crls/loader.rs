//! The lists of files: each verified, and of each CA the newest one selected.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    CrlError, CrlIssuers, CrlMarks, CrlWarning, Crls, LoadedList, MAX_CLOCK_SKEW, RevocationList,
    framing, list,
};
use crate::config::ExpiredCrl;
use crate::tls::TlsFileError;
use crate::tls::trust_anchors::without_byte_order_mark;

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
    /// Whether `other`, of the same issuer and distribution point, is newer. If the
    /// versions are the same, the list with more entries counts, whatever the order of files.
    fn is_replaced_by(&self, other: &Self) -> bool {
        let (version, newer) = (&self.list.version, &other.list.version);
        if version == newer {
            let rank = |loaded: &Self| (loaded.list.entries(), loaded.list.digest);
            return rank(self) < rank(other);
        }
        version.is_older_than(newer)
    }
}
