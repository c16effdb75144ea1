//! A judgement: the verdict on a client's path, and the decision of a policy.

use std::time::SystemTime;

use rustls::pki_types::CertificateDer;

use super::{Decision, Depth, Guard, Policy, Verdict};

/// The verdict on a client, and the decision that follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// The verdict that led to the decision.
    pub verdict: Verdict,
    /// The decision of the policy.
    pub decision: Decision,
}

impl Judgement {
    /// Judges a client by its verified `path` at `now`: leaf first, trust anchor last.
    ///
    /// Each certificate that `policy.judge` names is decided by itself, and the hardest decision
    /// wins. So a client cannot soften the decision on its key with a further certificate, whose
    /// verdict is worse and whose decision is milder. Between equal decisions the worse verdict wins.
    #[must_use]
    pub fn new<'a, 'der: 'a>(
        guard: &Guard,
        policy: &Policy,
        path: impl IntoIterator<Item = &'a CertificateDer<'der>>,
        now: SystemTime,
    ) -> Self {
        let mut path = path.into_iter().map(std::slice::from_ref);
        let judge = |certificate: &[CertificateDer<'_>], position| {
            let verdict = guard.judge(certificate, Depth::Leaf, now).at(position);
            let decision = policy.decide(&verdict);
            Self { verdict, decision }
        };
        let leaf = judge(path.next().unwrap_or_default(), 0);
        let issuers = match policy.judge {
            Depth::Chain => usize::MAX,
            Depth::Leaf => 0,
        };
        (1..)
            .zip(path.take(issuers))
            .map(|(position, certificate)| judge(certificate, position))
            .fold(leaf, Self::harder)
    }

    /// Whether another filter or answer could change the verdict.
    #[must_use]
    pub fn depends_on_filters(&self) -> bool {
        match self.verdict {
            Verdict::Clean | Verdict::Cleared(_) | Verdict::Confirmed(_) | Verdict::Probable(_) => {
                true
            }
            Verdict::Allowed | Verdict::Listed(_) | Verdict::Unchecked => false,
        }
    }

    /// Whether an answer of a source of proofs could change the judgement of a path of this `depth`.
    #[must_use]
    pub fn leaves_questions(&self, depth: Depth) -> bool {
        match self.verdict {
            Verdict::Cleared(_) | Verdict::Probable(_) => true,
            // The verdict on one certificate of a chain may hide those on the others.
            Verdict::Allowed | Verdict::Confirmed(_) | Verdict::Listed(_) | Verdict::Unchecked => {
                depth == Depth::Chain
            }
            // The mildest verdict and decision: all certificates of a chain have it.
            Verdict::Clean => false,
        }
    }

    fn harder(self, other: Self) -> Self {
        match self.decision.hardness().cmp(&other.decision.hardness()) {
            std::cmp::Ordering::Greater => self,
            std::cmp::Ordering::Less => other,
            std::cmp::Ordering::Equal => {
                Self { verdict: self.verdict.worse(other.verdict), decision: self.decision }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rcgen::PublicKeyData;

    use super::*;
    use crate::guard::{FingerprintList, NamedFilter};
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
}
