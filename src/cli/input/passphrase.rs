//! The passphrase of PKCS #12 stores: from a file, or asked for on a terminal.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::ValueHint;
use console::Term;
use keygate_core::printable::printable;
use keygate_core::regular_file::{FileSize, explain};
use zeroize::Zeroizing;

use crate::cli::CliError;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct PassphraseArgs {
    /// File with the passphrase of PKCS #12 stores, in its first line. Without this option, the
    /// command asks for the passphrase of each store, if standard error is a terminal.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    passphrase_file: Option<PathBuf>,
}

/// Maximum size of the file, in bytes.
const MAX_SIZE: u64 = 4096;

impl PassphraseArgs {
    /// Reads the file, if there is one.
    pub(super) fn source(&self) -> Result<PassphraseSource, CliError> {
        let Some(path) = &self.passphrase_file else { return Ok(PassphraseSource::Terminal) };
        let passphrase = read(path).map_err(|error| {
            CliError::Operation(format!(
                "--passphrase-file {}: {}",
                path.display(),
                explain(&error)
            ))
        })?;
        Ok(PassphraseSource::Given(passphrase))
    }
}

/// The first line of the file at `path`, which may be a pipe.
fn read(path: &Path) -> io::Result<Zeroizing<String>> {
    let mut content = Zeroizing::new(Vec::new());
    File::open(path)?.take(MAX_SIZE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_SIZE {
        let problem =
            format!("larger than {}; put the passphrase alone into it", FileSize(MAX_SIZE));
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    let line = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, "the passphrase must be UTF-8 text")
    })?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// Where passphrases come from.
pub(super) enum PassphraseSource {
    /// The same passphrase for all stores.
    Given(Zeroizing<String>),
    Terminal,
}

impl PassphraseSource {
    /// The passphrase of the store in `input`; `None` if there is neither a file nor a terminal.
    ///
    /// # Errors
    /// Returns an error if the terminal cannot be read.
    pub(super) fn of(&self, input: &str) -> io::Result<Option<Zeroizing<String>>> {
        match self {
            Self::Given(passphrase) => Ok(Some(passphrase.clone())),
            Self::Terminal if io::stderr().is_terminal() => {
                let terminal = Term::stderr();
                terminal.write_str(&format!("Passphrase of {}: ", shown(input)))?;
                terminal.read_secure_line().map(|line| Some(Zeroizing::new(line)))
            }
            Self::Terminal => Ok(None),
        }
    }
}

/// The name of an input, which must not control the terminal.
fn shown(input: &str) -> String {
    let name = if input == "-" { "standard input" } else { input };
    printable(name)
}
