//! The numbers of a filter file, for commands, JSON and the status page.

use std::path::Path;

use super::Filter;

/// The numbers of a filter file, as `filter info --json` and `/status` show them.
#[derive(Debug, Clone, serde::Serialize)]
pub struct FilterSummary {
    /// Path of the file.
    pub path: String,
    /// Revision in the header.
    pub revision: u32,
    /// Time of the last change, in seconds since the Unix epoch; 0 if there was none.
    pub updated: u64,
    /// Number of entries in the header.
    pub entries: u32,
    /// `k`, the number of bits that each entry sets.
    pub hash_count: u8,
    /// `L`, log2 of the filter size in bits.
    pub hash_length: u8,
    /// Size of the bit field, in bytes.
    pub size_bytes: u64,
    /// Number of bits that are set.
    pub set_bits: u64,
    /// Fraction of the bits that are set, 0 to 1.
    pub fill_ratio: f64,
    /// Probability that one lookup of a key that was never added is a hit, 0 to 1.
    pub false_positive_ratio: f64,
    /// Whether the header explains the number of bits that are set.
    pub plausible: bool,
    /// SHA-256 of the file, in hex.
    pub sha256: String,
}

impl FilterSummary {
    /// Summarizes `filter`, which was read from `path` and has the file digest `sha256`.
    #[must_use]
    pub fn new(path: &Path, filter: &Filter, sha256: &[u8; 32]) -> Self {
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
