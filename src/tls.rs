//! TLS towards clients: who may connect, with which key, and who they are; and towards upstreams.
//!
//! [`KeyVerifier`] is what other rustls servers can use on its own. It judges a key only after the
//! client has proved that it holds it. Nothing here speaks HTTP.

mod certificate;
mod client_auth;
mod client_config;
mod handshake_result;
mod identity;
mod material;
mod server_config;
mod sessions;
mod verifier;

pub use certificate::{CertificateRole, CertificateSummary};
pub use client_auth::ClientAuth;
pub use client_config::client_config;
pub use handshake_result::HandshakeResult;
pub use identity::ClientIdentity;
pub use material::{Credentials, Crls, TlsFileError, TrustAnchors, credentials, trust_anchors};
pub use server_config::server_config;
pub use verifier::{KeyVerifier, RejectedClient, drive_handshake};

/// Draws the first random number of this thread, which takes aws-lc some 30 ms: a worker does it
/// before it accepts.
pub fn warm_up() {
    let mut byte = [0];
    // Nothing depends on the outcome: a handshake that finds no randomness fails by itself.
    let _ = aws_lc_rs::rand::fill(&mut byte);
}
