//! Checks a filter.

use std::path::{Path, PathBuf};

use keygate_core::spki::RsaExponents;

use super::Checker;
use super::fetch::Protection;
use crate::config::{FilterConfig, raw};

impl Checker<'_> {
    pub(super) fn filter(&self, path: &str, filter: raw::RawFilter) -> FilterConfig {
        FilterConfig {
            name: self.name(path, filter.name),
            path: self.path(&format!("{path}.path"), &filter.path),
            max_size: filter.max_size.0,
            max_age: filter.max_age.map(|age| age.0),
            rollback: filter.rollback,
            implausible: filter.implausible,
            canaries: self.paths(&format!("{path}.canaries"), &filter.canaries),
            max_new_hits: filter.max_new_hits,
            related_exponents: self.related_exponents(path, filter.related_exponents.as_deref()),
            source: self.source(
                path,
                filter.source.as_ref(),
                Protection::of(filter.minisign_key.as_ref()),
            ),
            minisign_key: self.minisign_key(path, filter.minisign_key.as_deref()),
        }
    }

    pub(super) fn minisign_key(&self, path: &str, file: Option<&Path>) -> Option<PathBuf> {
        file.map(|file| self.path(&format!("{path}.minisign_key"), file))
    }

    pub(super) fn related_exponents(&self, path: &str, numbers: Option<&[u32]>) -> RsaExponents {
        let Some(numbers) = numbers else { return RsaExponents::default() };
        RsaExponents::from_numbers(numbers).unwrap_or_else(|unknown| {
            let problem = format!("{unknown} is none of 3, 5, 17, 35, 37, 257 and 65537");
            self.invalid(format!("{path}.related_exponents"), problem);
            RsaExponents::default()
        })
    }
}
