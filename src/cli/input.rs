//! The INPUT arguments: files, directories with everything below them, or `-` for standard input.

use std::fs::File;
use std::io::{self, Read};

use walkdir::{DirEntry, WalkDir};

use super::progress::Progress;
use super::{CliError, Exit};
use crate::spki::{Algorithm, Finding, Fingerprint, KeyScanner};

/// What every INPUT can be.
pub(super) const HELP: &str = "Certificates, requests, public and private keys (PEM, DER, \
    OpenSSH), authorized_keys, lines of base64 or hex SPKI: files, directories, '-' for standard \
    input";

/// A key, and where it is.
pub(super) struct Key<'a> {
    /// The file, as it was named or found.
    pub(super) input: &'a str,
    /// Counted from 1; `None` for an input that is not text.
    pub(super) line: Option<u64>,
    /// SubjectPublicKeyInfo (DER).
    pub(super) spki: &'a [u8],
}

impl Key<'_> {
    pub(super) fn algorithm(&self) -> String {
        Algorithm::of(self.spki).to_string()
    }

    pub(super) fn fingerprint(&self) -> String {
        Fingerprint::of(self.spki).to_string()
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> String {
        place(self.input, self.line)
    }
}

fn place(input: &str, line: Option<u64>) -> String {
    line.map_or_else(|| input.to_owned(), |line| format!("{input}:{line}"))
}

/// What became of all inputs together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    /// Keys that were found.
    pub(super) keys: u64,
    /// Places that hold no key that can be read; each has been named on standard error.
    pub(super) unusable: u64,
}

impl Tally {
    /// `exit`, unless an input could not be used.
    pub(super) fn exit(self, exit: Exit) -> Exit {
        if self.unusable > 0 { Exit::Incomplete } else { exit }
    }
}

/// Bytes that are read at a time.
const CHUNK_SIZE: usize = 64 << 10;

/// Shows `visit` every key of every input. What is no key is named on standard error, and the rest
/// goes on. `reports` says whether `visit` writes a line for each.
pub(super) fn for_each_key(
    inputs: &[String],
    reports: bool,
    visit: impl FnMut(&Key<'_>) -> Result<(), CliError>,
) -> Result<Tally, CliError> {
    let progress = Progress::new(inputs, reports);
    let mut reading = Reading { progress, tally: Tally::default(), visit };
    let outcome = inputs.iter().try_for_each(|input| reading.argument(input));
    reading.progress.end();
    outcome.map(|()| reading.tally)
}

struct Reading<V> {
    progress: Progress,
    tally: Tally,
    visit: V,
}

impl<V: FnMut(&Key<'_>) -> Result<(), CliError>> Reading<V> {
    fn argument(&mut self, argument: &str) -> Result<(), CliError> {
        if argument == "-" {
            return self.stream("-", io::stdin().lock());
        }
        // A file, a pipe or whatever else is named is read; only what is found in a directory has
        // to be a file.
        if !std::fs::metadata(argument).is_ok_and(|metadata| metadata.is_dir()) {
            return self.file(argument);
        }
        WalkDir::new(argument).into_iter().try_for_each(|entry| match entry {
            Ok(entry) => self.entry(&entry),
            Err(error) => {
                let path = error.path().map(|path| path.display().to_string());
                let path = path.unwrap_or_else(|| argument.to_owned());
                let error = error.into_io_error().unwrap_or_else(|| io::Error::other("a loop"));
                self.unusable(&path, None, &error);
                Ok(())
            }
        })
    }

    /// Links to files are followed. Those to directories are not: they lead to what is found
    /// elsewhere, or round in a circle.
    fn entry(&mut self, entry: &DirEntry) -> Result<(), CliError> {
        let path = entry.path().display().to_string();
        let linked = || std::fs::metadata(entry.path()).map(|metadata| metadata.file_type());
        let kind = if entry.path_is_symlink() { linked() } else { Ok(entry.file_type()) };
        match kind {
            Ok(kind) if kind.is_dir() => {}
            Ok(kind) if kind.is_file() => return self.file(&path),
            Ok(_) => self.unusable(&path, None, &"not a regular file"),
            Err(error) => self.unusable(&path, None, &error),
        }
        Ok(())
    }

    fn file(&mut self, path: &str) -> Result<(), CliError> {
        match File::open(path) {
            Ok(file) => self.stream(path, file),
            Err(error) => {
                self.unusable(path, None, &error);
                Ok(())
            }
        }
    }

    fn stream(&mut self, input: &str, mut source: impl Read) -> Result<(), CliError> {
        let mut scanner = KeyScanner::new();
        let mut buffer = vec![0; CHUNK_SIZE];
        let mut outcome = Ok(());
        loop {
            let read = match source.read(&mut buffer) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.unusable(input, None, &error);
                    return outcome;
                }
            };
            let before = self.tally.keys;
            let piece = buffer.get(..read).unwrap_or_default();
            if piece.is_empty() {
                break;
            }
            scanner.push(piece, &mut |finding| self.finding(input, finding, &mut outcome));
            self.progress.advance(read as u64, self.tally.keys - before);
            if outcome.is_err() {
                break; // nobody reads the results any more
            }
        }
        scanner.finish(&mut |finding| self.finding(input, finding, &mut outcome));
        outcome
    }

    fn finding(&mut self, input: &str, finding: Finding, outcome: &mut Result<(), CliError>) {
        if outcome.is_err() {
            return;
        }
        match finding.key {
            Ok(spki) => {
                self.tally.keys += 1;
                *outcome = (self.visit)(&Key { input, line: finding.line, spki: &spki });
            }
            Err(error) => self.unusable(input, finding.line, &error),
        }
    }

    fn unusable(&mut self, input: &str, line: Option<u64>, problem: &dyn std::fmt::Display) {
        self.tally.unusable += 1;
        self.progress.complain(&format_args!("{}: {problem}", place(input, line)));
    }
}
