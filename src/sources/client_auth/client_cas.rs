//! The CAs of clients and their files.

use std::path::PathBuf;
use std::sync::Arc;

use keygate_core::guard::AllowRules;
use keygate_core::tls::{BoundCas, CrlIssuers, TrustAnchors};
use rustls::pki_types::CertificateDer;

use crate::saved_state::saved_credentials::sha256;
use crate::sources::credential_files::CredentialFiles;
use crate::sources::load_error::LoadError;
use crate::sources::load_errors::{LoadErrors, all, both};
use crate::sources::service_file::ServiceFile;

/// The CAs of clients.
#[derive(Debug, Default, Clone)]
pub(crate) struct ClientCas {
    pub(crate) trust_anchors: Option<Arc<TrustAnchors>>,
    /// The CAs in `client_auth.intermediates`.
    pub(crate) intermediates: Vec<CertificateDer<'static>>,
    /// The CAs that may sign CRLs; `None` without any CA.
    pub(super) issuers: Option<Arc<CrlIssuers>>,
    /// The files with the CAs.
    pub(super) files: Vec<CaFile>,
}

/// A file with CAs.
#[derive(Debug, Clone)]
pub(crate) struct CaFile {
    /// The configuration key that names it.
    pub(crate) key: &'static str,
    pub(crate) path: PathBuf,
    pub(super) sha256: [u8; 32],
    /// Number of trust anchors in the file.
    anchors: usize,
}

impl ClientCas {
    /// The configuration key and the SHA-256 of each file.
    pub(crate) fn digests(&self) -> impl Iterator<Item = (&'static str, [u8; 32])> {
        self.files.iter().map(|file| (file.key, file.sha256))
    }

    /// The CAs in the content of their files.
    pub(super) fn read(
        files: CredentialFiles<'_>,
        read: impl Fn(ServiceFile<'_>) -> Result<Vec<u8>, LoadError>,
    ) -> Result<Self, LoadErrors> {
        let file = |(key, path)| ServiceFile { files, key, path };
        let Some(first) = files.cas().next().map(file) else { return Ok(Self::default()) };
        let below = files
            .clients
            .intermediates
            .as_deref()
            .map(|path| file(("client_auth.intermediates", path)));
        let kept = |file: ServiceFile<'_>, content: &[u8], anchors| {
            let (key, path) = (file.key, file.path.to_owned());
            CaFile { key, path, sha256: sha256(content), anchors }
        };
        let trusted = files.cas().map(file).map(|file| {
            let content = read(file)?;
            let anchors = file.trust_anchors(&content)?.certificates;
            Ok::<_, LoadError>((kept(file, &content, anchors.len()), anchors))
        });
        let intermediates = below.map(|file| {
            let content = read(file)?;
            Ok::<_, LoadError>((file.certificates(&content)?, kept(file, &content, 0)))
        });
        let (trusted, intermediates) = both(all(trusted), intermediates.transpose())?;
        let (mut copied, mut bound): (Vec<_>, Vec<_>) = trusted.into_iter().unzip();
        let unbound =
            files.clients.trust_anchors.as_deref().map(|_| bound.remove(0)).unwrap_or_default();
        let trust_anchors = TrustAnchors::from_files(unbound, bound);
        let trust_anchors = trust_anchors.map_err(|source| first.error(source))?;
        let (intermediates, more) = intermediates.unzip();
        copied.extend(more);
        let intermediates = intermediates.unwrap_or_default();
        let issuers = CrlIssuers::new(&trust_anchors).with_intermediates(&intermediates);
        let file = below.unwrap_or(first);
        let issuers = Some(Arc::new(issuers.map_err(|source| file.error(source))?));
        let trust_anchors = Some(Arc::new(trust_anchors));
        Ok(Self { trust_anchors, intermediates, issuers, files: copied })
    }

    /// The CAs with the names that each may vouch for.
    pub(crate) fn bound(&self, files: CredentialFiles<'_>) -> BoundCas {
        let mut bound = BoundCas::new(files.rules().map(AllowRules::kinds).unwrap_or_default());
        for (file, certificates) in self.by_file() {
            let mut entries = files.clients.cas.iter().filter(|it| it.file == file.path).peekable();
            if entries.peek().is_none()
                && files.clients.trust_anchors.as_deref() != Some(&*file.path)
            {
                bound.bind(certificates, &Arc::default()); // no entry, no name
            }
            entries.for_each(|entry| bound.bind(certificates, &entry.bounds));
        }
        bound
    }

    /// The file with this trust anchor.
    pub(crate) fn file_of(&self, anchor: &CertificateDer<'_>) -> Option<&CaFile> {
        let mut files = self.by_file().filter(|(_, anchors)| anchors.contains(anchor));
        files.next().map(|(file, _)| file)
    }

    /// The files with the trust anchors of each.
    pub(crate) fn by_file(&self) -> impl Iterator<Item = (&CaFile, &[CertificateDer<'static>])> {
        let anchors = self.trust_anchors.as_ref();
        let mut rest = anchors.map(|it| &it.certificates[..]).unwrap_or_default();
        let files = self.files.iter().filter(|file| file.anchors > 0); // no intermediates
        files.map(move |file| {
            let (own, others) = rest.split_at_checked(file.anchors).unwrap_or_default();
            rest = others;
            (file, own)
        })
    }
}
