//! The keys on a client's path about which a source of proofs can be asked, and whether an answer
//! could change the decision.

use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

use super::answers::{Answers, CurrentAnswers};
use super::{Decision, Depth, Guard, KeyEncodings, NamedFilter, Policy, Verdict};
use crate::spki::{self, Fingerprint, PublicKey, RsaExponents};

/// A key that is in a filter for whose hits the source answers.
#[derive(Debug, Clone)]
pub struct UnansweredKey {
    /// Position in the client's chain of the certificate with this key; 0 is the leaf.
    pub position: usize,
    /// The encodings that hit in filters of the source, with their SubjectPublicKeyInfo (DER). The
    /// presented encoding comes first if it is among them.
    pub encodings: SmallVec<[(Fingerprint, Arc<[u8]>); 2]>,
    /// Whether the key is cleared now. An answer may still confirm it.
    pub is_cleared: bool,
}

/// The questions about one client.
#[derive(Debug, Clone, Default)]
pub struct OpenQuestions {
    /// The keys, the client's own first.
    pub keys: SmallVec<[UnansweredKey; 1]>,
    /// Whether answers could turn a rejection into an admission, or an admission into a rejection.
    pub is_decisive: bool,
}

/// Maximum keys of issuers about which is asked for one connection, because a client may attach
/// many certificates.
const MAX_ISSUERS: usize = 2;

impl Guard {
    /// The questions about a client with this verified `path`, leaf first, trust anchor last. There
    /// are none without a source of proofs, nor about a client that no rule by name admits, nor about
    /// a listed or weak key whose decision no answer can change.
    #[must_use]
    pub fn open_questions(
        &self,
        policy: &Policy,
        path: &[&CertificateDer<'_>],
        now: SystemTime,
    ) -> OpenQuestions {
        let Some(answers) = self.answers.as_ref().map(CurrentAnswers::load) else {
            return OpenQuestions::default();
        };
        let is_allowed =
            || policy.allow.as_ref().is_none_or(|rules| rules.admit(path.first().copied()));
        if answers.filters().is_empty() || !is_allowed() {
            return OpenQuestions::default();
        }
        let judged = match policy.judge {
            Depth::Chain => path.len(),
            Depth::Leaf => 1,
        };
        let mut keys = SmallVec::new();
        let mut issuers = 0;
        let (mut is_rejected, mut may_admit, mut may_reject) = (false, true, false);
        for (position, certificate) in path.iter().take(judged).enumerate() {
            let verdict = self.judge(certificate, now);
            let is_rejected_now = policy.decide(&verdict) == Decision::Reject;
            let mut may_change = false;
            if (position == 0 || issuers < MAX_ISSUERS)
                && let Some((key, can_be_cleared)) =
                    self.unanswered(&answers, &verdict, position, certificate)
                && policy.is_worth_asking(can_be_cleared, &verdict)
            {
                issuers += usize::from(position > 0);
                may_change = policy.may_change(&key, can_be_cleared, &verdict);
                keys.push(key);
            }
            is_rejected |= is_rejected_now;
            may_admit &= !is_rejected_now || may_change;
            may_reject |= !is_rejected_now && may_change;
        }
        let is_decisive = if is_rejected { may_admit } else { may_reject };
        OpenQuestions { keys, is_decisive }
    }

    /// The question about the key of `certificate`, if its `verdict` leaves one open, and whether
    /// an answer can clear it: the source can clear keys at present, and the key has no hit in a
    /// filter for which the source does not answer.
    fn unanswered(
        &self,
        answers: &Answers,
        verdict: &Verdict,
        position: usize,
        certificate: &CertificateDer<'_>,
    ) -> Option<(UnansweredKey, bool)> {
        let is_cleared = match verdict.by_filters() {
            Verdict::Cleared(_) => true,
            Verdict::Probable(_) => false,
            Verdict::Allowed
            | Verdict::Clean
            | Verdict::Confirmed(_)
            | Verdict::Listed(_)
            | Verdict::Unchecked
            | Verdict::Weak(_) => return None,
        };
        let spki = spki::of_certificate(certificate).ok()?;
        let public_key = PublicKey::parse(spki);
        let key = KeyEncodings::new(&public_key, self.exponents);
        let (covered, foreign): (Vec<_>, Vec<_>) = self
            .filters_with_exponents()
            .partition(|(named, _)| answers.covers_filter(&named.name));
        let is_in = |(named, exponents): &(&Arc<NamedFilter>, RsaExponents)| {
            key.find_in(&named.filter, *exponents).is_some()
        };
        let can_be_cleared = answers.can_clear() && !foreign.iter().any(is_in);
        let mut encodings = SmallVec::new();
        public_key.for_each_related(self.exponents, |encoding, spki| {
            let mut covered = covered.iter().filter(|(_, exponents)| exponents.include(encoding));
            if covered.any(|(named, _)| named.filter.contains(spki)) {
                encodings.push((Fingerprint::of(spki), Arc::from(spki)));
            }
        });
        if encodings.is_empty() {
            return None; // only filters for which the source does not answer
        }
        Some((UnansweredKey { position, encodings, is_cleared }, can_be_cleared))
    }
}

impl Policy {
    /// Whether an answer about a key with `verdict` can change its decision. An answer about a key
    /// that only filters know also changes logs and headers.
    fn is_worth_asking(&self, can_be_cleared: bool, verdict: &Verdict) -> bool {
        let without_filters = self.decide_without_filters(verdict);
        let changes = |answered| without_filters.stricter(answered) != self.decide(verdict);
        verdict.underlying().is_none()
            || changes(self.on_confirmed)
            || (can_be_cleared && changes(self.on_cleared))
    }

    /// Whether an answer about `key`, which has `verdict` now, could admit or reject its
    /// certificate against the present decision. A cleared key keeps its verdict during a further
    /// question.
    fn may_change(&self, key: &UnansweredKey, can_be_cleared: bool, verdict: &Verdict) -> bool {
        let is_rejected = self.decide(verdict) == Decision::Reject;
        let without_filters = self.decide_without_filters(verdict);
        let changes = |answered: Decision| {
            (without_filters.stricter(answered) == Decision::Reject) != is_rejected
        };
        !key.is_cleared
            && (changes(self.on_confirmed) || (can_be_cleared && changes(self.on_cleared)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::PublicKeyData;

    use super::*;
    use crate::guard::{AllowKind, AllowRules};
    use crate::pkbf::{Filter, Parameters};

    fn certificate() -> (CertificateDer<'static>, Vec<u8>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        (certificate.der().clone(), key.subject_public_key_info())
    }

    fn guard(filters: &[(&str, &[&[u8]])], answers: Answers) -> Guard {
        let filters = filters.iter().map(|(name, keys)| {
            let mut filter = Filter::new(Parameters::new(20, 20).unwrap()).unwrap();
            for key in *keys {
                filter.insert(key);
            }
            Arc::new(NamedFilter { name: (*name).into(), filter, sha256: [0; 32] })
        });
        Guard::new(filters.collect()).with_answers(answers.into())
    }

    fn lost() -> Answers {
        Answers::new(["lost".into()])
    }

    const DECISIONS: [Decision; 4] =
        [Decision::Admit, Decision::Annotate, Decision::Flag, Decision::Reject];

    #[test]
    fn a_question_is_decisive_if_an_answer_turns_refusing_into_serving_or_back() {
        let (leaf, spki) = certificate();
        let guard = guard(&[("lost", &[&spki])], lost());
        for on_probable in DECISIONS {
            for on_confirmed in DECISIONS {
                for on_cleared in DECISIONS {
                    let policy =
                        Policy { on_probable, on_confirmed, on_cleared, ..Policy::default() };
                    let open = guard.open_questions(&policy, &[&leaf], SystemTime::now());
                    assert_eq!(open.keys.len(), 1);
                    let [now, confirmed, cleared] = [on_probable, on_confirmed, on_cleared]
                        .map(|decision| decision == Decision::Reject);
                    assert_eq!(open.is_decisive, now != confirmed || now != cleared, "{policy:?}");
                }
            }
        }
    }

    #[test]
    fn without_clearances_only_a_proof_that_turns_serving_into_refusing_is_decisive() {
        let (leaf, spki) = certificate();
        let mut answers = lost();
        assert!(answers.set_can_clear(false) && !answers.set_can_clear(false));
        let guard = guard(&[("lost", &[&spki])], answers);
        for on_probable in DECISIONS {
            for on_confirmed in DECISIONS {
                let policy = Policy { on_probable, on_confirmed, ..Policy::default() };
                let open = guard.open_questions(&policy, &[&leaf], SystemTime::now());
                let [now, confirmed] =
                    [on_probable, on_confirmed].map(|decision| decision == Decision::Reject);
                assert_eq!(open.is_decisive, now != confirmed, "{policy:?}");
            }
        }
    }

    #[test]
    fn a_question_has_the_encodings_that_hit_in_the_filters_of_the_source() {
        let (leaf, spki) = certificate();
        let forms = spki::related(&spki);
        let (one, other) = (&forms[1].1, &forms[3].1);
        let guard = guard(&[("lost", &[one]), ("own", &[other])], lost());
        let open = guard.open_questions(&Policy::default(), &[&leaf], SystemTime::now());
        let [key] = &open.keys[..] else { panic!("{open:?}") };
        let encodings: Vec<_> = key.encodings.iter().map(|(_, spki)| &spki[..]).collect();
        assert_eq!(encodings, [&one[..]]);
        assert_eq!(key.encodings[0].0, Fingerprint::of(one));
        assert!(!open.is_decisive, "the hit in another filter cannot be cleared");
    }

    #[test]
    fn there_is_no_question_without_a_source_or_about_another_filter_or_a_clean_key() {
        let ((leaf, spki), (clean, _)) = (certificate(), certificate());
        let asked = |guard: &Guard, leaf| {
            guard.open_questions(&Policy::default(), &[leaf], SystemTime::now()).keys.len()
        };
        assert_eq!(asked(&guard(&[("lost", &[&spki])], lost()), &leaf), 1);
        assert_eq!(asked(&guard(&[("lost", &[&spki])], lost()), &clean), 0);
        assert_eq!(asked(&guard(&[("own", &[&spki])], lost()), &leaf), 0);
        assert_eq!(asked(&guard(&[("lost", &[&spki])], Answers::default()), &leaf), 0);
    }

    #[test]
    fn there_is_no_question_about_a_client_that_no_rule_names() {
        let (leaf, spki) = certificate();
        let guard = guard(&[("lost", &[&spki])], lost());
        for (pin, count) in [(Fingerprint::of(&spki), 1), (Fingerprint::of(b"other"), 0)] {
            let mut rules = AllowRules::default();
            rules.add(AllowKind::Spki, &pin.to_string()).unwrap();
            let policy = Policy { allow: Some(Arc::new(rules)), ..Policy::default() };
            let open = guard.open_questions(&policy, &[&leaf], SystemTime::now());
            assert_eq!((open.keys.len(), open.is_decisive), (count, count == 1));
        }
    }

    #[test]
    fn a_cleared_key_is_asked_about_again_and_nothing_waits_for_it() {
        let (leaf, spki) = certificate();
        let now = SystemTime::now();
        let mut answers = lost();
        answers.clear(Fingerprint::of(&spki), now + Duration::from_secs(1));
        let guard = guard(&[("lost", &[&spki])], answers);
        let open = guard.open_questions(&Policy::default(), &[&leaf], now);
        assert!(open.keys[0].is_cleared && !open.is_decisive);
    }

    #[test]
    fn two_issuers_are_asked_about_at_most() {
        let chain: Vec<_> = (0..5).map(|_| certificate()).collect();
        let keys: Vec<&[u8]> = chain.iter().map(|(_, spki)| &spki[..]).collect();
        let path: Vec<_> = chain.iter().map(|(certificate, _)| certificate).collect();
        let policy = Policy { judge: Depth::Chain, ..Policy::default() };
        let now = SystemTime::now();
        let open = guard(&[("lost", &keys)], lost()).open_questions(&policy, &path, now);
        let positions: Vec<_> = open.keys.iter().map(|key| key.position).collect();
        assert_eq!(positions, [0, 1, 2]);
        assert!(!open.is_decisive, "the third issuer stays rejected");
        let open = guard(&[("lost", &keys[1..3])], lost()).open_questions(&policy, &path, now);
        assert!(open.is_decisive && open.keys.len() == 2);
        let leaf_only = Policy::default();
        let open = guard(&[("lost", &keys)], lost()).open_questions(&leaf_only, &path, now);
        assert!(open.is_decisive && open.keys.len() == 1);
    }
}
