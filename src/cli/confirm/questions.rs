//! The questions about a key: its encodings that are in a filter of the source.

use std::sync::Arc;

use keygate_core::pkbf::{self, Filter};
use keygate_core::spki::{Encoding, Fingerprint, related};

use crate::cli::CliError;
use crate::cli::signature;
use crate::config::FilterConfig;

/// Selects the encodings of keys to ask about.
#[derive(Debug, Default)]
pub(super) struct QuestionMaker {
    /// `None` without a configuration: every encoding is asked about.
    filters: Option<SourceFilters>,
}

/// The filters of the configuration.
#[derive(Debug)]
struct SourceFilters {
    /// The filters whose hits the source answers for.
    covered: Vec<Filter>,
    others: Vec<Filter>,
}

/// The encodings of a key to ask about; none if there is no question.
#[derive(Debug, Default)]
pub(super) struct AskedKey {
    names: Vec<Encoding>,
    pub(super) encodings: Vec<(Fingerprint, Arc<[u8]>)>,
    /// Whether a filter that the source does not answer for has the key. The source cannot clear
    /// it.
    pub(super) is_in_other_filter: bool,
}

impl QuestionMaker {
    /// Reads the filters of a configuration. The source answers for those with the names `covered`.
    pub(super) fn read(filters: &[FilterConfig], covered: &[String]) -> Result<Self, CliError> {
        let mut read = SourceFilters { covered: Vec::new(), others: Vec::new() };
        for FilterConfig { name, path, max_size, minisign_key, .. } in filters {
            let file = pkbf::read(path, *max_size);
            let filter = file.map_err(|error| CliError::file(path, error))?.filter;
            if let Some(keys) = minisign_key {
                let (header, bits) = filter.to_parts();
                signature::verify(keys, path, &[&header, bits])?;
            }
            let is_covered = covered.contains(name);
            if is_covered { &mut read.covered } else { &mut read.others }.push(filter);
        }
        Ok(Self { filters: Some(read) })
    }

    /// The question about the key with this SubjectPublicKeyInfo (DER). `found` is the name of the
    /// encoding that another proxy has found in its filter: without a filter it is asked about
    /// first. `all` asks about keys in no filter, too.
    pub(super) fn ask(&self, spki: &[u8], found: Option<&str>, all: bool) -> AskedKey {
        let mut asked = AskedKey::default();
        let Some(filters) = &self.filters else {
            // The source may have its proof under another encoding than the filter.
            let mut encodings = related(spki);
            encodings.sort_by_key(|(encoding, _)| found != Some(encoding.as_str())); // stable
            encodings.iter().for_each(|(encoding, spki)| asked.push(*encoding, spki));
            return asked;
        };
        let contains = |filters: &[Filter], spki: &[u8]| filters.iter().any(|it| it.contains(spki));
        for (encoding, spki) in related(spki) {
            if contains(&filters.covered, &spki) {
                asked.push(encoding, &spki);
            }
            asked.is_in_other_filter |= contains(&filters.others, &spki);
        }
        if asked.encodings.is_empty() && all {
            related(spki).iter().for_each(|(encoding, spki)| asked.push(*encoding, spki));
        }
        asked
    }
}

impl AskedKey {
    fn push(&mut self, encoding: Encoding, spki: &[u8]) {
        self.names.push(encoding);
        self.encodings.push((Fingerprint::of(spki), Arc::from(spki)));
    }

    /// Fingerprint and name of each encoding.
    pub(super) fn named(&self) -> impl Iterator<Item = (Fingerprint, &'static str)> {
        let names = self.names.iter().map(|encoding| encoding.as_str());
        self.encodings.iter().map(|(fingerprint, _)| *fingerprint).zip(names)
    }

    pub(super) fn name_of(&self, fingerprint: &Fingerprint) -> Option<&'static str> {
        self.named().find(|(known, _)| known == fingerprint).map(|(_, name)| name)
    }
}
