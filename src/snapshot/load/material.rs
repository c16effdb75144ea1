//! What a service has of certificates, keys, CAs and revocation lists, read as one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;

use super::secret::{self, ExposedKeyFile};
use super::{FileState, LoadError, ServiceConfig, read_bounded, tls};
use crate::config::{AlpnProtocol, Protocol, UpstreamTlsConfig};
use crate::spki::Fingerprint;
use crate::tls::{CertificateRole, ClientAuth, Credentials, Crls, TlsFileError, TrustAnchors};

/// The largest PEM file that is read, in bytes: some fifty times all public CAs together.
const MAX_PEM_SIZE: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct ServiceCredentials {
    pub(super) credentials: Credentials,
    trust_anchors: TrustAnchors,
    pub(super) crls: Crls,
    /// Private key files that others can read, or write.
    pub(super) loose: Vec<ExposedKeyFile>,
    /// What accepts the clients of `trust_anchors`.
    pub(super) clients: Arc<dyn ClientCertVerifier>,
    pub(super) upstream: Option<UpstreamSide>,
}

/// The side of the upstream.
#[derive(Debug)]
pub(super) struct UpstreamSide {
    identity: Option<Credentials>,
    trust_anchors: TrustAnchors,
    /// Of all its files.
    digest: Fingerprint,
    pub(super) tls: Arc<ClientConfig>,
}

impl ServiceCredentials {
    pub(super) fn read(config: &ServiceConfig) -> Result<Self, LoadError> {
        let [certificate, private_key, trust_anchors] = own_files(config);
        let Read { credentials, loose, .. } = credentials(config, certificate, private_key)?;
        let mut loose = Vec::from_iter(loose);
        let anchors = anchors(config, trust_anchors)?.0;
        let mut crls = Crls::default();
        for path in &config.crls {
            let file = (CRLS, path.as_path());
            let content = read(config, file)?;
            crls.add(&content, &anchors).map_err(|source| broken(config, file, source))?;
        }
        let clients = accepting(config, &anchors, &crls)?;
        let upstream = match &config.upstream.tls {
            Some(tls) => {
                let (side, key) = UpstreamSide::read(config, tls)?;
                loose.extend(key);
                Some(side)
            }
            None => None,
        };
        Ok(Self { credentials, trust_anchors: anchors, crls, loose, clients, upstream })
    }

    /// The same verifier of clients, made anew.
    pub(super) fn verifier(
        &self,
        config: &ServiceConfig,
    ) -> Result<Arc<dyn ClientCertVerifier>, LoadError> {
        accepting(config, &self.trust_anchors, &self.crls)
    }

    /// Keeps of what was there before what would be the same: open connections need not be looked
    /// at then, nor made anew.
    pub(super) fn reuse_unchanged(
        &mut self,
        config: &ServiceConfig,
        before: &Self,
        before_config: &ServiceConfig,
    ) {
        let accepts = |config: &ServiceConfig| {
            (config.client_auth_mode, config.expired_crl, config.policy.judge)
        };
        if accepts(config) == accepts(before_config)
            && self.trust_anchors.certificates == before.trust_anchors.certificates
            && self.crls.lists == before.crls.lists
        {
            self.clients = Arc::clone(&before.clients);
        }
        if let (Some(side), Some(before)) = (&mut self.upstream, &before.upstream)
            && side.digest == before.digest
            && config.protocol == before_config.protocol
        {
            side.tls = Arc::clone(&before.tls);
        }
    }

    /// Whether no revocation list is older than what was there before.
    pub(super) fn ensure_crls_not_older_than(
        &self,
        config: &ServiceConfig,
        before: &Self,
    ) -> Result<(), LoadError> {
        let file = config.crls.first().map_or(Path::new(""), PathBuf::as_path);
        let followed = self.crls.ensure_not_older_than(&before.crls);
        followed.map_err(|source| broken(config, (CRLS, file), source))
    }

    /// Every certificate whose key matters to us: leaves and CAs.
    pub(super) fn certificates(
        &self,
    ) -> impl Iterator<Item = (CertificateRole, &CertificateDer<'static>)> {
        let upstream = self.upstream.as_ref();
        let identity = upstream.and_then(|side| side.identity.as_ref());
        let server =
            self.credentials.cert.iter().take(1).map(|cert| (CertificateRole::Server, cert));
        let client = identity.and_then(|identity| identity.cert.first());
        let client = client.map(|cert| (CertificateRole::UpstreamClient, cert));
        let anchors = self.trust_anchors.certificates.iter();
        let theirs = upstream.into_iter().flat_map(|side| &side.trust_anchors.certificates);
        server
            .chain(client)
            .chain(anchors.map(|cert| (CertificateRole::TrustAnchor, cert)))
            .chain(theirs.map(|cert| (CertificateRole::UpstreamTrustAnchor, cert)))
    }
}

impl UpstreamSide {
    fn read(
        config: &ServiceConfig,
        files: &UpstreamTlsConfig,
    ) -> Result<(Self, Option<ExposedKeyFile>), LoadError> {
        let (trust_anchors, mut digested) =
            anchors(config, (UPSTREAM_ANCHORS, &files.trust_anchors))?;
        let mut loose = None;
        let identity = match &files.identity {
            None => None,
            Some((certificate, key)) => {
                let certificate = (UPSTREAM_CERTIFICATE, certificate.as_path());
                let key = (UPSTREAM_KEY, key.as_path());
                let read = credentials(config, certificate, key)?;
                digested.extend(read.digests.iter().flatten());
                loose = read.loose;
                Some(read.credentials)
            }
        };
        let alpn: &[&[u8]] = match config.protocol {
            Protocol::Http => &[AlpnProtocol::H2.as_bytes(), AlpnProtocol::Http11.as_bytes()],
            Protocol::Tcp => &[],
        };
        let tls = tls::client_config(&trust_anchors, identity.as_ref(), alpn)
            .map_err(|source| LoadError::Tls { service: config.name.clone(), source })?;
        let digest = Fingerprint::of(&digested);
        Ok((Self { identity, trust_anchors, digest, tls: Arc::new(tls) }, loose))
    }
}

/// A certificate and its key.
struct Read {
    credentials: Credentials,
    /// SHA-256 of both files.
    digests: [Vec<u8>; 2],
    loose: Option<ExposedKeyFile>,
}

fn credentials(
    config: &ServiceConfig,
    certificate: (&'static str, &Path),
    private_key: (&'static str, &Path),
) -> Result<Read, LoadError> {
    let chain = read(config, certificate)?;
    let (what, path) = private_key;
    let (key, loose) = secret::read(path, MAX_PEM_SIZE).map_err(|source| LoadError::Read {
        service: config.name.clone(),
        what,
        path: path.to_owned(),
        source,
    })?;
    let credentials = tls::credentials(&chain, &key).map_err(|source| match source {
        TlsFileError::KeyMismatch | TlsFileError::NoPrivateKey(_) | TlsFileError::PrivateKey(_) => {
            broken(config, private_key, source)
        }
        TlsFileError::Anchor { .. }
        | TlsFileError::CrlEncoding { .. }
        | TlsFileError::CrlRollback { .. }
        | TlsFileError::CrlUnsupported { .. }
        | TlsFileError::NoCertificate
        | TlsFileError::NoCrl
        | TlsFileError::Pem(_) => broken(config, certificate, source),
    })?;
    let digest_of = |content: &[u8]| digest(&SHA256, content).as_ref().to_vec();
    let digests = [digest_of(&chain), digest_of(&key)];
    Ok(Read { credentials, digests, loose })
}

/// CAs, and the content of their file.
fn anchors(
    config: &ServiceConfig,
    file: (&'static str, &Path),
) -> Result<(TrustAnchors, Vec<u8>), LoadError> {
    let content = read(config, file)?;
    let anchors = tls::trust_anchors(&content).map_err(|source| broken(config, file, source))?;
    Ok((anchors, content))
}

/// What accepts the clients of these CAs.
fn accepting(
    config: &ServiceConfig,
    trust_anchors: &TrustAnchors,
    crls: &Crls,
) -> Result<Arc<dyn ClientCertVerifier>, LoadError> {
    let client_auth = ClientAuth {
        trust_anchors,
        crls,
        expired_crl: config.expired_crl,
        mode: config.client_auth_mode,
        depth: config.policy.judge,
    };
    let service = || config.name.clone();
    client_auth
        .verifier()
        .map_err(|source| LoadError::ClientVerifier { service: service(), source })
}

fn broken(
    config: &ServiceConfig,
    (what, path): (&'static str, &Path),
    source: TlsFileError,
) -> LoadError {
    LoadError::Credentials { service: config.name.clone(), what, path: path.to_owned(), source }
}

const CRLS: &str = "client_auth.crls";
const UPSTREAM_ANCHORS: &str = "upstream.tls.trust_anchors";
const UPSTREAM_CERTIFICATE: &str = "upstream.tls.certificate";
const UPSTREAM_KEY: &str = "upstream.tls.private_key";

/// Those that every service has, under the names of their configuration keys.
fn own_files(config: &ServiceConfig) -> [(&'static str, &Path); 3] {
    [
        ("tls.certificate", &config.tls.certificate),
        ("tls.private_key", &config.tls.private_key),
        ("client_auth.trust_anchors", &config.trust_anchors),
    ]
}

pub(super) fn see(config: &ServiceConfig) -> Vec<FileState> {
    config.files().into_iter().map(FileState::of).collect()
}

fn read(config: &ServiceConfig, (what, path): (&'static str, &Path)) -> Result<Vec<u8>, LoadError> {
    read_bounded(path, MAX_PEM_SIZE).map_err(|source| LoadError::Read {
        service: config.name.clone(),
        what,
        path: path.to_owned(),
        source,
    })
}
