//! A mirror, a configuration with a source on it, and runs of `keygate fetch`.

use std::fs::{read, write};
use std::path::{Path, PathBuf};
use std::process::Output;

use keygate_core::pkbf::{Filter, Overwrite, Parameters, create};
use serde_json::Value;

use crate::support::keygate::keygate;
use crate::support::mirror::{AT_ONCE, Fetch, Mirror};
use crate::support::output_text;
use crate::support::pki::Pki;
use crate::support::proxy::{Configuration, Configure};

/// A filter whose source is a mirror.
pub(super) struct Scene {
    pub(super) pki: Pki,
    pub(super) mirror: Mirror,
    pub(super) configuration: Configuration,
}

impl Scene {
    /// The source has further `settings`. `None` skips the test.
    pub(super) fn new(settings: &str) -> Option<Self> {
        let pki = Pki::new();
        let mirror = Mirror::start(&pki)?;
        let url = mirror.url("lost.pkbf");
        let source = format!("source = {{ url = {url:?}, trust_anchors = \"ca.pem\"{settings} }}");
        let configuration = Configuration::new("127.0.0.1:9").filter(&source);
        let scene = Self { pki, mirror, configuration };
        scene.configure();
        Some(scene)
    }

    /// Writes the configuration.
    pub(super) fn configure(&self) {
        write(self.pki.path("keygate.toml"), self.configuration.text()).unwrap();
    }

    /// Writes a filter of 256 KiB with this revision to the mirror.
    pub(super) fn publish(&self, revision: u32) -> Vec<u8> {
        let path = self.mirror.path("lost.pkbf");
        write_large(&path, 1, revision);
        self.mirror.date_files();
        read(path).unwrap()
    }

    pub(super) fn target(&self) -> PathBuf {
        self.pki.path("lost.pkbf")
    }

    /// Starts a run with further arguments.
    pub(super) fn start(&self, arguments: &[&str]) -> Fetch {
        self.mirror.date_files();
        let config = self.pki.path("keygate.toml");
        Fetch::start(&[&["--config", config.to_str().unwrap()], arguments].concat())
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        self.start(arguments).ended()
    }

    /// Starts a run against a slow mirror, and waits until it has a part.
    pub(super) fn start_slowly(&self) -> Fetch {
        self.mirror.slow_down(true);
        let run = self.start(&[]);
        run.wait_for_part(&self.target(), AT_ONCE);
        run
    }

    /// A run that is killed when it has a part.
    pub(super) fn kill_download(&self) {
        self.start_slowly().kill();
        self.mirror.slow_down(false);
    }

    /// A run that succeeds.
    pub(super) fn fetched(&self) -> Value {
        succeeded(&self.run(&["--json"]))
    }

    /// A run that fails with this message; the file in use stays.
    pub(super) fn fails(&self, problem: &str) {
        let before = read(self.target()).ok();
        rejected(&self.run(&[]), problem);
        assert!(read(self.target()).ok() == before, "the file in use has changed");
    }
}

/// Writes a filter of 256 KiB with this number of entries.
pub(super) fn write_large(path: &Path, entries: u32, revision: u32) {
    let mut filter = Filter::new(Parameters::new(20, 21).unwrap()).unwrap();
    for key in 0..entries {
        filter.insert(&key.to_be_bytes());
    }
    filter.stamp_as(revision, 1_700_000_000 + u64::from(revision));
    create(&filter, path, Overwrite::Always).unwrap();
}

/// The object that a successful run prints.
pub(super) fn succeeded(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", output_text(output));
    assert!(output.stderr.is_empty(), "{}", output_text(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Asserts that a run failed with this message.
pub(super) fn rejected(output: &Output, problem: &str) {
    let text = output_text(output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains(problem), "no {problem:?} in {text}");
}

/// Runs `keygate fetch --badkeys`.
pub(super) fn fetch_badkeys(pki: &Pki, url: &str, arguments: &[&str]) -> Output {
    let (directory, ca) = (pki.path("badkeys"), pki.path("ca.pem"));
    let mut all = vec!["fetch", "--badkeys", directory.to_str().unwrap(), "--url", url];
    if url.starts_with("https:") {
        all.extend(["--trust-anchors", ca.to_str().unwrap()]);
    }
    keygate(&[&all, arguments].concat())
}

/// The names in the directory of a file, sorted.
pub(super) fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
