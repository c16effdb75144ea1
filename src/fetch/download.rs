//! One file: a conditional request, and the continuation of a download that was cut short.
//!
//! A partial file is continued only if the server confirms by a strong validator that the file is
//! still the same (RFC 9110, section 13.1.5), and only until the machine restarts. A part is not
//! synced before it is complete, so that a power failure may lose bytes of it, or leave zeros in
//! their place.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::http::request::Builder;
use hyper::{Response, StatusCode, header};
use serde::{Deserialize, Serialize};

use super::client::{FetchClient, Progress, check_head, collect, header_text};
use super::error::{FetchError, TransferError};
use super::record::{NO_LINK, SourceId, read_json, write_json};
use crate::config::SourceUrl;
use crate::http_client;

/// Maximum length of a validator, in bytes; a longer one is not kept.
const MAX_VALIDATOR: usize = 1024;
/// File with a UUID that the kernel makes at each start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The validators of a version of a file (RFC 9110, section 8.8), as its server sent them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Validators {
    etag: Option<String>,
    last_modified: Option<String>,
    /// Whether `last_modified` is a strong validator (RFC 9110, section 8.8.2.2).
    is_date_strong: bool,
}

/// The outcome of a request for a file.
pub(super) enum Downloaded<T> {
    /// The file has not changed.
    NotModified,
    /// The file, with the validators of its version.
    New(T, Validators),
}

/// The maximum size of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct MaxSize {
    /// The maximum, in bytes; a larger file is rejected.
    pub(super) bytes: u64,
    /// Whether the key `max_size` gives the maximum.
    pub(super) is_key: bool,
}

/// The number of bytes of a download.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Received {
    /// Bytes of this run.
    pub(super) bytes: u64,
    /// Bytes of earlier runs.
    pub(super) resumed: u64,
}

/// A file that is being downloaded, and its record.
pub(super) struct PartialFile {
    /// The bytes so far.
    pub(super) path: PathBuf,
    record: PathBuf,
}

/// The version that a partial file is a part of.
#[derive(Debug, Serialize, Deserialize)]
struct PartRecord {
    source: SourceId,
    validators: Validators,
    /// The content of [`BOOT_ID`] when the part was begun. `None` if it could not be read: the part
    /// is not continued then.
    boot: Option<String>,
}

impl Validators {
    fn from_response(response: &Response<Incoming>) -> Self {
        let text = |name: &header::HeaderName| {
            let value = response.headers().get(name)?.to_str().ok()?;
            (value.len() <= MAX_VALIDATOR).then(|| value.to_owned())
        };
        let last_modified = text(&header::LAST_MODIFIED);
        let date = |text: Option<&str>| httpdate::parse_http_date(text?).ok();
        let (sent, changed) =
            (date(text(&header::DATE).as_deref()), date(last_modified.as_deref()));
        let is_date_strong = sent.zip(changed).is_some_and(|(sent, changed)| {
            sent.duration_since(changed).is_ok_and(|age| age >= Duration::from_secs(1))
        });
        Self { etag: text(&header::ETAG), last_modified, is_date_strong }
    }

    /// The validator for `If-Range`, which must be strong.
    fn strong(&self) -> Option<&str> {
        match self.etag.as_deref() {
            Some(etag) => Some(etag).filter(|etag| etag.starts_with('"')),
            None => self.last_modified.as_deref().filter(|_| self.is_date_strong),
        }
    }
}

/// Requests the file only if it is not the one with the validators `known`.
fn add_conditions(mut request: Builder, known: Option<&Validators>) -> Builder {
    if let Some(etag) = known.and_then(|known| known.etag.as_ref()) {
        request = request.header(header::IF_NONE_MATCH, etag);
    }
    if let Some(date) = known.and_then(|known| known.last_modified.as_ref()) {
        request = request.header(header::IF_MODIFIED_SINCE, date);
    }
    request
}

impl PartialFile {
    /// The partial file in `directory`.
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join("part"), record: directory.join("part.json") }
    }

    /// The length of the part of `source` and its validators, if it can be continued.
    fn resumable(&self, source: &SourceId) -> Option<(u64, Validators)> {
        let PartRecord { source: found, validators, boot } = read_json(&self.record)?;
        let length = fs::symlink_metadata(&self.path).ok().filter(fs::Metadata::is_file)?.len();
        let is_in_page_cache = boot.is_some() && boot == boot_id();
        let is_usable =
            found == *source && is_in_page_cache && length > 0 && validators.strong().is_some();
        is_usable.then_some((length, validators))
    }

    /// Removes the part.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.record); // without it, the part is not used
        let _ = fs::remove_file(&self.path);
    }

    /// Opens the file behind `kept` bytes, which belong to the version with these validators.
    fn open(&self, source: SourceId, validators: &Validators, kept: u64) -> io::Result<File> {
        let file =
            OpenOptions::new().append(true).create(true).custom_flags(NO_LINK).open(&self.path)?;
        if kept == 0 {
            // First, so that the bytes of another version never have this record.
            file.set_len(0)?;
            let record = PartRecord { source, validators: validators.clone(), boot: boot_id() };
            write_json(&self.record, &record)?;
        }
        Ok(file)
    }
}

fn boot_id() -> Option<String> {
    fs::read_to_string(BOOT_ID).ok()
}

/// Requests a small file. `known` are the validators of the file in use, if there is one.
pub(super) async fn download_small(
    client: &FetchClient,
    url: &SourceUrl,
    known: Option<&Validators>,
    max: u64,
) -> Result<Downloaded<Vec<u8>>, FetchError> {
    let conditions = |request| add_conditions(request, known);
    let read = async |response: Response<Incoming>, progress: &Progress| {
        if known.is_some() && response.status() == StatusCode::NOT_MODIFIED {
            return Ok(Downloaded::NotModified);
        }
        check_head(&response)?;
        let validators = Validators::from_response(&response);
        Ok(Downloaded::New(collect(response, max, progress).await?, validators))
    };
    client.get(url, conditions, read).await
}

/// Requests a file into `part`. `known` are the validators of the file in use, if there is one. A
/// part of an earlier run is continued if the file at the source is the same. After an error the
/// part stays, unless it cannot be continued.
pub(super) async fn download(
    client: &FetchClient,
    url: &SourceUrl,
    known: Option<&Validators>,
    part: &PartialFile,
    max_size: MaxSize,
) -> Result<Downloaded<Received>, FetchError> {
    let source = client.source_id(url);
    let resumable = part.resumable(&source).filter(|(kept, _)| *kept <= max_size.bytes);
    if let Some((kept, validators)) = resumable {
        let range = |request: Builder| {
            let request = request.header(header::RANGE, format!("bytes={kept}-"));
            match validators.strong() {
                Some(validator) => request.header(header::IF_RANGE, validator),
                None => request,
            }
        };
        let read = async |response: Response<Incoming>, progress: &Progress| {
            // The part is the whole file, or longer than another version (RFC 9110, section
            // 15.5.17).
            if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
                let is_whole =
                    header_text(&response, &header::CONTENT_RANGE) == format!("bytes */{kept}");
                let received = Received { bytes: 0, resumed: kept };
                return Ok(is_whole.then(|| Downloaded::New(received, validators.clone())));
            }
            let is_rest = response.status() == StatusCode::PARTIAL_CONTENT;
            let kept = if is_rest { Some((kept, &validators)) } else { None };
            Transfer { source: &source, part, max_size, kept }
                .receive(response, progress)
                .await
                .map(Some)
        };
        if let Some(downloaded) = client.get(url, range, read).await? {
            return Ok(downloaded);
        }
    }
    part.remove();
    let conditions = |request| add_conditions(request, known);
    let read = async |response: Response<Incoming>, progress: &Progress| {
        if known.is_some() && response.status() == StatusCode::NOT_MODIFIED {
            return Ok(Downloaded::NotModified);
        }
        if response.status() == StatusCode::PARTIAL_CONTENT {
            // Not requested.
            return Err(TransferError::Status(response.status()));
        }
        Transfer { source: &source, part, max_size, kept: None }.receive(response, progress).await
    };
    client.get(url, conditions, read).await
}

/// The receipt of a body into a partial file.
struct Transfer<'a> {
    source: &'a SourceId,
    part: &'a PartialFile,
    max_size: MaxSize,
    /// Number of bytes that the part has already, and the validators of their version.
    kept: Option<(u64, &'a Validators)>,
}

impl Transfer<'_> {
    async fn receive(
        &self,
        response: Response<Incoming>,
        progress: &Progress,
    ) -> Result<Downloaded<Received>, TransferError> {
        check_head(&response)?;
        let too_large = || TransferError::TooLarge {
            max: self.max_size.bytes,
            is_max_size: self.max_size.is_key,
        };
        let kept = self.kept.map_or(0, |(kept, _)| kept);
        let (end, validators) = match self.kept {
            Some((kept, validators)) => {
                let end = rest_of(&response, kept, validators);
                (Some(end.inspect_err(|_| self.part.remove())?), validators.clone())
            }
            None => {
                let length = hyper::body::Body::size_hint(response.body()).exact();
                (length, Validators::from_response(&response))
            }
        };
        if end.is_some_and(|end| end > self.max_size.bytes) {
            self.part.remove();
            return Err(too_large());
        }
        let failed = |source| {
            self.part.remove(); // a full disk must not stay full
            TransferError::Write { path: self.part.path.clone(), source }
        };
        let mut file = self.part.open(self.source.clone(), &validators, kept).map_err(failed)?;
        let mut received = kept;
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| TransferError::Truncated {
                received,
                reason: http_client::with_causes(&error),
            })?;
            let Ok(data) = frame.into_data() else { continue };
            received = received.saturating_add(data.len() as u64);
            if received > self.max_size.bytes {
                self.part.remove();
                return Err(too_large());
            }
            file.write_all(&data).map_err(failed)?;
            progress.advance();
        }
        if end.is_some_and(|end| end != received) {
            let reason = "the length is not the announced one".to_owned();
            return Err(TransferError::Truncated { received, reason });
        }
        file.sync_all().map_err(failed)?;
        let received = Received { bytes: received - kept, resumed: kept };
        Ok(Downloaded::New(received, validators))
    }
}

/// The length of the whole file by a response with all that follows `kept` bytes of the version
/// with these validators.
fn rest_of(
    response: &Response<Incoming>,
    kept: u64,
    validators: &Validators,
) -> Result<u64, TransferError> {
    let found = header_text(response, &header::CONTENT_RANGE);
    let length = || {
        let (range, length) = found.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (first, last, length): (u64, u64, u64) =
            (first.parse().ok()?, last.parse().ok()?, length.parse().ok()?);
        (first == kept && last.checked_add(1)? == length && last >= first).then_some(length)
    };
    // A server may leave the ETag out, although it must not.
    let etag = Validators::from_response(response).etag;
    let is_same = etag.is_none() || validators.etag.is_none() || etag == validators.etag;
    match length().filter(|_| is_same) {
        Some(length) => Ok(length),
        None => Err(TransferError::BadRange(found)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FetchConfig;

    #[test]
    fn only_a_strong_validator_identifies_bytes() {
        let strong = |etag: Option<&str>, date: Option<&str>, is_date_strong| {
            let (etag, last_modified) = (etag.map(str::to_owned), date.map(str::to_owned));
            let validators = Validators { etag, last_modified, is_date_strong };
            validators.strong().map(str::to_owned)
        };
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(strong(Some("\"a\""), date, true).as_deref(), Some("\"a\""));
        assert_eq!(strong(None, date, true).as_deref(), date);
        assert_eq!(strong(None, date, false), None);
        // The date is as weak as the entity tag.
        assert_eq!(strong(Some("W/\"a\""), date, true), None);
        assert_eq!(strong(None, None, true), None);
    }

    #[test]
    fn a_part_without_a_usable_record_is_not_continued() {
        let directory = tempfile::tempdir().unwrap();
        let part = PartialFile::in_directory(directory.path());
        let source = |url: &str, trust_anchors: Option<&str>| {
            let url = SourceUrl::parse(url).unwrap();
            let trust_anchors = trust_anchors.map(PathBuf::from);
            SourceId::new(&url, &FetchConfig { trust_anchors, ..FetchConfig::at(url.clone()) })
        };
        let this = source("https://a.example/b", None);
        let validators = Validators { etag: Some("\"a\"".to_owned()), ..Validators::default() };
        part.open(this.clone(), &validators, 0).unwrap().write_all(b"12345").unwrap();
        assert_eq!(part.resumable(&this), Some((5, validators.clone())));
        assert_eq!(part.resumable(&source("https://a.example/c", None)), None);
        assert_eq!(part.resumable(&source("https://a.example/b", Some("ca.pem"))), None);
        let written = fs::read_to_string(&part.record).unwrap();
        let boot = fs::read_to_string(BOOT_ID).unwrap();
        let boot = boot.trim_end();
        assert!(written.contains(boot), "{written}");
        let other_boot = written.replace(boot, "00000000-0000-0000-0000-000000000000");
        for record in ["", "{}", "[", "{\"source\":7}", &other_boot] {
            fs::write(&part.record, record).unwrap();
            assert_eq!(part.resumable(&this), None, "{record}");
        }
        // A part of another version is emptied before it gets its record.
        part.open(this.clone(), &validators, 0).unwrap();
        assert_eq!(part.resumable(&this), None);
        part.remove();
        assert!(!part.path.exists());
    }
}
