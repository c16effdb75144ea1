use std::path::PathBuf;

use keygate_core::badkeys::{BlocklistError, BlocklistFileError, Metadata, MetadataError};
use keygate_core::guard::ListError;
use keygate_core::pkbf::{ChecksumFileError, FilterError, Plausibility};
use keygate_core::signature::{SignatureError, SignatureFileError};
use keygate_core::spki::InputError;

use super::*;
use crate::saved_state::StateDirectoryError;
use crate::sources::file_rejection::{CanaryError, CanaryFileError};
use crate::sources::operator_decision::{GuardFile, NeedsOperator, WaitCause};

/// Whether an action for the operator follows the problem.
fn has_action(text: &str) -> bool {
    const ACTIONS: [&str; 21] = [
        "correct",
        "create",
        "fetch",
        "give",
        "inspect",
        "it is read again",
        "look for",
        "make",
        "mend",
        "publish",
        "raise",
        "remove",
        "replace",
        "restore",
        "run",
        "save",
        "set",
        "sign",
        "split",
        "unpack",
        "write",
    ];
    ACTIONS.iter().any(|action| {
        text.contains(&format!("; {action} ")) || text.contains(&format!(": {action} "))
    })
}

fn path() -> PathBuf {
    PathBuf::from("/keygate/file")
}

fn missing() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

fn too_large() -> io::Error {
    keygate_core::regular_file::too_large(5, 4)
}

fn filter_errors() -> Vec<FilterError> {
    let text = || "a".to_owned();
    let checksum_file = |source| FilterError::ChecksumFile { sidecar: path(), source };
    vec![
        FilterError::BadMarker { found: text() },
        FilterError::BeingWritten,
        FilterError::Checksum { sidecar: path(), expected: text(), found: text() },
        checksum_file(ChecksumFileError::Dangling),
        checksum_file(ChecksumFileError::Empty),
        checksum_file(ChecksumFileError::Io(missing())),
        checksum_file(ChecksumFileError::NoDigest),
        checksum_file(ChecksumFileError::NotListed { lines: 2 }),
        FilterError::HashCountZero,
        FilterError::HashLengthOutOfRange { found: 2 },
        FilterError::Io(missing()),
        FilterError::OutOfMemory { bytes: 1 },
        FilterError::TooLarge { found: 2, allowed: 1 },
        FilterError::TooShort { found: 1 },
        FilterError::WrongLength { found: 1, expected: 2, hash_length: 3 },
    ]
}

fn signature_errors() -> Vec<SignatureError> {
    let (path, text) = (path(), "a".to_owned());
    let problems = || {
        [
            SignatureFileError::Algorithm,
            SignatureFileError::Legacy,
            SignatureFileError::Line { line: 1, expected: "a key" },
            SignatureFileError::Read(missing()),
            SignatureFileError::Read(too_large()),
            SignatureFileError::SecretKey,
            SignatureFileError::Text,
        ]
    };
    let keys = problems().map(|source| SignatureError::Keys { path: path.clone(), source });
    let unusable = problems().map(|source| SignatureError::Unusable { path: path.clone(), source });
    let (found, expected) = (text.clone(), text);
    let others = [
        SignatureError::Invalid { signature: path.clone() },
        SignatureError::Missing { signature: path.clone() },
        SignatureError::NotKept { copy: path.clone() },
        SignatureError::OtherKey { signature: path.clone(), found, keys: path.clone(), expected },
    ];
    keys.into_iter().chain(unusable).chain(others).collect()
}

fn waits(file: GuardFile) -> impl Iterator<Item = NeedsOperator> {
    let causes = [
        WaitCause::Lost { lost: 2, in_use: 3 },
        WaitCause::NewHits { new_hits: 2, before: 0, allowed: 1 },
        WaitCause::Shrunk { entries: 1, before: 2 },
        WaitCause::Untried { waiting: "a".to_owned() },
    ];
    causes.into_iter().flat_map(move |cause| {
        let new = || NeedsOperator::new(file, cause.clone());
        [new(), new().without_file_in_use()]
    })
}

fn rejections() -> Vec<FileRejection> {
    let file = GuardFile::Filter;
    let canary = |source| FileRejection::from(CanaryError::File { path: path(), source });
    let (revision, updated, known_revision, known_updated) = (1, 1, 2, 2);
    let own = [
        canary(CanaryFileError::Key(InputError::NoKey)),
        canary(CanaryFileError::Line { line: 1, source: InputError::Line }),
        canary(CanaryFileError::Read(missing())),
        CanaryError::Missing { file, path: path(), fingerprint: "a".to_owned() }.into(),
        FileRejection::Future { updated },
        FileRejection::Plausibility(Plausibility::Impossible { max_bits: 1 }),
        FileRejection::Plausibility(Plausibility::NearlyFull { fill_ratio: 0.99 }),
        FileRejection::RandomHits { hits: 1, keys: 2, rate: 0.1 },
        FileRejection::OlderFilter { revision, updated, known_revision, known_updated },
    ];
    let waits = waits(file).map(FileRejection::Waits);
    let files = filter_errors().into_iter().map(FileRejection::File);
    let signatures = signature_errors().into_iter().map(FileRejection::Signature);
    files.chain(signatures).chain(waits).chain(own).collect()
}

fn blocklist_errors() -> Vec<BlocklistFileError> {
    let content = [
        BlocklistError::Compressed("xz"),
        BlocklistError::Empty,
        BlocklistError::Length { found: 1 },
        BlocklistError::TooMany { found: 1 },
        BlocklistError::Unsorted { record: 1, offset: 16 },
    ];
    let found = || "a".to_owned();
    let metadata = [
        MetadataError::Format { found: 1 },
        Metadata::parse(b"{").unwrap_err(),
        MetadataError::Read(too_large()),
        MetadataError::Value { member: found(), found: found(), problem: "is not valid" },
    ];
    let others = [
        BlocklistFileError::Digest { metadata: path(), expected: found(), found: found() },
        BlocklistFileError::Read(missing()),
        BlocklistFileError::Read(too_large()),
    ];
    let metadata = metadata.map(|source| BlocklistFileError::Metadata { path: path(), source });
    let content = content.map(BlocklistFileError::Content);
    let checksums = filter_errors().into_iter().map(BlocklistFileError::Checksum);
    checksums.chain(content).chain(metadata).chain(others).collect()
}

fn list_errors() -> Vec<FileRejection> {
    let own = [
        FileRejection::Content(ListError::Certificate { line: 1 }),
        FileRejection::Content(ListError::NotADigest { line: 1, length: 3 }),
        FileRejection::Emptied { entries: 1 },
        FileRejection::Read(missing()),
        FileRejection::Read(too_large()),
        FileRejection::OlderBlocklist { found: None, in_use: 1 },
        FileRejection::Text(String::from_utf8(vec![0xff]).unwrap_err()),
        FileRejection::TooFew { found: 1, min: 2 },
    ];
    let waits = waits(GuardFile::List).map(FileRejection::Waits);
    let blocklists = blocklist_errors().into_iter().map(FileRejection::Blocklist);
    let signatures = signature_errors().into_iter().map(FileRejection::Signature);
    blocklists.chain(signatures).chain(waits).chain(own).collect()
}

#[test]
fn every_error_of_a_filter_or_a_list_names_the_file_and_an_action() {
    let filters = rejections().into_iter().map(|source| LoadError::File {
        file: GuardFile::Filter,
        name: "lost".to_owned(),
        path: path(),
        source,
    });
    let lists = list_errors().into_iter().map(|source| LoadError::File {
        file: GuardFile::List,
        name: "lost".to_owned(),
        path: path(),
        source,
    });
    for error in filters.chain(lists) {
        let text = error.to_string();
        assert!(text.contains("\"lost\": /keygate/file: "), "{text}");
        assert!(has_action(&text), "{text}");
        assert!(!text.contains("os error"), "{text}");
    }
}

#[test]
fn every_error_of_the_state_directory_names_the_file_and_an_action() {
    let (name, damage) = ("lost".to_owned(), io::ErrorKind::InvalidData.into());
    let directory = |source| StateError::Directory { path: path(), source };
    for error in [
        StateError::Copy { file: GuardFile::Filter, name, path: path(), source: missing() },
        StateError::CredentialCopy { directory: path(), source: missing() },
        StateError::File { path: path(), source: missing() },
        StateError::File { path: path(), source: damage },
        StateError::File { path: path(), source: io::ErrorKind::StorageFull.into() },
        directory(StateDirectoryError::NotWritable(missing())),
    ] {
        let error = LoadError::from(error);
        let text = error.to_string();
        assert!(text.contains("/keygate/file") && has_action(&text), "{text}");
        assert!(!text.contains("os error"), "{text}");
    }
}
