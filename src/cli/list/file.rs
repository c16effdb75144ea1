//! List files as the commands read them.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use keygate_core::badkeys::{self, BlocklistFile};
use keygate_core::guard::{ExactList, FingerprintList, NamedBlocklist};
use keygate_core::pkbf::check_sidecar;
use keygate_core::regular_file;
use keygate_core::spki::KeyDigest;
use keygate_core::unix_time::dated;
use serde::Serialize;

use crate::cli::CliError;
use crate::cli::signature::{SignatureArgs, SignatureInfo};
use crate::sources::FileRejection;

/// Maximum size of a list, in bytes, 1 GiB: four times the default of the proxy. A larger file is
/// an error before it is read.
const MAX_SIZE: u64 = 1 << 30;

/// The format of a list file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// A blocklist.dat of badkeys.
    Badkeys,
    /// A text with one digest of a key a line.
    Fingerprints,
}

/// The option `--format`.
#[derive(Debug, clap::Args)]
pub(super) struct FormatArgs {
    /// The format of the file; by default text is read as fingerprints, anything else as badkeys.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
}

/// A list and the properties of its file.
pub(super) struct ListFile {
    pub(super) list: ExactList,
    pub(super) info: ListInfo,
}

/// The properties of a list file.
#[derive(Debug, Serialize)]
pub(super) struct ListInfo {
    pub(super) path: String,
    pub(super) format: &'static str,
    pub(super) entries: usize,
    pub(super) size_bytes: u64,
    pub(super) sha256: String,
    /// Date of a blocklist, in seconds since the Unix epoch; null if it is unknown.
    pub(super) updated: Option<u64>,
    /// Whether the format of a blocklist is deprecated, by its metadata.
    pub(super) deprecated: bool,
    /// The collections of a blocklist, or the kinds of digests of another list.
    pub(super) parts: Vec<ListPart>,
    /// The signature beside the file; null without one.
    pub(super) signature: Option<SignatureInfo>,
}

impl ListInfo {
    /// The date for people.
    pub(super) fn date(&self) -> String {
        self.updated.map_or_else(|| "unknown".to_owned(), dated)
    }
}

/// Entries of a list that have something in common.
#[derive(Debug, Serialize)]
pub(super) struct ListPart {
    /// Number of the collection; null in a list of fingerprints.
    pub(super) id: Option<u8>,
    pub(super) name: String,
    pub(super) entries: usize,
}

impl FormatArgs {
    /// Reads and checks the list at `path`, and verifies its signatures if `signature` has keys.
    pub(super) fn read(
        &self,
        path: &Path,
        signature: &SignatureArgs,
    ) -> Result<ListFile, CliError> {
        let failed = |source: FileRejection| CliError::file(path, source);
        let format = match self.format {
            Some(format) => format,
            None => format_of(path).map_err(|error| failed(error.into()))?,
        };
        match format {
            Format::Badkeys => {
                let file = badkeys::read(path, MAX_SIZE).map_err(|error| failed(error.into()))?;
                let content: &[&[u8]] = &[file.blocklist.content()];
                let own = signature.check(path, content)?;
                if file.metadata.is_some() {
                    signature.check(&badkeys::metadata_path(path), &[&file.metadata_content])?;
                }
                Ok(list_of_blocklist(path, file, own))
            }
            Format::Fingerprints => {
                let (list, content) = read_fingerprints(path).map_err(failed)?;
                let own = signature.check(path, &[&content])?;
                Ok(list_of_fingerprints(path, list, &content, own))
            }
        }
    }
}

/// The format by the start of the file: text has no control characters and is UTF-8. An empty file
/// is an empty list of fingerprints, unless it is called `*.dat`.
fn format_of(path: &Path) -> io::Result<Format> {
    const PROBE: u64 = 4096;
    let mut start = Vec::new();
    regular_file::open(path)?.take(PROBE).read_to_end(&mut start)?;
    if start.is_empty() && path.extension().is_some_and(|it| it == "dat") {
        return Ok(Format::Badkeys);
    }
    let is_utf8 = match std::str::from_utf8(&start) {
        Ok(_) => true,
        // The last character may go on after the probe.
        Err(error) => error.error_len().is_none() && start.len() as u64 == PROBE,
    };
    let is_control = |byte: &u8| byte.is_ascii_control() && !b"\t\r\n".contains(byte);
    let is_text = is_utf8 && !start.iter().any(is_control);
    Ok(if is_text { Format::Fingerprints } else { Format::Badkeys })
}

fn list_of_blocklist(
    path: &Path,
    file: BlocklistFile,
    signature: Option<SignatureInfo>,
) -> ListFile {
    let BlocklistFile { blocklist, sha256, metadata, metadata_content: _ } = file;
    let metadata = metadata.unwrap_or_default();
    let mut counts = BTreeMap::new();
    for record in blocklist.iter() {
        *counts.entry(record.id()).or_insert(0) += 1;
    }
    let parts = counts.into_iter().map(|(id, entries)| {
        let name = metadata.findings.name(id).to_string();
        ListPart { id: Some(id), name, entries }
    });
    let info = ListInfo {
        path: path.display().to_string(),
        format: "badkeys",
        entries: blocklist.len(),
        size_bytes: blocklist.content().len() as u64,
        sha256: HEXLOWER.encode(&sha256),
        updated: metadata.date,
        deprecated: metadata.is_deprecated,
        parts: parts.collect(),
        signature,
    };
    let named =
        NamedBlocklist::new(&Arc::from(path.to_string_lossy()), blocklist, sha256, metadata);
    ListFile { list: Arc::new(named).into(), info }
}

/// The list at `path`, and its file.
fn read_fingerprints(path: &Path) -> Result<(FingerprintList, Vec<u8>), FileRejection> {
    let content = regular_file::read(path, MAX_SIZE)?;
    check_sidecar(path, || sha256_of(&content))?;
    let text = String::from_utf8(content).map_err(FileRejection::Text)?;
    let list = FingerprintList::parse(&Arc::from(path.to_string_lossy()), &text)?;
    Ok((list, text.into_bytes()))
}

fn sha256_of(content: &[u8]) -> [u8; 32] {
    digest(&SHA256, content).as_ref().try_into().unwrap_or_default()
}

fn list_of_fingerprints(
    path: &Path,
    list: FingerprintList,
    content: &[u8],
    signature: Option<SignatureInfo>,
) -> ListFile {
    let parts = ["fingerprint", "rsa-modulus", "ec-x"].map(|name| {
        let entries = list.iter().filter(|digest| kind_of(digest) == name).count();
        ListPart { id: None, name: name.to_owned(), entries }
    });
    let entries = list.primes().count();
    let products =
        (entries > 0).then(|| ListPart { id: None, name: "rsa-primes".to_owned(), entries });
    let info = ListInfo {
        path: path.display().to_string(),
        format: "fingerprints",
        entries: list.len(),
        size_bytes: content.len() as u64,
        sha256: HEXLOWER.encode(&sha256_of(content)),
        updated: None,
        deprecated: false,
        parts: parts.into_iter().chain(products).collect(),
        signature,
    };
    ListFile { list: Arc::new(list).into(), info }
}

fn kind_of(digest: &KeyDigest) -> &'static str {
    match digest {
        KeyDigest::EcX(_) => "ec-x",
        KeyDigest::Number(_) => "number",
        KeyDigest::RsaModulus(_) => "rsa-modulus",
        KeyDigest::Spki(_) => "fingerprint",
    }
}
