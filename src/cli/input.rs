//! The INPUT arguments: files, directories with everything below them, or `-` for standard input.
//!
//! Finds the keys in the inputs. An unusable input is reported on standard error, and the others
//! are read.

mod found;
mod passphrase;
mod report;

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use clap::ValueHint;
use keygate_core::regular_file::{self, explain};
use keygate_core::spki::{
    EncryptedStore, Finding, Fingerprint, InputError, KeyScanner, of_certificate,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use walkdir::{DirEntry, WalkDir};

pub(super) use self::found::{FoundKey, FoundSubject, KeyFields, position};
pub(super) use self::passphrase::PassphraseArgs;
use self::passphrase::PassphraseSource;
use self::report::ReportedKey;
use super::progress::{InputProgress, PerKeyOutput};
use super::{CliError, Exit, print_error};

/// Help text of every INPUT argument.
pub(super) const HELP: &str = "Certificates, requests, public and private keys (PEM, DER, \
    OpenSSH, JWK), PKCS #7, PKCS #12, authorized_keys, lines of base64 or hex SPKI: files, \
    directories, '-' for standard input";

/// Maximum size of a file of certificates, 16 MiB.
const MAX_CERTIFICATES: u64 = 16 << 20;

/// The certificates in a file, PEM or DER; none if it has something else.
pub(super) fn certificates_in(path: &Path) -> Result<Vec<CertificateDer<'static>>, CliError> {
    let content = regular_file::read(path, MAX_CERTIFICATES);
    let content = content.map_err(|error| CliError::io(path, &error))?;
    if of_certificate(&content).is_ok() {
        return Ok(vec![content.into()]);
    }
    let certificates = CertificateDer::pem_slice_iter(&content).map(|certificate| {
        let certificate = certificate.map_err(|error| CliError::file(path, error.to_string()))?;
        of_certificate(&certificate).map_err(|error| CliError::file(path, error))?;
        Ok(certificate)
    });
    certificates.collect()
}

/// The inputs of a command.
#[derive(Debug, clap::Args)]
pub(super) struct InputArgs<const REQUIRED: bool = true> {
    #[arg(required = REQUIRED, value_name = "INPUT", help = HELP, value_hint = ValueHint::AnyPath)]
    pub(super) inputs: Vec<String>,
    #[command(flatten)]
    pub(super) passphrase: PassphraseArgs,
}

impl<const REQUIRED: bool> InputArgs<REQUIRED> {
    /// Calls `visit` with every key of every input, as [`for_each_key`].
    pub(super) fn for_each_key(
        &self,
        per_key_output: PerKeyOutput,
        visit: impl FnMut(&FoundKey<'_>) -> Result<(), CliError>,
    ) -> Result<InputCounts, CliError> {
        for_each_key(&self.inputs, &self.passphrase, per_key_output, visit)
    }
}

/// Counts over all inputs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InputCounts {
    /// Keys found.
    pub(super) keys: u64,
    /// Places without a readable key.
    pub(super) unusable: u64,
    /// Inputs that were read, or should have been: files and standard input.
    pub(super) inputs: u64,
    /// Inputs with such a place; each one was reported on standard error.
    pub(super) unusable_inputs: u64,
}

impl InputCounts {
    /// `exit`, or [`Exit::Incomplete`] if an input was unusable. A key that was found counts more,
    /// because an unusable input must not hide it.
    pub(super) fn exit(self, exit: Exit) -> Exit {
        let is_complete = self.unusable == 0 || exit == Exit::Found;
        if is_complete { exit } else { Exit::Incomplete }
    }
}

/// Maximum number of unusable places of one argument that are reported; the rest is counted. Only
/// the first place of a file below a directory is reported.
const MAX_PLACES: u64 = 10;

/// Maximum number of PKCS #12 stores in one input that are decrypted. Each takes some seconds at
/// most, and asks for a passphrase. Further ones are reported as unusable.
const MAX_STORES: u64 = 10;

/// Bytes per read.
const CHUNK_SIZE: usize = 64 << 10;

/// Calls `visit` with every key of every input.
///
/// # Errors
/// Returns an error if `visit` does, or if the passphrase cannot be read.
pub(super) fn for_each_key(
    inputs: &[String],
    passphrase: &PassphraseArgs,
    per_key_output: PerKeyOutput,
    mut visit: impl FnMut(&FoundKey<'_>) -> Result<(), CliError>,
) -> Result<InputCounts, CliError> {
    for_each(inputs, passphrase, per_key_output, false, |subject| match subject {
        FoundSubject::Key(key) => visit(&key),
        // Reported as unusable, because they are not accepted.
        FoundSubject::Fingerprint { .. } | FoundSubject::Reported { .. } => Ok(()),
    })
}

/// As [`for_each_key`], and accepts fingerprints and the lines of `keygate report --json`.
pub(super) fn for_each_subject(
    inputs: &[String],
    passphrase: &PassphraseArgs,
    per_key_output: PerKeyOutput,
    visit: impl FnMut(FoundSubject<'_>) -> Result<(), CliError>,
) -> Result<InputCounts, CliError> {
    for_each(inputs, passphrase, per_key_output, true, visit)
}

fn for_each(
    inputs: &[String],
    passphrase: &PassphraseArgs,
    per_key_output: PerKeyOutput,
    accepts_all: bool,
    visit: impl FnMut(FoundSubject<'_>) -> Result<(), CliError>,
) -> Result<InputCounts, CliError> {
    let passphrase = passphrase.source()?;
    let progress = InputProgress::new(per_key_output);
    let counts = InputCounts::default();
    let mut reader = InputReader {
        progress,
        counts,
        passphrase,
        visit,
        accepts_all,
        is_below_directory: false,
        places: Vec::new(),
        place_count: 0,
        store_count: 0,
    };
    let outcome = inputs.iter().try_for_each(|input| reader.read_argument(input));
    drop(reader.progress);
    if outcome.is_ok() && reader.counts.inputs == 0 && !inputs.is_empty() {
        reader.counts.unusable += 1; // a wrong path in a script must not pass as clean
        print_error(&"no input: there is no file below the directory that was given");
    }
    outcome.map(|()| reader.counts)
}

struct InputReader<V> {
    progress: InputProgress,
    counts: InputCounts,
    passphrase: PassphraseSource,
    visit: V,
    /// Whether fingerprints and lines of reports are accepted.
    accepts_all: bool,
    is_below_directory: bool,
    /// The first unusable places of the input that is being read.
    places: Vec<String>,
    /// Number of unusable places of the current input.
    place_count: u64,
    /// Number of PKCS #12 stores of the current input that need a passphrase.
    store_count: u64,
}

impl<V: FnMut(FoundSubject<'_>) -> Result<(), CliError>> InputReader<V> {
    fn read_argument(&mut self, argument: &str) -> Result<(), CliError> {
        if argument == "-" {
            return self.read_stream("-", io::stdin().lock());
        }
        if let Some(fingerprint) = Fingerprint::parse(argument).filter(|_| self.accepts_all)
            && !Path::new(argument).exists()
        {
            self.counts.inputs += 1;
            let subject = FoundSubject::Fingerprint { input: argument, line: None, fingerprint };
            return (self.visit)(subject);
        }
        // An argument may be a pipe or a device. Below a directory, only regular files are read.
        if !std::fs::metadata(argument).is_ok_and(|metadata| metadata.is_dir()) {
            return self.read_file(argument);
        }
        self.is_below_directory = true;
        let entries = WalkDir::new(argument).sort_by_file_name();
        let outcome = entries.into_iter().try_for_each(|entry| match entry {
            Ok(entry) => self.read_entry(&entry),
            Err(error) => {
                let path = error.path().map(|path| path.display().to_string());
                let path = path.unwrap_or_else(|| argument.to_owned());
                let error = error.into_io_error().unwrap_or_else(|| io::Error::other("a loop"));
                self.end_unusable(&path, &explain(&error))
            }
        });
        self.is_below_directory = false;
        outcome
    }

    /// Follows links to files. Links to directories are skipped, because they may form a loop.
    fn read_entry(&mut self, entry: &DirEntry) -> Result<(), CliError> {
        let path = entry.path().display().to_string();
        let target_type = || std::fs::metadata(entry.path()).map(|metadata| metadata.file_type());
        let kind = if entry.path_is_symlink() { target_type() } else { Ok(entry.file_type()) };
        match kind {
            Ok(kind) if kind.is_dir() => Ok(()),
            Ok(kind) if kind.is_file() => self.read_file(&path),
            Ok(_) => self.end_unusable(&path, &"not a regular file"),
            Err(error) => self.end_unusable(&path, &explain(&error)),
        }
    }

    fn read_file(&mut self, path: &str) -> Result<(), CliError> {
        match File::open(path) {
            Ok(file) => self.read_stream(path, file),
            Err(error) => self.end_unusable(path, &explain(&error)),
        }
    }

    /// Reports an input that cannot be read. The others are read.
    fn end_unusable(&mut self, input: &str, problem: &dyn Display) -> Result<(), CliError> {
        self.record_unusable(input, None, problem);
        self.end_input();
        Ok(())
    }

    fn read_stream(&mut self, input: &str, source: impl Read) -> Result<(), CliError> {
        let outcome = self.read_keys(input, source);
        self.end_input();
        outcome
    }

    fn read_keys(&mut self, input: &str, mut source: impl Read) -> Result<(), CliError> {
        let mut scanner = KeyScanner::new();
        let mut buffer = vec![0; CHUNK_SIZE];
        let mut is_first = true;
        let mut outcome = Ok(());
        // The loop ends early if standard output is closed, or if the rest has no key.
        while outcome.is_ok() && !scanner.is_complete() {
            let read = match source.read(&mut buffer) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.record_unusable(input, None, &explain(&error));
                    return outcome;
                }
            };
            let chunk = buffer.get(..read).unwrap_or_default();
            if chunk.is_empty() {
                break;
            }
            if is_first && self.accepts_all && report::is_report(chunk) {
                return self.read_report(input, chunk.chain(source));
            }
            is_first = false;
            let before = self.counts.keys;
            scanner.push(chunk, &mut |finding| self.handle(input, finding, &mut outcome));
            self.progress.advance(self.counts.keys - before);
        }
        scanner.finish(&mut |finding| self.handle(input, finding, &mut outcome));
        outcome
    }

    /// Reads the lines of `keygate report --json`.
    fn read_report(&mut self, input: &str, source: impl Read) -> Result<(), CliError> {
        let mut source = BufReader::new(source);
        for number in 1.. {
            let line = match report::next_line(&mut source) {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(error) => {
                    self.record_unusable(input, Some(number), &explain(&error));
                    break;
                }
            };
            match report::parse(&line) {
                Ok(Some(ReportedKey { spki, encoding, is_open })) => {
                    self.counts.keys += 1;
                    self.progress.advance(1);
                    let key = FoundKey { input, line: Some(number), spki: &spki };
                    (self.visit)(FoundSubject::Reported { key, encoding, is_open })?;
                }
                Ok(None) => {}
                Err(error) => self.record_unusable(input, Some(number), &error),
            }
        }
        Ok(())
    }

    fn handle(&mut self, input: &str, finding: Finding, outcome: &mut Result<(), CliError>) {
        if outcome.is_err() {
            return;
        }
        match finding.key {
            Ok(spki) => {
                self.counts.keys += 1;
                let key = FoundKey { input, line: finding.line, spki: &spki };
                *outcome = (self.visit)(FoundSubject::Key(key));
            }
            Err(InputError::Fingerprint(fingerprint)) if self.accepts_all => {
                let line = finding.line;
                *outcome = (self.visit)(FoundSubject::Fingerprint { input, line, fingerprint });
            }
            Err(InputError::Passphrase(store)) => {
                self.open_store(input, finding.line, store, outcome);
            }
            Err(error) => self.record_unusable(input, finding.line, &error),
        }
    }

    fn open_store(
        &mut self,
        input: &str,
        line: Option<u64>,
        store: EncryptedStore,
        outcome: &mut Result<(), CliError>,
    ) {
        self.store_count += 1;
        if self.store_count > MAX_STORES {
            let problem =
                format!("more than {MAX_STORES} PKCS #12 stores: give each in an input of its own");
            return self.record_unusable(input, line, &problem);
        }
        match self.progress.suspend(|| self.passphrase.of(input)) {
            Ok(Some(passphrase)) => store.keys(&passphrase).into_iter().for_each(|key| {
                self.handle(input, Finding { line, key }, outcome);
            }),
            Ok(None) => self.record_unusable(input, line, &InputError::Passphrase(store)),
            Err(error) => self.record_unusable(input, line, &explain(&error)),
        }
    }

    fn record_unusable(&mut self, input: &str, line: Option<u64>, problem: &dyn Display) {
        self.counts.unusable += 1;
        self.place_count += 1;
        let maximum = if self.is_below_directory { 1 } else { MAX_PLACES };
        if self.place_count <= maximum {
            self.places.push(format!("{}: {problem}", position(input, line)));
        }
    }

    /// Counts an input, and reports its unusable places.
    fn end_input(&mut self) {
        self.counts.inputs += 1;
        let places = std::mem::take(&mut self.places);
        let count = std::mem::take(&mut self.place_count);
        self.store_count = 0;
        self.counts.unusable_inputs += u64::from(count > 0);
        let more = match count - places.len() as u64 {
            0 => String::new(),
            1 => " (and 1 more place)".to_owned(),
            more => format!(" (and {more} more places)"),
        };
        let Some((last, others)) = places.split_last() else { return };
        others.iter().for_each(|place| self.progress.print_error(place));
        self.progress.print_error(&format_args!("{last}{more}"));
    }
}
