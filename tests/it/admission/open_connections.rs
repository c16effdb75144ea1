//! Reloads with open connections: clients that the new snapshot rejects are evicted, and no others.
//!
//! Guards: `judge_again` in `src/proxy/open_connection.rs`, `self.evict` in
//! `src/proxy/open_connection.rs`, `judge_all` in `src/workers/event_loop.rs`, `is_due_for_check` in
//! `src/proxy/open_connection.rs` for expired certificates, `verify_again` in
//! `src/proxy/open_connection.rs` for CAs and revocation lists.

use std::io::Write;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use hyper::Request;
use keygate_core::spki::Fingerprint;
use rustls::ClientConfig;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::client::{Client, config};
use crate::support::http2::{Came, END_HEADERS, HEADERS, Http2, RST_STREAM, frame, request};
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki, RevocationList};
use crate::support::proof_source::{fingerprint, proof_of};
use crate::support::proxy::{Configuration, Configure, Proxy};
use crate::support::{before, write_filter, write_revision};

const GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

struct Scene {
    pki: Pki,
    origin: Origin,
    keygate: Keygate,
    good: Party,
    /// Admitted at first.
    turned: Party,
}

fn scene(top: &str, policy: &str) -> Scene {
    scene_with(Origin::start(), top, policy)
}

fn scene_with(origin: Origin, top: &str, policy: &str) -> Scene {
    let pki = Pki::new();
    let [good, turned] = ["good", "turned"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[]);
    std::fs::write(pki.path("deny.txt"), "").unwrap();
    let top = format!("{top}\n[[lists]]\nname = \"march\"\npath = \"deny.txt\"\n");
    let text = Configuration::new(origin.address())
        .global(&top)
        .service(&format!("policy = {{ {policy} }}"));
    let keygate = text.start(&pki);
    Scene { pki, origin, keygate, good, turned }
}

impl Scene {
    fn connect(&self, client: &Party) -> Client {
        Client::connect(&self.pki, self.keygate.address(), client)
    }

    /// The key of `turned` is in the filter from now on.
    fn turn(&self) {
        write_revision(&self.pki.path("lost.pkbf"), &[&self.turned.spki], 2);
        self.keygate.wait_for_generation(2);
    }

    fn count(&self, series: &str, labels: &str, value: f64) {
        self.keygate.wait_for_metric(&format!("keygate_{series}{{{labels}}}"), value);
    }

    fn judged_live(&self, verdict: &str, count: f64) {
        let labels = format!("service=\"test\",stage=\"live\",verdict=\"{verdict}\"");
        self.count("key_checks_total", &labels, count);
    }
}

/// Sends a request on a connection that stays open, and returns the head of the response.
fn send_get(client: &mut Client) -> String {
    client.send(GET);
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(client.exactly(6), b"hello\n");
    head
}

#[test]
fn an_idle_connection_whose_key_is_in_the_new_filter_is_closed_and_others_stay() {
    let scene = scene("", "");
    let (mut good, mut turned) = (scene.connect(&scene.good), scene.connect(&scene.turned));
    send_get(&mut good);
    send_get(&mut turned);
    scene.turn();
    assert_eq!(turned.rest(), "", "it ends in an orderly way, and nothing is served");
    send_get(&mut good);
    let line = scene.keygate.wait_for("the line about the client", |line| {
        line["message"] == "client key rejected, closing connection"
    });
    assert_eq!((&line["subject"], &line["stage"]), (&json!("CN=turned"), &json!("live")));
    assert_eq!((&line["verdict"], &line["revision"]), (&json!("probable"), &json!(2)));
    scene.judged_live("clean", 1.0);
    scene.judged_live("probable", 1.0);
    scene.count("key_actions_total", "action=\"evict\",service=\"test\"", 1.0);
    scene.count("connections_active", "service=\"test\"", 1.0);
}

#[test]
fn a_changed_list_evicts_an_open_connection() {
    let scene = scene("", "");
    let mut turned = scene.connect(&scene.turned);
    send_get(&mut turned);
    let fingerprint = Fingerprint::of(&scene.turned.spki);
    std::fs::write(scene.pki.path("deny.txt"), format!("{fingerprint}\n")).unwrap();
    assert_eq!(turned.rest(), "");
    scene.judged_live("listed", 1.0);
}

#[test]
fn an_expired_exception_evicts_its_open_connection() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let turned = pki.client("turned", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[&turned.spki]);
    let fingerprint = Fingerprint::of(&turned.spki);
    let (ends, (keygate, mut client)) = before(Duration::from_secs(8), |ends| {
        let until = humantime::format_rfc3339_millis(ends);
        let top = format!(
            "exceptions = [{{ fingerprint = \"{fingerprint}\", until = {until}, reason = \"soon\" }}]"
        );
        let keygate = Configuration::new(origin.address()).global(&top).start(&pki);
        let mut client = Client::connect(&pki, keygate.address(), &turned);
        send_get(&mut client);
        (keygate, client)
    });
    assert_eq!(client.rest(), "");
    assert!(SystemTime::now() >= ends, "not before its time");
    // The connection was not closed as idle either: the log has the reason.
    keygate.wait_for("the line about the client", |line| {
        line["message"] == "client key rejected, closing connection"
    });
    assert_eq!(keygate.status()["generation"], 1, "nothing was loaded");
}

/// An origin that responds when the test sends on the channel.
pub(super) fn waiting_origin() -> (Origin, Sender<()>) {
    let (go, wait) = channel();
    let wait = Mutex::new(wait);
    let origin = Origin::responding(move |_, tcp| {
        let _ = wait.lock().unwrap().recv(); // the test may have ended
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
    });
    (origin, go)
}

#[test]
fn a_request_in_flight_gets_its_response_and_is_the_last_one() {
    let (origin, go) = waiting_origin();
    let scene = scene_with(origin, "", "");
    let mut turned = scene.connect(&scene.turned);
    turned.send(GET);
    scene.origin.next();
    scene.turn();
    scene.judged_live("probable", 1.0);
    go.send(()).unwrap();
    let head = turned.head();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("connection: close\r\n"), "{head}");
    assert_eq!(turned.rest(), "hello\n");
}

#[test]
fn an_evicted_connection_is_closed_at_the_deadline() {
    let (origin, _go) = waiting_origin();
    let scene = scene_with(origin, "", "evict_within = \"700ms\"");
    let mut turned = scene.connect(&scene.turned);
    turned.send(GET);
    scene.origin.next();
    let start = Instant::now();
    scene.turn();
    scene.count("connections_active", "service=\"test\"", 0.0);
    assert!(start.elapsed() >= Duration::from_millis(700), "it had its time");
    // The request was aborted while it waited. Otherwise the silent upstream would cause a 504.
    let served = "keygate_requests_total{code=\"5xx\",service=\"test\"}";
    assert_eq!(scene.keygate.metric(served), 0.0);
}

/// The certificate of an admitted client is revoked, or its CA is removed.
#[test]
fn a_client_whose_certificate_is_no_longer_accepted_is_evicted() {
    for what in ["crl", "ca"] {
        let (pki, origin) = (Pki::new(), Origin::start());
        let theirs = Pki::named("Another CA");
        let [good, revoked] = ["good", "revoked"].map(|name| pki.client(name, Kind::P256));
        let stranger = theirs.client("stranger", Kind::P256);
        write_filter(&pki.path("lost.pkbf"), &[]);
        let pem = |pki: &Pki| std::fs::read_to_string(pki.path("ca.pem")).unwrap();
        std::fs::write(pki.path("clients-ca.pem"), pem(&pki) + &pem(&theirs)).unwrap();
        let an_hour = Duration::from_secs(3600);
        let crls = ["clients.crl", "theirs.crl"];
        pki.crl(crls[0], &[], an_hour);
        std::fs::rename(theirs.crl("crl", &[], an_hour), pki.path(crls[1])).unwrap();
        let keygate = Configuration::new(origin.address())
            .client_auth(&format!("trust_anchors = \"clients-ca.pem\", crls = {crls:?}"))
            .start(&pki);
        let connect = |client: &Party| Client::connect(&pki, keygate.address(), client);
        let mut stays = connect(&good);
        let mut goes = connect(if what == "crl" { &revoked } else { &stranger });
        send_get(&mut stays);
        send_get(&mut goes);
        match what {
            "crl" => std::fs::rename(pki.crl("next", &[&revoked], an_hour), pki.path(crls[0])),
            _ => std::fs::write(pki.path("clients-ca.pem"), pem(&pki)),
        }
        .unwrap();
        assert_eq!(goes.rest(), "", "{what}");
        keygate.wait_for("a line", |line| {
            line["message"] == "client certificate is no longer accepted, closing connection"
        });
        send_get(&mut stays);
    }
}

#[test]
fn an_expired_revocation_list_ends_sessions_and_open_connections() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let text = Configuration::new(origin.address()).client_auth("crls = [\"clients.crl\"]");
    let (_, (keygate, mut client)) = before(Duration::from_secs(5), |ends| {
        let mut list = RevocationList::new(1, &[]);
        list.expires = ends;
        pki.crl_with("clients.crl", &list);
        let keygate = text.start(&pki);
        let mut client = Client::connect(&pki, keygate.address(), &good);
        send_get(&mut client);
        (keygate, client)
    });
    assert_eq!(client.rest(), "");
    let line = keygate
        .wait_for("a line", |line| line["message"] == "certificate revocation list has expired");
    assert_eq!(line["issuer"], "CN=Test CA", "{line}");
    assert!(line["path"].as_str().unwrap().ends_with(".crl"), "{line}");
    assert!(line["next_update"].as_str().unwrap().ends_with('Z'), "{line}");
    keygate.wait_for_generation(2);
}

#[test]
fn the_status_header_changes_with_the_next_request_on_an_open_connection() {
    let scene = scene("", "on_probable = \"header\"");
    let mut turned = scene.connect(&scene.turned);
    send_get(&mut turned);
    assert_eq!(scene.origin.next().fields("client-key-status"), ["clean"]);
    scene.turn();
    scene.judged_live("probable", 1.0);
    send_get(&mut turned);
    let status = "probable;filter=\"lost\";revision=2";
    assert_eq!(scene.origin.next().fields("client-key-status"), [status]);
    scene.count("key_actions_total", "action=\"header\",service=\"test\"", 1.0);
}

#[test]
fn a_connection_does_not_outlive_the_certificate_of_its_client() {
    let scene = scene("", "");
    let mut good = scene.connect(&scene.good);
    send_get(&mut good);
    let (ends, mut brief) = before(Duration::from_secs(6), |ends| {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.not_after = ends.into();
        let brief = scene.pki.client_with("brief", Kind::P256, parameters);
        let mut brief = scene.connect(&brief);
        send_get(&mut brief);
        brief
    });
    assert_eq!(brief.rest(), "");
    // Times in certificates are whole seconds.
    assert!(SystemTime::now() + Duration::from_secs(1) >= ends, "not before its time");
    scene.keygate.wait_for("a line", |line| {
        line["message"] == "client certificate is no longer accepted, closing connection"
            && line["result"] == "expired"
    });
    send_get(&mut good);
}

#[tokio::test(flavor = "current_thread")]
async fn an_http2_client_gets_goaway_and_the_response_to_its_request_in_flight() {
    let (origin, go) = waiting_origin();
    let scene = scene_with(origin, "", "");
    let tcp = TcpStream::connect(scene.keygate.address()).await.unwrap();
    let tls = TlsConnector::from(http2_client(&scene.pki, &scene.turned));
    let tls = tls.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(tls).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = || Request::get("https://localhost/").body(()).unwrap();
    let (response, _) = sender.send_request(request(), true).unwrap();
    let scene = tokio::task::spawn_blocking(move || {
        scene.origin.next();
        scene.turn();
        scene.judged_live("probable", 1.0);
        scene
    });
    let _scene = scene.await.unwrap();
    go.send(()).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "hello\n");
    // GOAWAY without an error, and the end of the connection.
    let ended = connection.await.unwrap();
    // The last write of the client may fail, because the connection is closed.
    assert!(ended.as_ref().map_or_else(h2::Error::is_io, |()| true), "{ended:?}");
    assert!(sender.send_request(request(), true).is_err());
}

/// First byte of a field block with the status 200 (RFC 7541, appendix A).
pub(super) const OK: u8 = 0x88;

#[test]
fn an_http2_client_gets_no_response_to_requests_after_goaway() {
    let (origin, go) = waiting_origin();
    let scene = scene_with(origin, "", "");
    // One request keeps the connection open. h2 sends a PING with its GOAWAY, to detect that the
    // client has read it. This client never acknowledges the PING.
    let mut client = Http2::connect(&scene.pki, scene.keygate.address(), &scene.turned);
    client.send_get(1);
    scene.origin.next();
    scene.turn();
    scene.judged_live("probable", 1.0);
    client.send_get(3);
    assert_eq!(client.next(), Came::GoAway(0));
    let Came::Response(status, 3) = client.next() else { panic!("no response") };
    assert_ne!(status, OK);
    go.send(()).unwrap();
    assert_eq!(client.next(), Came::Response(OK, 1), "the request was sent before GOAWAY");
    assert_eq!(scene.origin.untaken(), 0);
    scene.count("requests_total", "code=\"4xx\",service=\"test\"", 1.0);
}

/// A server that accepts any upgrade, and then echoes all bytes.
fn echo() -> Origin {
    Origin::responding(|request, tcp| {
        let protocol = request.fields("upgrade")[0];
        write!(
            tcp,
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\r\n"
        )?;
        std::io::copy(&mut tcp.try_clone()?, tcp)?;
        Err(std::io::ErrorKind::ConnectionAborted.into())
    })
}

#[test]
fn a_tunnel_over_http2_ends_with_the_connection_of_its_client() {
    let scene = scene_with(echo(), "", "evict_within = \"700ms\"");
    let mut client = Http2::connect(&scene.pki, scene.keygate.address(), &scene.turned);
    let fields = request("CONNECT", &[(":protocol", "echo")]);
    client.send(&frame(HEADERS, END_HEADERS, 1, &fields));
    assert_eq!(client.next(), Came::Response(OK, 1));
    let open = "service=\"test\"";
    scene.count("upstream_connections_active", open, 1.0);
    scene.turn();
    assert_eq!(client.next(), Came::GoAway(0));
    scene.count("connections_active", open, 0.0);
    scene.count("upstream_connections_active", open, 0.0);
}

#[test]
fn a_tunnel_over_http2_ends_at_once_if_the_evicted_key_is_proved_compromised() {
    let proxy = Proxy::to(echo()).policy("evict_within = \"10m\"");
    let proofs = proxy.pki.path("proofs");
    std::fs::create_dir(&proofs).unwrap();
    let proxy = proxy.add("confirm", "proofs = \"proofs\"").start();
    let mut client = proxy.connect_http2();
    let fields = request("CONNECT", &[(":protocol", "echo")]);
    client.send(&frame(HEADERS, END_HEADERS, 1, &fields));
    assert_eq!(client.next(), Came::Response(OK, 1));
    write_revision(&proxy.pki.path("lost.pkbf"), &[&proxy.good.spki], 2);
    assert_eq!(client.next(), Came::GoAway(0));
    let name = format!("{}.jws", fingerprint(&proxy.good));
    std::fs::write(proxy.pki.path("new"), proof_of(&proxy.good)).unwrap();
    std::fs::rename(proxy.pki.path("new"), proofs.join(name)).unwrap();
    proxy.wait_for_metric("keygate_connections_active{service=\"test\"}", 0.0);
}

#[test]
fn reset_streams_leave_no_request_at_the_upstream() {
    // The server accepts the upgrade and then sends nothing.
    let (_go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::responding(move |_, tcp| {
        tcp.write_all(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: echo\r\n\r\n")?;
        let _ = wait.lock().unwrap().recv(); // the test has ended
        Ok(())
    });
    let scene =
        scene_with(origin, "", "evict_within = \"10s\" }\nlimits = { idle_timeout = \"10m\"");
    let mut client = Http2::connect(&scene.pki, scene.keygate.address(), &scene.good);
    let fields = request("CONNECT", &[(":protocol", "echo")]);
    client.send(&frame(HEADERS, END_HEADERS, 1, &fields));
    assert_eq!(client.next(), Came::Response(OK, 1));
    let open = "service=\"test\"";
    scene.count("upstream_connections_active", open, 1.0);
    let cancel = 8_u32.to_be_bytes();
    client.send(&frame(RST_STREAM, 0, 1, &cancel));
    // Long before `idle_timeout`, and the connection stays open.
    scene.count("upstream_connections_active", open, 0.0);
    scene.count("connections_active", open, 1.0);
}

fn http2_client(pki: &Pki, party: &Party) -> Arc<ClientConfig> {
    let mut config = config(pki, party);
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}
