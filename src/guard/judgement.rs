//! A judgement: the verdict on a client's path, and the decision of a policy.

use std::time::SystemTime;

use rustls::pki_types::CertificateDer;

use super::{Decision, Depth, Guard, Policy, Verdict};

/// The verdict on a client, and the decision that follows from it and from the rules by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// The verdict that led to the decision.
    pub verdict: Verdict,
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
    /// Each certificate that `policy.judge` names is decided by itself, and the hardest decision
    /// wins. So a client cannot soften the decision on its key with a further certificate, whose
    /// verdict is worse and whose decision is milder. Between equal decisions the worse verdict wins.
    ///
    /// A client that the policy would serve is rejected if `policy.allow` has no rule that names its
    /// leaf. The rules come last, because a compromised key is the graver reason.
    #[must_use]
    pub fn new<'a, 'der: 'a>(
        guard: &Guard,
        policy: &Policy,
        path: impl IntoIterator<Item = &'a CertificateDer<'der>>,
        now: SystemTime,
    ) -> Self {
        let mut path = path.into_iter().map(std::slice::from_ref);
        let leaf = path.next();
        let judge = |certificate: &[CertificateDer<'_>], position| {
            let verdict = guard.judge(certificate, Depth::Leaf, now).at(position);
            let decision = policy.decide(&verdict);
            Self { verdict, decision, names: NameCheck::NotChecked }
        };
        let of_leaf = judge(leaf.unwrap_or_default(), 0);
        let issuers = match policy.judge {
            Depth::Chain => usize::MAX,
            Depth::Leaf => 0,
        };
        (1..)
            .zip(path.take(issuers))
            .map(|(position, certificate)| judge(certificate, position))
            .fold(of_leaf, Self::harder)
            .with_names(policy, leaf.and_then(<[_]>::first))
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
            NameCheck::Allowed | NameCheck::NotChecked => self.verdict.rejection(),
        }
    }

    /// `not_allowed` for a client that is rejected because no rule names it.
    #[must_use]
    pub fn name_result(&self) -> Option<&'static str> {
        (self.names == NameCheck::NotAllowed).then_some(NameCheck::NOT_ALLOWED)
    }

    /// Whether another filter or answer could change the verdict, or the one behind it.
    #[must_use]
    pub fn depends_on_filters(&self) -> bool {
        match self.verdict {
            Verdict::Clean
            | Verdict::Cleared(_)
            | Verdict::Confirmed(_)
            | Verdict::Listed(_)
            | Verdict::Probable(_)
            | Verdict::Weak(_) => true,
            Verdict::Allowed | Verdict::Unchecked => false,
        }
    }

    /// Whether an answer of a source of proofs could change the judgement of a path of this `depth`.
    #[must_use]
    pub fn leaves_questions(&self, depth: Depth) -> bool {
        match self.verdict.innermost() {
            _ if self.names == NameCheck::NotAllowed => false,
            Verdict::Cleared(_) | Verdict::Probable(_) => true,
            // The verdict on one certificate of a chain may hide those on the others.
            Verdict::Allowed
            | Verdict::Confirmed(_)
            | Verdict::Listed(_)
            | Verdict::Unchecked
            | Verdict::Weak(_) => depth == Depth::Chain,
            // The mildest verdict and decision: all certificates of a chain have it.
            Verdict::Clean => false,
        }
    }

    fn harder(self, other: Self) -> Self {
        match self.decision.hardness().cmp(&other.decision.hardness()) {
            std::cmp::Ordering::Greater => self,
            std::cmp::Ordering::Less => other,
            std::cmp::Ordering::Equal => {
                Self { verdict: self.verdict.worse(other.verdict), ..self }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rcgen::PublicKeyData;

    use super::*;
    use crate::guard::{AllowKind, AllowRules, FingerprintList, NamedFilter};
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
        assert!(matches!(judgement.verdict, Verdict::Listed(_)), "the worse of equal decisions");
        assert_eq!(judgement.verdict.position(), Some(1));
        let none = Judgement::new(&guard, &equal, &[], now);
        assert_eq!((none.verdict, none.decision), (Verdict::Unchecked, Decision::Reject));
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
