//! The answers of this process: those in use, when they end, and their file in the state directory.
//!
//! A proof in `state.dir/proofs` is verified again whenever it is read. `state.dir/confirm.json` has
//! the cleared keys, and the keys of the proofs. Its loss costs questions only.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::TARGET;
use super::lookup::{LookUp, ProofDirectories};
use super::schedule::jittered;
use crate::guard::Answers;
use crate::regular_file;
use crate::spki::Fingerprint;
use crate::unix_time;

/// Maximum size of the state file, 1 MiB.
const MAX_SIZE: usize = 1 << 20;
/// Part of [`MAX_SIZE`] for the keys of proofs, in bytes.
const CONFIRMED_SIZE: usize = MAX_SIZE / 2;
/// Size of the state file without its entries, in bytes; more than the names of filters need.
const FRAME_SIZE: usize = 64 << 10;
/// Size of the entry of a cleared key in the state file, in bytes, rounded up.
const CLEARED_SIZE: usize = 112;
/// Maximum number of cleared keys. Above it, the one that was asked about first is forgotten.
const MAX_CLEARED: usize = 8192;
/// Maximum number of confirmed keys. Above it, a proof confirms no further key.
pub(super) const MAX_CONFIRMED: usize = 65_536;

/// A cleared key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clearance {
    /// When the source was asked, in seconds since the Unix epoch.
    pub(super) asked: u64,
    /// When the key is asked about again, in seconds since the Unix epoch.
    pub(super) due: u64,
}

/// The effect of a verified proof on the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProofEffect {
    /// The key was confirmed before.
    Known,
    New,
    /// There are [`MAX_CONFIRMED`] keys already. The key is not confirmed, and not cleared either.
    NoRoom,
}

/// The source and the filters that clearances depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Basis {
    /// The URL or the directory.
    pub(super) source: String,
    /// SHA-256 of the filters that the source answers for, in hex, by name.
    pub(super) filters: BTreeMap<String, String>,
}

/// The answers of this process.
#[derive(Debug)]
pub(super) struct AnswerBook {
    answers: Answers,
    basis: Basis,
    cleared: HashMap<Fingerprint, Clearance>,
    confirmed: HashMap<Fingerprint, Arc<[u8]>>,
    /// Time after `Clearance::due` for which a key stays cleared.
    stale_for: Duration,
    cleared_ttl: Duration,
}

/// The content of the state file. Times are in seconds since the Unix epoch.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswersFile {
    source: String,
    filters: BTreeMap<String, String>,
    cleared: BTreeMap<String, ClearanceRecord>,
    /// SubjectPublicKeyInfo (DER, base64) by fingerprint.
    confirmed: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClearanceRecord {
    asked: u64,
    expires: u64,
}

impl AnswerBook {
    /// No answers.
    pub(super) fn new(basis: Basis, cleared_ttl: Duration, stale_for: Duration) -> Self {
        let names = basis.filters.keys().map(|name| Arc::from(name.as_str()));
        Self {
            answers: Answers::new(names),
            basis,
            cleared: HashMap::new(),
            confirmed: HashMap::new(),
            stale_for,
            cleared_ttl,
        }
    }

    /// Adds the answers in the state file of `directory`, whose proofs are verified again. A broken
    /// file is warned of and adds nothing. Blocks.
    pub(super) fn add_kept(&mut self, directory: &Path, proofs: &ProofDirectories, now: u64) {
        let path = state_file(directory);
        let file = match read(&path) {
            Ok(file) => file,
            Err(error) => {
                let file = path.display();
                warn!(target: TARGET, %file, %error, "kept answers cannot be used, keys are asked about again");
                return;
            }
        };
        for (fingerprint, spki) in &file.confirmed {
            self.add_kept_proof(fingerprint, spki, proofs);
        }
        if file.source != self.basis.source {
            return; // another source does not know what this one did not
        }
        let is_same_filter = file.filters == self.basis.filters;
        let latest = now.saturating_add(self.cleared_ttl.as_secs());
        for (fingerprint, record) in &file.cleared {
            let Some(fingerprint) = Fingerprint::parse(fingerprint) else { continue };
            // A new revision of the filter may know more. A clock may have been set back. A time
            // that has passed stays, because the clearance ends `stale_for` after it.
            let latest = if is_same_filter { latest } else { now };
            let due = record.expires.min(latest);
            self.insert(fingerprint, Clearance { asked: record.asked.min(now), due });
        }
        self.expire(now);
    }

    fn add_kept_proof(&mut self, fingerprint: &str, spki: &str, proofs: &ProofDirectories) {
        let spki = BASE64.decode(spki.as_bytes()).unwrap_or_default();
        let of_key = Fingerprint::of(&spki);
        if Fingerprint::parse(fingerprint) != Some(of_key) {
            return;
        }
        let spki: Arc<[u8]> = spki.into();
        match proofs.look_up(&[(of_key, Arc::clone(&spki))]) {
            LookUp::Confirmed(_) => {
                self.confirm(of_key, spki);
            }
            LookUp::DirectoryFailed(error) => {
                warn!(target: TARGET, %fingerprint, %error, "kept proof cannot be used, the key is asked about again");
            }
            LookUp::Unusable(unusable) => {
                let reason = unusable.reason.as_str();
                warn!(target: TARGET, %fingerprint, error = reason, "kept proof cannot be used, the key is asked about again");
            }
            LookUp::Failed(_) | LookUp::Unknown => {
                let error = "there is no file";
                warn!(target: TARGET, %fingerprint, error, "kept proof cannot be used, the key is asked about again");
            }
        }
    }

    /// An empty book about the same source and filters.
    pub(super) fn emptied(&self) -> Self {
        Self::new(self.basis.clone(), self.cleared_ttl, self.stale_for)
    }

    /// Adds the answers of `other`. Of two clearances, the later one counts. Returns the new ones; a
    /// cleared key has the time at which it is asked about again.
    pub(super) fn merge(&mut self, other: Self) -> Vec<(Fingerprint, Option<u64>)> {
        let mut learned = Vec::new();
        for (fingerprint, spki) in other.confirmed {
            if self.confirm(fingerprint, spki) == ProofEffect::New {
                learned.push((fingerprint, None));
            }
        }
        for (fingerprint, clearance) in other.cleared {
            let is_old = match self.cleared.get(&fingerprint) {
                Some(known) => known.asked >= clearance.asked,
                None => self.cleared.len() >= MAX_CLEARED,
            };
            if !is_old && !self.confirmed.contains_key(&fingerprint) {
                self.insert(fingerprint, clearance);
                learned.push((fingerprint, Some(clearance.due)));
            }
        }
        learned
    }

    /// The answers in use, as judgements read them.
    pub(super) fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Records that a proof was verified with this SubjectPublicKeyInfo. The key is not cleared any
    /// more, even if there is no room for it.
    pub(super) fn confirm(&mut self, fingerprint: Fingerprint, spki: Arc<[u8]>) -> ProofEffect {
        self.cleared.remove(&fingerprint);
        if self.confirmed.len() >= MAX_CONFIRMED && !self.confirmed.contains_key(&fingerprint) {
            self.answers.withdraw_clearance(&fingerprint);
            return ProofEffect::NoRoom;
        }
        let is_new = self.answers.confirm(&spki);
        self.confirmed.insert(fingerprint, spki);
        if is_new { ProofEffect::New } else { ProofEffect::Known }
    }

    /// Records that the source does not know an encoding. Returns when it is asked again, and the
    /// key that was forgotten in its place.
    pub(super) fn clear(
        &mut self,
        fingerprint: Fingerprint,
        now: u64,
    ) -> (Clearance, Option<Fingerprint>) {
        let ttl = jittered(self.cleared_ttl).as_secs().max(1);
        let clearance = Clearance { asked: now, due: now.saturating_add(ttl) };
        (clearance, self.insert(fingerprint, clearance))
    }

    fn insert(&mut self, fingerprint: Fingerprint, clearance: Clearance) -> Option<Fingerprint> {
        self.answers.clear(fingerprint, self.until(clearance));
        self.cleared.insert(fingerprint, clearance);
        if self.cleared.len() <= MAX_CLEARED {
            return None;
        }
        let oldest = self.cleared.iter().min_by_key(|(_, it)| it.asked).map(|(it, _)| *it)?;
        self.cleared.remove(&oldest);
        self.answers.withdraw_clearance(&oldest);
        Some(oldest)
    }

    /// The end of a clearance without a new answer.
    fn until(&self, clearance: Clearance) -> SystemTime {
        let end = Duration::from_secs(clearance.due).saturating_add(self.stale_for);
        UNIX_EPOCH.checked_add(end).unwrap_or(UNIX_EPOCH)
    }

    /// Removes the clearances that have ended. Returns their keys.
    pub(super) fn expire(&mut self, now: u64) -> Vec<Fingerprint> {
        let stale = self.stale_for.as_secs();
        let ended = self.cleared.extract_if(|_, it| it.due.saturating_add(stale) <= now);
        let ended: Vec<Fingerprint> = ended.map(|(fingerprint, _)| fingerprint).collect();
        for fingerprint in &ended {
            self.answers.withdraw_clearance(fingerprint);
        }
        ended
    }

    /// Makes the keys for which `is_due` returns true due at `now`. They stay cleared until an
    /// answer comes. Returns them.
    pub(super) fn make_due(
        &mut self,
        now: u64,
        is_due: impl Fn(&Fingerprint) -> bool,
    ) -> Vec<Fingerprint> {
        let mut changed = Vec::new();
        for (fingerprint, clearance) in &mut self.cleared {
            if clearance.due > now && is_due(fingerprint) {
                clearance.due = now;
                changed.push(*fingerprint);
            }
        }
        for fingerprint in &changed {
            if let Some(clearance) = self.cleared.get(fingerprint).copied() {
                self.answers.clear(*fingerprint, self.until(clearance));
            }
        }
        changed
    }

    /// Sets the filters in use. Returns whether one of them has changed.
    pub(super) fn set_filters(&mut self, filters: BTreeMap<String, String>) -> bool {
        let has_changed = self.basis.filters != filters;
        self.basis.filters = filters;
        has_changed
    }

    /// The next time after `now` at which a key becomes due or its clearance ends.
    pub(super) fn next_event(&self, now: u64) -> Option<u64> {
        let stale = self.stale_for.as_secs();
        let times = self.cleared.values().flat_map(|it| [it.due, it.due.saturating_add(stale)]);
        times.filter(|time| *time > now).min()
    }

    /// All cleared keys.
    pub(super) fn cleared(&self) -> impl ExactSizeIterator<Item = (&Fingerprint, &Clearance)> {
        self.cleared.iter()
    }

    /// All confirmed keys.
    pub(super) fn confirmed(&self) -> impl ExactSizeIterator<Item = &Fingerprint> {
        self.confirmed.keys()
    }

    /// The text of the state file, at most [`MAX_SIZE`] bytes. Of the cleared keys it has those that
    /// were asked about last. A proof whose key has no room is found again when its client comes
    /// back.
    pub(super) fn to_file(&self) -> serde_json::Result<Vec<u8>> {
        let mut file = AnswersFile {
            source: self.basis.source.clone(),
            filters: self.basis.filters.clone(),
            ..AnswersFile::default()
        };
        let mut room = CONFIRMED_SIZE;
        for (fingerprint, spki) in &self.confirmed {
            let spki = BASE64.encode(spki);
            let Some(left) = room.checked_sub(spki.len() + CLEARED_SIZE) else { break };
            room = left;
            file.confirmed.insert(fingerprint.to_string(), spki);
        }
        let mut cleared: Vec<_> = self.cleared.iter().collect();
        cleared.sort_unstable_by_key(|(_, it)| std::cmp::Reverse(it.asked));
        let room = MAX_SIZE - CONFIRMED_SIZE - FRAME_SIZE + room;
        for (fingerprint, it) in cleared.into_iter().take(room / CLEARED_SIZE) {
            let record = ClearanceRecord { asked: it.asked, expires: it.due };
            file.cleared.insert(fingerprint.to_string(), record);
        }
        serde_json::to_vec(&file)
    }
}

fn state_file(directory: &Path) -> PathBuf {
    directory.join("confirm.json")
}

fn read(path: &Path) -> io::Result<AnswersFile> {
    match regular_file::read(path, MAX_SIZE as u64) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(AnswersFile::default()),
        Err(error) => Err(error),
    }
}

/// Replaces the state file in `directory`. After a crash, it holds the old content or the new.
/// Blocks.
pub(super) fn write(directory: &Path, text: &[u8]) -> io::Result<()> {
    let mut staged = tempfile::Builder::new().prefix(".staged-confirm-").tempfile_in(directory)?;
    staged.write_all(text)?;
    staged.as_file().sync_all()?;
    staged.persist(state_file(directory)).map_err(|error| error.error)?;
    Ok(())
}

/// The clearance as text for logs and the status.
pub(super) fn until_text(clearance: Clearance) -> String {
    unix_time::rfc3339(clearance.due)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_790_000_000;
    const DAY: Duration = Duration::from_secs(86_400);

    fn book() -> AnswerBook {
        let filters = BTreeMap::from([("lost".to_owned(), "00".repeat(32))]);
        AnswerBook::new(Basis { source: "https://a.example".to_owned(), filters }, DAY, 7 * DAY)
    }

    fn key(number: u64) -> (Fingerprint, Arc<[u8]>) {
        // As large as an RSA key of 4096 bits.
        let spki: Arc<[u8]> = [number.to_be_bytes().as_slice(), &[0; 542]].concat().into();
        (Fingerprint::of(&spki), spki)
    }

    #[test]
    fn the_state_file_is_bounded_and_is_read_again() {
        let mut book = book();
        for number in 0..10_000 {
            let (fingerprint, spki) = key(number);
            book.confirm(fingerprint, spki);
            book.clear(Fingerprint::of(&number.to_be_bytes()), NOW + number);
        }
        assert_eq!((book.cleared().len(), book.confirmed().len()), (MAX_CLEARED, 10_000));
        let text = book.to_file().unwrap();
        assert!(text.len() <= MAX_SIZE && text.len() > MAX_SIZE * 3 / 4, "{}", text.len());
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), &text).unwrap();
        let mut again = self::book();
        again.add_kept(directory.path(), &ProofDirectories::default(), NOW);
        assert!(again.cleared().len() > 3000, "{}", again.cleared().len());
        let newest = Fingerprint::of(&9_999_u64.to_be_bytes());
        assert!(again.cleared().any(|(fingerprint, _)| *fingerprint == newest));
        assert_eq!(again.confirmed().len(), 0, "without a proof, nothing is confirmed");
    }

    #[test]
    fn a_proof_without_room_ends_the_clearance_of_its_key() {
        let mut book = book();
        let (cleared, spki) = key(u64::MAX);
        book.clear(cleared, NOW);
        for number in 0..MAX_CONFIRMED as u64 {
            let (fingerprint, spki) = key(number);
            book.confirmed.insert(fingerprint, spki);
        }
        let (first, of_first) = key(0);
        assert_eq!(book.confirm(first, of_first), ProofEffect::New);
        assert_eq!(book.confirm(cleared, spki), ProofEffect::NoRoom);
        assert_eq!((book.cleared().len(), book.confirmed().len()), (0, MAX_CONFIRMED));
        assert!(!book.answers().is_cleared(&cleared, UNIX_EPOCH + Duration::from_secs(NOW)));
        assert!(!book.answers().is_confirmed(&cleared));
    }

    #[test]
    fn a_clearance_is_due_after_its_time_and_ends_after_the_stale_time() {
        let mut book = book();
        let (fingerprint, _) = key(1);
        let (clearance, _) = book.clear(fingerprint, NOW);
        let day = 86_400;
        assert!((NOW + day * 9 / 10..=NOW + day * 11 / 10).contains(&clearance.due));
        assert_eq!(book.next_event(NOW), Some(clearance.due));
        let end = clearance.due + 7 * day;
        assert_eq!(book.next_event(clearance.due), Some(end));
        assert!(book.expire(end - 1).is_empty());
        assert!(book.answers().is_cleared(&fingerprint, UNIX_EPOCH + Duration::from_secs(end - 1)));
        assert_eq!(book.expire(end), [fingerprint]);
        assert_eq!(book.answers().cleared().len(), 0);
    }

    #[test]
    fn a_restart_with_another_filter_does_not_prolong_a_clearance() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = book();
        let (fingerprint, _) = key(1);
        let (clearance, _) = first.clear(fingerprint, NOW);
        write(directory.path(), &first.to_file().unwrap()).unwrap();
        let end = clearance.due + 7 * DAY.as_secs();
        for days in [2, 4, 6] {
            let mut book = book();
            book.basis.filters.values_mut().for_each(|it| *it = days.to_string());
            book.add_kept(directory.path(), &ProofDirectories::default(), NOW + days * 86_400);
            assert_eq!(book.cleared[&fingerprint].due, clearance.due, "{days}");
            write(directory.path(), &book.to_file().unwrap()).unwrap();
        }
        let mut book = book();
        book.add_kept(directory.path(), &ProofDirectories::default(), end);
        assert_eq!(book.cleared().len(), 0);
    }

    #[test]
    fn another_source_forgets_and_another_filter_asks_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = book();
        let (fingerprint, _) = key(1);
        first.clear(fingerprint, NOW);
        write(directory.path(), &first.to_file().unwrap()).unwrap();
        let read = |change: fn(&mut Basis)| {
            let mut book = book();
            change(&mut book.basis);
            book.add_kept(directory.path(), &ProofDirectories::default(), NOW + 1);
            book.cleared.get(&fingerprint).copied()
        };
        assert!(read(|_| {}).unwrap().due > NOW + 1);
        assert_eq!(read(|basis| basis.source.push('x')), None);
        let due = read(|basis| basis.filters.values_mut().for_each(|it| it.push('x')));
        assert_eq!(due.unwrap().due, NOW + 1);
    }
}
