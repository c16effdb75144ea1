//! The files beside a file that are fetched with it: checksum, signatures, metadata.

use std::path::{Path, PathBuf};

use hyper::StatusCode;
use keygate_core::badkeys::metadata_path;
use keygate_core::pkbf::sidecar_of;
use keygate_core::signature::{MAX_SIZE as MAX_SIGNATURE_SIZE, signature_path};

use super::error::{FetchError, SourceError, TransferError};
use super::job::FetchJob;

/// Maximum size of a checksum file, in bytes, 1 MiB; a larger one is rejected.
const MAX_CHECKSUM_SIZE: u64 = 1 << 20;

/// A companion of a file: its path beside the file in use, and its URL.
pub(super) struct Companion {
    pub(super) path: PathBuf,
    /// End of the URL, after the URL of the file.
    pub(super) suffix: &'static str,
    /// Maximum size, in bytes; a larger companion is rejected.
    pub(super) max_size: u64,
    /// The setting that needs the companion, and the remedy without one.
    remedy: &'static str,
}

impl Companion {
    fn checksum(path: &Path) -> Self {
        Self {
            path: sidecar_of(path),
            suffix: ".sha256",
            max_size: MAX_CHECKSUM_SIZE,
            remedy: "the checksum file is needed because of checksum = true, or because the file in use has one: publish it at this URL, or remove both",
        }
    }

    fn signature(path: &Path) -> Self {
        Self {
            path: signature_path(path),
            suffix: ".minisig",
            max_size: MAX_SIGNATURE_SIZE,
            remedy: "minisign_key needs a signature: publish the output of `minisign -S` at this URL, or remove minisign_key",
        }
    }

    /// The error of a request for the companion, with the remedy if the source does not have it.
    pub(super) fn error(&self, error: FetchError) -> FetchError {
        // S3 responds with 403 to a request for a missing file.
        let missing = [StatusCode::FORBIDDEN, StatusCode::GONE, StatusCode::NOT_FOUND];
        if let FetchError::Source { url, source: SourceError::Transfer(transfer) } = &error
            && let TransferError::Status(status) = transfer
            && missing.contains(status)
        {
            let source = SourceError::NoCompanion { status: *status, remedy: self.remedy };
            return FetchError::Source { url: url.clone(), source };
        }
        error
    }
}

impl FetchJob {
    /// The companions of the file.
    pub(super) fn companions(&self) -> Vec<Companion> {
        let path = self.path();
        // A reload checks the file against a checksum file if one exists.
        let checksum = Companion::checksum(path);
        let has_checksum =
            !self.is_crl() && (self.source.checksum || checksum.path.symlink_metadata().is_ok());
        let signature = self.is_signed().then(|| Companion::signature(path));
        has_checksum.then_some(checksum).into_iter().chain(signature).collect()
    }

    /// The companions of the metadata of a blocklist.
    pub(super) fn companions_of_metadata(&self) -> Vec<Companion> {
        let is_signed = self.is_blocklist() && self.is_signed();
        let signature = is_signed.then(|| Companion::signature(&metadata_path(self.path())));
        signature.into_iter().collect()
    }

    /// The files of a version in use: the file, its companions and its metadata.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let metadata = self.is_blocklist().then(|| metadata_path(self.path()));
        let companions = self.companions().into_iter().chain(self.companions_of_metadata());
        let companions = companions.map(|it| it.path);
        companions.chain(metadata).chain([self.path().to_owned()]).collect()
    }
}
