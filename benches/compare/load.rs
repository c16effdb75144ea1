//! The load: clients with a certificate, over HTTP/1.1 and HTTP/2, from one thread.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::version::TLS13;
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::harness::http_client::{Failure, Sender, handshake_and_get};
use super::scenario::{HandshakeClients, Handshakes, Idle, Requests, Scenario, Shape};
use super::support::pki::{Kind, Party, Pki};

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

    /// The clients offer X25519MLKEM768 only.
    pub fn hybrid(self) -> Self {
        let mut provider = provider().as_ref().clone();
        provider.kx_groups = vec![kx_group::X25519MLKEM768];
        Self { provider: Arc::new(provider), ..self }
    }

    /// Makes `count` certificates for handshakes of new clients.
    pub fn with_others(mut self, pki: &Pki, kind: Kind, count: usize) -> Self {
        let name = |number| format!("client-{number}");
        self.others = (0..count).map(|number| pki.client(&name(number), kind)).collect();
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
