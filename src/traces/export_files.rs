//! The files that `[traces]` names: CAs of the collector, and header fields for it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
use rustls::ClientConfig;
use zeroize::Zeroizing;

use crate::config::{AlpnProtocol, KeyPlace, PlacedProblem, TracesConfig};
use crate::regular_file::cause;
use crate::snapshot::{self, ExposedKeyFile};
use crate::tls::{self, TlsFileError};

/// Maximum size of a file of CAs, 16 MiB.
const MAX_TRUST_ANCHORS: u64 = 16 << 20;
/// Maximum size of the file of header fields, in bytes.
const MAX_HEADERS: u64 = 8192;
/// Fields that the exporter itself sets, or that would change the meaning of its requests.
const OWN_FIELDS: [HeaderName; 10] = [
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::EXPECT,
    header::HOST,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

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
        /// What to do.
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
    let pem = snapshot::read_bounded(path, MAX_TRUST_ANCHORS).map_err(|source| {
        let remedy = "give the CAs of the collector in PEM";
        TracesError::Read { key: "traces.trust_anchors", path: path.to_owned(), source, remedy }
    })?;
    let unusable = |source| TracesError::TrustAnchors { path: path.to_owned(), source };
    let anchors = tls::trust_anchors(&pem).map_err(unusable)?;
    Ok(tls::client_config(&anchors, None, &[AlpnProtocol::Http11.as_bytes()])?)
}

fn headers(path: &Path) -> Result<(HeaderMap, Option<ExposedKeyFile>), TracesError> {
    let file = snapshot::read_private_key(path, MAX_HEADERS).map_err(|source| {
        let remedy = "write one field a line, such as `Authorization: Bearer KEY`";
        TracesError::Read { key: "traces.headers", path: path.to_owned(), source, remedy }
    })?;
    match parse_headers(&file.content) {
        Ok(headers) => Ok((headers, file.exposed)),
        Err(line) => Err(TracesError::Headers { path: path.to_owned(), line }),
    }
}

/// The fields in `text`, one a line. Empty lines and lines that begin with `#` are left out.
///
/// # Errors
/// Returns the number of the first line that is no field.
fn parse_headers(text: &[u8]) -> Result<HeaderMap, usize> {
    let mut headers = HeaderMap::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (name, value) = field(line).ok_or(index + 1)?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn field(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = line.split_at_checked(colon)?;
    let name = HeaderName::from_bytes(name).ok().filter(|name| !OWN_FIELDS.contains(name))?;
    let value = value.strip_prefix(b":")?.trim_ascii();
    let is_printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    if value.is_empty() || !value.iter().all(is_printable) {
        return None;
    }
    let value = Bytes::from_owner(ZeroizingBytes(Zeroizing::new(value.to_vec())));
    let mut value = HeaderValue::from_maybe_shared(value).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

/// Zeroizes the bytes when the last clone of the header value is dropped.
struct ZeroizingBytes(Zeroizing<Vec<u8>>);

impl AsRef<[u8]> for ZeroizingBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_header_fields_has_one_a_line_and_none_of_keygates_own() {
        let text =
            b"# for the collector\r\n\r\nAuthorization: Bearer abc==\r\nx-team:a b\nX-Team: c";
        let headers = parse_headers(text).unwrap();
        assert_eq!(headers["authorization"], "Bearer abc==");
        assert_eq!(headers.get_all("x-team").iter().collect::<Vec<_>>(), ["a b", "c"]);
        assert!(!format!("{headers:?}").contains("abc"), "values are secret");
        for wrong in [
            "Authorization",
            "Authorization:",
            ": value",
            "a b: c",
            "a: b\u{e9}",
            "a: b\u{7}",
            "Content-Length: 1",
            "transfer-encoding: chunked",
            "HOST: other",
        ] {
            assert_eq!(parse_headers(format!("a: b\n{wrong}\n").as_bytes()), Err(2), "{wrong:?}");
        }
    }
}
