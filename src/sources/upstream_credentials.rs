//! The certificates and keys for TLS towards the upstream.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::spki::Fingerprint;
use keygate_core::tls::{self, Credentials, KeyExchange, TrustAnchors};
use rustls::ClientConfig;

use super::credential_files::CredentialFiles;
use super::credential_unit::CredentialUnit;
use super::key_pair::KeyPair;
use super::load_error::LoadError;
use super::load_errors::{LoadErrors, both};
use super::private_key::ExposedKeyFile;
use super::service_file::ServiceFile;
use super::unit_files::UnitFiles;
use crate::config::{AlpnProtocol, Protocol};

/// The certificates and keys for TLS towards the upstream.
#[derive(Debug)]
pub(crate) struct UpstreamCredentials {
    pub(super) client: Option<Credentials>,
    pub(super) trust_anchors: TrustAnchors,
    /// The private key file, if its permissions are unsafe.
    exposed: Option<ExposedKeyFile>,
    /// Fingerprint of the content of all files.
    digest: Fingerprint,
    protocol: Protocol,
    key_exchange: Vec<KeyExchange>,
    /// The TLS client configuration.
    pub(crate) tls: Arc<ClientConfig>,
}

impl UnitFiles for Option<UpstreamCredentials> {
    const UNIT: CredentialUnit = CredentialUnit::Upstream;

    fn paths(files: CredentialFiles<'_>) -> Vec<PathBuf> {
        let Some((tls, _)) = files.upstream else { return Vec::new() };
        let pair = tls.certificate.iter().chain(&tls.private_key);
        std::iter::once(&tls.trust_anchors).chain(pair).cloned().collect()
    }

    /// Reads all files for the upstream. The TLS client configuration of `before` is reused if the
    /// files are the same.
    fn read(owner: CredentialFiles<'_>, before: &Self, _: SystemTime) -> Result<Self, LoadErrors> {
        let Some((files, protocol)) = owner.upstream else { return Ok(None) };
        let file = |key, path| ServiceFile { files: owner, key, path };
        let anchors = file("upstream.tls.trust_anchors", &files.trust_anchors);
        let trusted = anchors.read().and_then(|content| {
            let trust_anchors = anchors.trust_anchors(&content)?;
            Ok((content, trust_anchors))
        });
        let pair = files.identity().map(|(certificate, private_key)| {
            KeyPair::read(
                file("upstream.tls.certificate", certificate),
                file("upstream.tls.private_key", private_key),
            )
        });
        let ((mut content, trust_anchors), pair) = both(trusted, pair.transpose())?;
        let (client, exposed) = match pair {
            None => (None, None),
            Some(KeyPair { credentials, digests, exposed }) => {
                content.extend(digests);
                (Some(credentials), exposed)
            }
        };
        let alpn: &[&[u8]] = match protocol {
            Protocol::Http => &[AlpnProtocol::H2.as_bytes(), AlpnProtocol::Http11.as_bytes()],
            Protocol::Tcp => &[],
        };
        let digest = Fingerprint::of(&content);
        let key_exchange = files.key_exchange.clone();
        let same = before.as_ref().filter(|it| {
            it.digest == digest && it.protocol == protocol && it.key_exchange == key_exchange
        });
        let tls = match same {
            Some(before) => Arc::clone(&before.tls),
            None => {
                let tls = tls::client_config(&trust_anchors, client.as_ref(), alpn, &key_exchange);
                Arc::new(tls.map_err(|source| LoadError::Tls {
                    owner: owner.owner(),
                    key: "upstream.tls",
                    source,
                })?)
            }
        };
        Ok(Some(UpstreamCredentials {
            client,
            trust_anchors,
            exposed,
            digest,
            protocol,
            key_exchange,
            tls,
        }))
    }

    fn exposed(&self) -> &[ExposedKeyFile] {
        self.as_ref().map_or(&[], |it| it.exposed.as_slice())
    }
}
