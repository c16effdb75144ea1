//! The CAs of clients and their CRLs.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use super::service_file::ServiceFile;
use crate::snapshot::load::error::LoadError;
use crate::snapshot::load::load_errors::{LoadErrors, all, both, none_of};
use crate::snapshot::load::source::credential_files::CredentialFiles;
use crate::tls::{CrlFileErrors, CrlIssuers, CrlLoader, CrlMarks, Crls, TrustAnchors};

/// The configuration key that names the files with CRLs.
pub(in crate::snapshot::load::source) const CRLS: &str = "client_auth.crls";
/// Maximum size of a file with CRLs, 128 MiB: more than a million entries with serial numbers of 20
/// octets, in PEM.
const MAX_CRL_SIZE: u64 = 128 << 20;

/// The CAs of clients, and their verified CRLs.
pub(super) struct ClientCas {
    pub(super) trust_anchors: Arc<TrustAnchors>,
    /// The CAs in `client_auth.intermediates`.
    pub(super) intermediates: Vec<CertificateDer<'static>>,
    pub(super) crls: Arc<Crls>,
}

/// The CRLs that are in use when the files of a service are read.
#[derive(Debug, Clone, Copy)]
pub(in crate::snapshot::load::source) struct KnownCrls<'a> {
    /// The CRLs in use; `None` at a start.
    pub(in crate::snapshot::load::source) in_use: Option<&'a Crls>,
    /// Whether each CA that has a CRL in use must keep one.
    pub(in crate::snapshot::load::source) keep_issuers: bool,
    /// The newest versions that were in use.
    pub(in crate::snapshot::load::source) marks: &'a CrlMarks,
    /// The current time, in seconds since the Unix epoch.
    pub(in crate::snapshot::load::source) now: u64,
}

impl ClientCas {
    /// Reads all files that `client_auth` names.
    ///
    /// # Errors
    /// Returns the errors of all files that cannot be used. CRLs are verified only if their CAs can
    /// be used.
    pub(super) fn read(
        files: CredentialFiles<'_>,
        trust_anchors: &Path,
        known: KnownCrls<'_>,
    ) -> Result<Self, LoadErrors> {
        let file = |key, path| ServiceFile { files, key, path };
        let anchors = file("client_auth.trust_anchors", trust_anchors);
        let anchors = anchors.read().and_then(|content| anchors.trust_anchors(&content));
        let below = files.intermediates.map(|path| file("client_auth.intermediates", path));
        let intermediates = below.map(|file| file.certificates(&file.read()?)).transpose();
        let cas = both(anchors, intermediates).and_then(|(anchors, intermediates)| {
            let issuers = CrlIssuers::new(&anchors);
            let Some((file, intermediates)) = below.zip(intermediates) else {
                return Ok((anchors, Vec::new(), issuers));
            };
            let issuers = issuers.with_intermediates(&intermediates);
            Ok((anchors, intermediates, issuers.map_err(|source| file.unusable(source))?))
        });
        let crls = match &cas {
            Ok((.., issuers)) => read_crls(files, issuers, known),
            Err(_) => all(crl_files(files).map(|file| file.read_up_to(MAX_CRL_SIZE).map(drop)))
                .map(|_| Crls::default()),
        };
        let ((trust_anchors, intermediates, _), crls) = both(cas, crls)?;
        Ok(Self { trust_anchors: Arc::new(trust_anchors), intermediates, crls: Arc::new(crls) })
    }
}

fn crl_files(files: CredentialFiles<'_>) -> impl Iterator<Item = ServiceFile<'_>> {
    let file = move |path| ServiceFile { files, key: CRLS, path };
    files.crls.iter().map(move |path| file(path))
}

/// Reads and verifies the CRLs. Only lists that can be used together replace those in use.
///
/// # Errors
/// Returns the errors of all files that cannot be used.
fn read_crls(
    files: CredentialFiles<'_>,
    issuers: &CrlIssuers,
    known: KnownCrls<'_>,
) -> Result<Crls, LoadErrors> {
    let mut loader = CrlLoader {
        issuers,
        expired: files.expired_crl,
        now: known.now,
        in_use: known.in_use,
        keep_issuers: known.keep_issuers,
        marks: known.marks,
        crls: Crls::default(),
    };
    let mut add = |file: ServiceFile<'_>| {
        let content = file.read_up_to(MAX_CRL_SIZE)?;
        loader.add(file.path, &content).map_err(|source| file.unusable(source))
    };
    let problems: Vec<_> = crl_files(files).filter_map(|file| add(file).err()).collect();
    // A list in a file with a problem would be missing in the check of all lists.
    none_of(problems)?;
    loader.finish().map_err(|CrlFileErrors { first, others }| {
        let error = |(path, source)| {
            let owner = files.owner();
            LoadError::Credentials { owner, key: CRLS, path, source }
        };
        LoadErrors::of(error(first), others.into_iter().map(error))
    })
}
