//! TLS towards clients and upstreams: client verification, credentials, sessions and identities.
//!
//! [`KeyVerifier`] works in any rustls server and is all of this room that is left without the
//! feature `proxy`. It judges a key only after the client has proved that it holds the key. Nothing
//! here speaks HTTP.

#[cfg(feature = "proxy")]
mod certificate;
#[cfg(feature = "proxy")]
mod client_auth;
#[cfg(feature = "proxy")]
mod client_config;
#[cfg(feature = "proxy")]
mod credentials;
#[cfg(feature = "proxy")]
mod crls;
#[cfg(feature = "proxy")]
mod error;
mod handshake;
#[cfg(feature = "proxy")]
mod handshake_result;
#[cfg(feature = "proxy")]
mod identity;
#[cfg(feature = "proxy")]
mod server_config;
#[cfg(feature = "proxy")]
mod sessions;
#[cfg(feature = "proxy")]
mod trust_anchors;
mod verifier;

#[cfg(feature = "proxy")]
pub use self::{
    certificate::{CertificateRole, CertificateSummary},
    client_auth::ClientAuth,
    client_config::client_config,
    credentials::{Credentials, credentials, uncovered_names},
    crls::Crls,
    error::TlsFileError,
    handshake::{RejectedClient, drive_handshake},
    handshake_result::HandshakeResult,
    identity::ClientIdentity,
    server_config::server_config,
    trust_anchors::{TrustAnchors, trust_anchors},
};
pub use verifier::KeyVerifier;

/// Draws the first random number of this thread, which takes aws-lc some 30 ms. A worker calls this
/// function before it accepts connections.
#[cfg(feature = "proxy")]
pub fn warm_up() {
    let mut byte = [0];
    // An error needs no report here, because a handshake without randomness fails.
    let _ = aws_lc_rs::rand::fill(&mut byte);
}
