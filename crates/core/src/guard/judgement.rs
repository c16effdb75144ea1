//! A judgement: the verdict on a client's path, and the decision of a policy.

use std::time::SystemTime;

use rustls::pki_types::CertificateDer;

use super::{Decision, Depth, Guard, Policy, Verdict, VerdictKind};

/// The verdict on a client, and the decision that follows from it and from the rules by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// The verdict on the certificate that the decision follows from. Filters and answers may
    /// underlie a list or a check.
    pub verdict: Verdict,
    /// The finding of the verdict that the decision follows from. With a list in trial (`flag`), it
    /// is [`VerdictKind::Probable`] for a listed key that a filter rejects.
    pub reason: VerdictKind,
    /// The decision of the policy.
    pub decision: Decision,
    /// The result of the rules by name. If it is [`NameCheck::NotAllowed`], the decision is
    /// [`Decision::Reject`] for this reason, and not because of the verdict.
    pub names: NameCheck,
}

/// The result of the rules by name of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameCheck {
    /// A rule names the client.
    Allowed,
    /// No rule names the client.
    NotAllowed,
    /// There are no rules, or the policy rejects the verdict.
    NotChecked,
}

impl NameCheck {
    /// The value of the field `result` in logs and reports about a client that no rule names.
    pub const NOT_ALLOWED: &'static str = "not_allowed";
}

impl Judgement {
    /// Judges a client by its verified `path` at `now`: leaf first, trust anchor last.
    ///
    /// Each certificate that `policy.judge` names is decided by itself, and the strictest decision
    /// applies. A further certificate with a more severe verdict and a less strict decision
    /// therefore admits no client. Between equal decisions the most severe verdict applies.
    ///
    /// A client that the policy would serve is rejected if `policy.allow` has no rule that names
    /// its leaf. The rules come last, because a compromised key is the more severe reason.
    #[must_use]
    pub fn new<'a, 'der: 'a>(
        guard: &Guard,
        policy: &Policy,
        path: impl IntoIterator<Item = &'a CertificateDer<'der>>,
        now: SystemTime,
    ) -> Self {
        let mut path = path.into_iter();
        let leaf = path.next();
        let judge = |certificate: Option<&CertificateDer<'_>>, position| {
            let verdict = certificate.map_or(Verdict::Unchecked, |it| guard.judge(it, now));
            let verdict = verdict.at(position);
            let reason = policy.deciding_finding(&verdict).kind();
            let decision = policy.decide(&verdict);
            Self { verdict, reason, decision, names: NameCheck::NotChecked }
        };
        let of_leaf = judge(leaf, 0);
        let issuers = match policy.judge {
            Depth::Chain => usize::MAX,
            Depth::Leaf => 0,
        };
        (1..)
            .zip(path.take(issuers))
            .map(|(position, certificate)| judge(Some(certificate), position))
            .fold(of_leaf, Self::stricter)
            .with_names(policy, leaf)
    }

    /// This judgement after the rules by name, which see the `leaf` alone.
    fn with_names(self, policy: &Policy, leaf: Option<&CertificateDer<'_>>) -> Self {
        match (&policy.allow, self.decision) {
            (None, _) | (Some(_), Decision::Reject) => self,
            (Some(rules), Decision::Admit | Decision::Annotate | Decision::Flag) => {
                if rules.admit(leaf) {
                    Self { names: NameCheck::Allowed, ..self }
                } else {
                    Self { decision: Decision::Reject, names: NameCheck::NotAllowed, ..self }
                }
            }
        }
    }

    /// The reason for rejecting the client, in words for the client.
    #[must_use]
    pub fn rejection(&self) -> &'static str {
        match self.names {
            NameCheck::NotAllowed => "no name of the client certificate is allowed here",
            NameCheck::Allowed | NameCheck::NotChecked => {
                self.reason.rejection(self.verdict.position().is_some_and(|position| position > 0))
            }
        }
    }

    /// `not_allowed` for a client that is rejected because no rule names it.
    #[must_use]
    pub fn name_result(&self) -> Option<&'static str> {
        (self.names == NameCheck::NotAllowed).then_some(NameCheck::NOT_ALLOWED)
    }

    /// Whether the judgement of a path of this `depth` may change with time alone, because an
    /// exception or a clearance expires.
    #[must_use]
    pub fn is_temporary(&self, depth: Depth) -> bool {
        match self.verdict.by_filters() {
            Verdict::Allowed | Verdict::Cleared(_) => true,
            // The verdict on one certificate of a chain may hide those on the others.
            Verdict::Confirmed(_)
            | Verdict::Listed(_)
            | Verdict::Probable(_)
            | Verdict::Unchecked
            | Verdict::Weak(_) => depth == Depth::Chain,
            Verdict::Clean => false,
        }
    }

    /// Whether an answer of a source of proofs could change the judgement of a path of this
    /// `depth`.
    #[must_use]
    pub fn leaves_questions(&self, depth: Depth) -> bool {
        match self.verdict.by_filters() {
            _ if self.names == NameCheck::NotAllowed => false,
            Verdict::Cleared(_) | Verdict::Probable(_) => true,
            // The verdict on one certificate of a chain may hide those on the others.
            Verdict::Allowed
            | Verdict::Confirmed(_)
            | Verdict::Listed(_)
            | Verdict::Unchecked
            | Verdict::Weak(_) => depth == Depth::Chain,
            // The least severe verdict: all certificates of a chain have it.
            Verdict::Clean => false,
        }
    }

    /// The stricter of two judgements; between equal decisions the one with the more severe
    /// verdict.
    fn stricter(self, other: Self) -> Self {
        let rank =
            |judgement: &Self| (judgement.decision.strictness(), judgement.verdict.severity());
        if rank(&other) > rank(&self) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rcgen::PublicKeyData;

    use super::*;
    use crate::guard::{AllowKind, AllowRules, Answers, Exception, FingerprintList, NamedFilter};
    use crate::pkbf::{Filter, Parameters};
    use crate::spki::Fingerprint;

    fn certificate() -> (CertificateDer<'static>, Vec<u8>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        (certificate.der().clone(), key.subject_public_key_info())
    }

    #[test]
    fn a_further_certificate_never_softens_the_decision_on_the_leaf() {
        let ((leaf, leaked), (issuer, listed)) = (certificate(), certificate());
        let mut filter = Filter::new(Parameters::new(20, 20).unwrap()).unwrap();
        filter.insert(&leaked);
        let filter = NamedFilter { name: "lost".into(), filter, sha256: [0; 32] };
        let list = FingerprintList::parse("march", &Fingerprint::of(&listed).to_string()).unwrap();
        let guard = Guard::new(vec![Arc::new(filter)]).with_lists(vec![Arc::new(list)]);
        let policy = Policy {
            on_listed: Decision::Flag,
            on_probable: Decision::Reject,
            judge: Depth::Chain,
            ..Policy::default()
        };
        let now = SystemTime::now();
        for chain in [[leaf.clone(), issuer.clone()], [issuer.clone(), leaf.clone()]] {
            let judgement = Judgement::new(&guard, &policy, &chain, now);
            assert_eq!(judgement.decision, Decision::Reject);
            assert!(matches!(judgement.verdict, Verdict::Probable(_)), "{:?}", judgement.verdict);
        }
        let equal = Policy { on_listed: Decision::Reject, ..policy };
        let judgement = Judgement::new(&guard, &equal, &[leaf, issuer], now);
        assert!(
            matches!(judgement.verdict, Verdict::Listed(_)),
            "the more severe verdict of equal decisions"
        );
        assert_eq!(judgement.verdict.position(), Some(1));
        let none = Judgement::new(&guard, &equal, &[], now);
        assert_eq!((none.verdict, none.decision), (Verdict::Unchecked, Decision::Reject));
    }

    #[test]
    fn a_judgement_that_an_exception_or_a_clearance_underlies_is_temporary() {
        let ((leaf, spki), (issuer, listed)) = (certificate(), certificate());
        let now = SystemTime::now();
        let later = now + Duration::from_secs(1);
        let guard = |keys: &[&[u8]]| {
            let mut filter = Filter::new(Parameters::new(20, 20).unwrap()).unwrap();
            for key in keys {
                filter.insert(key);
            }
            let named = NamedFilter { name: "lost".into(), filter, sha256: [0; 32] };
            Guard::new(vec![Arc::new(named)])
        };
        let list = |spki: &[u8]| {
            Arc::new(FingerprintList::parse("march", &Fingerprint::of(spki).to_string()).unwrap())
        };
        let mut answers = Answers::new(["lost".into()]);
        answers.clear(Fingerprint::of(&spki), later);
        let cleared = || guard(&[&spki]).with_answers(answers.clone().into());
        let key = Fingerprint::of(&spki).into();
        let exception = Exception { key, until: later, reason: "replaced soon".to_owned() };
        let excepted = || guard(&[]).with_exceptions([exception.clone()]);
        let policy = Policy { on_listed: Decision::Flag, ..Policy::default() };
        for (guard, chain, depth, expected) in [
            (guard(&[]), 1, Depth::Leaf, false),
            (guard(&[]), 2, Depth::Chain, false),
            (guard(&[&spki]), 1, Depth::Leaf, false),
            (guard(&[]).with_lists([list(&spki)]), 1, Depth::Leaf, false),
            (cleared(), 1, Depth::Leaf, true),
            (excepted(), 1, Depth::Leaf, true),
            (cleared().with_lists([list(&spki)]), 1, Depth::Leaf, true),
            // The list has the key of the issuer.
            (cleared().with_lists([list(&listed)]), 2, Depth::Chain, true),
            (excepted().with_lists([list(&listed)]), 2, Depth::Chain, true),
        ] {
            let policy = Policy { judge: depth, ..policy.clone() };
            let path = [&leaf, &issuer].into_iter().take(chain);
            let judgement = Judgement::new(&guard, &policy, path, now);
            assert_eq!(judgement.is_temporary(depth), expected, "{judgement:?}");
        }
    }

    #[test]
    fn the_rules_by_name_reject_a_client_whose_key_is_accepted() {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        let leaf = parameters.self_signed(&key).unwrap().der().clone();
        let (other, _) = certificate();
        let spki = key.subject_public_key_info();
        let mut filter = Filter::new(Parameters::new(20, 20).unwrap()).unwrap();
        filter.insert(&spki);
        let lost = Arc::new(NamedFilter { name: "lost".into(), filter, sha256: [0; 32] });
        let empty = Filter::new(Parameters::new(20, 20).unwrap()).unwrap();
        let empty = Arc::new(NamedFilter { name: "lost".into(), filter: empty, sha256: [0; 32] });
        let policy_of = |rule: &str, on_probable| {
            let mut rules = AllowRules::default();
            rules.add(AllowKind::Dns, rule).unwrap();
            Policy { allow: Some(Arc::new(rules)), on_probable, ..Policy::default() }
        };
        let judge = |filter: &Arc<NamedFilter>, policy: &Policy, path: &[CertificateDer<'_>]| {
            Judgement::new(&Guard::new(vec![Arc::clone(filter)]), policy, path, SystemTime::now())
        };
        // The issuer has the name that the leaf lacks.
        let issued = [other, leaf.clone()];
        for (rule, on_probable, filter, path, decision, names) in [
            (
                "a.example",
                Decision::Reject,
                &empty,
                &issued[1..],
                Decision::Admit,
                NameCheck::Allowed,
            ),
            (
                "b.example",
                Decision::Reject,
                &empty,
                &issued[1..],
                Decision::Reject,
                NameCheck::NotAllowed,
            ),
            (
                "a.example",
                Decision::Reject,
                &empty,
                &issued[..],
                Decision::Reject,
                NameCheck::NotAllowed,
            ),
            (
                "a.example",
                Decision::Reject,
                &lost,
                &issued[1..],
                Decision::Reject,
                NameCheck::NotChecked,
            ),
            (
                "b.example",
                Decision::Reject,
                &lost,
                &issued[1..],
                Decision::Reject,
                NameCheck::NotChecked,
            ),
            ("a.example", Decision::Flag, &lost, &issued[1..], Decision::Flag, NameCheck::Allowed),
            (
                "b.example",
                Decision::Flag,
                &lost,
                &issued[1..],
                Decision::Reject,
                NameCheck::NotAllowed,
            ),
        ] {
            let judgement = judge(filter, &policy_of(rule, on_probable), path);
            assert_eq!((judgement.decision, judgement.names), (decision, names), "{rule}");
            let says_name = judgement.rejection().contains("name");
            assert_eq!(says_name, names == NameCheck::NotAllowed, "{}", judgement.rejection());
            assert!(names != NameCheck::NotAllowed || !judgement.leaves_questions(Depth::Chain));
        }
        // A client without a certificate, whatever the policy does with unchecked keys.
        let lenient =
            Policy { on_unchecked: Decision::Flag, ..policy_of("a.example", Decision::Flag) };
        let judgement = judge(&empty, &lenient, &[]);
        assert_eq!(judgement.names, NameCheck::NotAllowed);
        assert_eq!(judgement.decision, Decision::Reject);
    }
}
