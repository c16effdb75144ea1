//! The files to fetch: filters, lists and CRLs of the configuration that have a source.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::download::MaxSize;
use super::record::SourceId;
use super::state::FetchCounts;
use super::work_directory::{unlocked_part, unlocked_state};
use crate::config::{
    Config, CrlConfig, FetchConfig, FilterConfig, ListConfig, ListFormat, Rollback, Shrink,
    SourceUrl,
};
use crate::saved_state::saved_credentials::MAX_CRL_SIZE;

/// URL of the metadata of the public blocklist.
pub const BADKEYS_URL: &str = "https://update.badkeys.info/v0/badkeysdata.json";
/// Maximum size of the public blocklist without a configuration, in bytes, 256 MiB: four times its
/// size.
const MAX_BLOCKLIST: u64 = 256 << 20;

/// A file to fetch, with its source.
#[derive(Debug, Clone)]
pub struct FetchJob {
    pub(super) source: FetchConfig,
    /// Further sources of the same file, for the case that the first ones fail.
    pub(super) alternatives: Vec<FetchConfig>,
    pub(super) file: JobFile,
}

/// The file, with the settings of its checks.
#[derive(Debug, Clone)]
pub(super) enum JobFile {
    Crl { path: PathBuf, name: String, config: Arc<Config> },
    Filter { config: FilterConfig, state_dir: Option<PathBuf>, shrunk: Shrink },
    List { config: ListConfig, shrunk: Shrink },
}

impl FetchJob {
    /// The filters, lists and CRLs of `config` that have a source, in their order.
    #[must_use]
    pub fn all(config: &Config, shrunk: Shrink) -> Vec<Self> {
        let filters = config.filters.iter().filter_map(|filter| {
            let state_dir = config.state.dir.clone();
            let file = JobFile::Filter { config: filter.clone(), state_dir, shrunk };
            Some(Self::new(filter.source.clone()?, file))
        });
        let lists = config.lists.iter().filter_map(|list| {
            let file = JobFile::List { config: list.clone(), shrunk };
            Some(Self::new(list.source.clone()?, file))
        });
        filters.chain(lists).chain(Self::crls(config)).collect()
    }

    /// The CRLs of `config` that have a source. Each file has one job, whichever services and
    /// authorizers name it.
    fn crls(config: &Config) -> Vec<Self> {
        let shared = Arc::new(config.clone());
        let services = config.services.iter().flat_map(|it| &it.client_auth.crls);
        let authorizers = config.authorizers.iter().flat_map(|it| &it.client_auth.crls);
        let mut jobs: Vec<Self> = Vec::new();
        for CrlConfig { path, sources } in services.chain(authorizers) {
            let mut sources = sources.iter().cloned();
            if let Some(known) = jobs.iter_mut().find(|job| job.path() == path) {
                let is_new =
                    |it: &FetchConfig| *it != known.source && !known.alternatives.contains(it);
                let further: Vec<_> = sources.filter(is_new).collect();
                known.alternatives.extend(further);
            } else if let Some(source) = sources.next() {
                let (name, config) = (path.display().to_string(), Arc::clone(&shared));
                let file = JobFile::Crl { path: path.clone(), name, config };
                jobs.push(Self { alternatives: sources.collect(), ..Self::new(source, file) });
            }
        }
        jobs
    }

    fn new(source: FetchConfig, file: JobFile) -> Self {
        Self { source, alternatives: Vec::new(), file }
    }

    /// The public blocklist, or a mirror's, into `directory`.
    #[must_use]
    pub fn badkeys(directory: &Path, url: SourceUrl, trust_anchors: Option<PathBuf>) -> Self {
        let source = FetchConfig { trust_anchors, ..FetchConfig::at(url) };
        let list = ListConfig {
            name: "badkeys".to_owned(),
            path: directory.join("blocklist.dat"),
            max_size: MAX_BLOCKLIST,
            format: ListFormat::Badkeys,
            min_records: 0,
            max_age: None,
            rollback: Rollback::Refuse,
            shrink: Shrink::Refuse,
            canaries: Vec::new(),
            max_new_hits: None,
            source: Some(source.clone()),
            minisign_key: None,
        };
        Self::new(source, JobFile::List { config: list, shrunk: Shrink::Refuse })
    }

    /// The kind of the file, in logs and metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.file {
            JobFile::Crl { .. } => "crl",
            JobFile::Filter { .. } => "filter",
            JobFile::List { .. } => "list",
        }
    }

    /// The name of the filter or list; the path of a file with CRLs.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.file {
            JobFile::Crl { name, .. } => name,
            JobFile::Filter { config, .. } => &config.name,
            JobFile::List { config, .. } => &config.name,
        }
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match &self.file {
            JobFile::Crl { path, .. } => path,
            JobFile::Filter { config, .. } => &config.path,
            JobFile::List { config, .. } => &config.path,
        }
    }

    /// Size of the part of a download, in bytes; 0 without one.
    #[must_use]
    pub fn part_size(&self) -> u64 {
        unlocked_part(self.path()).path.metadata().map_or(0, |part| part.len())
    }

    /// Numbers about the earlier runs.
    #[must_use]
    pub fn counts(&self) -> FetchCounts {
        unlocked_state(self.path()).counts
    }

    /// The URL of the source.
    #[must_use]
    pub fn url(&self) -> String {
        self.source.url.to_string()
    }

    /// The identity of the source.
    pub(super) fn source_id(&self) -> SourceId {
        SourceId::new(&self.source.url, &self.source)
    }

    pub(super) fn max_size(&self) -> MaxSize {
        let bytes = match &self.file {
            JobFile::Crl { .. } => MAX_CRL_SIZE,
            JobFile::Filter { config, .. } => config.max_size,
            JobFile::List { config, .. } => config.max_size,
        };
        MaxSize { bytes, is_key: !self.is_crl() }
    }

    /// Whether the file needs a signature.
    pub(super) fn is_signed(&self) -> bool {
        match &self.file {
            JobFile::Crl { .. } => false,
            JobFile::Filter { config, .. } => config.minisign_key.is_some(),
            JobFile::List { config, .. } => config.minisign_key.is_some(),
        }
    }

    /// Whether the file is a blocklist with metadata.
    pub(super) fn is_blocklist(&self) -> bool {
        match &self.file {
            JobFile::Crl { .. } | JobFile::Filter { .. } => false,
            JobFile::List { config, .. } => config.format == ListFormat::Badkeys,
        }
    }

    /// Whether the file has CRLs.
    pub(super) fn is_crl(&self) -> bool {
        matches!(self.file, JobFile::Crl { .. })
    }
}
