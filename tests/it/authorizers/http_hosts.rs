//! The checks of every host that asks over HTTP, with its configuration in `deploy/authorizer`.
//! [`checks_of_http_hosts`] makes them tests of one host.

use std::time::Duration;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::version::{TLS12, TLS13};

use crate::support::client::{Client, config, config_of};
use crate::support::http_host::{
    GET, HostResponse, HostScene, HttpHost, foreign_client, forged_certificates,
};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, RevocationList};
use crate::support::proxy::Configure;
use crate::support::spellings;
use crate::support::{wait_for, write_revision};

/// The fields by which a client names its own status. Caddy and Traefik pass `OTHER_STATUS` on.
const OTHER_STATUS: &str = "client.key.status: forged\r\nClient~Key-Status: forged\r\n";
const FORGED_STATUS: &str = "Client-Key-Status: forged\r\nClient_Key_Status: forged\r\nClient-Key_Status: forged\r\nCLIENT_KEY-STATUS: forged\r\n";

/// The tests of a host, in the module of that host.
macro_rules! checks_of_http_hosts {
    ($host:expr) => {
        #[test]
        fn every_request_is_judged_full_and_resumed() {
            $crate::authorizers::http_hosts::judges_every_request($host);
        }

        #[test]
        fn a_certificate_in_a_header_of_the_client_is_not_read() {
            $crate::authorizers::http_hosts::reads_no_certificate_of_the_client($host);
        }

        #[test]
        fn a_filter_update_counts_from_the_next_request() {
            $crate::authorizers::http_hosts::follows_an_update($host);
        }

        #[test]
        fn without_an_answer_every_client_is_rejected() {
            $crate::authorizers::http_hosts::rejects_without_an_answer($host);
        }

        #[test]
        fn a_hanging_authorizer_rejects_every_client() {
            $crate::authorizers::http_hosts::rejects_if_keygate_hangs($host);
        }

        #[test]
        fn no_path_and_no_method_is_special() {
            $crate::authorizers::http_hosts::judges_every_path_and_method($host);
        }

        #[test]
        fn a_client_without_a_certificate_is_treated_by_mode() {
            $crate::authorizers::http_hosts::follows_the_mode($host);
        }

        #[test]
        fn a_revoked_certificate_is_rejected_on_resumed_sessions_as_well() {
            $crate::authorizers::http_hosts::rejects_a_revoked_certificate($host);
        }
    };
}
pub(super) use checks_of_http_hosts;

/// Whether the host resumes sessions. Caddy disables them if it asks for client certificates.
pub(super) fn resumes(host: HttpHost) -> bool {
    host != HttpHost::Caddy
}

/// A client with one TLS version. Its handshakes are all full, or all resumed.
pub(super) struct TlsClient {
    config: ClientConfig,
    is_resumed: bool,
}

impl TlsClient {
    /// Clients with TLS 1.2 and 1.3, full and resumed. With a host that resumes no session all have
    /// full handshakes. The first request of each session is over.
    pub(super) fn all(host: HttpHost, scene: &HostScene, party: Option<&Party>) -> Vec<Self> {
        let mut clients = Vec::new();
        for version in [&TLS12, &TLS13] {
            let mut config = config_of(&scene.pki, &[version], party);
            if resumes(host) {
                assert!(!scene.exchange(&config, GET).is_resumed, "{host:?}");
                clients.push(Self { config: config.clone(), is_resumed: true });
            }
            config.resumption = Resumption::disabled();
            clients.push(Self { config, is_resumed: false });
        }
        scene.origin.taken(|_| true);
        clients
    }

    /// Connects and sends a request.
    fn send(&self, scene: &HostScene, request: impl AsRef<[u8]>) -> Client {
        let mut client = Client::with(self.config.clone(), scene.address);
        client.send(request);
        client
    }

    /// The response to a request on a connection of its own.
    pub(super) fn exchange(&self, scene: &HostScene, request: impl AsRef<[u8]>) -> HostResponse {
        let response = scene.exchange(&self.config, request);
        assert_eq!(response.is_resumed, self.is_resumed, "{response:?}");
        response
    }

    /// The status of a GET on a connection of its own.
    pub(super) fn get(&self, scene: &HostScene) -> String {
        self.exchange(scene, GET).status().to_owned()
    }
}

/// The status for every client if no connection to keygate is accepted, and if keygate hangs.
fn statuses_without_an_answer(host: HttpHost) -> [&'static str; 2] {
    match host {
        HttpHost::Caddy => ["502", "504"],
        HttpHost::EnvoyHttp => ["403", "403"],
        HttpHost::Nginx | HttpHost::Traefik => ["500", "500"],
    }
}

/// The configuration of the host with optional client certificates.
pub(super) fn optional_certificates(host: HttpHost, text: &str) -> String {
    let (required, optional) = match host {
        HttpHost::Caddy => ("mode require_and_verify", "mode verify_if_given"),
        HttpHost::EnvoyHttp => {
            ("require_client_certificate: true", "require_client_certificate: false")
        }
        HttpHost::Nginx => ("ssl_verify_client      on;", "ssl_verify_client optional;"),
        HttpHost::Traefik => ("RequireAndVerifyClientCert", "VerifyClientCertIfGiven"),
    };
    text.replace(required, optional)
}

fn request(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n")
}

/// The fields of the next request at the origin that a server could read as the status.
fn status_at_origin(scene: &HostScene) -> Vec<(String, String)> {
    let received = scene.origin.next();
    let fields = received.head.lines().skip(1).filter_map(|line| line.split_once(": "));
    let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    fields.filter(|(name, _)| name.replace(['_', '.', '~'], "-") == "client-key-status").collect()
}

/// A clean client is admitted, and the origin sees one status. A listed client gets 403, and the
/// origin sees nothing. With TLS 1.2 and 1.3, full and resumed if the host resumes sessions.
pub(super) fn judges_every_request(host: HttpHost) {
    let Some(scene) = host.start() else { return };
    let resumes = resumes(host);
    let is_strict = matches!(host, HttpHost::EnvoyHttp | HttpHost::Nginx);
    let forged = format!("{FORGED_STATUS}{}", if is_strict { OTHER_STATUS } else { "" });
    let mut rejected = scene.questions("denied");
    for version in [&TLS12, &TLS13] {
        let good = config_of(&scene.pki, &[version], Some(&scene.good));
        let lost = config_of(&scene.pki, &[version], Some(&scene.lost));
        for is_second in [false, true] {
            let response = scene.exchange(&good, request(&forged));
            assert_eq!(response.status(), "200", "{host:?} {version:?}: {}", response.text);
            assert_eq!(response.is_resumed, is_second && resumes, "{host:?} {version:?}");
            let status = [("client-key-status".to_owned(), "clean".to_owned())];
            assert_eq!(status_at_origin(&scene), status, "{host:?}");
            let response = scene.exchange(&lost, GET);
            assert_eq!(response.status(), "403", "{host:?} {version:?}: {}", response.text);
            assert_eq!(response.is_resumed, is_second && resumes, "{host:?} {version:?}");
            rejected += 1.0;
        }
    }
    assert_eq!(scene.origin.untaken(), 0, "{host:?}: the origin saw a listed client");
    scene.wait_for_counter("keygate_questions_total{result=\"denied\",service=\"edge\"}", rejected);
}

/// A certificate that a client puts into a header, in any dialect, neither helps nor harms.
pub(super) fn reads_no_certificate_of_the_client(host: HttpHost) {
    let Some(scene) = host.start() else { return };
    for (client, other, status) in
        [(&scene.lost, &scene.good, "403"), (&scene.good, &scene.lost, "200")]
    {
        let lines = forged_certificates(other);
        for client in TlsClient::all(host, &scene, Some(client)) {
            for forged in lines.split_inclusive("\r\n").chain([lines.as_str()]) {
                let response = client.exchange(&scene, request(forged));
                assert_eq!(response.status(), status, "{host:?}: {forged}{}", response.text);
            }
        }
    }
}

/// A filter update counts from the next request on, on open connections and on resumed sessions.
pub(super) fn follows_an_update(host: HttpHost) {
    let Some(scene) = host.start() else { return };
    let clients = TlsClient::all(host, &scene, Some(&scene.good));
    let open = clients.iter().map(|client| {
        let mut open = client.send(&scene, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(open.head().starts_with("HTTP/1.1 200"), "{host:?}");
        assert_eq!(open.is_resumed(), client.is_resumed, "{host:?}");
        open.exactly(6); // the response of the origin
        open
    });
    let mut open: Vec<_> = open.collect();
    let filter = scene.pki.path("lost.pkbf");
    write_revision(&filter, &[&scene.lost.spki, &scene.good.spki], 2);
    scene.wait_for_generation(2);
    for client in &mut open {
        client.send(GET);
        assert!(client.head().starts_with("HTTP/1.1 403"), "{host:?}");
    }
    for client in &clients {
        assert_eq!(client.get(&scene), "403", "{host:?}: a session from before");
    }
}

/// While keygate is stopped every client is rejected; after a restart it is judged.
pub(super) fn rejects_without_an_answer(host: HttpHost) {
    let [status, _] = statuses_without_an_answer(host);
    let Some(mut scene) = host.start() else { return };
    let good = TlsClient::all(host, &scene, Some(&scene.good));
    for client in &good {
        assert_eq!(client.get(&scene), "200", "{host:?}");
    }
    scene.signal("TERM");
    scene.running.keygate.ended();
    for client in &good {
        assert_eq!(client.get(&scene), status, "{host:?}: keygate has ended");
    }
    scene.running.restart();
    for client in &good {
        // A host may leave out an upstream that has failed for a while.
        wait_for_admission(&scene, client);
    }
    for client in TlsClient::all(host, &scene, Some(&scene.lost)) {
        assert_eq!(client.get(&scene), "403", "{host:?}");
    }
}

fn wait_for_admission(scene: &HostScene, client: &TlsClient) {
    wait_for("an admitted client", || match client.get(scene) {
        status if status == "200" => Ok(()),
        status => Err(status),
    });
}

/// A keygate that does not answer is an error of the host, within its timeout: 30 seconds of
/// Traefik, which has no setting for it.
pub(super) fn rejects_if_keygate_hangs(host: HttpHost) {
    let [_, status] = statuses_without_an_answer(host);
    let Some(scene) = host.start_with_documented_timeout(|text| text) else { return };
    let clients = TlsClient::all(host, &scene, Some(&scene.good));
    for client in &clients {
        wait_for_admission(&scene, client);
    }
    scene.signal("STOP");
    // All wait at the same time.
    let found: Vec<_> = std::thread::scope(|scope| {
        let waiting = clients.iter().map(|client| scope.spawn(|| client.get(&scene)));
        let waiting: Vec<_> = waiting.collect();
        waiting.into_iter().map(|client| client.join().unwrap()).collect()
    });
    scene.signal("CONT");
    assert!(found.iter().all(|found| found == status), "{host:?}: {found:?}");
}

/// No method, no path and no kind of request is treated in another way. Envoy passes method and
/// path of the client on to keygate.
pub(super) fn judges_every_path_and_method(host: HttpHost) {
    let mut authorizer = host.authorizer();
    authorizer.origin = Origin::with_upgrades();
    let Some(scene) = host.start_with(authorizer, |text| text) else { return };
    let close = "Connection: close\r\n";
    let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let upgrade = format!("GET /socket HTTP/1.1\r\nHost: localhost\r\n{FORGED_STATUS}{upgrade}");
    let post =
        format!("POST / HTTP/1.1\r\nHost: localhost\r\n{close}Content-Length: 5\r\n\r\nhello");
    for client in TlsClient::all(host, &scene, Some(&scene.lost)) {
        for line in ["GET /healthz", "GET /metrics?a=1", "GET /readyz", "HEAD /livez", "OPTIONS /"]
        {
            let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\n{close}\r\n");
            let response = client.exchange(&scene, &request);
            assert_eq!(response.status(), "403", "{host:?}: {line}: {}", response.text);
        }
        assert_eq!(client.exchange(&scene, &post).status(), "403", "{host:?}: POST");
        let mut client = client.send(&scene, &upgrade);
        assert!(client.head().starts_with("HTTP/1.1 403"), "{host:?}: upgrade");
    }
    assert_eq!(scene.origin.untaken(), 0, "{host:?}");
    let clean = [("client-key-status".to_owned(), "clean".to_owned())];
    for client in TlsClient::all(host, &scene, Some(&scene.good)) {
        assert_eq!(client.exchange(&scene, &post).status(), "200", "{host:?}");
        assert_eq!(scene.origin.next().body, b"hello", "{host:?}");
        let head = format!("HEAD / HTTP/1.1\r\nHost: localhost\r\n{FORGED_STATUS}{close}\r\n");
        let response = client.exchange(&scene, head);
        assert_eq!(response.status(), "200", "{host:?}");
        assert!(response.text.ends_with("\r\n\r\n"), "{host:?}: {}", response.text);
        assert_eq!(status_at_origin(&scene), clean, "{host:?}: HEAD");
        let response = client.send(&scene, &upgrade).head();
        assert!(response.starts_with("HTTP/1.1 101"), "{host:?}: upgrade: {response}");
        assert_eq!(status_at_origin(&scene), clean, "{host:?}: upgrade");
    }
}

/// A second route of the host, for paths below `/api`, is judged like the first.
pub(super) fn judges_every_route(host: HttpHost, with_second_route: impl Fn(String) -> String) {
    let Some(scene) = host.start_with(host.authorizer(), with_second_route) else { return };
    let [good, lost] = [&scene.good, &scene.lost].map(|client| config(&scene.pki, client));
    for path in ["/", "/api", "/api/orders?a=1"] {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{FORGED_STATUS}\r\n"
        );
        let response = scene.exchange(&lost, &request);
        assert_eq!(response.status(), "403", "{host:?}: {path}: {}", response.text);
        assert_eq!(scene.origin.untaken(), 0, "{host:?}: {path}");
        let response = scene.exchange(&good, &request);
        assert_eq!(response.status(), "200", "{host:?}: {path}: {}", response.text);
        let clean = [("client-key-status".to_owned(), "clean".to_owned())];
        assert_eq!(status_at_origin(&scene), clean, "{host:?}: {path}");
    }
}

/// [`spellings::check`] with a policy that admits clients without a certificate.
pub(super) fn judges_every_spelling(host: HttpHost, accepted: &[&str]) {
    let optional = host.authorizer().asked_policy("on_unchecked = \"flag\"");
    let optional = optional.add("authorizers.client_auth", "mode = \"optional\"");
    let keys = spellings::keys(&optional.pki);
    let change = |text: String| optional_certificates(host, &text);
    let Some(scene) = host.start_with(optional, change) else { return };
    spellings::check(&scene.pki, scene.address, &keys, accepted);
    for anonymous in TlsClient::all(host, &scene, None) {
        assert_eq!(anonymous.get(&scene), "200", "{host:?}: without a certificate");
    }
}

/// A client without a certificate is treated by `mode` and `on_unchecked`. The host accepts clients
/// without a certificate. Caddy then sends `Client-Cert: ::`.
pub(super) fn follows_the_mode(host: HttpHost) {
    let change = |text: String| optional_certificates(host, &text);
    let required = host.start_with(host.authorizer(), change);
    let Some(scene) = required else { return };
    // A forged certificate is none.
    let forged = request(&forged_certificates(&scene.good));
    for anonymous in TlsClient::all(host, &scene, None) {
        assert_eq!(anonymous.get(&scene), "403", "{host:?}: required");
        let response = anonymous.exchange(&scene, &forged);
        assert_eq!(response.status(), "403", "{host:?}: {}", response.text);
    }
    for client in TlsClient::all(host, &scene, Some(&scene.good)) {
        assert_eq!(client.get(&scene), "200", "{host:?}");
    }
    drop(scene);
    let optional = host.authorizer().asked_policy("on_unchecked = \"flag\"");
    let optional = optional.add("authorizers.client_auth", "mode = \"optional\"");
    let scene = host.start_with(optional, change).unwrap();
    for anonymous in TlsClient::all(host, &scene, None) {
        assert_eq!(anonymous.get(&scene), "200", "{host:?}: optional");
        let [(_, status)] = status_at_origin(&scene).try_into().unwrap();
        assert_eq!(status, "unchecked", "{host:?}");
    }
    for client in TlsClient::all(host, &scene, Some(&scene.lost)) {
        assert_eq!(client.get(&scene), "403", "{host:?}: optional");
    }
}

/// keygate verifies the certificates that the host sends. One is revoked while its session lives.
pub(super) fn rejects_a_revoked_certificate(host: HttpHost) {
    let authorizer = host.authorizer();
    let day = Duration::from_secs(86_400);
    authorizer.pki.crl("clients.crl.pem", &[], day);
    let authorizer = authorizer
        .add("authorizers.client_auth", "trust_anchors = \"ca.pem\"\ncrls = [\"clients.crl.pem\"]");
    let Some(scene) = host.start_with(authorizer, |text| text) else { return };
    let clients = TlsClient::all(host, &scene, Some(&scene.good));
    for client in &clients {
        assert_eq!(client.get(&scene), "200", "{host:?}");
    }
    let list = RevocationList::new(2, &[]);
    let revoked = [&scene.good];
    scene.pki.crl_with("clients.crl.pem", &RevocationList { revoked: &revoked, ..list });
    scene.wait_for_generation(2);
    for client in &clients {
        assert_eq!(client.get(&scene), "403", "{host:?}");
    }
    let rejected = f64::from(u8::try_from(clients.len()).unwrap());
    scene.wait_for_counter(
        "keygate_questions_total{result=\"not_verified\",service=\"edge\"}",
        rejected,
    );
}

/// keygate verifies the certificates of a host that does not: an expired one, and one of another
/// CA. `change` turns the verification of the host off.
pub(super) fn verifies_by_itself(host: HttpHost, change: impl Fn(String) -> String) {
    let without = host.start_with(host.authorizer(), &change);
    let Some(scene) = without else { return };
    let expired = |scene: &HostScene| -> Party {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2021, 1, 1);
        scene.pki.client_with("expired", Kind::P256, parameters)
    };
    let (_, foreign) = foreign_client();
    // Go resumes no session of a client that has expired.
    let full = |scene: &HostScene, party: &Party| {
        let clients = TlsClient::all(host, scene, Some(party));
        clients.into_iter().filter(|client| !client.is_resumed).collect::<Vec<_>>()
    };
    // The hole: neither the host nor the authorizer verifies.
    for client in full(&scene, &expired(&scene)) {
        assert_eq!(client.get(&scene), "200", "{host:?}");
    }
    for client in TlsClient::all(host, &scene, Some(&foreign)) {
        assert_eq!(client.get(&scene), "200", "{host:?}");
    }
    drop(scene);
    let verifying = host.authorizer().add("authorizers.client_auth", "trust_anchors = \"ca.pem\"");
    let scene = host.start_with(verifying, &change).unwrap();
    for client in full(&scene, &expired(&scene)) {
        assert_eq!(client.get(&scene), "403", "{host:?}");
    }
    for client in TlsClient::all(host, &scene, Some(&foreign)) {
        assert_eq!(client.get(&scene), "403", "{host:?}");
    }
    for client in TlsClient::all(host, &scene, Some(&scene.good)) {
        assert_eq!(client.get(&scene), "200", "{host:?}");
    }
}

/// A policy that admits clients without a certificate does not admit certificates that neither the
/// host nor keygate could verify. `change` makes certificates of the host's clients optional, and
/// turns its verification off.
pub(super) fn rejects_the_unverified_although_unchecked_are_flagged(
    host: HttpHost,
    change: impl Fn(String) -> String,
) {
    let authorizer = host
        .authorizer()
        .asked_policy("on_unchecked = \"flag\"")
        .add("authorizers.client_auth", "mode = \"optional\"\ntrust_anchors = \"ca.pem\"");
    let Some(scene) = host.start_with(authorizer, change) else { return };
    for anonymous in TlsClient::all(host, &scene, None) {
        assert_eq!(anonymous.get(&scene), "200", "{host:?}");
        let [(_, status)] = status_at_origin(&scene).try_into().unwrap();
        assert_eq!(status, "unchecked", "{host:?}");
    }
    let (_, foreign) = foreign_client();
    let before = scene.questions("not_verified");
    let clients = TlsClient::all(host, &scene, Some(&foreign));
    for client in &clients {
        assert_eq!(client.get(&scene), "403", "{host:?}");
    }
    // The first request of each session that is resumed counts as well.
    let resumed = clients.iter().filter(|client| client.is_resumed).count();
    let rejected = f64::from(u8::try_from(clients.len() + resumed).unwrap());
    assert_eq!(scene.questions("not_verified") - before, rejected, "{host:?}");
    assert_eq!(scene.origin.untaken(), 0, "{host:?}");
    for client in TlsClient::all(host, &scene, Some(&scene.good)) {
        assert_eq!(client.get(&scene), "200", "{host:?}");
    }
}

/// A client whose certificate expires after its first handshake is served by the host, and rejected
/// if keygate verifies. nginx and Envoy resume its session. Go does not, so that Traefik serves it
/// only if it verifies no certificate (`change`).
pub(super) fn rejects_an_expired_client(host: HttpHost, change: impl Fn(String) -> String) {
    let verifying = host.authorizer().add("authorizers.client_auth", "trust_anchors = \"ca.pem\"");
    let scenes = [host.authorizer(), verifying].map(|it| host.start_with(it, &change));
    let [Some(believing), Some(verifying)] = scenes else { return };
    let scenes = [(believing, "200"), (verifying, "403")];
    let clients = scenes.each_ref().map(|(scene, _)| {
        let ((configs, statuses), brief) = scene.pki.with_brief_client(|brief| {
            let configs =
                [&TLS12, &TLS13].map(|version| config_of(&scene.pki, &[version], Some(brief)));
            let statuses = configs.each_ref().map(|config| scene.get(config));
            (configs, statuses)
        });
        assert_eq!(statuses, ["200", "200"], "{host:?}");
        (configs, brief)
    });
    for ((scene, status), (configs, brief)) in scenes.iter().zip(&clients) {
        brief.wait_for_expiry();
        for config in configs {
            let response = scene.exchange(config, GET);
            assert_eq!(response.status(), *status, "{host:?}: {}", response.text);
            assert_eq!(response.is_resumed, host != HttpHost::Traefik, "{host:?}");
        }
    }
}
