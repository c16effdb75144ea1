//! The revocation lists in use.

use std::path::Path;

use keygate_core::tls::{Crls, RevocationList};
use serde::Serialize;

/// A CRL in use.
#[derive(Debug, Clone, Serialize)]
pub struct CrlReport {
    /// Distinguished name of the issuer.
    pub issuer: String,
    /// The distribution point that the CRL is limited to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution_point: Option<String>,
    /// Path of the file.
    pub path: String,
    /// CRL number; hexadecimal after `0x` if it has more than 64 bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<String>,
    /// When the CRL was issued.
    pub this_update: u64,
    /// When the CRL expires.
    pub next_update: u64,
    /// Number of revoked certificates.
    pub entries: usize,
}

impl CrlReport {
    /// All CRLs of a service or authorizer.
    pub(crate) fn all(crls: &Crls) -> Vec<Self> {
        crls.lists().into_iter().map(|(list, path)| Self::new(list, path)).collect()
    }

    /// The CRL `list`, read from `path`.
    fn new(list: &RevocationList, path: &Path) -> Self {
        Self {
            issuer: list.issuer.clone(),
            distribution_point: list.distribution_point(),
            path: path.display().to_string(),
            number: list.version.number.map(|number| number.to_string()),
            this_update: list.version.this_update,
            next_update: list.next_update,
            entries: list.entries(),
        }
    }
}
