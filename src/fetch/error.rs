//! Why a file was not fetched, and what the operator can do about it.

mod transfer;

use std::io;
use std::path::{Path, PathBuf};

use hyper::StatusCode;
use keygate_core::badkeys::MetadataError;
use keygate_core::regular_file::{self, FileSize};
use keygate_core::tls::{self, TlsFileError};

pub use self::transfer::TransferError;
pub(super) use self::transfer::shortened;
use crate::config::SourceUrl;
use crate::sources::{CrlFileError, ExposedKeyFile, FileRejection};

/// Why a file was not fetched. The files in use are unchanged, unless an error between two renames
/// left files that do not belong together; the next run completes that update.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// An ACME server does not revoke a certificate.
    #[error("{url}: {problem}")]
    Acme {
        /// The URL.
        url: String,
        /// The reason and the remedy.
        problem: String,
    },
    /// No source of a file has a usable version.
    #[error("no source has a usable file: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Alternatives(Vec<Self>),
    /// Another process fetches the same file, and holds this lock file.
    #[error("{}: another keygate fetch is working on this file; wait until it ends", .0.display())]
    Busy(PathBuf),
    /// A file with credentials can be read by others.
    #[error("{0}; make it readable for the user that runs keygate fetch alone, or for its group")]
    Exposed(ExposedKeyFile),
    /// A directory belongs to a user who could replace the files in it while they are written.
    #[error(
        "{}: it belongs to user {owner}, and keygate fetch runs as user {user}; {}",
        path.display(),
        remedy_of_owner(path, *owner, *user)
    )]
    ForeignDirectory {
        /// The directory.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// Effective user id of the process.
        user: u32,
    },
    /// The file of header fields has a line that is none.
    #[error(
        "headers {}: line {line} is not `Name: value` with printable ASCII characters, or sets a field of keygate's own; correct it, as in `Authorization: Bearer KEY`",
        path.display()
    )]
    Headers {
        /// Path of the file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// The client certificate cannot be used.
    #[error("certificate {}: {source}; give the certificate and its private_key in PEM", path.display())]
    Identity {
        /// Path of the certificate.
        path: PathBuf,
        /// The reason.
        source: TlsFileError,
    },
    /// A file or directory cannot be read or written.
    #[error("{}: {}{}", path.display(), regular_file::cause(.source), remedy_of(.source))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// No file with the CAs of the system was found.
    #[error(
        "no CAs: the system has none of {}; install ca-certificates, or give trust anchors",
        crate::config::SYSTEM_TRUST_ANCHORS.join(", ")
    )]
    NoSystemTrustAnchors,
    /// The path names a link or something else that cannot be replaced by a rename.
    #[error("{}: not a regular file; give the path of the file itself, because it is replaced by a rename", .0.display())]
    NotRegular(PathBuf),
    /// A reload would reject the filter or list.
    #[error("{url}: rejected: {}{}", with_names_of_source(.source, staged, url), remedy_of_rejection(.source))]
    Rejected {
        /// URL of the file.
        url: String,
        /// Path of the file that was checked.
        staged: PathBuf,
        /// Why it is rejected.
        source: FileRejection,
    },
    /// The source has no usable file at this URL.
    #[error("{url}: {source}")]
    Source {
        /// The URL.
        url: String,
        /// The reason.
        source: SourceError,
    },
    /// rustls rejects the configuration.
    #[error("TLS cannot be configured: {}", tls::tls_error(.0))]
    Tls(#[from] rustls::Error),
    /// The file of CAs cannot be used.
    #[error("trust anchors {}: {source}; give the CAs of the server in PEM", path.display())]
    TrustAnchors {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        source: TlsFileError,
    },
}

impl FetchError {
    /// The error of the file or directory at `path`.
    pub(super) fn io(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path: path.clone(), source }
    }
}

/// Why a source has no usable file.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The URL of the blocklist in its metadata is none. The value is shortened.
    #[error("blocklist_url {0:?} is not the URL of a file; correct the URL, or try again later")]
    BlocklistUrl(String),
    /// A reload would reject the CRLs.
    #[error("rejected: {0}")]
    Crl(#[source] CrlFileError),
    /// The SHA-256 is another one than in the metadata.
    #[error(
        "its SHA-256 is {found}, but blocklist_sha256 is {expected}: one of the two is damaged or outdated; try again later"
    )]
    Digest {
        /// The SHA-256 in the metadata, in hex.
        expected: String,
        /// The SHA-256 of the unpacked blocklist, in hex.
        found: String,
    },
    /// The metadata of a blocklist are wrong.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The source does not have a companion of the file.
    #[error("{status}; {remedy}")]
    NoCompanion {
        /// The status.
        status: StatusCode,
        /// The setting that needs the companion, and the remedy.
        remedy: &'static str,
    },
    /// The metadata have no SHA-256.
    #[error("blocklist_sha256 is missing, so that the list cannot be verified; correct the URL")]
    NoDigest,
    /// The list is not published in this format any more, by the text of `deprecated`.
    #[error(
        "blocklist_url is missing: the list is not published in this format any more{}; look for a newer keygate",
        note(.0)
    )]
    Retired(String),
    /// The download failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The file cannot be unpacked.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
}

impl SourceError {
    /// The error of the file at `url`.
    pub(super) fn at(self, url: &SourceUrl) -> FetchError {
        FetchError::Source { url: url.to_string(), source: self }
    }
}

/// Why a file cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The content is damaged, or needs more memory than is permitted.
    #[error(
        "it cannot be unpacked: {0}; try again later, because the file at the source is damaged"
    )]
    Damaged(#[source] io::Error),
    /// The name ends in .xz, but the content is not an xz file.
    #[error(
        "its name ends in .xz, but it is no xz file; correct the URL, or let the source send the packed file under this name"
    )]
    NotPacked,
    /// The unpacked content is larger than this number of bytes.
    #[error(
        "it is unpacked larger than max_size, {}; correct the URL, or raise max_size",
        FileSize(*.0)
    )]
    TooLarge(u64),
    /// The content ends before the end of the xz file.
    #[error("the xz file ends early: it is truncated at the source; try again later")]
    Truncated,
}

/// The error of a check, in which the files that were checked have the names of their source.
fn with_names_of_source(error: &dyn std::fmt::Display, staged: &Path, url: &str) -> String {
    let text = error.to_string();
    match (staged.parent(), url.rsplit_once('/')) {
        (Some(directory), Some((source, _))) => {
            text.replace(&directory.display().to_string(), source)
        }
        (None, _) | (_, None) => text,
    }
}

fn remedy_of_owner(path: &Path, owner: u32, user: u32) -> String {
    if user == 0 {
        return format!("run it as user {owner}, or use another directory");
    }
    // Root has fetched the file before. Its directory may hold other files.
    let path = path.display();
    format!("give it to this user with chown -R {user} {path}, and a directory for downloads alone")
}

fn remedy_of_rejection(rejection: &FileRejection) -> &'static str {
    if matches!(rejection, FileRejection::Waits(_)) {
        "; keygate fetch --allow-shrunk lets the proxy hold it for that"
    } else {
        ""
    }
}

fn note(deprecation: &str) -> String {
    if deprecation.is_empty() { String::new() } else { format!(" ({deprecation})") }
}

fn remedy_of(error: &io::Error) -> &'static str {
    let kind = error.kind();
    if matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        "; make room for the file twice, packed and unpacked"
    } else if kind == io::ErrorKind::PermissionDenied {
        "; make the directory of the file writable for the user that runs keygate fetch"
    } else if kind == io::ErrorKind::NotFound {
        "; create the directory of the file"
    } else if kind == io::ErrorKind::ReadOnlyFilesystem {
        "; mount the file system of the file writable"
    } else if kind == io::ErrorKind::NotADirectory {
        "; remove what has the name of the directory, or give another path"
    } else if regular_file::is_too_large(error) {
        "; give the path of another file, because no setting raises this maximum"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests;
