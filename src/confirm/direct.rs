//! Questions of a command to a source, one after another: no schedule, and no answers are kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use keygate_core::spki::Fingerprint;
use tokio::sync::OnceCell;

use super::client::{SourceClient, SourceError};
use super::lookup::{self, CanaryProblem, LookUpOutcome, ProofDirectories};
use super::source::{KEPT_PROOFS, clears, source_of};
use super::source_files::{ConfirmError, SourceFiles};
use crate::config::ConfirmConfig;
use crate::resolver::Resolver;
use crate::snapshot::ExposedKeyFile;

/// A source that a command asks directly.
#[derive(Debug)]
pub struct DirectSource {
    config: ConfirmConfig,
    files: SourceFiles,
    directories: ProofDirectories,
    client: Option<SourceClient>,
    /// The outcome of the check of the canary, which the first unknown key causes.
    canary: OnceCell<Result<(), CanaryProblem>>,
}

/// The answer of a source to one question.
#[derive(Debug)]
pub enum DirectAnswer {
    /// A verified proof.
    Confirmed {
        /// The fingerprint of the encoding that the proof is for.
        fingerprint: Fingerprint,
        /// The bytes of the proof.
        body: Vec<u8>,
        /// The file with the proof; `None` if it came from the URL.
        file: Option<PathBuf>,
    },
    /// The pause that the source has requested.
    RateLimited(Duration),
    /// There was no usable answer, with the reason.
    Unanswered(String),
    /// The source knows none of the encodings, and it cannot clear keys: `http://` to another
    /// machine, a directory that is not complete, or `canary = "off"`.
    Unknown,
    /// The source knows none of the encodings, and knows its canary.
    UnknownForCertain,
}

impl DirectSource {
    /// Reads the files of the source. Proofs in `state_dir` count if the user can read it. Blocks.
    ///
    /// # Errors
    /// Returns an error if a file cannot be used.
    pub fn new(
        config: &ConfirmConfig,
        state_dir: Option<&Path>,
        resolver: Resolver,
    ) -> Result<Self, ConfirmError> {
        let files = SourceFiles::read(config)?;
        if let Some(path) = &config.proofs {
            let unusable = |source| ConfirmError::Directory {
                key: "confirm.proofs",
                path: path.clone(),
                source,
            };
            std::fs::read_dir(path).map_err(unusable)?;
        }
        let kept = state_dir.map(|directory| directory.join(KEPT_PROOFS));
        let kept = kept.filter(|directory| std::fs::read_dir(directory).is_ok());
        let directories = ProofDirectories { kept, configured: config.proofs.clone() };
        let client = config.url.clone().map(|url| SourceClient::new(url, config.timeout, resolver));
        Ok(Self { config: config.clone(), files, directories, client, canary: OnceCell::new() })
    }

    /// The URL of the source, or the directory if there is no URL.
    #[must_use]
    pub fn name(&self) -> String {
        source_of(&self.config)
    }

    /// Whether the source can clear keys that it does not know, if it knows its canary.
    #[must_use]
    pub fn clears(&self) -> bool {
        clears(&self.config)
    }

    /// The problem with the permissions of the file with the API key.
    #[must_use]
    pub fn exposed_api_key(&self) -> Option<&ExposedKeyFile> {
        self.files.exposed.as_ref()
    }

    /// Asks about a key by its encodings. Looks into the directory first.
    pub async fn ask(&self, encodings: &[(Fingerprint, Arc<[u8]>)]) -> DirectAnswer {
        let mut look_up = self.directories.look_up(encodings);
        if let (Some(client), false) =
            (&self.client, matches!(look_up, LookUpOutcome::Confirmed(_)))
        {
            let by_url = lookup::ask_url(client, &self.files, encodings).await;
            // A file that cannot be used may be the proof.
            if !matches!(by_url, LookUpOutcome::Unknown) {
                look_up = by_url;
            }
        }
        match look_up {
            LookUpOutcome::Confirmed(found) => DirectAnswer::Confirmed {
                fingerprint: found.fingerprint,
                body: found.body,
                file: found.file,
            },
            LookUpOutcome::DirectoryFailed(error) => DirectAnswer::Unanswered(error.to_string()),
            LookUpOutcome::Failed(SourceError::RateLimited(pause)) => {
                DirectAnswer::RateLimited(pause)
            }
            LookUpOutcome::Failed(error) => DirectAnswer::Unanswered(error.to_string()),
            LookUpOutcome::Unknown => self.unknown().await,
            LookUpOutcome::Unusable(unusable) => {
                let reason = unusable.reason.as_str();
                DirectAnswer::Unanswered(format!("the proof does not verify: {reason}"))
            }
        }
    }

    async fn unknown(&self) -> DirectAnswer {
        if !self.clears() {
            return DirectAnswer::Unknown;
        }
        match self.check_canary().await {
            Ok(()) => DirectAnswer::UnknownForCertain,
            Err(error) => {
                DirectAnswer::Unanswered(format!("the check of the canary failed: {error}"))
            }
        }
    }

    /// The body of the proof for `fingerprint`, which is not verified: no key is known.
    ///
    /// # Errors
    /// Returns the reason if there is no answer.
    pub async fn fetch(&self, fingerprint: &Fingerprint) -> Result<Option<Vec<u8>>, DirectAnswer> {
        let unanswered =
            |error: &dyn std::fmt::Display| DirectAnswer::Unanswered(error.to_string());
        match self.directories.find(fingerprint) {
            Ok(Some(body)) => return Ok(Some(body)),
            Ok(None) => {}
            Err(error) => return Err(unanswered(&error)),
        }
        let Some(client) = &self.client else { return Ok(None) };
        match client.get(&self.files, fingerprint).await {
            Ok(response) => Ok(response.into_body()),
            Err(SourceError::RateLimited(pause)) => Err(DirectAnswer::RateLimited(pause)),
            Err(error) => Err(unanswered(&error)),
        }
    }

    /// Checks once whether the source knows its canary.
    ///
    /// # Errors
    /// Returns the reason if it does not.
    pub async fn check_canary(&self) -> Result<(), CanaryProblem> {
        let check = async {
            match &self.client {
                Some(client) => {
                    lookup::check_canaries(client, &self.files, &self.files.canaries).await
                }
                None => self.directories.check_canaries(&self.files.canaries),
            }
        };
        self.canary.get_or_init(|| check).await.clone()
    }
}
