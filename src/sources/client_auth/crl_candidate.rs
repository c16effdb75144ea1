//! Checks a downloaded CRL file as a reload would, before it replaces the file that the proxy
//! reads.
//!
//! The CRLs in use are those in the configured files. With a readable state directory, the newest
//! CRLs that were in use count as well.

use std::io;
use std::path::Path;

use keygate_core::tls::{CrlLoader, CrlMarks, CrlWarning, ExpiredCrl, TlsFileError};
use keygate_core::unix_time;

use super::{ClientCas, MAX_CRL_SIZE, crl_files};
use crate::config::{Config, CredentialOwner};
use crate::files::read_bounded;
use crate::saved_state::crl_state::CrlState;
use crate::saved_state::saved_credentials::sha256;
use crate::sources::credential_files::{CredentialFiles, CredentialTable};
use crate::sources::load_errors::LoadErrors;

/// Why a downloaded CRL file does not replace the one in use.
#[derive(Debug, thiserror::Error)]
pub enum CrlFileError {
    /// The CAs that may have signed the CRLs cannot be used.
    #[error("{0}")]
    Cas(LoadErrors),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A CRL of the file, or the whole file, would be rejected.
    #[error("{owner}: {source}")]
    List {
        /// The service or authorizer.
        owner: CredentialOwner,
        /// The reason.
        source: TlsFileError,
    },
    /// A CRL would not be used, or would reject all clients of its CA.
    #[error("{owner}: {warning}")]
    Unused {
        /// The service or authorizer.
        owner: CredentialOwner,
        /// The reason.
        warning: CrlWarning,
    },
}

/// Checks the CRL file at `staged`, which would replace the one at `path`, for each service and
/// authorizer that names it. Returns the number of revoked certificates.
///
/// # Errors
/// Returns the first check that the file fails.
pub fn check_crl_candidate(
    config: &Config,
    path: &Path,
    staged: &Path,
) -> Result<usize, CrlFileError> {
    let content = read_bounded(staged, MAX_CRL_SIZE)?;
    // Not an error: the proxy makes the same checks, and its user may be another one.
    let state = CrlState::read(config.state.dir.as_deref()).unwrap_or_default();
    let tables = CredentialTable::all(config);
    let owners: Vec<_> = tables.iter().map(CredentialTable::files).collect();
    let names: Vec<_> = owners.iter().map(|files| files.name).collect();
    let readers =
        owners.iter().filter(|files| files.clients.crls.iter().any(|crl| crl.path == path));
    let (mut most, mut unused) = (0, None::<Vec<(usize, CrlFileError)>>);
    for files in readers {
        let marks = state.marks(files.name, None, &names);
        let (entries, mut of_others) = check(*files, path, &content, marks)?;
        most = most.max(entries);
        if let Some(unused) = unused {
            of_others.retain(|(it, _)| unused.iter().any(|(other, _)| it == other));
        }
        unused = Some(of_others);
    }
    // Anybody may have made a list that no reader verifies, in the name of any CA.
    match unused.into_iter().flatten().next() {
        Some((_, error)) => Err(error),
        None => Ok(most),
    }
}

/// Checks the file for one service or authorizer. Returns the number of revoked certificates, and
/// the positions of the lists of other CAs.
fn check(
    files: CredentialFiles<'_>,
    path: &Path,
    content: &[u8],
    mut marks: CrlMarks,
) -> Result<(usize, Vec<(usize, CrlFileError)>), CrlFileError> {
    let cas = ClientCas::read(files, |file| file.read()).map_err(CrlFileError::Cas)?;
    // Without CAs, an error of the configuration.
    let Some(issuers) = cas.issuers.as_deref() else { return Ok((0, Vec::new())) };
    let (now, no_marks) = (unix_time::now(), CrlMarks::new());
    let add = |loader: &mut CrlLoader<'_>, candidate: Option<&[u8]>| {
        for file in crl_files(files) {
            match candidate.filter(|_| file.path == path) {
                Some(candidate) => loader.add(path, candidate),
                // The file may not exist yet.
                None => {
                    let content = file.read_up_to(MAX_CRL_SIZE);
                    content.iter().for_each(|content| loader.add(file.path, content));
                }
            }
        }
    };
    let mut loader = CrlLoader::new(issuers, ExpiredCrl::Accept, &no_marks, now);
    add(&mut loader, None);
    let in_use = loader.finish().crls;
    in_use.raise(&mut marks);
    let mut loader = CrlLoader::new(issuers, files.clients.expired_crl, &marks, now);
    loader.in_use = Some(&in_use);
    add(&mut loader, Some(content));
    let update = loader.finish();
    let owner = || files.owner();
    let digest = sha256(content);
    let is_used = update.crls.files().any(|file| file == (digest, path));
    // The problem of another file counts only if it keeps the lists of this file out.
    let is_relevant = |problem: &(_, _)| problem.0 == path || !is_used;
    if let Some((_, source)) = update.problems.into_iter().find(is_relevant) {
        return Err(CrlFileError::List { owner: owner(), source });
    }
    let rejects_clients = |warning: &&CrlWarning| match warning {
        CrlWarning::Expired { path: of, expired, .. } => {
            of == path && *expired == ExpiredCrl::Reject
        }
        CrlWarning::Superseded { path: of, .. } | CrlWarning::Unused { path: of, .. } => {
            of == path && !is_used
        }
    };
    if let Some(warning) = update.crls.warnings().iter().find(rejects_clients) {
        return Err(CrlFileError::Unused { owner: owner(), warning: warning.clone() });
    }
    let lists = update.crls.lists().into_iter().filter(|(_, of)| *of == path);
    let entries = lists.map(|(list, _)| list.entries()).sum();
    let of_others = update.crls.warnings().iter().filter_map(|warning| match warning {
        CrlWarning::Unused { path: of, position, .. } if of == path => {
            let error = CrlFileError::Unused { owner: owner(), warning: warning.clone() };
            Some((*position, error))
        }
        CrlWarning::Expired { .. } | CrlWarning::Superseded { .. } | CrlWarning::Unused { .. } => {
            None
        }
    });
    Ok((entries, of_others.collect()))
}
