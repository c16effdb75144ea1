//! The files to fetch: filters and lists of the configuration that have a source.

use std::path::{Path, PathBuf};

use super::record::SourceId;
use super::state::FetchCounts;
use super::work_directory::{part_of, state_of};
use crate::config::{
    BlocklistConfig, Config, FetchConfig, FilterConfig, ListConfig, ListFormat, Shrink, SourceUrl,
};
use crate::snapshot::ShrunkFile;

/// URL of the metadata of the public blocklist.
pub const BADKEYS_URL: &str = "https://update.badkeys.info/v0/badkeysdata.json";
/// Maximum size of the public blocklist without a configuration, in bytes, 256 MiB: four times its
/// size.
const MAX_BLOCKLIST: u64 = 256 << 20;

/// A file to fetch, with its source.
#[derive(Debug, Clone)]
pub struct FetchJob {
    pub(super) source: FetchConfig,
    pub(super) file: JobFile,
    /// What to do about a rejected list if there is no configuration; otherwise empty.
    pub(super) advice: &'static str,
}

/// Errors name settings, which a job without a configuration does not have.
const WITHOUT_CONFIGURATION: &str = "; without a configuration, remove both files of the directory";

/// The file, with the settings of its checks.
#[derive(Debug, Clone)]
pub(super) enum JobFile {
    Filter { config: FilterConfig, state_dir: Option<PathBuf>, shrunk: ShrunkFile },
    List { config: ListConfig, shrunk: ShrunkFile },
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A filter.
    Filter,
    /// An exact list.
    List,
}

impl FileKind {
    /// The name in logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::List => "list",
        }
    }
}

impl FetchJob {
    /// The filters and lists of `config` that have a source, in their order.
    #[must_use]
    pub fn all(config: &Config, shrunk: ShrunkFile) -> Vec<Self> {
        let filters = config.filters.iter().filter_map(|filter| {
            let state_dir = config.state_dir.clone();
            let file = JobFile::Filter { config: filter.clone(), state_dir, shrunk };
            Some(Self { source: filter.source.clone()?, file, advice: "" })
        });
        let lists = config.lists.iter().filter_map(|list| {
            let file = JobFile::List { config: list.clone(), shrunk };
            Some(Self { source: list.source.clone()?, file, advice: "" })
        });
        filters.chain(lists).collect()
    }

    /// The public blocklist, or that of a mirror, into `directory`.
    #[must_use]
    pub fn badkeys(directory: &Path, url: SourceUrl, trust_anchors: Option<PathBuf>) -> Self {
        let source = FetchConfig { trust_anchors, ..FetchConfig::at(url) };
        let list = ListConfig {
            name: "badkeys".to_owned(),
            path: directory.join("blocklist.dat"),
            max_size: MAX_BLOCKLIST,
            format: ListFormat::Badkeys(BlocklistConfig::default()),
            min_records: 0,
            shrink: Shrink::Refuse,
            canaries: Vec::new(),
            max_new_hits: None,
            source: Some(source.clone()),
            minisign_key: None,
        };
        Self {
            source,
            file: JobFile::List { config: list, shrunk: ShrunkFile::Refuse },
            advice: WITHOUT_CONFIGURATION,
        }
    }

    /// The kind of the file.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        match self.file {
            JobFile::Filter { .. } => FileKind::Filter,
            JobFile::List { .. } => FileKind::List,
        }
    }

    /// The name of the filter or list.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.file {
            JobFile::Filter { config, .. } => &config.name,
            JobFile::List { config, .. } => &config.name,
        }
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match &self.file {
            JobFile::Filter { config, .. } => &config.path,
            JobFile::List { config, .. } => &config.path,
        }
    }

    /// Size of the part of a download, in bytes; 0 without one.
    #[must_use]
    pub fn part_size(&self) -> u64 {
        part_of(self.path()).path.metadata().map_or(0, |part| part.len())
    }

    /// Numbers about the earlier runs.
    #[must_use]
    pub fn counts(&self) -> FetchCounts {
        state_of(self.path()).counts
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

    pub(super) fn max_size(&self) -> u64 {
        match &self.file {
            JobFile::Filter { config, .. } => config.max_size,
            JobFile::List { config, .. } => config.max_size,
        }
    }

    /// Whether the file needs a signature.
    pub(super) fn is_signed(&self) -> bool {
        match &self.file {
            JobFile::Filter { config, .. } => config.minisign_key.is_some(),
            JobFile::List { config, .. } => config.minisign_key.is_some(),
        }
    }

    /// Whether the file is a blocklist with metadata.
    pub(super) fn is_blocklist(&self) -> bool {
        match &self.file {
            JobFile::Filter { .. } => false,
            JobFile::List { config, .. } => matches!(config.format, ListFormat::Badkeys(_)),
        }
    }
}
