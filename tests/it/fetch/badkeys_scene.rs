//! A mirror of a blocklist, and runs of `keygate fetch --badkeys` against it.

use std::fs::{create_dir, read};
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use super::scene::{fetch_badkeys, names, rejected, succeeded};
use crate::support::blocklist::Blocklist;
use crate::support::mirror::Mirror;
use crate::support::pki::Pki;
use crate::support::{output_text, skip, system};

/// A mirror of a blocklist.
pub(super) struct BadkeysScene {
    pub(super) pki: Pki,
    pub(super) mirror: Mirror,
}

impl BadkeysScene {
    pub(super) fn new() -> Option<Self> {
        if skip::without("xz") {
            return None;
        }
        let pki = Pki::new();
        let mirror = Mirror::start(&pki)?;
        create_dir(mirror.path("v0")).unwrap();
        Some(Self { pki, mirror })
    }

    pub(super) fn url(&self) -> String {
        self.mirror.url("v0/badkeysdata.json")
    }

    /// A list with this number of records.
    pub(super) fn list(&self, count: u32) -> Blocklist {
        let url = self.mirror.url("v0/blocklist.dat.xz");
        Blocklist::new(&[]).with_others(0, count).with("blocklist_url", url.into())
    }

    /// Writes the metadata and the packed list.
    pub(super) fn publish(&self, list: &Blocklist) {
        let path = list.write(&self.mirror.path("v0"));
        pack(&path, &["-0"]);
        self.mirror.date_files();
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        self.mirror.date_files();
        fetch_badkeys(&self.pki, &self.url(), arguments)
    }

    pub(super) fn fetched(&self) -> Value {
        succeeded(&self.run(&["--json"]))
    }

    /// Both files in use.
    pub(super) fn in_use(&self) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let file = |name: &str| read(self.pki.path("badkeys").join(name)).ok();
        (file("badkeysdata.json"), file("blocklist.dat"))
    }

    pub(super) fn fails(&self, problem: &str) {
        let before = self.in_use();
        rejected(&self.run(&[]), problem);
        assert!(self.in_use() == before, "{problem}: the files in use have changed");
        let left = names(&self.pki.path("badkeys/.blocklist.dat.fetch"));
        assert!(!left.contains(&"next".to_owned()), "{left:?}");
    }

    /// Whether the files in use have this content.
    pub(super) fn has(&self, list: &Blocklist) -> bool {
        let read = keygate_core::badkeys::read(&self.pki.path("badkeys/blocklist.dat"), 1 << 30);
        read.is_ok_and(|it| it.blocklist.content() == list.content() && it.metadata.is_some())
    }
}

/// Packs a file with further arguments for xz. The file stays.
pub(super) fn pack(path: &Path, arguments: &[&str]) {
    let all = [&["--keep", "--force"], arguments, &[path.to_str().unwrap()]].concat();
    let packed = system("xz", &all);
    assert!(packed.status.success(), "{}", output_text(&packed));
}
