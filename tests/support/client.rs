//! A client that sends HTTP/1.1 byte by byte over real TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::crypto::aws_lc_rs::{default_provider, sign::any_supported_type};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, SignatureScheme, StreamOwned,
    SupportedProtocolVersion,
};

use socket2::{Domain, Socket, Type};

use super::TIMEOUT;
use super::pki::{Party, Pki};

pub struct Client {
    tls: StreamOwned<ClientConnection, TcpStream>,
}

/// A connection from another loopback address.
pub fn connect_from(address: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let tcp = TcpStream::from(socket);
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    tcp
}

/// A client configuration with the defaults of rustls, session resumption included.
pub fn config(pki: &Pki, party: &Party) -> ClientConfig {
    config_of(pki, rustls::ALL_VERSIONS, Some(party))
}

/// A client configuration with these TLS versions, with or without a certificate.
pub fn config_of(
    pki: &Pki,
    versions: &[&'static SupportedProtocolVersion],
    party: Option<&Party>,
) -> ClientConfig {
    let mut anchors = RootCertStore::empty();
    anchors.add(pki.ca().clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(anchors);
    match party {
        None => builder.with_no_client_auth(),
        Some(party) => builder.with_client_cert_resolver(Presents::new(party, party)),
    }
}

/// A client configuration that presents `certificates`, leaf first, with the key of `party`.
pub fn config_with_chain(
    pki: &Pki,
    version: &'static SupportedProtocolVersion,
    certificates: Vec<CertificateDer<'static>>,
    party: &Party,
) -> ClientConfig {
    let mut config = config_of(pki, &[version], None);
    config.client_auth_cert_resolver = Presents::chain(certificates, party);
    config
}

/// A certificate with a key; that they belong together is not checked.
#[derive(Debug)]
pub struct Presents(Arc<CertifiedKey>);

impl Presents {
    pub fn new(certificate: &Party, key: &Party) -> Arc<Self> {
        Self::chain(vec![certificate.der.clone()], key)
    }

    /// These certificates, leaf first, with the key of another party.
    pub fn chain(certificates: Vec<CertificateDer<'static>>, key: &Party) -> Arc<Self> {
        let key = any_supported_type(&key.credentials().1).unwrap();
        Arc::new(Self(Arc::new(CertifiedKey::new(certificates, key))))
    }
}

impl ResolvesClientCert for Presents {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl Client {
    /// Connects as `party`, naming `localhost`.
    pub fn connect(pki: &Pki, address: SocketAddr, party: &Party) -> Self {
        Self::with(config(pki, party), address)
    }

    /// Connects as `party`, and sends the whole chain of its file.
    pub fn with_chain(pki: &Pki, address: SocketAddr, party: &Party) -> Self {
        let mut config = config(pki, party);
        let chain = CertificateDer::pem_file_iter(&party.certificate).unwrap();
        let chain = chain.map(|certificate| certificate.unwrap()).collect();
        config.client_auth_cert_resolver = Presents::chain(chain, party);
        Self::with(config, address)
    }

    /// Connects without a certificate.
    pub fn anonymous(pki: &Pki, address: SocketAddr) -> Self {
        Self::with(config_of(pki, rustls::ALL_VERSIONS, None), address)
    }

    pub fn with(config: ClientConfig, address: SocketAddr) -> Self {
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let tcp = TcpStream::connect(address).unwrap();
        tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
        tcp.set_write_timeout(Some(TIMEOUT)).unwrap();
        Self { tls: StreamOwned::new(connection, tcp) }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.tls.write_all(bytes.as_ref()).unwrap();
        self.tls.flush().unwrap();
    }

    /// Sends, or returns the error of the handshake or of the connection.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.tls.write_all(bytes.as_ref())?;
        self.tls.flush()
    }

    /// Sends until a write times out, and returns the number of bytes sent.
    pub fn send_until_stalled(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        for piece in bytes.chunks(1 << 14) {
            self.tls.conn.writer().write_all(piece).unwrap();
            while self.tls.conn.wants_write() {
                // The stream of rustls would retry after a write timeout.
                if self.tls.conn.write_tls(&mut self.tls.sock).is_err() {
                    return sent;
                }
            }
            sent += piece.len();
        }
        sent
    }

    /// Closes the write side; reading remains possible.
    pub fn finish(&mut self) {
        self.tls.conn.send_close_notify();
        self.tls.flush().unwrap();
        self.tls.sock.shutdown(Shutdown::Write).unwrap();
    }

    /// The head of the next response, up to and with the empty line.
    pub fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(self.exactly(1));
        }
        String::from_utf8(head).unwrap()
    }

    /// The head of the next response; `None` if the connection ends before.
    pub fn head_or_end(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.tls.read_exact(&mut byte).ok()?;
            head.push(byte[0]);
        }
        String::from_utf8(head).ok()
    }

    /// As many bytes.
    pub fn exactly(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.tls.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Everything until the proxy ends the connection in an orderly way.
    pub fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.tls.read_to_string(&mut rest).unwrap();
        rest
    }

    /// All bytes until the connection is closed or reset.
    pub fn whatever_comes(&mut self) -> String {
        let mut bytes = Vec::new();
        if let Err(error) = self.tls.read_to_end(&mut bytes) {
            // A reset is an end, too.
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "the connection stays open");
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Reads to the end of the connection. Returns what came, or the error that ended it.
    pub fn read_to_end(&mut self) -> std::io::Result<String> {
        let mut bytes = Vec::new();
        self.tls.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Whether the session of an earlier connection was resumed.
    pub fn is_resumed(&self) -> bool {
        self.tls.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The socket below, to read from it or not.
    pub fn tcp(&self) -> &TcpStream {
        self.tls.get_ref()
    }
}
