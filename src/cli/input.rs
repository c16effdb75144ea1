//! The INPUT arguments: files, directories with everything below them, or `-` for standard input.
//!
//! Finds the keys in the inputs. An unusable input is reported on standard error, and the others
//! are read.

use std::fs::File;
use std::io::{self, Read};

use walkdir::{DirEntry, WalkDir};

use super::progress::{InputProgress, PerKeyOutput};
use super::{CliError, Exit};
use crate::spki::{Algorithm, Finding, Fingerprint, KeyScanner};

/// Help text of every INPUT argument.
pub(super) const HELP: &str = "Certificates, requests, public and private keys (PEM, DER, \
    OpenSSH), authorized_keys, lines of base64 or hex SPKI: files, directories, '-' for standard \
    input";

/// A key and its position in the inputs.
pub(super) struct FoundKey<'a> {
    /// The argument, or the path below a directory argument.
    pub(super) input: &'a str,
    /// Line number, from 1; `None` for a binary input.
    pub(super) line: Option<u64>,
    /// SubjectPublicKeyInfo (DER).
    pub(super) spki: &'a [u8],
}

impl FoundKey<'_> {
    pub(super) fn algorithm(&self) -> String {
        Algorithm::of(self.spki).to_string()
    }

    pub(super) fn fingerprint(&self) -> String {
        Fingerprint::of(self.spki).to_string()
    }

    /// `INPUT:LINE`, or `INPUT` for a binary input.
    pub(super) fn position(&self) -> String {
        position(self.input, self.line)
    }
}

fn position(input: &str, line: Option<u64>) -> String {
    line.map_or_else(|| input.to_owned(), |line| format!("{input}:{line}"))
}

/// Counts over all inputs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InputCounts {
    /// Keys found.
    pub(super) keys: u64,
    /// Places without a readable key; each one was reported on standard error.
    pub(super) unusable: u64,
}

impl InputCounts {
    /// `exit`, or [`Exit::Incomplete`] if an input was unusable.
    pub(super) fn exit(self, exit: Exit) -> Exit {
        if self.unusable > 0 { Exit::Incomplete } else { exit }
    }
}

/// Bytes per read.
const CHUNK_SIZE: usize = 64 << 10;

/// Calls `visit` with every key of every input.
///
/// # Errors
/// Returns an error if `visit` does.
pub(super) fn for_each_key(
    inputs: &[String],
    per_key_output: PerKeyOutput,
    visit: impl FnMut(&FoundKey<'_>) -> Result<(), CliError>,
) -> Result<InputCounts, CliError> {
    let progress = InputProgress::new(inputs, per_key_output);
    let mut reader = InputReader { progress, counts: InputCounts::default(), visit };
    let outcome = inputs.iter().try_for_each(|input| reader.read_argument(input));
    reader.progress.finish();
    outcome.map(|()| reader.counts)
}

struct InputReader<V> {
    progress: InputProgress,
    counts: InputCounts,
    visit: V,
}

impl<V: FnMut(&FoundKey<'_>) -> Result<(), CliError>> InputReader<V> {
    fn read_argument(&mut self, argument: &str) -> Result<(), CliError> {
        if argument == "-" {
            return self.read_stream("-", io::stdin().lock());
        }
        // An argument may be a pipe or a device. Below a directory, only regular files are read.
        if !std::fs::metadata(argument).is_ok_and(|metadata| metadata.is_dir()) {
            return self.read_file(argument);
        }
        WalkDir::new(argument).into_iter().try_for_each(|entry| match entry {
            Ok(entry) => self.read_entry(&entry),
            Err(error) => {
                let path = error.path().map(|path| path.display().to_string());
                let path = path.unwrap_or_else(|| argument.to_owned());
                let error = error.into_io_error().unwrap_or_else(|| io::Error::other("a loop"));
                self.report_unusable(&path, None, &error);
                Ok(())
            }
        })
    }

    /// Follows links to files. Links to directories are skipped, because they may form a loop.
    fn read_entry(&mut self, entry: &DirEntry) -> Result<(), CliError> {
        let path = entry.path().display().to_string();
        let target_type = || std::fs::metadata(entry.path()).map(|metadata| metadata.file_type());
        let kind = if entry.path_is_symlink() { target_type() } else { Ok(entry.file_type()) };
        match kind {
            Ok(kind) if kind.is_dir() => {}
            Ok(kind) if kind.is_file() => return self.read_file(&path),
            Ok(_) => self.report_unusable(&path, None, &"not a regular file"),
            Err(error) => self.report_unusable(&path, None, &error),
        }
        Ok(())
    }

    fn read_file(&mut self, path: &str) -> Result<(), CliError> {
        match File::open(path) {
            Ok(file) => self.read_stream(path, file),
            Err(error) => {
                self.report_unusable(path, None, &error);
                Ok(())
            }
        }
    }

    fn read_stream(&mut self, input: &str, mut source: impl Read) -> Result<(), CliError> {
        let mut scanner = KeyScanner::new();
        let mut buffer = vec![0; CHUNK_SIZE];
        let mut outcome = Ok(());
        loop {
            let read = match source.read(&mut buffer) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.report_unusable(input, None, &error);
                    return outcome;
                }
            };
            let before = self.counts.keys;
            let chunk = buffer.get(..read).unwrap_or_default();
            if chunk.is_empty() {
                break;
            }
            scanner.push(chunk, &mut |finding| self.handle(input, finding, &mut outcome));
            self.progress.advance(read as u64, self.counts.keys - before);
            if outcome.is_err() {
                break; // standard output is closed
            }
        }
        scanner.finish(&mut |finding| self.handle(input, finding, &mut outcome));
        outcome
    }

    fn handle(&mut self, input: &str, finding: Finding, outcome: &mut Result<(), CliError>) {
        if outcome.is_err() {
            return;
        }
        match finding.key {
            Ok(spki) => {
                self.counts.keys += 1;
                *outcome = (self.visit)(&FoundKey { input, line: finding.line, spki: &spki });
            }
            Err(error) => self.report_unusable(input, finding.line, &error),
        }
    }

    fn report_unusable(&mut self, input: &str, line: Option<u64>, problem: &dyn std::fmt::Display) {
        self.counts.unusable += 1;
        self.progress.print_error(&format_args!("{}: {problem}", position(input, line)));
    }
}
