//! What there is to say of a filter file, in one shape for every command and page.

use std::path::Path;

use super::Filter;

/// A filter file in numbers, as `filter info --json` and `/status` show it.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "proxy", derive(serde::Serialize))]
pub struct FilterSummary {
    /// The file.
    pub path: String,
    /// The header's revision.
    pub revision: u32,
    /// When the filter was last written, in seconds since the Unix epoch; 0: never.
    pub updated: u64,
    /// Keys that were added, as the header counts them.
    pub entries: u32,
    /// How many bits each key has (k).
    pub hash_count: u8,
    /// The logarithm of the number of bits (L).
    pub hash_length: u8,
    /// The size of the bits.
    pub size_bytes: u64,
    /// How many bits are set.
    pub set_bits: u64,
    /// The share of the bits that are set, 0 to 1.
    pub fill_ratio: f64,
    /// The chance that one look-up of an unknown key hits, 0 to 1.
    pub false_positive_ratio: f64,
    /// Whether the header explains the bits.
    pub plausible: bool,
    /// SHA-256 of the file, in hex.
    pub sha256: String,
}

impl FilterSummary {
    /// Sums up `filter`, which was read from `path` and whose file has the digest `sha256`.
    #[must_use]
    pub fn of(path: &Path, filter: &Filter, sha256: &[u8; 32]) -> Self {
        let header = filter.header();
        Self {
            path: path.display().to_string(),
            revision: header.revision,
            updated: header.updated_at,
            entries: header.entry_count,
            hash_count: header.hash_count,
            hash_length: header.hash_length,
            size_bytes: header.data_size(),
            set_bits: filter.set_bits(),
            fill_ratio: filter.fill_ratio(),
            false_positive_ratio: filter.false_positive_ratio(),
            plausible: filter.plausibility().is_plausible(),
            sha256: data_encoding::HEXLOWER.encode(sha256),
        }
    }
}
