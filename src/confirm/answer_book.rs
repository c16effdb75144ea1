//! The known answers of this process, and when they end.

mod state_file;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keygate_core::guard::Answers;
use keygate_core::spki::Fingerprint;

pub(super) use self::state_file::state_file;
use super::pace::jittered;
use crate::config::ConfirmConfig;

/// Maximum number of cleared keys. Above it, the key with the oldest query is forgotten.
const MAX_CLEARED: usize = 8192;
/// Maximum number of confirmed keys. Above it, a proof confirms no further key.
pub(super) const MAX_CONFIRMED: usize = 65_536;

/// A cleared key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clearance {
    /// When the source was queried, in seconds since the Unix epoch.
    pub(super) queried: u64,
    /// When the key is queried again, in seconds since the Unix epoch.
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
    /// The answers, as judgements read them.
    pub(super) answers: Answers,
    basis: Basis,
    pub(super) cleared: HashMap<Fingerprint, Clearance>,
    pub(super) confirmed: HashMap<Fingerprint, Arc<[u8]>>,
    /// Time after `Clearance::due` for which a key stays cleared.
    stale_for: Duration,
    cleared_ttl: Duration,
    /// Clearances were expired up to this time, in seconds since the Unix epoch.
    expired_at: u64,
    /// Increases with each change of the answers.
    pub(super) revision: u64,
}

impl AnswerBook {
    /// No answers, at `now`.
    pub(super) fn new(basis: Basis, config: &ConfirmConfig, now: u64) -> Self {
        let names = basis.filters.keys().map(|name| Arc::from(name.as_str()));
        Self {
            answers: Answers::new(names),
            basis,
            cleared: HashMap::new(),
            confirmed: HashMap::new(),
            stale_for: config.stale_for,
            cleared_ttl: config.cleared_ttl,
            expired_at: now,
            revision: 0,
        }
    }

    /// An empty book about the same source and filters.
    pub(super) fn emptied(&self) -> Self {
        Self {
            answers: Answers::new(self.answers.filters().iter().cloned()),
            basis: self.basis.clone(),
            cleared: HashMap::new(),
            confirmed: HashMap::new(),
            ..*self
        }
    }

    /// Adds the answers of `other`. The later of two clearances counts.
    pub(super) fn merge(&mut self, other: Self) {
        for (fingerprint, spki) in other.confirmed {
            self.confirm(fingerprint, spki);
        }
        for (fingerprint, clearance) in other.cleared {
            let is_old = match self.cleared.get(&fingerprint) {
                Some(known) => known.queried >= clearance.queried,
                None => self.cleared.len() >= MAX_CLEARED,
            };
            if !is_old && !self.confirmed.contains_key(&fingerprint) {
                self.insert(fingerprint, clearance);
            }
        }
    }

    /// Records whether the source can clear a key at present.
    pub(super) fn set_can_clear(&mut self, can_clear: bool) {
        self.revision += u64::from(self.answers.set_can_clear(can_clear));
    }

    /// Records that a proof was verified with this SubjectPublicKeyInfo. The key is not cleared any
    /// more, even if there is no room for it.
    pub(super) fn confirm(&mut self, fingerprint: Fingerprint, spki: Arc<[u8]>) -> ProofEffect {
        self.revision += 1;
        self.cleared.remove(&fingerprint);
        if self.confirmed.len() >= MAX_CONFIRMED && !self.confirmed.contains_key(&fingerprint) {
            self.answers.withdraw_clearance(&fingerprint);
            return ProofEffect::NoRoom;
        }
        let is_new = self.answers.confirm(&spki);
        self.confirmed.insert(fingerprint, spki);
        if is_new { ProofEffect::New } else { ProofEffect::Known }
    }

    /// Records that the source does not know an encoding.
    pub(super) fn clear(&mut self, fingerprint: Fingerprint, now: u64) -> Clearance {
        let ttl = jittered(self.cleared_ttl).as_secs().max(1);
        let clearance = Clearance { queried: now, due: now.saturating_add(ttl) };
        self.insert(fingerprint, clearance);
        clearance
    }

    fn insert(&mut self, fingerprint: Fingerprint, clearance: Clearance) {
        self.revision += 1;
        self.answers.clear(fingerprint, self.until(clearance));
        self.cleared.insert(fingerprint, clearance);
        if self.cleared.len() <= MAX_CLEARED {
            return;
        }
        let oldest = self.cleared.iter().min_by_key(|(_, it)| it.queried).map(|(it, _)| *it);
        if let Some(oldest) = oldest {
            self.cleared.remove(&oldest);
            self.answers.withdraw_clearance(&oldest);
        }
    }

    /// The end of a clearance without a new answer.
    fn until(&self, clearance: Clearance) -> SystemTime {
        let end = Duration::from_secs(clearance.due).saturating_add(self.stale_for);
        UNIX_EPOCH.checked_add(end).unwrap_or(UNIX_EPOCH)
    }

    /// Removes the clearances that have ended. Returns whether a key has become due.
    pub(super) fn expire(&mut self, now: u64) -> bool {
        let stale = self.stale_for.as_secs();
        let ended = self.cleared.extract_if(|_, it| it.due.saturating_add(stale) <= now);
        for (fingerprint, _) in ended {
            self.answers.withdraw_clearance(&fingerprint);
            self.revision += 1;
        }
        let since = std::mem::replace(&mut self.expired_at, now);
        self.cleared.values().any(|it| it.due > since && it.due <= now)
    }

    /// Makes the keys due for which `is_due` returns true. They stay cleared until an answer comes.
    pub(super) fn make_due(&mut self, now: u64, is_due: impl Fn(&Fingerprint) -> bool) {
        let later = self.cleared.iter().filter(|(it, clearance)| clearance.due > now && is_due(it));
        let due: Vec<_> = later.map(|(it, clearance)| (*it, clearance.queried)).collect();
        for (fingerprint, queried) in due {
            self.insert(fingerprint, Clearance { queried, due: now });
        }
    }

    /// Sets the filters in use. All keys become due if one has changed: it may have them now.
    pub(super) fn set_filters(&mut self, filters: BTreeMap<String, String>, now: u64) {
        if self.basis.filters != filters {
            self.basis.filters = filters;
            self.make_due(now, |_| true);
        }
    }

    /// The next time at which a key becomes due or its clearance ends, after the last call of
    /// [`Self::expire`]. May have passed.
    pub(super) fn next_event(&self) -> Option<u64> {
        let stale = self.stale_for.as_secs();
        let times = self.cleared.values().flat_map(|it| [it.due, it.due.saturating_add(stale)]);
        times.filter(|at| *at > self.expired_at).min()
    }
}

#[cfg(test)]
mod tests;
