//! The lists of files: each verified, and of each CA the newest ones selected.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    CrlError, CrlIssuers, CrlMarks, CrlVersion, CrlWarning, Crls, LoadedList, MAX_CLOCK_SKEW,
    RevocationList, framing, ids, list,
};
use crate::spki::sha256;
use crate::tls::ExpiredCrl;
use crate::tls::TlsFileError;
use crate::tls::trust_anchors::without_byte_order_mark;

/// Verifies lists and collects the newest ones. The lists of one CA are used together or not at
/// all, whatever the lists of other CAs are.
#[derive(Debug)]
pub struct CrlLoader<'a> {
    /// The CAs that may sign lists.
    issuers: &'a CrlIssuers,
    /// How to treat a list that has expired.
    expired: ExpiredCrl,
    /// The newest versions that were in use.
    marks: &'a CrlMarks,
    /// The current time, in seconds since the Unix epoch.
    now: u64,
    /// The lists in use. They are not verified again. The lists of a CA stay in use if its update
    /// is rejected, although they have expired.
    pub in_use: Option<&'a Crls>,
    /// Whether the files were in use before. A left-over list of a removed CA is then no problem,
    /// not even if no list is left.
    pub is_reload: bool,
    /// Whether the files are copies of files in use. A list in them counts only if `marks` have it
    /// and no older version of it: another list of its file may be in use while it waits.
    pub are_copies: bool,
    /// The lists so far.
    crls: Crls,
    problems: Vec<CrlProblem>,
    /// All files.
    files: Vec<PathBuf>,
    /// The files that cannot be used, or have a list that cannot be told to be of a CA.
    unusable: Vec<PathBuf>,
}

/// The lists to use, and why others are not used.
#[derive(Debug)]
pub struct CrlUpdate {
    /// The lists to use, among them lists that were in use before.
    pub crls: Crls,
    /// Why files or lists cannot be used, each with the path of the file.
    pub problems: Vec<(PathBuf, TlsFileError)>,
    /// Whether lists that were in use take the place of all that cannot be used.
    pub is_covered: bool,
}

/// A file or a list that cannot be used.
#[derive(Debug)]
struct CrlProblem {
    path: PathBuf,
    source: TlsFileError,
    /// Name of the CA that signed the list, without the outer SEQUENCE. `None` for a file, and for
    /// a list that anybody may have made: it must not hold back the lists of the CA that it names.
    issuer: Option<Box<[u8]>>,
}

/// Maximum number of lists of other CAs in a file. Each has a log line, and a mark in the state
/// file.
const MAX_UNUSED: usize = 256;

/// The name and the key of a CA.
type Ca<'a> = (&'a [u8], &'a [u8]);

/// A list of a file, or its problem and the name of the CA that signed it, or of a CA that is
/// unknown.
type ReadList = Result<Arc<RevocationList>, (CrlError, Option<Box<[u8]>>)>;

impl<'a> CrlLoader<'a> {
    /// A loader without lists. `now` is in seconds since the Unix epoch.
    #[must_use]
    pub fn new(
        issuers: &'a CrlIssuers,
        expired: ExpiredCrl,
        marks: &'a CrlMarks,
        now: u64,
    ) -> Self {
        let crls = Crls { is_required: true, ..Crls::default() };
        let (problems, files, unusable) = (Vec::new(), Vec::new(), Vec::new());
        let (in_use, is_reload, are_copies) = (None, false, false);
        Self {
            issuers,
            expired,
            marks,
            now,
            in_use,
            is_reload,
            are_copies,
            crls,
            problems,
            files,
            unusable,
        }
    }

    /// Adds the lists in the content of the file at `path`, PEM or DER. Lists of other CAs are not
    /// used. Nothing in the file is used if its PEM is broken, if it holds no list, one whose
    /// issuer cannot be read, or more than 256 of other CAs, or if another part of it may hold a
    /// list.
    pub fn add(&mut self, path: &Path, content: &[u8]) {
        let lists = match self.read(without_byte_order_mark(content)) {
            Ok(lists) => lists,
            Err(source) => {
                self.skip(path);
                self.problems.push(CrlProblem { path: path.to_owned(), source, issuer: None });
                return;
            }
        };
        self.files.push(path.to_owned());
        let file = sha256(content);
        for (position, list) in (1..).zip(lists) {
            let path = path.to_owned();
            match list {
                Ok(list) if self.are_copies && !was_in_use(self.marks, &list) => {}
                Ok(list) => self.insert(LoadedList { list, path, file, position }),
                Err((CrlError::UnknownIssuer { issuer }, name)) => {
                    let is_known =
                        |name: &[u8]| self.marks.contains_key(&ids::unused_issuer_id(name));
                    let name = name.filter(|name| !self.are_copies || is_known(name));
                    self.crls.unused.extend(name.map(|name| (name, (path.clone(), file))));
                    let was_ca = self.marks.values().any(|mark| mark.issuer == issuer);
                    let unused = CrlWarning::Unused { path, position, issuer, was_ca };
                    self.crls.warnings.push(unused);
                }
                Err((source, issuer)) => {
                    match &issuer {
                        None => self.unusable.push(path.clone()),
                        Some(name) if matches!(source, CrlError::NotSigner { .. }) => {
                            self.crls.unused.insert(name.clone(), (path.clone(), file));
                        }
                        Some(_) => {}
                    }
                    let source = TlsFileError::Crl { position, source };
                    self.problems.push(CrlProblem { path, source, issuer });
                }
            }
        }
    }

    /// Notes that the file at `path` cannot be used. The lists in use that it may have replaced
    /// stay in use.
    pub fn skip(&mut self, path: &Path) {
        self.files.push(path.to_owned());
        self.unusable.push(path.to_owned());
    }

    /// The lists in a file.
    fn read(&self, file: &[u8]) -> Result<Vec<ReadList>, TlsFileError> {
        let mut lists = Vec::new();
        for (position, der) in (1..).zip(framing::ders(file)) {
            let der = der?;
            lists.push(match (self.verify(&der), list::issuer_name(&der)) {
                (Ok(list), _) => Ok(list),
                (Err(source), Some(issuer)) => {
                    let is_unused = matches!(source, CrlError::UnknownIssuer { .. });
                    let is_known = is_unused || self.issuers.signed(&issuer, &der);
                    Err((source, Some(issuer).filter(|_| is_known)))
                }
                (Err(source), None) => return Err(TlsFileError::Crl { position, source }),
            });
        }
        framing::check_rest(file, lists.len())?;
        let is_unused = |list: &&ReadList| matches!(list, Err((CrlError::UnknownIssuer { .. }, _)));
        if lists.iter().filter(is_unused).count() > MAX_UNUSED {
            return Err(TlsFileError::CrlsOfOthers { allowed: MAX_UNUSED });
        }
        if lists.is_empty() { Err(TlsFileError::NoCrl) } else { Ok(lists) }
    }

    /// The verified list, which is not dated in the future.
    fn verify(&self, der: &[u8]) -> Result<Arc<RevocationList>, CrlError> {
        if let Some(list) = self.in_use.and_then(|crls| crls.find(&sha256(der))) {
            // A CA that is no longer trusted must not keep its trust because its list is left over.
            return match self.issuers.contains_signer(&list.issuer_name, &list.spki) {
                true => Ok(Arc::clone(list)),
                false => Err(CrlError::UnknownIssuer { issuer: list.issuer.clone() }),
            };
        }
        let list = RevocationList::verify(der, self.issuers, |_| true)?;
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

    /// The lists to use. The lists of a CA that are in use stay if one of its new lists cannot be
    /// used, is older than its mark or has expired, or if a file lost one of them.
    #[must_use]
    pub fn finish(mut self) -> CrlUpdate {
        let mut problems = std::mem::take(&mut self.problems);
        let (lost_cas, lost) = self.lost();
        let is_lost = lost.iter().any(|lost| !self.unusable.contains(&lost.path));
        problems.extend(lost.into_iter().filter(|lost| !self.unusable.contains(&lost.path)));
        let (mut lists, mut of_cas) = (Vec::<LoadedList>::new(), Vec::new());
        for (name, spki) in self.cas() {
            let [added, in_use] =
                [Some(&self.crls), self.in_use].map(|crls| of_ca(crls, name, spki));
            let mut rejected: Vec<_> = added
                .iter()
                .filter_map(|loaded| Some((loaded, self.check(&loaded.list, &added, &in_use)?)))
                .map(|(loaded, source)| CrlProblem {
                    path: loaded.path.clone(),
                    source: TlsFileError::Crl { position: loaded.position, source },
                    issuer: Some(name.into()),
                })
                .collect();
            let is_named = problems.iter().any(|it| it.issuer.as_deref() == Some(name));
            let is_kept = is_named || !rejected.is_empty() || lost_cas.contains(&(name, spki));
            let selected = if is_kept { in_use } else { added };
            lists.extend(selected.into_iter().cloned());
            of_cas.append(&mut rejected);
        }
        problems.append(&mut of_cas);
        if is_lost || !self.is_reload && lists.is_empty() {
            problems.splice(0..0, self.unused());
            // A rejected file speaks of the CAs only that had a list before.
            let known = |name: &[u8]| self.in_use.is_some_and(|it| it.by_issuer.contains_key(name));
            self.crls.unused.retain(|name, _| known(name));
            self.crls.unused.extend(self.in_use.into_iter().flat_map(|it| it.unused.clone()));
        }
        if !self.unusable.is_empty() {
            // A file that cannot be used may still have the list that revoked a pin.
            self.crls.unused.extend(self.in_use.into_iter().flat_map(|it| it.unused.clone()));
        }
        self.crls.by_issuer.clear();
        for loaded in lists {
            self.crls.by_issuer.entry(loaded.list.issuer_name.clone()).or_default().push(loaded);
        }
        self.warn_of_expired();
        let is_from = |path: &PathBuf| self.crls.files().any(|(_, file)| file == path);
        let has_lists = |problem: &CrlProblem| match &problem.issuer {
            Some(name) => self.crls.by_issuer.contains_key(name),
            None => is_from(&problem.path),
        };
        let is_covered = problems.iter().all(has_lists) && self.unusable.iter().all(is_from);
        let problems = problems.into_iter().map(|problem| (problem.path, problem.source));
        CrlUpdate { problems: problems.collect(), crls: self.crls, is_covered }
    }

    /// The lists that were in use from one of the files, and have no successor: their CAs, and the
    /// problems.
    fn lost(&self) -> (Vec<Ca<'a>>, Vec<CrlProblem>) {
        let all = || self.crls.by_issuer.values().flatten();
        let in_use = || self.in_use.into_iter().flat_map(|crls| crls.by_issuer.values().flatten());
        let lost = self.marks.iter().filter_map(|(id, mark)| {
            let path = mark.file.as_ref().filter(|file| self.files.contains(file))?;
            let succeeds =
                |list: &RevocationList| list.id == *id || list.ca == mark.ca && list.covers_all();
            if all().any(|loaded| succeeds(&loaded.list)) {
                return None;
            }
            let ca = self.issuers.signer_with_id(&mark.ca)?;
            let issuer = mark.issuer.clone();
            let has_others = all().any(|loaded| loaded.list.ca == mark.ca);
            let known = in_use().find(|loaded| loaded.list.id == *id && has_others);
            let point = known.and_then(|loaded| loaded.list.distribution_point());
            let source = TlsFileError::CrlMissing { issuer, point };
            Some((ca, CrlProblem { path: path.clone(), source, issuer: Some(ca.0.into()) }))
        });
        lost.unzip()
    }

    /// The name and the key of each CA that has a list, new or in use.
    fn cas(&self) -> Vec<Ca<'_>> {
        let lists = [Some(&self.crls), self.in_use].into_iter().flatten();
        let lists = lists.flat_map(|crls| crls.by_issuer.values().flatten());
        let cas = lists.map(|loaded| (&*loaded.list.issuer_name, &*loaded.list.spki));
        let mut cas: Vec<_> =
            cas.filter(|(name, spki)| self.issuers.contains_signer(name, spki)).collect();
        cas.sort_unstable();
        cas.dedup();
        cas
    }

    /// The problem of a new list among the lists of its CA, if it has one.
    fn check(
        &self,
        list: &RevocationList,
        added: &[&LoadedList],
        in_use: &[&LoadedList],
    ) -> Option<CrlError> {
        let (version, issuer) = (list.version, list.issuer.clone());
        if let Some(known) = self.newer_mark(list, added) {
            return Some(CrlError::Rollback { issuer, version, known });
        }
        let is_in_use = in_use.iter().any(|known| known.list.digest == list.digest);
        let is_rejected = self.expired == ExpiredCrl::Reject && list.has_expired(self.now);
        // Without a list, the clients of the CA would be rejected as well.
        let is_problem = is_rejected && !is_in_use && !in_use.is_empty();
        is_problem.then_some(CrlError::Expired { issuer, next_update: list.next_update })
    }

    /// The version of a list that was in use and is newer than `list`, which would take its place.
    ///
    /// A list of all certificates takes the place of the lists of distribution points that are
    /// gone. RFC 5280, 5.2.3, numbers the lists of each scope by itself, so that the date counts.
    /// The number counts too if no earlier list of all certificates is known.
    fn newer_mark(&self, list: &RevocationList, added: &[&LoadedList]) -> Option<CrlVersion> {
        let version = list.version;
        let own = self.marks.get(&list.id).map(|mark| mark.version);
        if let Some(known) = own.filter(|known| version.is_older_than(known)) {
            return Some(known);
        }
        let is_gone = |id: &String| !added.iter().any(|loaded| loaded.list.id == *id);
        let mut gone = self.marks.iter().filter(|(id, mark)| {
            list.covers_all() && mark.ca == list.ca && **id != list.id && is_gone(id)
        });
        let newer = gone.find(|(_, mark)| {
            let known = &mark.version;
            version.this_update < known.this_update || own.is_none() && version.is_older_than(known)
        });
        newer.map(|(_, mark)| mark.version)
    }

    /// The lists of other CAs, as problems.
    fn unused(&self) -> Vec<CrlProblem> {
        let unused = self.crls.warnings.iter().filter_map(|warning| match warning {
            CrlWarning::Unused { path, position, issuer, was_ca: _ } => {
                let source = CrlError::UnknownIssuer { issuer: issuer.clone() };
                let source = TlsFileError::Crl { position: *position, source };
                Some(CrlProblem { path: path.clone(), source, issuer: None })
            }
            CrlWarning::Expired { .. } | CrlWarning::Superseded { .. } => None,
        });
        unused.collect()
    }

    fn warn_of_expired(&mut self) {
        let expired: Vec<_> = self
            .crls
            .lists()
            .into_iter()
            .filter(|(list, _)| list.has_expired(self.now))
            .map(|(list, path)| CrlWarning::Expired {
                path: path.to_owned(),
                issuer: list.issuer.clone(),
                next_update: list.next_update,
                expired: self.expired,
            })
            .collect();
        self.crls.warnings.extend(expired);
    }
}

/// Whether `marks` have this list, and no older version of it only.
fn was_in_use(marks: &CrlMarks, list: &RevocationList) -> bool {
    marks.get(&list.id).is_some_and(|mark| !mark.version.is_older_than(&list.version))
}

/// The lists of the CA with this name and key, in the order of files.
fn of_ca<'a>(crls: Option<&'a Crls>, name: &[u8], spki: &[u8]) -> Vec<&'a LoadedList> {
    let lists = crls.and_then(|crls| crls.by_issuer.get(name)).map_or(&[][..], Vec::as_slice);
    let mut lists: Vec<_> = lists.iter().filter(|loaded| *loaded.list.spki == *spki).collect();
    lists.sort_by_key(|loaded| (&loaded.path, loaded.position));
    lists
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
