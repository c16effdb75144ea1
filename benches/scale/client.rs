//! The clients: connections over TLS with a certificate, and their requests.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Handshakes in progress at one time.
const CONCURRENT_HANDSHAKES: usize = 16;

pub(crate) type Connection = TlsStream<TcpStream>;

/// Makes `count` connections with one request each, several at a time. Returns their sockets, or
/// closes each after its request.
pub(crate) async fn connect_all(
    address: SocketAddr,
    source: Option<Ipv4Addr>,
    config: &Arc<ClientConfig>,
    count: usize,
    keep: bool,
) -> Vec<std::net::TcpStream> {
    let mut tasks = JoinSet::new();
    for task in 0..CONCURRENT_HANDSHAKES {
        let config = Arc::clone(config);
        let share = (task..count).step_by(CONCURRENT_HANDSHAKES).len();
        tasks.spawn(async move {
            let mut sockets = Vec::new();
            for _ in 0..share {
                let mut connection = connect(address, source, &config).await;
                request(&mut connection).await;
                if keep {
                    // Without the TLS state, which takes much more memory than the socket.
                    sockets.push(connection.into_inner().0.into_std().unwrap());
                }
            }
            sockets
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

pub(crate) fn client_config(ca: &Path, certificate: &Path, key: &Path) -> Arc<ClientConfig> {
    let mut anchors = RootCertStore::empty();
    anchors.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(anchors)
        .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap());
    let mut config = config.unwrap();
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// Opens `count` connections and sends one request on each.
pub(crate) async fn open(
    address: SocketAddr,
    source: Option<Ipv4Addr>,
    config: &Arc<ClientConfig>,
    count: usize,
) -> Vec<Connection> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        let mut connection = connect(address, source, config).await;
        request(&mut connection).await;
        connections.push(connection);
    }
    connections
}

async fn connect(
    address: SocketAddr,
    source: Option<Ipv4Addr>,
    config: &Arc<ClientConfig>,
) -> Connection {
    let socket = TcpSocket::new_v4().unwrap();
    if let Some(source) = source {
        socket.bind((source, 0).into()).unwrap();
    }
    let tcp = socket.connect(address).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    let connector = TlsConnector::from(Arc::clone(config));
    connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap()
}

/// Sends a request and reads its response.
async fn request(connection: &mut Connection) {
    connection.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut response = [0; 1024];
    let mut length = 0;
    while !response[..length].ends_with(b"\r\n\r\nhello\n") {
        let read = connection.read(&mut response[length..]).await.unwrap();
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&response[..length]));
        length += read;
    }
}

/// Sends `count` requests, one after the other on each connection in turn. Returns their latencies
/// in ascending order.
pub(crate) async fn send(connections: &mut [Connection], count: usize) -> Vec<Duration> {
    let mut latencies = Vec::with_capacity(count);
    let places = connections.len();
    for number in 0..count {
        let start = Instant::now();
        request(&mut connections[number % places]).await;
        latencies.push(start.elapsed());
    }
    latencies.sort_unstable();
    latencies
}
