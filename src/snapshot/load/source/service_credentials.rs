//! Loads the certificates, keys, CAs and CRLs of one service.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use crate::config::{
    AlpnProtocol, ClientAuthMode, ClientCertificateFiles, Protocol, ServiceConfig,
    UpstreamTlsConfig,
};
use crate::guard::Depth;
use crate::snapshot::load::error::LoadError;
use crate::snapshot::load::file::read_bounded;
use crate::snapshot::load::private_key::{self, ExposedKeyFile};
use crate::snapshot::warning::{CertificateFile, PeriodProblem, Warning};
use crate::spki::{self, Fingerprint};
use crate::tls::{
    self, CertificateRole, CertificateSummary, ClientVerifier, Credentials, CrlIssuers, CrlLoader,
    CrlMarks, Crls, TlsFileError, TrustAnchors,
};
use crate::unix_time;

/// Maximum size of a PEM file, 16 MiB: about fifty times the size of all public CAs together.
const MAX_PEM_SIZE: u64 = 16 << 20;

/// Maximum size of a file with CRLs, 128 MiB: more than a million entries with serial numbers of 20
/// octets, in PEM.
const MAX_CRL_SIZE: u64 = 128 << 20;

/// The certificates, keys, CAs and CRLs of a service.
#[derive(Debug)]
pub(super) struct ServiceCredentials {
    /// The service's own certificate chain and key.
    pub(super) server: Credentials,
    pub(super) trust_anchors: Arc<TrustAnchors>,
    /// The CAs in `client_auth.intermediates`.
    intermediates: Vec<CertificateDer<'static>>,
    /// The CRLs of the `trust_anchors` and `intermediates`.
    pub(super) crls: Arc<Crls>,
    /// Private key files with unsafe permissions.
    exposed_key_files: Vec<ExposedKeyFile>,
    /// Verifies client certificates against the `trust_anchors` and `crls`.
    pub(super) client_verifier: Arc<ClientVerifier>,
    /// The credentials for the upstream; `None` if it does not use TLS.
    pub(super) upstream: Option<UpstreamCredentials>,
}

/// The certificates and keys for TLS towards the upstream.
#[derive(Debug)]
pub(super) struct UpstreamCredentials {
    client: Option<Credentials>,
    trust_anchors: TrustAnchors,
    /// Fingerprint of the content of all files.
    digest: Fingerprint,
    /// The TLS client configuration.
    pub(super) tls: Arc<ClientConfig>,
}

/// A file that the configuration of a service names.
#[derive(Debug, Clone, Copy)]
struct ServiceFile<'a> {
    service: &'a str,
    /// Configuration key that names the file.
    key: &'static str,
    path: &'a Path,
}

/// The CRLs that are in use when the files of a service are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownCrls<'a> {
    /// The CRLs in use; `None` at a start.
    pub(super) in_use: Option<&'a Crls>,
    /// Whether each CA that has a CRL in use must keep one.
    pub(super) keep_issuers: bool,
    /// The newest versions that were in use.
    pub(super) marks: &'a CrlMarks,
    /// The current time, in seconds since the Unix epoch.
    pub(super) now: u64,
}

/// A certificate chain with its private key, and facts about their files.
struct KeyPair {
    credentials: Credentials,
    /// SHA-256 of the certificate file and of the private key file, one after the other.
    digests: Vec<u8>,
    exposed: Option<ExposedKeyFile>,
}

impl ServiceCredentials {
    /// Reads all files of the service.
    ///
    /// # Errors
    /// Returns an error if a file cannot be used.
    pub(super) fn read(config: &ServiceConfig, known: KnownCrls<'_>) -> Result<Self, LoadError> {
        let file = |key, path| ServiceFile { service: &config.name, key, path };
        let server = KeyPair::read(
            file("tls.certificate", &config.tls.certificate),
            file("tls.private_key", &config.tls.private_key),
        )?;
        let anchors = file("client_auth.trust_anchors", &config.trust_anchors);
        let trust_anchors = Arc::new(anchors.trust_anchors(&anchors.read()?)?);
        let (issuers, intermediates) = crl_issuers(config, &trust_anchors)?;
        let mut loader = CrlLoader {
            issuers: &issuers,
            expired: config.expired_crl,
            now: known.now,
            in_use: known.in_use,
            keep_issuers: known.keep_issuers,
            marks: known.marks,
            crls: Crls::default(),
        };
        for path in &config.crls {
            let file = file(CRLS, path);
            let content = file.read_up_to(MAX_CRL_SIZE)?;
            loader.add(path, &content).map_err(|source| file.unusable(source))?;
        }
        let crls = loader.finish().map_err(|(path, source)| {
            let service = config.name.clone();
            LoadError::Credentials { service, key: CRLS, path, source }
        })?;
        let crls = Arc::new(crls);
        let client_verifier = client_verifier(config, &trust_anchors, &crls);
        let mut exposed_key_files = Vec::from_iter(server.exposed);
        let upstream = match &config.upstream.tls {
            Some(tls) => Some(UpstreamCredentials::read(config, tls, &mut exposed_key_files)?),
            None => None,
        };
        Ok(Self {
            server: server.credentials,
            trust_anchors,
            intermediates,
            crls,
            exposed_key_files,
            client_verifier,
            upstream,
        })
    }

    /// Builds a new client verifier, so that open connections are verified again.
    pub(super) fn rebuild_client_verifier(&mut self, config: &ServiceConfig) {
        self.client_verifier = client_verifier(config, &self.trust_anchors, &self.crls);
    }

    /// Reuses the previous client verifier and TLS client configuration if nothing that they are
    /// built from has changed. Open connections then need no new check.
    pub(super) fn reuse_unchanged(
        &mut self,
        config: &ServiceConfig,
        before: &Self,
        config_before: &ServiceConfig,
    ) {
        let settings = |config: &ServiceConfig| {
            (config.client_auth_mode, config.expired_crl, config.policy.judge)
        };
        if settings(config) == settings(config_before)
            && self.trust_anchors.certificates == before.trust_anchors.certificates
            && self.crls.has_same_lists(&before.crls)
        {
            self.client_verifier = Arc::clone(&before.client_verifier);
        }
        if let (Some(upstream), Some(before)) = (&mut self.upstream, &before.upstream)
            && upstream.digest == before.digest
            && config.protocol == config_before.protocol
        {
            upstream.tls = Arc::clone(&before.tls);
        }
    }

    /// The conditions of the files that an operator must mend.
    pub(super) fn warnings(&self, config: &ServiceConfig, now: SystemTime) -> Vec<Warning> {
        let crls = self.crls.warnings().iter().cloned();
        let crl = |problem| Warning::Crl { service: config.name.clone(), problem };
        let mut warnings: Vec<_> = crls.map(crl).collect();
        warnings.extend(self.missing_crls(config));
        let exposed = self.exposed_key_files.iter().cloned();
        warnings.extend(exposed.map(Warning::UnsafePermissions));
        let certificate = |key, path: &Path| CertificateFile {
            service: config.name.clone(),
            key,
            path: path.to_owned(),
        };
        let file = certificate("tls.certificate", &config.tls.certificate);
        warnings.extend(period_warnings(&self.server, &file, now));
        for name in tls::uncovered_names(&self.server, &config.server_names) {
            warnings.push(Warning::NameNotCovered { file: file.clone(), name: name.to_owned() });
        }
        let client = self.upstream.as_ref().and_then(|it| it.client.as_ref());
        let files = config.upstream.tls.as_ref().and_then(|it| it.identity.as_ref());
        if let (Some(client), Some(files)) = (client, files) {
            let file = certificate("upstream.tls.certificate", &files.certificate);
            warnings.extend(period_warnings(client, &file, now));
        }
        let file = certificate("client_auth.trust_anchors", &config.trust_anchors);
        for (ca, period) in self.trust_anchors.with_validity() {
            if let Some(problem) = PeriodProblem::of(period, unix_time::seconds(now)) {
                let subject = CertificateSummary::of(ca).subject;
                warnings.push(Warning::TrustAnchorPeriod { file: file.clone(), subject, problem });
            }
        }
        warnings
    }

    /// The CAs that have no CRL, if there are CRLs.
    ///
    /// With `judge = "leaf"` a root that issues intermediates only needs no CRL. There is no
    /// warning for a trust anchor that issued one of the `intermediates`.
    fn missing_crls(&self, config: &ServiceConfig) -> Vec<Warning> {
        let file = |key, path: &Path| CertificateFile {
            service: config.name.clone(),
            key,
            path: path.to_owned(),
        };
        let anchors = file("client_auth.trust_anchors", &config.trust_anchors);
        let intermediates =
            config.intermediates.as_ref().map(|path| file("client_auth.intermediates", path));
        if config.crls.is_empty() {
            let unused = intermediates.map(|file| Warning::IntermediatesUnused { file });
            return unused.into_iter().collect();
        }
        let is_root_of_others = config.policy.judge == Depth::Leaf && intermediates.is_some();
        let missing = |file: &CertificateFile, ca: &CertificateDer<'_>| {
            (!self.crls.cover(ca)).then(|| Warning::CrlMissing {
                file: file.clone(),
                subject: CertificateSummary::of(ca).subject,
            })
        };
        let roots = self
            .trust_anchors
            .certificates
            .iter()
            .filter(|ca| !(is_root_of_others && tls::issued_any(ca, &self.intermediates)));
        let roots = roots.filter_map(|ca| missing(&anchors, ca));
        let below = intermediates.iter().flat_map(|file| {
            let cas = self.intermediates.iter();
            cas.filter_map(|ca| missing(file, ca))
        });
        roots.chain(below).collect()
    }

    /// The leaf certificates of the service and the CAs that it trusts on either side.
    pub(super) fn certificates(
        &self,
    ) -> impl Iterator<Item = (CertificateRole, &CertificateDer<'static>)> {
        let upstream = self.upstream.as_ref();
        let server = self.server.cert.first();
        let client = upstream.and_then(|it| it.client.as_ref()?.cert.first());
        let client_cas = self.trust_anchors.certificates.iter();
        let upstream_cas = upstream.into_iter().flat_map(|it| &it.trust_anchors.certificates);
        server
            .map(|cert| (CertificateRole::Server, cert))
            .into_iter()
            .chain(client.map(|cert| (CertificateRole::UpstreamClient, cert)))
            .chain(client_cas.map(|cert| (CertificateRole::TrustAnchor, cert)))
            .chain(self.intermediates.iter().map(|cert| (CertificateRole::Intermediate, cert)))
            .chain(upstream_cas.map(|cert| (CertificateRole::UpstreamTrustAnchor, cert)))
    }
}

impl UpstreamCredentials {
    /// Reads all files for the upstream, and adds private key files with unsafe permissions to
    /// `exposed`.
    fn read(
        config: &ServiceConfig,
        files: &UpstreamTlsConfig,
        exposed: &mut Vec<ExposedKeyFile>,
    ) -> Result<Self, LoadError> {
        let file = |key, path| ServiceFile { service: &config.name, key, path };
        let anchors = file("upstream.tls.trust_anchors", &files.trust_anchors);
        let mut content = anchors.read()?;
        let trust_anchors = anchors.trust_anchors(&content)?;
        let client = match &files.identity {
            None => None,
            Some(ClientCertificateFiles { certificate, private_key: key }) => {
                let pair = KeyPair::read(
                    file("upstream.tls.certificate", certificate),
                    file("upstream.tls.private_key", key),
                )?;
                content.extend(pair.digests);
                exposed.extend(pair.exposed);
                Some(pair.credentials)
            }
        };
        let alpn: &[&[u8]] = match config.protocol {
            Protocol::Http => &[AlpnProtocol::H2.as_bytes(), AlpnProtocol::Http11.as_bytes()],
            Protocol::Tcp => &[],
        };
        let tls = tls::client_config(&trust_anchors, client.as_ref(), alpn)
            .map_err(|source| LoadError::Tls { service: config.name.clone(), source })?;
        let digest = Fingerprint::of(&content);
        Ok(Self { client, trust_anchors, digest, tls: Arc::new(tls) })
    }
}

impl KeyPair {
    fn read(certificate: ServiceFile<'_>, key: ServiceFile<'_>) -> Result<Self, LoadError> {
        let chain = certificate.read()?;
        let key_file = private_key::read(key.path, MAX_PEM_SIZE);
        let key_file = key_file.map_err(|source| key.unreadable(source))?;
        let credentials = tls::credentials(&chain, &key_file.content);
        let credentials = credentials.map_err(|source| match source {
            TlsFileError::KeyMismatch
            | TlsFileError::NoPrivateKey(_)
            | TlsFileError::PrivateKey(_)
            | TlsFileError::PrivateKeyPem(_) => key.unusable(source),
            TlsFileError::Anchor { .. }
            | TlsFileError::AnchorValidity { .. }
            | TlsFileError::Crl { .. }
            | TlsFileError::CrlMissing { .. }
            | TlsFileError::CrlOutside { .. }
            | TlsFileError::CrlSection { .. }
            | TlsFileError::Intermediate { .. }
            | TlsFileError::NoCertificate(_)
            | TlsFileError::NoCrl
            | TlsFileError::Pem(_)
            | TlsFileError::UnusableCertificate(_) => certificate.unusable(source),
        })?;
        let sha256 = |content: &[u8]| digest(&SHA256, content);
        let digests = [sha256(&chain), sha256(&key_file.content)];
        let digests = digests.iter().flat_map(|digest| digest.as_ref()).copied().collect();
        Ok(Self { credentials, digests, exposed: key_file.exposed })
    }
}

impl ServiceFile<'_> {
    fn read(self) -> Result<Vec<u8>, LoadError> {
        self.read_up_to(MAX_PEM_SIZE)
    }

    fn read_up_to(self, max_size: u64) -> Result<Vec<u8>, LoadError> {
        read_bounded(self.path, max_size).map_err(|source| self.unreadable(source))
    }

    fn trust_anchors(self, content: &[u8]) -> Result<TrustAnchors, LoadError> {
        tls::trust_anchors(content).map_err(|source| self.unusable(source))
    }

    fn unreadable(self, source: std::io::Error) -> LoadError {
        let (service, path) = (self.service.to_owned(), self.path.to_owned());
        LoadError::Read { service, key: self.key, path, source }
    }

    fn unusable(self, source: TlsFileError) -> LoadError {
        let (service, path) = (self.service.to_owned(), self.path.to_owned());
        LoadError::Credentials { service, key: self.key, path, source }
    }
}

/// The certificates of a chain whose validity period is a problem.
fn period_warnings(
    credentials: &Credentials,
    file: &CertificateFile,
    now: SystemTime,
) -> impl Iterator<Item = Warning> {
    let now = unix_time::seconds(now);
    let problems = (1..).zip(&credentials.cert).filter_map(move |(position, certificate)| {
        let problem = match spki::validity(certificate) {
            Ok(period) => PeriodProblem::of(period, now)?,
            Err(_) => PeriodProblem::Unreadable,
        };
        Some((position, problem))
    });
    problems.map(|(position, problem)| Warning::CertificatePeriod {
        file: file.clone(),
        position,
        problem,
    })
}

/// The configuration key that names the files with CRLs.
pub(super) const CRLS: &str = "client_auth.crls";

/// The CAs whose CRLs the service accepts, and the certificates in `client_auth.intermediates`.
fn crl_issuers(
    config: &ServiceConfig,
    anchors: &TrustAnchors,
) -> Result<(CrlIssuers, Vec<CertificateDer<'static>>), LoadError> {
    let Some(path) = &config.intermediates else {
        return Ok((CrlIssuers::new(anchors), Vec::new()));
    };
    let file = ServiceFile { service: &config.name, key: "client_auth.intermediates", path };
    let intermediates = tls::certificates(&file.read()?).map_err(|source| file.unusable(source))?;
    let issuers = CrlIssuers::new(anchors).with_intermediates(&intermediates);
    Ok((issuers.map_err(|source| file.unusable(source))?, intermediates))
}

fn client_verifier(
    config: &ServiceConfig,
    trust_anchors: &Arc<TrustAnchors>,
    crls: &Arc<Crls>,
) -> Arc<ClientVerifier> {
    let verifier = ClientVerifier::new(Arc::clone(trust_anchors));
    let verifier = verifier.with_crls(Arc::clone(crls), config.expired_crl, config.policy.judge);
    Arc::new(match config.client_auth_mode {
        ClientAuthMode::Optional => verifier.allow_unauthenticated(),
        ClientAuthMode::Required => verifier,
    })
}
