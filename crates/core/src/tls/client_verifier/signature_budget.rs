//! The limit of signature checks in the search for a path, which comes before any proof of
//! possession. rustls-webpki's own limit is 100.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm};
use smallvec::SmallVec;

/// The checks that a search may still make. A check with a P-521 key takes 0.3 ms.
#[derive(Debug)]
pub(super) struct SignatureBudget(AtomicUsize);

/// Cost of a check that fails. One that succeeds costs 1.
const FAILED: usize = 3;
/// Eight checks that fail, or three paths of eight certificates.
const BUDGET: usize = 8 * FAILED;

/// An algorithm whose checks are counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted<'a> {
    algorithm: &'static dyn SignatureVerificationAlgorithm,
    budget: &'a SignatureBudget,
}

impl SignatureBudget {
    /// The budget of one search. A certificate names its issuer and not the key of the issuer: of
    /// `same_name` CAs of the file, all but one fail for a good client.
    pub(super) fn new(same_name: usize) -> Self {
        let more = same_name.saturating_sub(1).saturating_mul(FAILED);
        Self(BUDGET.saturating_add(more).into())
    }

    /// The algorithms, with checks that this budget limits.
    pub(super) fn limit(
        &self,
        algorithms: &[&'static dyn SignatureVerificationAlgorithm],
    ) -> SmallVec<[Counted<'_>; 16]> {
        algorithms.iter().map(|algorithm| Counted { algorithm: *algorithm, budget: self }).collect()
    }

    /// Whether no further check is made.
    pub(super) fn is_spent(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl SignatureVerificationAlgorithm for Counted<'_> {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        if self.budget.is_spent() {
            return Err(InvalidSignature);
        }
        let result = self.algorithm.verify_signature(public_key, message, signature);
        // A search runs in one thread.
        let left = self.budget.0.load(Ordering::Relaxed);
        let cost = if result.is_ok() { 1 } else { FAILED };
        self.budget.0.store(left.saturating_sub(cost), Ordering::Relaxed);
        result
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.signature_alg_id()
    }
}
