//! The answers of this process: those in use, and when they end.

mod state_file;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keygate_core::guard::Answers;
use keygate_core::spki::Fingerprint;
use keygate_core::unix_time;

pub(super) use self::state_file::write;
use super::pace::jittered;

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

    /// An empty book about the same source and filters.
    pub(super) fn emptied(&self) -> Self {
        Self::new(self.basis.clone(), self.cleared_ttl, self.stale_for)
    }

    /// Adds the answers of `other`. The later of two clearances counts. Returns the new answers; a
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

    /// Records whether the source can clear a key at present. Returns whether this is new.
    pub(super) fn set_can_clear(&mut self, can_clear: bool) -> bool {
        self.answers.set_can_clear(can_clear)
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
}

/// The clearance as text for logs and the status.
pub(super) fn until_text(clearance: Clearance) -> String {
    unix_time::rfc3339(clearance.due)
}
