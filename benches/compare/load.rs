//! The load: clients with a certificate, over HTTP/1.1 and HTTP/2, from one thread.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::version::TLS13;
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tokio_rustls::TlsConnector;

use super::origin::MEBIBYTE;
use super::scenario::{HandshakeClients, Handshakes, Idle, Requests, Scenario, Shape};
use super::support::pki::{Kind, Party, Pki};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Http1 = http1::SendRequest<Full<Bytes>>;
type Http2 = http2::SendRequest<Full<Bytes>>;

/// Handshakes in progress at one time.
pub const CONCURRENT_HANDSHAKES: usize = 16;

/// One cipher suite for each version and one key exchange: the same work for all proxies.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        ],
        kx_groups: vec![kx_group::X25519, kx_group::SECP256R1],
        ..aws_lc_rs::default_provider()
    })
}

/// The holders of certificates that all proxies admit.
pub struct Clients {
    anchors: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    client: Party,
    /// The clients of the handshakes with a certificate each.
    others: Vec<Party>,
}

impl Clients {
    pub fn new(pki: &Pki, client: Party) -> Self {
        let mut anchors = RootCertStore::empty();
        anchors.add(pki.ca().clone()).unwrap();
        Self { anchors: Arc::new(anchors), provider: provider(), client, others: Vec::new() }
    }

    /// Makes `count` certificates for handshakes of new clients.
    pub fn with_others(mut self, pki: &Pki, count: usize) -> Self {
        let name = |number| format!("client-{number}");
        self.others = (0..count).map(|number| pki.client(&name(number), Kind::P256)).collect();
        self
    }

    /// A configuration without session resumption.
    pub fn config(&self, version: &'static SupportedProtocolVersion, http2: bool) -> ClientConfig {
        self.config_of(&self.client, version, http2)
    }

    fn config_of(
        &self,
        client: &Party,
        version: &'static SupportedProtocolVersion,
        http2: bool,
    ) -> ClientConfig {
        let (chain, key) = client.credentials();
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

    /// The configurations for each handshake in progress, used in turn.
    pub fn configs(&self, handshakes: Handshakes) -> Vec<Vec<Arc<ClientConfig>>> {
        let Handshakes { version, clients } = handshakes;
        let config = |client| self.config_of(client, version, false);
        let of_one = |number| match clients {
            HandshakeClients::New => {
                let clients = self.others.iter().skip(number).step_by(CONCURRENT_HANDSHAKES);
                clients.map(|client| Arc::new(config(client))).collect()
            }
            HandshakeClients::Same => vec![Arc::new(config(&self.client))],
            HandshakeClients::Resuming => {
                let mut config = config(&self.client);
                config.resumption = Resumption::in_memory_sessions(64); // a store for each
                vec![Arc::new(config)]
            }
        };
        (0..CONCURRENT_HANDSHAKES).map(of_one).collect()
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
            Ok(_) => Err("a client without a certificate was served".into()),
        }
    }

    /// Opens the connections of a scenario.
    pub async fn prepare(&self, address: SocketAddr, scenario: Scenario) -> Prepared {
        match scenario.shape() {
            Shape::Handshakes(handshakes) => {
                let configs = self.configs(handshakes);
                let resumes = handshakes.clients == HandshakeClients::Resuming;
                Prepared::Handshakes { address, configs, resumes }
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
    Handshakes { address: SocketAddr, configs: Vec<Vec<Arc<ClientConfig>>>, resumes: bool },
    Requests { requests: Requests, senders: Vec<Sender> },
}

impl Prepared {
    /// Does `count` units of work. Returns the latency of each.
    ///
    /// # Panics
    /// A request failed, or most handshakes of a scenario that resumes were full ones.
    pub async fn run(self, count: usize) -> Vec<Duration> {
        let work = Arc::new(Work { start: Instant::now(), count, next: AtomicUsize::new(0) });
        let mut tasks = JoinSet::new();
        match self {
            Self::Handshakes { address, configs, resumes } => {
                for configs in configs {
                    let work = Arc::clone(&work);
                    tasks.spawn(async move {
                        let (mut latencies, mut resumed) = (Vec::new(), 0);
                        let mut configs = configs.iter().cycle();
                        while let Some(start) = work.next(None).await {
                            let config = configs.next().unwrap();
                            let kind = handshake_and_get(address, config).await.unwrap();
                            latencies.push(start.elapsed());
                            resumed += usize::from(kind == HandshakeKind::Resumed);
                        }
                        // The first handshake of each store is a full one.
                        assert!(
                            !resumes || 2 * resumed >= latencies.len().saturating_sub(1),
                            "{resumed} of {} sessions were resumed",
                            latencies.len()
                        );
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
        Ok(Self::open_with_kind(address, config, http2).await?.0)
    }

    async fn open_with_kind(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        http2: bool,
    ) -> Result<(Self, HandshakeKind), Failure> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let connector = TlsConnector::from(Arc::clone(config));
        let tls = connector.connect("localhost".try_into()?, tcp).await?;
        let kind = tls.get_ref().1.handshake_kind().ok_or("no handshake")?;
        let tls = TokioIo::new(tls);
        // A connection ends with its sender; errors reach the requests.
        if http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), tls).await?;
            tokio::spawn(async { connection.await.ok() });
            Ok((Self::Http2(sender), kind))
        } else {
            let (sender, connection) = http1::handshake(tls).await?;
            tokio::spawn(async { connection.await.ok() });
            Ok((Self::Http1(sender), kind))
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
        let request = request.header("accept", "*/*").header("user-agent", "compare");
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

async fn handshake_and_get(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
) -> Result<HandshakeKind, Failure> {
    let (mut sender, kind) = Sender::open_with_kind(address, config, false).await?;
    sender.send("/", 0).await?;
    Ok(kind)
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
