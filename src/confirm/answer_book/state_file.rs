//! The answers in the state directory.
//!
//! A proof in `state.dir/proofs` is verified again whenever it is read. `state.dir/confirm.json`
//! has the cleared keys, and the keys of the proofs. Its loss costs queries only.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::BASE64;
use keygate_core::spki::Fingerprint;
use keygate_core::{json, regular_file};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::super::TARGET;
use super::super::lookup::{LookUpOutcome, ProofDirectories};
use super::{AnswerBook, Clearance};

/// Maximum size of the state file, 1 MiB.
pub(super) const MAX_SIZE: usize = 1 << 20;
/// Part of [`MAX_SIZE`] for the keys of proofs, in bytes.
const CONFIRMED_SIZE: usize = MAX_SIZE / 2;
/// Size of the state file without its entries, in bytes; more than the names of filters need.
const FRAME_SIZE: usize = 64 << 10;
/// Size of the entry of a cleared key in the state file, in bytes, rounded up.
const CLEARED_SIZE: usize = 112;

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
    /// Adds the answers in the state file of `directory`, and verifies their proofs again. A broken
    /// file is logged and adds nothing. Blocks.
    pub(in crate::confirm) fn add_saved(
        &mut self,
        directory: &Path,
        proofs: &ProofDirectories,
        now: u64,
    ) {
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
            self.add_saved_proof(fingerprint, spki, proofs);
        }
        if file.source != self.basis.source {
            return; // a 404 of one source is no 404 of another
        }
        let is_same_filter = file.filters == self.basis.filters;
        let latest = now.saturating_add(self.cleared_ttl.as_secs());
        for (fingerprint, record) in &file.cleared {
            let Some(fingerprint) = Fingerprint::parse(fingerprint) else { continue };
            // A new revision of the filter may have more entries. A clock may have been set back. A
            // time that has passed stays, because the clearance ends `stale_for` after it.
            let latest = if is_same_filter { latest } else { now };
            let due = record.expires.min(latest);
            self.insert(fingerprint, Clearance { queried: record.asked.min(now), due });
        }
        self.expire(now);
    }

    fn add_saved_proof(&mut self, fingerprint: &str, spki: &str, proofs: &ProofDirectories) {
        let spki = BASE64.decode(spki.as_bytes()).unwrap_or_default();
        let of_key = Fingerprint::of(&spki);
        if Fingerprint::parse(fingerprint) != Some(of_key) {
            return;
        }
        let spki: Arc<[u8]> = spki.into();
        let error = match proofs.look_up(&[(of_key, Arc::clone(&spki))]) {
            LookUpOutcome::Confirmed(_) => {
                self.confirm(of_key, spki);
                return;
            }
            LookUpOutcome::DirectoryFailed(error) => error.to_string(),
            LookUpOutcome::Failed(_) | LookUpOutcome::Unknown => "there is no file".to_owned(),
            LookUpOutcome::Unusable(unusable) => unusable.reason.as_str().to_owned(),
        };
        warn!(target: TARGET, %fingerprint, error, "kept proof cannot be used, the key is asked about again");
    }

    /// The text of the state file, at most [`MAX_SIZE`] bytes. The latest clearances have room
    /// first. A proof whose key has no room is found again when its client comes back.
    pub(in crate::confirm) fn to_file(&self) -> serde_json::Result<Vec<u8>> {
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
        cleared.sort_unstable_by_key(|(_, it)| std::cmp::Reverse(it.queried));
        let room = MAX_SIZE - CONFIRMED_SIZE - FRAME_SIZE + room;
        for (fingerprint, it) in cleared.into_iter().take(room / CLEARED_SIZE) {
            let record = ClearanceRecord { asked: it.queried, expires: it.due };
            file.cleared.insert(fingerprint.to_string(), record);
        }
        serde_json::to_vec(&file)
    }
}

/// The state file in the state directory.
pub(in crate::confirm) fn state_file(directory: &Path) -> PathBuf {
    directory.join("confirm.json")
}

fn read(path: &Path) -> io::Result<AnswersFile> {
    match regular_file::read(path, MAX_SIZE as u64) {
        Ok(text) => json::parse(&text).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(AnswersFile::default()),
        Err(error) => Err(error),
    }
}
