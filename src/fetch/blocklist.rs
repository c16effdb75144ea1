//! The metadata of a blocklist at its source: where the list is, and what it must be.

use keygate_core::badkeys::Metadata;

use super::error::{FetchError, SourceError, shortened};
use crate::config::SourceUrl;

/// The blocklist that metadata name.
pub(super) struct NamedList {
    pub(super) url: SourceUrl,
    /// SHA-256 of the unpacked list.
    pub(super) sha256: [u8; 32],
}

/// The blocklist that the metadata from `url` name. If the name is on another server, the metadata
/// are a copy, and the list is beside them: a URL of another server could lead to one that only this
/// machine can reach, or to a connection without TLS.
pub(super) fn named_list(url: &SourceUrl, metadata: &Metadata) -> Result<NamedList, FetchError> {
    let Some(found) = &metadata.blocklist_url else {
        return Err(SourceError::Retired(metadata.deprecation.clone()).at(url));
    };
    let Some(mut list) = SourceUrl::parse_file(found) else {
        return Err(SourceError::BlocklistUrl(shortened(found)).at(url));
    };
    if !list.has_same_origin(url) {
        let (directory, _) = url.path.rsplit_once('/').unwrap_or_default();
        let (_, name) = list.path.rsplit_once('/').unwrap_or_default();
        list = SourceUrl { path: format!("{directory}/{name}"), ..url.clone() };
    }
    match metadata.blocklist_sha256 {
        Some(sha256) => Ok(NamedList { url: list, sha256 }),
        None => Err(SourceError::NoDigest.at(url)),
    }
}
