//! Queries of a command to a source, one after another: no schedule, and no answers are saved.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use keygate_core::spki::Fingerprint;
use tokio::sync::OnceCell;

use super::client::QueryError;
use super::lookup::{self, CanaryProblem, LookUpOutcome};
use super::source::Source;
use super::source_files::ConfirmError;
use crate::config::ConfirmConfig;
use crate::resolver::Resolver;
use crate::sources::ExposedKeyFile;

/// A source that a command queries directly.
#[derive(Debug)]
pub struct DirectSource {
    source: Source,
    /// The outcome of the check of the canary, which the first unknown key causes.
    canary: OnceCell<Result<(), CanaryProblem>>,
}

/// The answer of a source to one query.
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
        let mut source = Source::new(config, state_dir, resolver)?;
        if let Some(path) = &config.proofs {
            std::fs::read_dir(path)
                .map_err(|error| ConfirmError::directory("confirm.proofs", path, &error))?;
        }
        source.directories.saved.take_if(|directory| std::fs::read_dir(directory).is_err());
        Ok(Self { source, canary: OnceCell::new() })
    }

    /// The URL of the source, or the directory if there is no URL.
    #[must_use]
    pub fn name(&self) -> String {
        self.source.name()
    }

    /// Whether the source can clear keys that it does not know, if it knows its canary.
    #[must_use]
    pub fn clears(&self) -> bool {
        self.source.clears()
    }

    /// The problem with the permissions of the file with the API key.
    #[must_use]
    pub fn exposed_api_key(&self) -> Option<&ExposedKeyFile> {
        self.source.files.exposed.as_ref()
    }

    /// Queries a key by its encodings. Looks into the directory first.
    pub async fn query(&self, encodings: &[(Fingerprint, Arc<[u8]>)]) -> DirectAnswer {
        let Source { files, directories, client, .. } = &self.source;
        let mut look_up = directories.look_up(encodings);
        if let (Some(client), false) = (client, matches!(look_up, LookUpOutcome::Confirmed(_))) {
            let by_url = lookup::query_url(client, files, encodings).await;
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
            LookUpOutcome::Failed(error) => unanswered(error),
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
        let Source { files, directories, client, .. } = &self.source;
        let found = directories.find(fingerprint);
        let found = found.map_err(|error| DirectAnswer::Unanswered(error.to_string()))?;
        match (found, client) {
            (None, Some(client)) => {
                client.query().await.get(files, fingerprint).await.map_err(unanswered)
            }
            (found, _) => Ok(found),
        }
    }

    /// Checks once whether the source knows its canary.
    ///
    /// # Errors
    /// Returns the reason if it does not.
    pub async fn check_canary(&self) -> Result<(), CanaryProblem> {
        let check = async {
            match &self.source.client {
                Some(client) => lookup::check_canaries(client, &self.source.files).await,
                None => self.source.directories.check_canaries(&self.source.files.canaries),
            }
        };
        self.canary.get_or_init(|| check).await.clone()
    }
}

fn unanswered(error: QueryError) -> DirectAnswer {
    if let QueryError::RateLimited(pause) = error {
        return DirectAnswer::RateLimited(pause);
    }
    DirectAnswer::Unanswered(error.to_string())
}
