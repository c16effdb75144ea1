//! The choices of an operator about TLS and revocation.

use super::KeyExchange;

/// The offers of a server to its clients.
#[derive(Debug, Clone, Copy)]
pub struct ServerSettings<'a> {
    /// Minimum protocol version.
    pub min_version: TlsVersion,
    /// Protocols offered by ALPN, preferred first; without any, no ALPN.
    pub alpn: &'a [AlpnProtocol],
    /// Groups of the key exchange, preferred first. Without any, all of them in the order of the
    /// client.
    pub key_exchange: &'a [KeyExchange],
    /// Whether clients can resume sessions. rustls calls no verifier for a resumed session, so the
    /// server must judge each client after the handshake (`ClientIdentity::judge`).
    pub resumption: bool,
}

/// A TLS protocol version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// A protocol that clients can select by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlpnProtocol {
    /// HTTP/2.
    H2,
    /// HTTP/1.1.
    Http11,
}

impl AlpnProtocol {
    /// The name in the ALPN extension (RFC 7301).
    #[must_use]
    pub fn as_bytes(self) -> &'static [u8] {
        match self {
            Self::H2 => b"h2",
            Self::Http11 => b"http/1.1",
        }
    }
}

/// How to treat an expired CRL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExpiredCrl {
    /// The CRL is used as if it had not expired.
    Accept,
    /// Clients of the CA are rejected.
    #[default]
    Reject,
}

/// The certificates of a path whose revocation is checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RevocationDepth {
    /// The client's own.
    Leaf,
    /// The client's own, and each intermediate whose issuer has a CRL.
    #[default]
    Path,
}
