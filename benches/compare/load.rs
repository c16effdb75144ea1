//! The load: clients with a certificate, over HTTP/1.1 and HTTP/2, from one thread.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::ValueEnum;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tokio_rustls::TlsConnector;

use super::origin::MEBIBYTE;
use super::support::pki::{Party, Pki};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Http1 = http1::SendRequest<Full<Bytes>>;
type Http2 = http2::SendRequest<Full<Bytes>>;

/// A load with one unit of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Full TLS 1.2 handshake, one GET, close.
    HandshakeTls12,
    /// Full TLS 1.3 handshake, one GET, close.
    HandshakeTls13,
    /// Resumed TLS 1.3 handshake, one GET, close.
    Resumed,
    /// GET of 128 bytes on 32 open connections.
    Http1,
    /// The same over HTTP/2: 4 connections with 16 streams.
    Http2,
    /// 2,000 GET requests a second on 32 connections, for the latency of a proxy with time to spare.
    Rate,
    /// Response bodies of 1 MiB over HTTP/1.1, 8 connections.
    Download,
    /// Response bodies of 1 MiB over HTTP/2, 8 connections.
    DownloadHttp2,
    /// Request bodies of 1 MiB over HTTP/1.1, 8 connections.
    Upload,
    /// Request bodies of 1 MiB over HTTP/2, 8 connections.
    UploadHttp2,
}

impl Scenario {
    pub const ALL: [Self; 10] = [
        Self::HandshakeTls13,
        Self::HandshakeTls12,
        Self::Resumed,
        Self::Http1,
        Self::Http2,
        Self::Rate,
        Self::Download,
        Self::Upload,
        Self::DownloadHttp2,
        Self::UploadHttp2,
    ];

    /// Units of work in one run. CPU time is counted in ticks of 10 ms, so that a run has to last.
    pub fn count(self) -> usize {
        match self {
            Self::HandshakeTls12 | Self::HandshakeTls13 => 3_000,
            Self::Resumed => 4_000,
            Self::Http1 | Self::Http2 => 40_000,
            Self::Rate => 6_000,
            Self::Download | Self::DownloadHttp2 | Self::Upload | Self::UploadHttp2 => 1_000,
        }
    }

    /// The unit of its figure.
    pub fn unit(self) -> &'static str {
        match self {
            Self::HandshakeTls12 | Self::HandshakeTls13 | Self::Resumed => "µs",
            Self::Http1 | Self::Http2 | Self::Rate => "µs",
            Self::Download | Self::DownloadHttp2 | Self::Upload | Self::UploadHttp2 => "µs/MiB",
        }
    }

    fn shape(self) -> Shape {
        let requests = |http2, connections, streams, path, body, rate| {
            Shape::Requests(Requests { http2, connections, streams, path, body, rate })
        };
        match self {
            Self::HandshakeTls12 => Shape::Handshakes { version: &TLS12, resumes: false },
            Self::HandshakeTls13 => Shape::Handshakes { version: &TLS13, resumes: false },
            Self::Resumed => Shape::Handshakes { version: &TLS13, resumes: true },
            Self::Http1 => requests(false, 32, 1, "/", 0, None),
            Self::Http2 => requests(true, 4, 16, "/", 0, None),
            Self::Rate => requests(false, 32, 1, "/", 0, Some(2_000)),
            Self::Download => requests(false, 8, 1, "/mebibyte", 0, None),
            Self::DownloadHttp2 => requests(true, 8, 1, "/mebibyte", 0, None),
            Self::Upload => requests(false, 8, 1, "/", MEBIBYTE, None),
            Self::UploadHttp2 => requests(true, 8, 1, "/", MEBIBYTE, None),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::HandshakeTls12 => "full TLS 1.2 handshake + GET",
            Self::HandshakeTls13 => "full TLS 1.3 handshake + GET",
            Self::Resumed => "resumed TLS 1.3 + GET",
            Self::Http1 => "HTTP/1.1 request",
            Self::Http2 => "HTTP/2 request",
            Self::Rate => "HTTP/1.1 request at 2,000/s",
            Self::Download => "download HTTP/1.1",
            Self::DownloadHttp2 => "download HTTP/2",
            Self::Upload => "upload HTTP/1.1",
            Self::UploadHttp2 => "upload HTTP/2",
        })
    }
}

/// Connections that are open after one GET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    Http1,
    Http2,
}

impl Idle {
    pub const ALL: [Self; 2] = [Self::Http1, Self::Http2];
}

impl fmt::Display for Idle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Http1 => "idle HTTP/1.1 connection",
            Self::Http2 => "idle HTTP/2 connection",
        })
    }
}

enum Shape {
    Handshakes { version: &'static SupportedProtocolVersion, resumes: bool },
    Requests(Requests),
}

#[derive(Debug, Clone, Copy)]
pub struct Requests {
    http2: bool,
    connections: usize,
    /// Requests in flight on each connection.
    streams: usize,
    path: &'static str,
    /// Size of the request body.
    body: usize,
    /// Requests a second, on all connections together.
    rate: Option<u32>,
}

/// Handshakes in progress at one time.
const CONCURRENT_HANDSHAKES: usize = 16;

/// The holder of a certificate that all proxies admit.
pub struct Clients {
    anchors: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    client: Party,
}

impl Clients {
    pub fn new(pki: &Pki, client: Party) -> Self {
        let mut anchors = RootCertStore::empty();
        anchors.add(pki.ca().clone()).unwrap();
        // One cipher suite for each version and one key exchange: the same work for all proxies.
        let provider = CryptoProvider {
            cipher_suites: vec![
                cipher_suite::TLS13_AES_128_GCM_SHA256,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            ],
            kx_groups: vec![kx_group::X25519, kx_group::SECP256R1],
            ..aws_lc_rs::default_provider()
        };
        Self { anchors: Arc::new(anchors), provider: Arc::new(provider), client }
    }

    fn config(&self, version: &'static SupportedProtocolVersion, http2: bool) -> ClientConfig {
        let (chain, key) = self.client.credentials();
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(Arc::clone(&self.anchors))
            .with_client_auth_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        config.resumption = Resumption::disabled();
        config
    }

    /// Checks that the proxy serves this client, and no client without a certificate.
    pub async fn check(&self, address: SocketAddr) -> Result<(), Failure> {
        let config = Arc::new(self.config(&TLS13, false));
        handshake_and_get(address, &config).await?;
        let mut anonymous = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(Arc::clone(&self.anchors))
            .with_no_client_auth();
        anonymous.alpn_protocols = vec![b"http/1.1".to_vec()];
        match handshake_and_get(address, &Arc::new(anonymous)).await {
            Err(_) => Ok(()),
            Ok(()) => Err("a client without a certificate was served".into()),
        }
    }

    /// Opens the connections of a scenario.
    pub async fn prepare(&self, address: SocketAddr, scenario: Scenario) -> Prepared {
        match scenario.shape() {
            Shape::Handshakes { version, resumes } => {
                let configs = (0..CONCURRENT_HANDSHAKES).map(|_| {
                    let mut config = self.config(version, false);
                    if resumes {
                        config.resumption = Resumption::in_memory_sessions(64);
                    }
                    Arc::new(config)
                });
                Prepared::Handshakes { address, configs: configs.collect() }
            }
            Shape::Requests(requests) => {
                let config = Arc::new(self.config(&TLS13, requests.http2));
                let mut senders = Vec::new();
                for _ in 0..requests.connections {
                    let sender = Sender::open(address, &config, requests.http2).await.unwrap();
                    senders.extend(sender.for_streams(requests.streams));
                }
                Prepared::Requests { requests, senders }
            }
        }
    }

    /// Opens `count` connections, and sends one GET on each.
    pub async fn open(&self, address: SocketAddr, idle: Idle, count: usize) -> Vec<Sender> {
        let http2 = idle == Idle::Http2;
        let config = Arc::new(self.config(&TLS13, http2));
        let mut open = Vec::with_capacity(count);
        for _ in 0..count {
            let mut sender = Sender::open(address, &config, http2).await.unwrap();
            sender.send("/", 0).await.unwrap();
            open.push(sender);
        }
        open
    }
}

/// A scenario whose connections are open.
pub enum Prepared {
    Handshakes { address: SocketAddr, configs: Vec<Arc<ClientConfig>> },
    Requests { requests: Requests, senders: Vec<Sender> },
}

impl Prepared {
    /// Does `count` units of work. Returns the latency of each.
    pub async fn run(self, count: usize) -> Vec<Duration> {
        let work = Arc::new(Work { start: Instant::now(), count, next: AtomicUsize::new(0) });
        let mut tasks = JoinSet::new();
        match self {
            Self::Handshakes { address, configs } => {
                for config in configs {
                    let work = Arc::clone(&work);
                    tasks.spawn(async move {
                        let mut latencies = Vec::new();
                        while let Some(start) = work.next(None).await {
                            handshake_and_get(address, &config).await.unwrap();
                            latencies.push(start.elapsed());
                        }
                        latencies
                    });
                }
            }
            Self::Requests { requests, senders } => {
                for mut sender in senders {
                    let work = Arc::clone(&work);
                    tasks.spawn(async move {
                        let mut latencies = Vec::new();
                        while let Some(start) = work.next(requests.rate).await {
                            sender.send(requests.path, requests.body).await.unwrap();
                            latencies.push(start.elapsed());
                        }
                        latencies
                    });
                }
            }
        }
        tasks.join_all().await.concat()
    }
}

/// The units of work that the tasks of a run share.
struct Work {
    start: Instant,
    count: usize,
    next: AtomicUsize,
}

impl Work {
    /// The time from which the next unit's latency counts; `None` after the last unit. With a rate,
    /// a late unit counts from the time when it was due.
    async fn next(&self, rate: Option<u32>) -> Option<Instant> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.count {
            return None;
        }
        let Some(rate) = rate else { return Some(Instant::now()) };
        let due = self.start + Duration::from_secs_f64(number as f64 / f64::from(rate));
        sleep_until(due.into()).await;
        Some(due)
    }
}

/// An open connection.
pub enum Sender {
    Http1(Http1),
    Http2(Http2),
}

impl Sender {
    async fn open(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        http2: bool,
    ) -> Result<Self, Failure> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let connector = TlsConnector::from(Arc::clone(config));
        let tls = TokioIo::new(connector.connect("localhost".try_into()?, tcp).await?);
        // A connection ends with its sender; errors reach the requests.
        if http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), tls).await?;
            tokio::spawn(async { connection.await.ok() });
            Ok(Self::Http2(sender))
        } else {
            let (sender, connection) = http1::handshake(tls).await?;
            tokio::spawn(async { connection.await.ok() });
            Ok(Self::Http1(sender))
        }
    }

    /// One sender for each request that is in flight at one time.
    fn for_streams(self, streams: usize) -> Vec<Self> {
        match self {
            Self::Http1(_) => vec![self],
            Self::Http2(sender) => (0..streams).map(|_| Self::Http2(sender.clone())).collect(),
        }
    }

    /// Sends a request, and reads its response to the end.
    async fn send(&mut self, path: &str, body: usize) -> Result<(), Failure> {
        static BODY: [u8; MEBIBYTE] = [b'u'; MEBIBYTE];
        let body = Full::new(Bytes::from_static(&BODY[..body]));
        let method = if body.size_hint().exact() == Some(0) { "GET" } else { "POST" };
        let request = Request::builder().method(method);
        let response = match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                let request = request.uri(path).header("host", "localhost");
                sender.send_request(request.body(body)?).await?
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                let request = request.uri(format!("https://localhost{path}"));
                sender.send_request(request.body(body)?).await?
            }
        };
        read(response).await
    }
}

async fn handshake_and_get(address: SocketAddr, config: &Arc<ClientConfig>) -> Result<(), Failure> {
    Sender::open(address, config, false).await?.send("/", 0).await
}

async fn read(response: Response<Incoming>) -> Result<(), Failure> {
    if response.status() != StatusCode::OK {
        return Err(format!("status {}", response.status()).into());
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(())
}
