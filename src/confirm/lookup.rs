//! One look-up, in the directories or by the URL, with every proof verified.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use keygate_core::proof::{self, BadProof};
use keygate_core::spki::Fingerprint;

use super::client::{QueryError, SourceClient};
use super::proof_directory;
use super::source_files::{CanaryKey, SourceFiles};

/// The directories with proofs.
#[derive(Debug, Clone, Default)]
pub(super) struct ProofDirectories {
    /// `state.dir/proofs`, with the proofs that this process has found.
    pub(super) saved: Option<PathBuf>,
    /// `confirm.proofs`.
    pub(super) configured: Option<PathBuf>,
}

/// A verified proof.
#[derive(Debug)]
pub(super) struct FoundProof {
    pub(super) fingerprint: Fingerprint,
    pub(super) spki: Arc<[u8]>,
    pub(super) body: Vec<u8>,
    /// The file with the proof; `None` if it came from the URL.
    pub(super) file: Option<PathBuf>,
    /// Whether the proof is in the state directory already.
    pub(super) is_saved: bool,
}

/// A body that proves nothing about the key.
#[derive(Debug)]
pub(super) struct UnusableProof {
    pub(super) fingerprint: Fingerprint,
    /// The file with the body; `None` if it came from the URL.
    pub(super) file: Option<PathBuf>,
    pub(super) reason: UnusableReason,
}

/// Why a body proves nothing about the key.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub(super) enum UnusableReason {
    #[error("{}", QueryError::Encoded)]
    Encoded,
    #[error(transparent)]
    Proof(BadProof),
}

impl UnusableReason {
    /// The reason in logs: one word.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Encoded => "encoding",
            Self::Proof(reason) => reason.as_str(),
        }
    }
}

/// The outcome of a look-up.
#[derive(Debug)]
pub(super) enum LookUpOutcome {
    Confirmed(FoundProof),
    /// The directories cannot be read.
    DirectoryFailed(io::Error),
    Failed(QueryError),
    /// The source knows none of the encodings.
    Unknown,
    Unusable(UnusableProof),
}

impl ProofDirectories {
    /// Looks for a proof of any of `encodings`. A file that proves nothing does not hide another
    /// one. Blocks.
    pub(super) fn look_up(&self, encodings: &[CanaryKey]) -> LookUpOutcome {
        let mut outcome = LookUpOutcome::Unknown;
        let saved = self.saved.iter().map(|directory| (directory, true));
        let configured = self.configured.iter().map(|directory| (directory, false));
        for (directory, is_saved) in saved.chain(configured) {
            for (fingerprint, spki) in encodings {
                for file in proof_directory::files(directory, fingerprint) {
                    let (file, body) = match file {
                        Ok(file) => file,
                        Err(error) => {
                            outcome = LookUpOutcome::DirectoryFailed(error);
                            continue;
                        }
                    };
                    match verified(*fingerprint, spki, body, Some(file)) {
                        Ok(found) => {
                            return LookUpOutcome::Confirmed(FoundProof { is_saved, ..found });
                        }
                        Err(unusable) => outcome = LookUpOutcome::Unusable(unusable),
                    }
                }
            }
            if let Err(error) = proof_directory::ensure_exists(directory) {
                outcome = LookUpOutcome::DirectoryFailed(error);
            }
        }
        outcome
    }

    /// Whether the configured directory has a proof of every one of `canaries`. Blocks.
    pub(super) fn check_canaries(&self, canaries: &[CanaryKey]) -> Result<(), CanaryProblem> {
        let source = Self { saved: None, configured: self.configured.clone() };
        for canary in canaries {
            let outcome = source.look_up(std::slice::from_ref(canary));
            CanaryProblem::check(&canary.0, outcome, "there is no file")?;
        }
        Ok(())
    }

    /// The content of the file for `fingerprint`. Blocks.
    pub(super) fn find(&self, fingerprint: &Fingerprint) -> io::Result<Option<Vec<u8>>> {
        let mut failed = None;
        for directory in self.saved.iter().chain(&self.configured) {
            for file in proof_directory::files(directory, fingerprint) {
                match file {
                    Ok((_, body)) => return Ok(Some(body)),
                    Err(error) => failed = Some(error),
                }
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Whether the configured directory has a file for one of `fingerprints`. Blocks.
    pub(super) fn named<'a>(
        &self,
        fingerprints: impl IntoIterator<Item = &'a Fingerprint>,
    ) -> Vec<Fingerprint> {
        let Some(directory) = &self.configured else { return Vec::new() };
        let named = |it: &&Fingerprint| proof_directory::has(directory, it);
        fingerprints.into_iter().filter(named).copied().collect()
    }
}

/// Requests proofs of the encodings from the URL in turn, until there is a proof of one.
pub(super) async fn query_url(
    client: &SourceClient,
    files: &SourceFiles,
    encodings: &[CanaryKey],
) -> LookUpOutcome {
    let mut outcome = LookUpOutcome::Unknown;
    let query = client.query().await;
    for (fingerprint, spki) in encodings {
        match query.get(files, fingerprint).await {
            Ok(Some(body)) => match verified(*fingerprint, spki, body, None) {
                Ok(found) => return LookUpOutcome::Confirmed(found),
                Err(unusable) => outcome = LookUpOutcome::Unusable(unusable),
            },
            Ok(None) => {}
            Err(QueryError::Encoded) => {
                let (fingerprint, reason) = (*fingerprint, UnusableReason::Encoded);
                outcome =
                    LookUpOutcome::Unusable(UnusableProof { fingerprint, file: None, reason });
            }
            Err(error) => return LookUpOutcome::Failed(error),
        }
    }
    outcome
}

/// Why a source counts as one that does not know its canary.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct CanaryProblem {
    pub(super) error: String,
    /// The remedy for the operator.
    pub remedy: &'static str,
    /// The time for which the source rejects requests (`Retry-After`).
    pub(super) pause: Option<Duration>,
    /// Whether the source has answered, and does not know its canary.
    pub(super) is_answer: bool,
}

impl CanaryProblem {
    /// The problem of a source whose look-up of its `canary` has this outcome. `missing` describes
    /// an unknown key.
    fn check(
        canary: &Fingerprint,
        outcome: LookUpOutcome,
        missing: &str,
    ) -> Result<(), CanaryProblem> {
        let (error, remedy, failure) = match outcome {
            LookUpOutcome::Confirmed(_) => return Ok(()),
            LookUpOutcome::DirectoryFailed(error) => {
                (error.to_string(), "make it readable for the user that runs keygate", None)
            }
            LookUpOutcome::Failed(error) => (error.to_string(), error.remedy(), Some(error)),
            LookUpOutcome::Unknown => {
                let remedy = "add the proofs of the canary to the source, or set confirm.canary";
                (missing.to_owned(), remedy, None)
            }
            LookUpOutcome::Unusable(unusable) => {
                let remedy = "replace the file by the proof of the canary, or correct confirm.url";
                (unusable.reason.to_string(), remedy, None)
            }
        };
        let pause = match failure {
            Some(QueryError::RateLimited(pause)) => Some(pause),
            Some(_) | None => None,
        };
        let error = format!("{canary}: {error}");
        Err(Self { error, remedy, pause, is_answer: failure.is_none() })
    }

    /// A check that was not made to its end.
    pub(super) fn unfinished(error: &impl Display) -> Self {
        let remedy = "check the file system of confirm.proofs";
        Self { error: error.to_string(), remedy, pause: None, is_answer: false }
    }
}

/// Whether the URL knows every canary in `files`.
pub(super) async fn check_canaries(
    client: &SourceClient,
    files: &SourceFiles,
) -> Result<(), CanaryProblem> {
    for canary in &files.canaries {
        let outcome = query_url(client, files, std::slice::from_ref(canary)).await;
        CanaryProblem::check(&canary.0, outcome, "404 Not Found")?;
    }
    Ok(())
}

fn verified(
    fingerprint: Fingerprint,
    spki: &Arc<[u8]>,
    body: Vec<u8>,
    file: Option<PathBuf>,
) -> Result<FoundProof, UnusableProof> {
    match proof::verify(&body, spki) {
        Ok(_) => {
            Ok(FoundProof { fingerprint, spki: Arc::clone(spki), body, file, is_saved: false })
        }
        Err(error) => {
            Err(UnusableProof { fingerprint, file, reason: UnusableReason::Proof(error) })
        }
    }
}
