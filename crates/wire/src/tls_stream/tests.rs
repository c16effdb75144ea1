//! A rustls client and a [`TlsStream`], over memory.

mod hostile;
mod transfer;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::rc::Rc;
use std::task::Waker;

use rcgen::KeyPair;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::cipher::{MessageEncrypter, OutboundChunks, OutboundPlainMessage};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, ConnectionTrafficSecrets, ContentType,
    HandshakeKind, RootCertStore, SupportedCipherSuite, SupportedProtocolVersion,
};

use super::buffer::BUFFER;
use super::*;
use crate::permit::ledger::{self, Held};
use crate::permit::{BufferClass, ClientKey};

/// The network between both ends.
#[derive(Default)]
struct Network {
    to_server: VecDeque<u8>,
    to_client: Vec<u8>,
    /// The client has closed its side.
    is_closed: bool,
    /// Maximum number of bytes of one read; 0 for no maximum.
    read_size: usize,
    /// Free space for the server's writes; `None` for no limit.
    space: Option<usize>,
    writes: usize,
}

#[derive(Clone, Default)]
struct Pipe(Rc<RefCell<Network>>);

impl Pipe {
    /// Changes one of the bytes that the server has not read.
    fn damage(&self, position: usize) {
        if let Some(byte) = self.0.borrow_mut().to_server.get_mut(position) {
            *byte ^= 0x55;
        }
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        reader: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut network = self.0.borrow_mut();
        let size = if network.read_size == 0 { usize::MAX } else { network.read_size };
        let count = network.to_server.len().min(reader.remaining()).min(size);
        if count == 0 && !network.is_closed {
            return Poll::Pending;
        }
        let bytes: Vec<u8> = network.to_server.drain(..count).collect();
        reader.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut network = self.0.borrow_mut();
        let count = bytes.len().min(network.space.unwrap_or(usize::MAX));
        if count == 0 {
            return Poll::Pending;
        }
        network.space = network.space.map(|space| space - count);
        network.to_client.extend(&bytes[..count]);
        network.writes += 1;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Configurations of both ends, which resume sessions. Both have the same certificate.
struct Configs {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

fn configs(version: &'static SupportedProtocolVersion) -> Configs {
    let key = KeyPair::generate().unwrap();
    let parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = parameters.self_signed(&key).unwrap().der().clone();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(default_provider());
    let roots = Arc::new(roots(&certificate));
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(vec![certificate.clone()], key.clone_key())
        .unwrap();
    let client = client_config(version, default_provider(), &certificate, &key);
    Configs { client, server: Arc::new(server), certificate, key }
}

fn client_config(
    version: &'static SupportedProtocolVersion,
    provider: CryptoProvider,
    certificate: &CertificateDer<'static>,
    key: &PrivateKeyDer<'static>,
) -> Arc<ClientConfig> {
    let mut client = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots(certificate))
        .with_client_auth_cert(vec![certificate.clone()], key.clone_key())
        .unwrap();
    client.resumption = Resumption::in_memory_sessions(8);
    client.enable_secret_extraction = true;
    Arc::new(client)
}

fn roots(certificate: &CertificateDer<'static>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    roots
}

/// Both ends of a connection.
struct Ends {
    client: ClientConnection,
    server: Box<TlsStream<Pipe>>,
    pipe: Pipe,
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Carries what the client has written to the server.
fn send(client: &mut ClientConnection, pipe: &Pipe) {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    pipe.0.borrow_mut().to_server.extend(bytes);
}

/// Carries what the server has written to the client.
fn receive(client: &mut ClientConnection, pipe: &Pipe) -> Result<(), Error> {
    let bytes = std::mem::take(&mut pipe.0.borrow_mut().to_client);
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        client.read_tls(&mut rest).unwrap();
        client.process_new_packets()?;
    }
    Ok(())
}

const NONE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

async fn accept(pipe: Pipe, config: Arc<ServerConfig>) -> Accepted {
    let client = ClientKey::new(None, NONE);
    let mut hello = ClientHello::new(pipe, Holder { client, class: BufferClass::Handshake });
    loop {
        match hello.read().await {
            Ok(0) => return Err((io::ErrorKind::UnexpectedEof.into(), hello.into_io())),
            Ok(_) => {}
            Err(error) => return Err((error, hello.into_io())),
        }
        match hello.parse() {
            Ok(true) => return hello.accept(config).await,
            Ok(false) => {}
            Err(HelloError { error, alert }) => {
                let pipe = hello.into_io();
                pipe.0.borrow_mut().to_client.extend(alert);
                return Err((error, pipe));
            }
        }
    }
}

fn new_client(configs: &Configs) -> ClientConnection {
    let name = "localhost".try_into().unwrap();
    ClientConnection::new(Arc::clone(&configs.client), name).unwrap()
}

type Accepted = Result<Box<TlsStream<Pipe>>, (io::Error, Pipe)>;

/// Carries the messages of a handshake until the server's end is complete.
fn handshake(configs: &Configs, read_size: usize) -> (ClientConnection, Pipe, Accepted) {
    handshake_of(new_client(configs), configs, read_size)
}

fn handshake_of(
    mut client: ClientConnection,
    configs: &Configs,
    read_size: usize,
) -> (ClientConnection, Pipe, Accepted) {
    let pipe = Pipe::default();
    pipe.0.borrow_mut().read_size = read_size;
    let accepted = {
        let mut accepting = pin!(accept(pipe.clone(), Arc::clone(&configs.server)));
        loop {
            send(&mut client, &pipe);
            if let Poll::Ready(accepted) = accepting.as_mut().poll(&mut context()) {
                break accepted;
            }
            receive(&mut client, &pipe).unwrap();
        }
    };
    (client, pipe, accepted)
}

impl Ends {
    fn new(configs: &Configs, read_size: usize) -> Self {
        let (mut client, pipe, outcome) = handshake(configs, read_size);
        let server = outcome.map_err(|(error, _)| error).unwrap();
        receive(&mut client, &pipe).unwrap();
        assert_eq!(server.server_name(), Some("localhost"));
        Self { client, server, pipe }
    }

    fn write(&mut self, data: &[u8]) {
        self.client.writer().write_all(data).unwrap();
        send(&mut self.client, &self.pipe);
    }

    fn poll_read(&mut self, size: usize) -> Poll<io::Result<Vec<u8>>> {
        let mut bytes = vec![0; size];
        let mut reader = ReadBuf::new(&mut bytes);
        Pin::new(&mut *self.server)
            .poll_read(&mut context(), &mut reader)
            .map_ok(|()| reader.filled().to_vec())
    }

    /// Reads until the server waits for the client.
    fn read(&mut self, size: usize) -> Vec<u8> {
        let mut data = Vec::new();
        while let Poll::Ready(read) = self.poll_read(size) {
            let read = read.unwrap();
            assert!(!read.is_empty(), "the data has ended");
            data.extend(read);
        }
        data
    }

    fn poll_write(&mut self, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.server).poll_write(&mut context(), data)
    }

    /// Sends `data` to the client, which reads all of it.
    fn respond(&mut self, data: &[u8]) -> Vec<u8> {
        let (mut rest, mut received) = (data, Vec::new());
        while !rest.is_empty() {
            match self.poll_write(rest) {
                Poll::Ready(count) => rest = &rest[count.unwrap()..],
                Poll::Pending => panic!("the network takes everything"),
            }
            self.deliver(&mut received);
        }
        received
    }

    fn deliver(&mut self, received: &mut Vec<u8>) {
        let bytes = std::mem::take(&mut self.pipe.0.borrow_mut().to_client);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            self.client.read_tls(&mut rest).unwrap();
            let state = self.client.process_new_packets().unwrap();
            let mut data = vec![0; state.plaintext_bytes_to_read()];
            self.client.reader().read_exact(&mut data).unwrap();
            received.extend(data);
        }
    }

    /// The alert that the client gets.
    fn alert(&mut self) -> AlertDescription {
        match receive(&mut self.client, &self.pipe) {
            Err(Error::AlertReceived(alert)) => alert,
            other => panic!("{other:?}"),
        }
    }

    /// The memory of the buffers, in bytes.
    fn memory(&self) -> usize {
        self.server.session.memory() + self.server.unread.capacity()
    }

    fn writes(&self) -> usize {
        self.pipe.0.borrow().writes
    }

    /// Replaces the client of TLS 1.3 by one that can send records of any kind.
    fn into_forger(mut self) -> (Forger, Box<TlsStream<Pipe>>) {
        assert!(self.read(1).is_empty());
        self.deliver(&mut Vec::new());
        let Self { client, server, pipe } = self;
        let suite = client.negotiated_cipher_suite().unwrap();
        let (sequence, secrets) = client.dangerous_extract_secrets().unwrap().tx;
        let ConnectionTrafficSecrets::Aes256Gcm { key, iv } = secrets else {
            panic!("the first suite of rustls")
        };
        let SupportedCipherSuite::Tls13(suite) = suite else { panic!("TLS 1.3") };
        let encrypter = suite.aead_alg.encrypter(key, iv);
        (Forger { encrypter, sequence, pipe }, server)
    }
}

/// A client with valid keys that follows no protocol.
struct Forger {
    encrypter: Box<dyn MessageEncrypter>,
    sequence: u64,
    pipe: Pipe,
}

impl Forger {
    fn send(&mut self, typ: ContentType, payload: &[u8]) {
        let payload = OutboundChunks::from(payload);
        let version = ProtocolVersion::TLSv1_2;
        let message = OutboundPlainMessage { typ, version, payload };
        let record = self.encrypter.encrypt(message, self.sequence).unwrap();
        self.sequence += 1;
        self.pipe.0.borrow_mut().to_server.extend(record.encode());
    }
}

fn read_from(server: &mut TlsStream<Pipe>) -> Poll<io::Result<Vec<u8>>> {
    let mut bytes = [0; 100];
    let mut reader = ReadBuf::new(&mut bytes);
    let polled = Pin::new(server).poll_read(&mut context(), &mut reader);
    polled.map_ok(|()| reader.filled().to_vec())
}

/// Pseudorandom numbers below a limit (Knuth's MMIX generator).
fn generator(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % below
    }
}

fn data(length: usize) -> Vec<u8> {
    (0..length).map(|number| u8::try_from(number % 251).unwrap()).collect()
}

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];
