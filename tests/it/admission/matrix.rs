//! Every way to connect, with every key, under every policy, before and after a reload, with the
//! answers of a source of proofs: what the
//! client gets, what the origin gets, the metrics and the log line. The cases are generated; the
//! expected outcome of each follows from [`expected`].
//!
//! Guards: every line that decides. Without one, cases fail; an example is `identity.judge` in
//! `src/proxy/connection.rs`.

use std::collections::BTreeMap;
use std::fs::{rename, write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use keygate_core::spki::Fingerprint;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind, ProtocolVersion, SupportedProtocolVersion};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::blocklist::Blocklist;
use crate::support::client::config_of;
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proof_source::ProofSource;
use crate::support::wait::wait_within;
use crate::support::weak_keys::RsaKey;
use crate::support::{TIMEOUT, write_filter, write_revision};

pub(super) const VERSIONS: [&SupportedProtocolVersion; 2] =
    [&rustls::version::TLS12, &rustls::version::TLS13];
pub(super) const PROTOCOLS: [&str; 2] = ["http/1.1", "h2"];

/// The action of a service for every verdict that is not clean.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Action {
    Alert,
    Http403,
    Flag,
    Header,
}

impl Action {
    const ALL: [Self; 4] = [Self::Alert, Self::Http403, Self::Flag, Self::Header];

    fn host(self) -> &'static str {
        match self {
            Self::Alert => "a.example",
            Self::Http403 => "b.example",
            Self::Flag => "c.example",
            Self::Header => "d.example",
        }
    }

    /// The name of the action in metrics and logs.
    fn word(self) -> &'static str {
        match self {
            Self::Alert | Self::Http403 => "reject",
            Self::Flag => "flag",
            Self::Header => "header",
        }
    }

    fn refuses(self) -> bool {
        self.word() == "reject"
    }

    /// A service with this action. A certificate is optional unless the action rejects.
    fn service(self, origin: &Origin) -> String {
        let (host, word, origin) = (self.host(), self.word(), origin.address());
        let mode = if self.refuses() { "required" } else { "optional" };
        let with = if self == Self::Http403 { "http-403" } else { "alert" };
        format!(
            r#"
[[services]]
name = "{host}"
server_names = ["{host}"]
listen = "127.0.0.1:0"
tls = {{ certificate = "server.pem", private_key = "server.key" }}
client_auth = {{ trust_anchors = "ca.pem", mode = "{mode}" }}
upstream = {{ servers = ["http://{origin}"] }}
policy = {{ on_probable = "{word}", on_confirmed = "{word}", on_cleared = "{word}", on_listed = "{word}", on_unchecked = "{word}", on_weak = "{word}", reject_with = "{with}" }}
"#
        )
    }
}

/// A client, and the verdicts on its key before and after the reload.
struct Client {
    name: &'static str,
    verdicts: [&'static str; 2],
    /// `None` for a client without a certificate.
    party: Option<Party>,
}

/// About the keys that stay probable, the source is silent.
const CLIENTS: [(&str, [&str; 2]); 9] = [
    ("turned", ["clean", "probable"]),
    ("named", ["probable", "listed"]),
    ("found", ["listed", "clean"]),
    ("excepted", ["allowed", "allowed"]),
    ("proved", ["confirmed", "confirmed"]),
    ("innocent", ["cleared", "cleared"]),
    ("nobody", ["unchecked", "unchecked"]),
    (PUBLISHED, ["listed", "listed"]),
    (FACTORED, ["weak", "weak"]),
];

/// The client whose key is on the badkeys blocklist.
const PUBLISHED: &str = "published";
/// The client with an RSA key of close primes.
const FACTORED: &str = "factored";

struct Scene {
    pki: Pki,
    origin: Origin,
    keygate: Keygate,
    clients: Vec<Client>,
    _source: ProofSource,
}

impl Scene {
    /// A proxy and clients, which have keys of this kind.
    fn new(kind: Kind) -> Self {
        let (pki, origin) = (Pki::new(), Origin::start());
        let clients = CLIENTS.map(|(name, verdicts)| {
            let party = match name {
                "nobody" => None,
                FACTORED => Some(RsaKey::close_primes(2048).client(&pki, name)),
                _ => Some(pki.client(name, kind)),
            };
            Client { name, verdicts, party }
        });
        let clients = Vec::from(clients);
        let excepted = Fingerprint::of(&clients[3].party.as_ref().unwrap().spki);
        let services = Action::ALL.map(|action| action.service(&origin)).concat();
        let source = ProofSource::silent();
        let confirm = source.settings(&pki, "0s");
        source.prove(clients[4].party.as_ref().unwrap());
        source.clear(clients[5].party.as_ref().unwrap());
        let text = format!(
            r#"
admin = {{ listen = "127.0.0.1:0" }}
workers = 2
log = {{ repeat_after = "0s" }}
filters = [{{ name = "lost", path = "lost.pkbf" }}]
lists = [
    {{ name = "march", path = "deny.txt" }},
    {{ name = "badkeys", path = "blocklist.dat", format = "badkeys" }},
]
exceptions = [{{ fingerprint = "{excepted}", until = 2999-12-31, reason = "replaced soon" }}]
{services}
{confirm}"#
        );
        write_filter(&pki.path("lost.pkbf"), &filtered_keys(&clients, 0));
        write(pki.path("deny.txt"), fingerprints(&clients, 0)).unwrap();
        let published = clients.iter().filter(|client| client.name == PUBLISHED);
        let published: Vec<_> =
            published.flat_map(|it| &it.party).map(|it| (&it.spki[..], 1)).collect();
        Blocklist::new(&published).write(pki.directory());
        let keygate = Keygate::configured(&pki, &text);
        source.wait_for_canary(&keygate);
        Self { pki, origin, keygate, clients, _source: source }
    }

    /// Connects once with each client about which the source has an answer, and waits for it.
    async fn learn_answers(&self) {
        for client in &self.clients[4..6] {
            let config = Arc::new(config_of(&self.pki, &VERSIONS, client.party.as_ref()));
            connect(self.keygate.address(), &config, Action::Flag.host()).await.unwrap();
        }
        self.keygate.wait_for_status("the answers", |status| {
            let confirm = &status["confirm"];
            confirm["confirmed"] == 1 && confirm["cleared"] == 1
        });
    }

    /// Waits until no connection is open.
    fn wait_for_closed(&self) {
        for action in Action::ALL {
            let open = format!("keygate_connections_active{{service=\"{}\"}}", action.host());
            self.keygate.wait_for_metric(&open, 0.0);
        }
    }

    /// Installs the filter and the list that cause the verdicts of the second phase.
    fn reload(&self) {
        self.wait_for_closed();
        write(self.pki.path("next.txt"), fingerprints(&self.clients, 1)).unwrap();
        rename(self.pki.path("next.txt"), self.pki.path("deny.txt")).unwrap();
        self.keygate.wait_for_generation(2);
        let spkis = filtered_keys(&self.clients, 1);
        write_revision(&self.pki.path("lost.pkbf"), &spkis, 2);
        self.keygate.wait_for_generation(3);
    }
}

/// The keys with a verdict, and the one with an exception.
fn keys<'a>(
    clients: impl IntoIterator<Item = &'a Client>,
    phase: usize,
    verdict: &str,
) -> Vec<&'a [u8]> {
    let with =
        clients.into_iter().filter(|client| [verdict, "allowed"].contains(&client.verdicts[phase]));
    with.map(|client| client.party.as_ref().unwrap().spki.as_slice()).collect()
}

/// The keys in the filter.
fn filtered_keys(clients: &[Client], phase: usize) -> Vec<&[u8]> {
    ["probable", "confirmed", "cleared"].map(|it| keys(clients, phase, it)).concat()
}

fn fingerprints(clients: &[Client], phase: usize) -> String {
    let of_list = clients.iter().filter(|client| client.name != PUBLISHED);
    let keys = keys(of_list, phase, "listed").into_iter();
    keys.map(|spki| format!("{}\n", Fingerprint::of(spki))).collect()
}

/// The outcome of one connection with one request, as the client sees it.
#[derive(Debug, PartialEq)]
enum Seen {
    /// The name of an alert.
    Alert(&'static str),
    Response(u16, HandshakeKind),
}

/// The expected outcome of a connection: client, origin, metrics, log.
struct Expected {
    client: Seen,
    /// The value of `Client-Key-Status` that the origin gets, if it gets the request.
    origin: Option<Option<String>>,
    metrics: BTreeMap<String, f64>,
    /// Whether the client has a log line.
    is_logged: bool,
}

fn expected(action: Action, client: &Client, phase: usize, resumes: bool) -> Expected {
    let verdict = client.verdicts[phase];
    let host = action.host();
    let is_good = ["clean", "allowed"].contains(&verdict);
    let is_refused = !is_good && action.refuses();
    // A service that requires a certificate judges no client without one.
    let is_turned_away = verdict == "unchecked" && action.refuses();
    let in_handshake = is_turned_away || (is_refused && action == Action::Alert);
    let kind = if resumes { HandshakeKind::Resumed } else { HandshakeKind::Full };
    let result = match (is_turned_away, in_handshake) {
        (true, _) => "no_certificate",
        (false, true) => "compromised",
        (false, false) => "ok",
    };
    let connection = match (is_turned_away, is_refused) {
        (true, _) => "failed",
        (false, true) => "refused",
        (false, false) => "served",
    };
    let done = if is_good { "admit" } else { action.word() };
    let stage = if resumes { "resumed" } else { "handshake" };
    let code = if is_refused { "4xx" } else { "2xx" };
    let mut series = vec![
        format!("handshakes_total{{result=\"{result}\",resumed=\"{resumes}\",service=\"{host}\"}}"),
        format!("connections_total{{result=\"{connection}\",service=\"{host}\"}}"),
    ];
    if !is_turned_away {
        series.push(format!(
            "key_checks_total{{service=\"{host}\",stage=\"{stage}\",verdict=\"{verdict}\"}}"
        ));
        series.push(format!("key_actions_total{{action=\"{done}\",service=\"{host}\"}}"));
    }
    if !in_handshake {
        series.push(format!("requests_total{{code=\"{code}\",service=\"{host}\"}}"));
    }
    let revision = phase + 1;
    let status = match verdict {
        "cleared" | "confirmed" | "probable" => {
            format!("{verdict};filter=\"lost\";revision={revision}")
        }
        "listed" if client.name == PUBLISHED => {
            "listed;list=\"badkeys\";finding=\"debianssl\"".to_owned()
        }
        "listed" => "listed;list=\"march\"".to_owned(),
        "weak" => "weak;check=\"fermat\"".to_owned(),
        other => other.to_owned(),
    };
    Expected {
        client: match (is_turned_away, in_handshake, is_refused) {
            (true, _, _) => Seen::Alert("CertificateRequired"),
            (false, true, _) if verdict == "confirmed" => Seen::Alert("CertificateRevoked"),
            (false, true, _) => Seen::Alert("AccessDenied"),
            (false, false, true) => Seen::Response(403, kind),
            (false, false, false) => Seen::Response(200, kind),
        },
        origin: (!is_refused).then(|| (action == Action::Header).then_some(status)),
        metrics: series.into_iter().map(|name| (format!("keygate_{name}"), 1.0)).collect(),
        is_logged: !is_good && !is_turned_away,
    }
}

/// The outcome of one connection with one request, or the text of an error with all its causes.
pub(super) async fn connect(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    host: &'static str,
) -> Result<(u16, HandshakeKind), String> {
    let words = |error: &dyn std::fmt::Debug| format!("{error:?}");
    let tcp = TcpStream::connect(address).await.map_err(|error| words(&error))?;
    let name = ServerName::try_from(host).unwrap();
    let tls = TlsConnector::from(Arc::clone(config)).connect(name, tcp).await;
    let tls = tls.map_err(|error| words(&error))?;
    let kind = tls.get_ref().1.handshake_kind().unwrap();
    let uri = if is_http2(config) { format!("https://{host}/") } else { "/".to_owned() };
    let request = Request::get(uri).header("host", host).body(Empty::<Bytes>::new()).unwrap();
    let (response, ended) = if is_http2(config) {
        let made = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await;
        let (mut sender, connection) = made.map_err(|error| words(&error))?;
        let ended = tokio::spawn(connection);
        (sender.send_request(request).await, ended)
    } else {
        let made = http1::handshake(TokioIo::new(tls)).await;
        let (mut sender, connection) = made.map_err(|error| words(&error))?;
        let ended = tokio::spawn(connection);
        (sender.send_request(request).await, ended)
    };
    let Ok(response) = response else {
        return Err(format!("{response:?} {:?}", ended.await)); // HTTP/2 has the alert in the latter
    };
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.map_err(|error| words(&error))?.to_bytes();
    if (body == "hello\n") != (status == 200) {
        return Err(format!("{status} with the body {body:?}"));
    }
    ended.await.unwrap().map_err(|error| words(&error))?;
    Ok((status, kind))
}

fn is_http2(config: &ClientConfig) -> bool {
    config.alpn_protocols == [b"h2"]
}

/// The series that a connection may change.
fn counted(metrics: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let families = ["handshakes", "connections", "key_checks", "key_actions", "requests"];
    let prefixes = families.map(|family| format!("keygate_{family}_total"));
    let is_of = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()));
    metrics.into_iter().filter(|(name, _)| is_of(name)).collect()
}

/// One connection with one request.
#[derive(Clone, Copy)]
struct Case<'a> {
    client: &'a Client,
    config: &'a Arc<ClientConfig>,
    action: Action,
    is_tls12: bool,
    phase: usize,
    resumes: bool,
}

/// Fails one case with its reason. The other cases still run.
macro_rules! check {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err(format!($($reason)+));
        }
    };
}

impl Case<'_> {
    fn name(&self) -> String {
        let protocol = String::from_utf8_lossy(&self.config.alpn_protocols[0]);
        let tls = if self.is_tls12 { "TLS 1.2" } else { "TLS 1.3" };
        let handshake = if self.resumes { "resumed" } else { "full" };
        let reload = if self.phase == 0 { "before" } else { "after" };
        let (client, action) = (self.client.name, self.action);
        format!(
            "{client}, {action:?}, {tls}, {protocol}, {handshake} handshake, {reload} the reload"
        )
    }

    fn expected(&self) -> Expected {
        expected(self.action, self.client, self.phase, self.resumes)
    }

    /// Connects once and compares all that can be observed; waits at most for `timeout`.
    async fn run(&self, scene: &Scene, timeout: Duration) -> Result<(), String> {
        let expected = self.expected();
        scene.origin.untaken(); // left by a case that failed
        let before = counted(scene.keygate.metrics());
        let logged = key_lines(scene).len();
        let seen = connect(scene.keygate.address(), self.config, self.action.host()).await;
        match (&expected.client, seen) {
            // TLS 1.2 has no alert for a missing certificate; rustls sends the alert of TLS 1.3.
            (Seen::Alert(alert), Err(error)) => check!(error.contains(alert), "{error}"),
            (Seen::Response(status, kind), Ok(seen)) => {
                check!((*status, *kind) == seen, "{seen:?}, not {:?}", (status, kind));
            }
            (expected, seen) => return Err(format!("{seen:?}, not {expected:?}")),
        }
        wait_within(timeout, || {
            let now = counted(scene.keygate.metrics());
            let grown = now.iter().map(|(name, value)| (name.clone(), value - before[name]));
            let grown: BTreeMap<_, _> = grown.filter(|(_, by)| *by != 0.0).collect();
            check!(grown == expected.metrics, "{grown:#?}, not {:#?}", expected.metrics);
            Ok(())
        })?;
        self.check_origin(scene, &expected)?;
        let lines = wait_within(timeout, || {
            let lines = key_lines(scene);
            let count = lines.len() - logged;
            check!(count == usize::from(expected.is_logged), "{count} log lines");
            Ok(lines)
        })?;
        if expected.is_logged { self.check_line(lines.last().unwrap()) } else { Ok(()) }
    }

    fn check_origin(&self, scene: &Scene, expected: &Expected) -> Result<(), String> {
        if let Some(status) = &expected.origin {
            let request = scene.origin.next();
            let status: Vec<_> = status.iter().map(String::as_str).collect();
            let found = request.fields("client-key-status");
            check!(found == status, "Client-Key-Status is {found:?}, not {status:?}");
            let certificate = self.client.party.as_ref();
            let certificate = certificate.map(|party| format!(":{}:", BASE64.encode(&party.der)));
            let certificate: Vec<_> = certificate.iter().map(String::as_str).collect();
            let found = request.fields("client-cert");
            check!(found == certificate, "Client-Cert is {found:?}, not {certificate:?}");
        }
        let more = scene.origin.untaken();
        check!(more == 0, "{more} unexpected requests at the origin");
        Ok(())
    }

    fn check_line(&self, line: &Value) -> Result<(), String> {
        let subject = self.client.party.as_ref().map(|_| format!("CN={}", self.client.name));
        let is_proved = self.client.verdicts[self.phase] == "confirmed";
        let expected = json!({
            "service": self.action.host(),
            "verdict": self.client.verdicts[self.phase],
            "action": self.action.word(),
            "stage": if self.resumes { "resumed" } else { "handshake" },
            "subject": subject,
            "finding": (self.client.name == PUBLISHED).then_some("debianssl"),
            "check": (self.client.name == FACTORED).then_some("fermat"),
            "proof": self.client.party.as_ref().filter(|_| is_proved).map(|party| {
                Fingerprint::of(&party.spki).to_string()
            }),
        });
        for (field, value) in expected.as_object().unwrap() {
            check!(&line[field] == value, "{field} is not {value} in {line:#}");
        }
        Ok(())
    }
}

/// The log lines about client keys so far.
fn key_lines(scene: &Scene) -> Vec<Value> {
    scene.keygate.matching_lines(|line| line["target"] == "keygate::client_key")
}

#[tokio::test]
async fn every_client_under_every_policy_has_the_expected_outcome() {
    assert_eq!(check_all(Kind::P256, &VERSIONS).await, 2 * 2 * 2 * 4 * 9 * 2);
}

/// TLS 1.2 has no ML-DSA.
#[tokio::test]
async fn every_client_with_an_ml_dsa_key_has_the_expected_outcome() {
    assert_eq!(check_all(Kind::MlDsa65, &VERSIONS[1..]).await, 2 * 2 * 4 * 9 * 2);
}

/// Checks every case of clients with keys of this kind, and returns the number of cases.
async fn check_all(kind: Kind, versions: &[&'static SupportedProtocolVersion]) -> usize {
    let scene = Scene::new(kind);
    scene.learn_answers().await;
    scene.wait_for_closed();
    // Each keeps its sessions over the reload.
    let mut configurations = Vec::new();
    for version in versions {
        for protocol in PROTOCOLS {
            for action in Action::ALL {
                for client in &scene.clients {
                    let mut config = config_of(&scene.pki, &[version], client.party.as_ref());
                    config.alpn_protocols = vec![protocol.into()];
                    let is_tls12 = version.version == ProtocolVersion::TLSv1_2;
                    configurations.push((client, Arc::new(config), action, is_tls12));
                }
            }
        }
    }
    let (mut checked, mut failed) = (0, Vec::new());
    for phase in [0, 1] {
        for (client, config, action, is_tls12) in &configurations {
            let (action, is_tls12) = (*action, *is_tls12);
            let full = Case { client, config, action, is_tls12, phase, resumes: false };
            // A client that passed the handshake has a session. No session is older than the
            // snapshot, so that the first connection of a phase is never resumed.
            let resumes = matches!(full.expected().client, Seen::Response(..));
            for case in [full, Case { resumes, ..full }] {
                // After a failure, later cases do not wait for the full timeout again.
                let timeout = if failed.is_empty() { TIMEOUT } else { Duration::from_secs(2) };
                if let Err(reason) = case.run(&scene, timeout).await {
                    failed.push(format!("{}: {reason}", case.name()));
                }
                checked += 1;
            }
        }
        if phase == 0 {
            scene.reload();
        }
    }
    assert!(failed.is_empty(), "{} of {checked} cases:\n{}", failed.len(), failed.join("\n"));
    checked
}
