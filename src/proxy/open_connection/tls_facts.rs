//! The facts about a TLS connection that the access log and spans record.

use keygate_core::spki::KeyKind;
use keygate_core::tls::KeyExchange;
use keygate_wire::tls_stream::TlsStream;
use rustls::ProtocolVersion;
use tokio::net::TcpStream;

/// Parameters of a TLS connection.
#[derive(Debug)]
pub(crate) struct TlsFacts {
    /// `TLSv1.2` or `TLSv1.3`.
    pub(crate) version: &'static str,
    /// The cipher suite by its name in the registry of IANA.
    pub(crate) cipher: String,
    /// A name that rustls has accepted: at most 253 letters, digits, `-`, `_` and `.`.
    pub(crate) sni: Option<Box<str>>,
    pub(crate) key_exchange: Option<KeyExchange>,
    /// `None` without a client certificate.
    pub(crate) key_kind: Option<KeyKind>,
}

impl TlsFacts {
    /// Names of the group of the key exchange, and of the algorithm of the client key.
    pub(crate) fn key_use(&self) -> [Option<&'static str>; 2] {
        [self.key_exchange.map(KeyExchange::as_str), self.key_kind.map(KeyKind::as_str)]
    }

    /// The parameters of `stream`, whose handshake is complete.
    pub(crate) fn new(
        stream: &TlsStream<TcpStream>,
        key_exchange: Option<KeyExchange>,
        key_kind: Option<KeyKind>,
    ) -> Self {
        let tls = stream.state();
        let is_13 = tls.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        let suite = tls.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
        Self {
            version: if is_13 { "TLSv1.3" } else { "TLSv1.2" },
            cipher: suite.unwrap_or_default().replace("TLS13_", "TLS_"),
            sni: stream.server_name().map(Into::into),
            key_exchange,
            key_kind,
        }
    }
}
