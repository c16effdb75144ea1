//! The facts about a TLS connection that the access log and spans record.

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
    /// The group of the key exchange, and the algorithm of the client's key.
    pub(crate) key_use: [Option<&'static str>; 2],
}

impl TlsFacts {
    /// The parameters of `stream`, whose handshake is complete.
    pub(crate) fn new(stream: &TlsStream<TcpStream>, key_use: [Option<&'static str>; 2]) -> Self {
        let tls = stream.state();
        let is_13 = tls.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        let suite = tls.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
        Self {
            version: if is_13 { "TLSv1.3" } else { "TLSv1.2" },
            cipher: suite.unwrap_or_default().replace("TLS13_", "TLS_"),
            sni: stream.server_name().map(Into::into),
            key_use,
        }
    }
}
