//! TLS towards clients and upstreams: client verification, credentials, sessions and identities.
//!
//! [`ClientVerifier`] verifies chains and keeps their paths. [`KeyVerifier`] judges the keys on
//! such a path, only after the client has proved that it holds the key. Both work in any rustls
//! server. Nothing here speaks HTTP.

mod bound_cas;
mod certificate;
mod chain_cache;
mod client_config;
mod client_verifier;
mod credentials;
mod crls;
mod error;
mod explain;
mod file_content;
mod handshake;
mod handshake_result;
mod identity;
mod key_exchange;
mod key_ids;
mod path;
mod path_rules;
mod request;
mod server_config;
mod sessions;
mod settings;
mod shared_tickets;
mod signature;
mod trust_anchors;
mod verification_error;
mod verifier;

pub use self::explain::tls_error;
pub use self::{
    bound_cas::BoundCas,
    certificate::{CertificateRole, CertificateSummary},
    client_config::client_config,
    client_verifier::PresentedPath,
    credentials::{Credentials, credentials, key_der, key_pair, private_key, uncovered_names},
    crls::{
        CrlError, CrlIssuers, CrlLoader, CrlMark, CrlMarks, CrlNumber, CrlUpdate, CrlVersion,
        CrlWarning, Crls, IntermediateError, MAX_CLOCK_SKEW, RevocationList, issued_any,
    },
    handshake_result::HandshakeResult,
    identity::ClientIdentity,
    key_exchange::KeyExchange,
    server_config::{ServerConfigs, asker_config, server_config},
};
pub use self::{
    client_verifier::{ClientVerifier, MAX_CERTIFICATES},
    error::TlsFileError,
    explain::explain,
    file_content::FileContent,
    handshake::{Handshake, RejectedClient},
    path::VerifiedPath,
    path_rules::{PathProblem, is_for_servers},
    request::{RequestError, certificate_of_key, is_unsigned, requested_certificate},
    settings::{AlpnProtocol, ExpiredCrl, RevocationDepth, ServerSettings, TlsVersion},
    shared_tickets::{SharedTickets, TicketSecrets, TicketSecretsError},
    trust_anchors::{AnchorCounts, AnchorKind, TrustAnchors, certificates, trust_anchors},
    verifier::{Deferral, KeyVerifier},
};

/// Draws the first random number of this thread, which takes aws-lc some 30 ms. A worker calls this
/// function before it accepts connections.
pub fn warm_up() {
    let mut byte = [0];
    // An error needs no report here, because a handshake without randomness fails.
    let _ = aws_lc_rs::rand::fill(&mut byte);
}
