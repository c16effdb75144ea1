//! `keygate list create`: makes a list of the keys that a CA has revoked as compromised.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use clap::ValueHint;
use keygate_core::tls::{CompromisedKeys, CrlError, CrlIssuers, Revocation, TlsFileError};
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
    let lists = lists(args, &certificates)?;
    let mut text = String::new();
    for CompromisedKeys { list, .. } in &lists {
        let issuer = list.issuer.replace(char::is_control, "?");
        text += &format!("# keyCompromise by the CRL of {issuer}, {}\n", list.version);
    }
    let (mut keys, mut revoked, mut other_reason) = (HashSet::new(), 0, 0);
    for (path, certificate) in &certificates {
        match lists.iter().map(|list| list.entry(certificate)).max() {
            Some(Revocation::KeyCompromise) => revoked += 1,
            Some(Revocation::OtherReason) => {
                other_reason += 1;
                continue;
            }
            Some(Revocation::None) | None => continue,
        }
        let spki = spki::of_certificate(certificate).unwrap_or_default();
        if keys.insert(spki) {
            let input = &path.display().to_string();
            text += &(list_lines(&FoundKey { input, line: None, spki }).join("\n") + "\n");
        }
    }
    replace(&args.out, text.as_bytes())?;
    let all: usize = lists.iter().map(CompromisedKeys::entries).sum();
    print(format_args!(
        "{}: {} of {revoked} certificates with the reason keyCompromise\n\
         skipped: {other_reason} with another reason, {} that no CRL revokes\n\
         not in {}: {} with the reason keyCompromise",
        args.out.display(),
        counted(keys.len() as u64, "key"),
        certificates.len() - revoked - other_reason,
        args.certificates.display(),
        all.saturating_sub(revoked)
    ))?;
    Ok(Exit::Done)
}

/// The lists of the CRLs, verified by the CAs among `certificates`.
fn lists(args: &Args, certificates: &[FoundCertificate]) -> Result<Vec<CompromisedKeys>, CliError> {
    let issuers = CrlIssuers::among(certificates.iter().map(|(_, certificate)| certificate));
    let mut lists = Vec::new();
    for path in &args.from_crl {
        let content = regular_file::read(path, MAX_CRL).map_err(|error| CliError::io(path, &error));
        let read = CompromisedKeys::read(&content?, &issuers).map_err(|error| {
            let TlsFileError::Crl { source: CrlError::UnknownIssuer { issuer }, .. } = &error
            else {
                return CliError::file(path, error);
            };
            let directory = args.certificates.display();
            let remedy =
                format!("put its certificate into {directory}, because it verifies the CRL");
            CliError::file(path, format!("no certificate of the CA {issuer}; {remedy}"))
        });
        lists.extend(read?);
    }
    Ok(lists)
}

/// The different certificates in `directory`, in the order of their paths.
fn certificates(directory: &Path) -> Result<Vec<FoundCertificate>, CliError> {
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    for entry in WalkDir::new(directory).sort_by_file_name() {
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(directory).to_owned();
            CliError::io(&path, &error.into())
        })?;
        // A link to a file is followed. A link to a directory may form a loop.
        if entry.path().is_file() {
            let all = certificates_in(entry.path())?.into_iter();
            let new = all.filter(|certificate| known.insert(certificate.clone()));
            found.extend(new.map(|certificate| (entry.path().to_owned(), certificate)));
        }
    }
    Ok(found)
}
