//! `keygate list create`: makes a list of the keys that a CA has revoked as compromised.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use clap::ValueHint;
use keygate_core::tls::{CrlError, CrlIssuers, RevocationList, TlsFileError};
use keygate_core::{regular_file, spki};
use rustls::pki_types::CertificateDer;
use walkdir::WalkDir;

use super::{CliError, Exit};
use crate::cli::counted::counted;
use crate::cli::input::{FoundKey, certificates_in};
use crate::cli::key::list_lines;
use crate::cli::output::{print, replace};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The list. An existing file is replaced as a whole.
    #[arg(value_name = "OUT", value_hint = ValueHint::FilePath)]
    out: PathBuf,
    /// A CRL (PEM or DER); several if given several times.
    #[arg(long, value_name = "CRL", required = true, value_hint = ValueHint::FilePath)]
    from_crl: Vec<PathBuf>,
    /// The directory of the certificates (PEM or DER), with everything below it. The certificate of
    /// the CA is there, too, because it verifies the CRL.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    certificates: PathBuf,
}

/// Maximum size of a CRL, 256 MiB.
const MAX_CRL: u64 = 256 << 20;

/// A certificate and the path of its file.
type FoundCertificate = (PathBuf, CertificateDer<'static>);

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let certificates = certificates(&args.certificates)?;
    let issuers = CrlIssuers::among(certificates.iter().map(|(_, certificate)| certificate));
    let mut lists = Vec::new();
    for path in &args.from_crl {
        lists.extend(read(path, &issuers, &args.certificates)?);
    }
    let mut text = String::new();
    for list in &lists {
        let issuer = list.issuer.replace(char::is_control, "?");
        text += &format!("# keyCompromise by the CRL of {issuer}, {}\n", list.version);
    }
    let (mut keys, mut revoked) = (HashSet::new(), HashSet::new());
    for (path, certificate) in &certificates {
        let is_revoked = lists.iter().any(|list| list.revokes(certificate));
        let spki = spki::of_certificate(certificate).unwrap_or_default();
        if is_revoked && revoked.insert(certificate) && keys.insert(spki) {
            let input = &path.display().to_string();
            text += &(list_lines(&FoundKey { input, line: None, spki }).join("\n") + "\n");
        }
    }
    replace(&args.out, text.as_bytes())?;
    let entries: usize = lists.iter().map(RevocationList::entries).sum();
    print(format_args!(
        "{}: {} of {} certificates with the reason keyCompromise\n\
         not in {}: {} with the reason keyCompromise",
        args.out.display(),
        counted(keys.len() as u64, "key"),
        revoked.len(),
        args.certificates.display(),
        entries.saturating_sub(revoked.len())
    ))?;
    Ok(Exit::Done)
}

/// The lists of a CRL file, verified by the CAs among the certificates in `directory`.
fn read(
    path: &Path,
    issuers: &CrlIssuers,
    directory: &Path,
) -> Result<Vec<RevocationList>, CliError> {
    let content = regular_file::read(path, MAX_CRL).map_err(|error| CliError::io(path, &error))?;
    RevocationList::of_compromised_keys(&content, issuers).map_err(|error| {
        let TlsFileError::Crl { source: CrlError::UnknownIssuer { issuer }, .. } = &error else {
            return CliError::file(path, error);
        };
        let remedy = format!("put its certificate into {}", directory.display());
        let problem = format!("no certificate of the CA {issuer}; {remedy}");
        CliError::file(path, problem + ", because it verifies the CRL")
    })
}

/// The certificates in `directory`, in the order of their paths.
fn certificates(directory: &Path) -> Result<Vec<FoundCertificate>, CliError> {
    let mut found = Vec::new();
    for entry in WalkDir::new(directory).sort_by_file_name() {
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(directory).to_owned();
            CliError::io(&path, &error.into())
        })?;
        // A link to a file is followed. A link to a directory may form a loop.
        if entry.path().is_file() {
            let of_file = certificates_in(entry.path())?.into_iter();
            found.extend(of_file.map(|certificate| (entry.path().to_owned(), certificate)));
        }
    }
    Ok(found)
}
