//! The files that `[traces]` names: CAs of the collector, and header fields for it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::HeaderMap;
use keygate_core::regular_file::cause;
use keygate_core::tls::{self, TlsFileError};
use rustls::ClientConfig;

use crate::config::{AlpnProtocol, KeyPlace, PlacedProblem, TracesConfig};
use crate::files;
use crate::http_client::{MAX_HEADERS, parse_headers};
use crate::sources::{self, ExposedKeyFile};

/// Maximum size of a file of CAs, 16 MiB.
const MAX_TRUST_ANCHORS: u64 = 16 << 20;
/// Why the table `[traces]` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// The file of header fields has a line that is none.
    #[error(
        "traces.headers {}: line {line} is not `Name: value` with printable ASCII characters, or \
         sets a field of keygate's own; write a field that the collector needs, such as \
         `Authorization: Bearer KEY`",
        path.display()
    )]
    Headers {
        /// Path of the file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// A file cannot be read.
    #[error("{key} {}: {}; {remedy}", path.display(), cause(source))]
    Read {
        /// Configuration key that names the file.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
        /// The remedy.
        remedy: &'static str,
    },
    /// rustls rejects the configuration.
    #[error("traces.endpoint: TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The file of CAs cannot be used.
    #[error("traces.trust_anchors {}: {source}; give the CAs of the collector in PEM", path.display())]
    TrustAnchors {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        source: TlsFileError,
    },
}

impl TracesError {
    /// The error with the key of the configuration that names the file.
    #[must_use]
    pub fn placed(&self) -> PlacedProblem {
        let key = match self {
            Self::Headers { .. } => "traces.headers",
            Self::Read { key, .. } => key,
            Self::Tls(_) => "traces.endpoint",
            Self::TrustAnchors { .. } => "traces.trust_anchors",
        };
        PlacedProblem { place: Some(KeyPlace::new(key)), problem: self.to_string() }
    }
}

/// The content of the files.
#[derive(Debug)]
pub(super) struct ExportFiles {
    /// `None` for a collector without TLS.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// Fields of each request. Their values are zeroized on drop.
    pub(super) headers: HeaderMap,
    /// The problem with the permissions of the file of header fields.
    pub(super) exposed: Option<ExposedKeyFile>,
}

impl ExportFiles {
    /// Reads the files that `config` names. Blocks.
    pub(super) fn read(config: &TracesConfig) -> Result<Self, TracesError> {
        let tls = match &config.trust_anchors {
            Some(path) => Some(Arc::new(client_config(path)?)),
            None => None,
        };
        let (headers, exposed) = match &config.headers {
            Some(path) => headers(path)?,
            None => (HeaderMap::new(), None),
        };
        Ok(Self { tls, headers, exposed })
    }
}

fn client_config(path: &Path) -> Result<ClientConfig, TracesError> {
    let pem = files::read_bounded(path, MAX_TRUST_ANCHORS).map_err(|source| {
        let remedy = "give the CAs of the collector in PEM";
        TracesError::Read { key: "traces.trust_anchors", path: path.to_owned(), source, remedy }
    })?;
    let unusable = |source| TracesError::TrustAnchors { path: path.to_owned(), source };
    let anchors = tls::trust_anchors(&pem).map_err(unusable)?;
    Ok(tls::client_config(&anchors, None, &[AlpnProtocol::Http11.as_bytes()], &[])?)
}

fn headers(path: &Path) -> Result<(HeaderMap, Option<ExposedKeyFile>), TracesError> {
    let file = sources::read_private_key(path, MAX_HEADERS).map_err(|source| {
        let remedy = "write one field a line, such as `Authorization: Bearer KEY`";
        TracesError::Read { key: "traces.headers", path: path.to_owned(), source, remedy }
    })?;
    match parse_headers(&file.content) {
        Ok(headers) => Ok((headers, file.exposed)),
        Err(line) => Err(TracesError::Headers { path: path.to_owned(), line }),
    }
}
