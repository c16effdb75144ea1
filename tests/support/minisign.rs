//! Signatures of files, made by the reference implementation.

use std::fs::{read_to_string, rename};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::output_text;

/// A key pair of minisign.
pub struct Minisign {
    directory: tempfile::TempDir,
}

impl Minisign {
    pub fn new() -> Self {
        let minisign = Self { directory: tempfile::tempdir().unwrap() };
        let (public, secret) = (minisign.public_key(), minisign.secret_key());
        minisign.run(&["-G", "-W", "-p", text(&public), "-s", text(&secret)]);
        minisign
    }

    pub fn public_key(&self) -> PathBuf {
        self.directory.path().join("key.pub")
    }

    pub fn secret_key(&self) -> PathBuf {
        self.directory.path().join("key")
    }

    /// The id of the key.
    pub fn id(&self) -> String {
        let text = read_to_string(self.public_key()).unwrap();
        text.lines().next().unwrap().rsplit(' ').next().unwrap().to_owned()
    }

    /// A signature of the file at `path`, outside its directory.
    pub fn signature(&self, path: &Path, comment: &str) -> PathBuf {
        self.signed(path, &["-t", comment])
    }

    /// A signature of the file at `path` without a hash.
    pub fn legacy_signature(&self, path: &Path) -> PathBuf {
        self.signed(path, &["-l"])
    }

    fn signed(&self, path: &Path, options: &[&str]) -> PathBuf {
        let signature = self.directory.path().join("made.minisig");
        let (secret, file) = (self.secret_key(), text(path));
        let own = ["-S", "-s", text(&secret), "-m", file, "-x", text(&signature)];
        self.run(&[&own[..], options].concat());
        signature
    }

    /// Renames a signature of the file at `path` over the one beside it.
    pub fn sign(&self, path: &Path, comment: &str) {
        let beside = beside(path);
        let staged = beside.with_extension("next");
        std::fs::copy(self.signature(path, comment), &staged).unwrap();
        rename(staged, beside).unwrap();
    }

    fn run(&self, arguments: &[&str]) {
        let mut command = Command::new("minisign");
        let output = command.args(arguments).current_dir(&self.directory).output().unwrap();
        assert!(output.status.success(), "minisign {arguments:?}: {}", output_text(&output));
    }
}

/// The path of the signature of the file at `path`.
pub fn beside(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.minisig", text(path)))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
