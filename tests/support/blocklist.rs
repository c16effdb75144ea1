//! A badkeys blocklist, written as the badkeys project publishes it.

use std::fs::{rename, write};
use std::path::{Path, PathBuf};

use ::keygate_core::spki::{Encoding, Fingerprint, PublicKey};
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use serde_json::{Value, json};

/// A blocklist to write.
#[derive(Clone)]
pub struct Blocklist {
    pub records: Vec<[u8; 16]>,
    pub metadata: Value,
}

impl Blocklist {
    /// A list with these keys (SPKI, DER), each in a collection. The collections 1 and 5 have
    /// names.
    pub fn new(keys: &[(&[u8], u8)]) -> Self {
        let records = keys.iter().map(|(spki, id)| record(spki, *id));
        let mut records: Vec<_> = records.collect();
        records.sort();
        let metadata = json!({
            "bkformat": 0,
            "date": "2026-08-20",
            "blocklist_url": "https://update.example/v0/blocklist.dat.xz",
            "lookup_url": "https://update.example/v0/lookup.txt.xz",
            "blocklists": [
                { "id": 1, "name": "debianssl", "type": "github", "repo": "a/b", "path": "main" },
                { "id": 5, "name": "firmware", "type": "github", "repo": "a/c", "path": "main" },
            ],
        });
        Self { records, metadata }
    }

    /// The same list with `count` other keys in the collection 5, from the number `first`.
    pub fn with_others(mut self, first: u32, count: u32) -> Self {
        let others = (first..first + count).map(|number| {
            let sha256 = digest(&SHA256, &number.to_be_bytes());
            let mut record = *sha256.as_ref().first_chunk().unwrap();
            record[15] = 5;
            record
        });
        self.records.extend(others);
        self.records.sort();
        self
    }

    /// The same list with another value of a member of its metadata.
    pub fn with(mut self, member: &str, value: Value) -> Self {
        self.metadata[member] = value;
        self
    }

    pub fn content(&self) -> &[u8] {
        self.records.as_flattened()
    }

    /// Writes both files into a directory, the metadata with the SHA-256 of the list unless they
    /// have another one. Each is renamed over the previous one.
    pub fn write(&self, directory: &Path) -> PathBuf {
        self.write_metadata(directory);
        self.write_records(directory)
    }

    /// Writes `badkeysdata.json` alone.
    pub fn write_metadata(&self, directory: &Path) {
        let mut metadata = self.metadata.clone();
        let sha256 = HEXLOWER.encode(digest(&SHA256, self.content()).as_ref());
        let members = metadata.as_object_mut().unwrap();
        members.entry("blocklist_sha256").or_insert(sha256.into());
        replace(&directory.join("badkeysdata.json"), metadata.to_string().as_bytes());
    }

    /// Writes `blocklist.dat` alone.
    pub fn write_records(&self, directory: &Path) -> PathBuf {
        let path = directory.join("blocklist.dat");
        replace(&path, self.content());
        path
    }
}

/// Renames a file with this content over the one at `path`.
pub fn replace(path: &Path, content: &[u8]) {
    let staged = path.with_extension("next");
    write(&staged, content).unwrap();
    rename(staged, path).unwrap();
}

/// The record of a key: of its number, or of the SHA-256 of anything else.
fn record(spki: &[u8], id: u8) -> [u8; 16] {
    let mut sha256 = None;
    PublicKey::parse(spki).for_each_number(|encoding, digest| {
        if matches!(encoding, Encoding::EcX | Encoding::Presented | Encoding::RsaModulus) {
            sha256 = Some(digest.sha256());
        }
    });
    let other = HEXLOWER.decode(Fingerprint::of(spki).to_string().as_bytes()).unwrap();
    let sha256 = sha256.unwrap_or_else(|| other.try_into().unwrap());
    let mut record = *sha256.first_chunk().unwrap();
    record[15] = id;
    record
}
