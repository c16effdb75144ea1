//! TCP services: bytes are forwarded unchanged, for admitted clients only.
//!
//! Guards for open connections: `Close::Abort` in `src/proxy/tunnel.rs`, `evict` in
//! `src/proxy/open_connection/state.rs` for the deadline.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use proxy_header::{ParseConfig, ProxyHeader, Tlv};

use crate::support::client::Client;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::{Program, reserved_address};
use crate::support::proof_source::{fingerprint, proof_of};
use crate::support::proxy::{Configuration, Configure, Proxy, Running};
use crate::support::{TIMEOUT, output_text, skip, write_filter, write_revision};

/// A TCP service in front of `server`, with `extra` settings.
fn scene(server: SocketAddr, extra: &str) -> Running {
    Proxy::before(server).global("access_log = { requests = \"all\" }").service(extra).start()
}

/// A server that sends all bytes of each connection to the channel, and then writes `response`.
fn server(response: &'static [u8]) -> (SocketAddr, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = channel();
    std::thread::spawn(move || {
        for tcp in listener.incoming() {
            let (mut tcp, sender) = (tcp.unwrap(), sender.clone());
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = tcp.read_to_end(&mut bytes); // it may be cut
                let _ = sender.send(bytes);
                let _ = tcp.write_all(response);
                let _ = tcp.shutdown(Shutdown::Both);
            });
        }
    });
    (address, received)
}

const TCP: &str = "protocol = \"tcp\"";

#[test]
fn each_direction_ends_separately() {
    let (address, received) = server(b"all of it");
    let scene = scene(address, TCP);
    let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    client.send(&bytes);
    client.finish();
    assert!(received.recv_timeout(TIMEOUT).unwrap() == bytes);
    assert_eq!(client.rest(), "all of it");
    let line = scene.keygate.access_line();
    let expected = serde_json::json!({
        "service": "test",
        "protocol": "tcp",
        "upstream": address.to_string(),
        "verdict": "clean",
        "complete": true,
        "request_bytes": 1 << 20,
        "response_bytes": 9,
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&line[field], value, "{field} of {line}");
    }
}

#[test]
fn a_stream_that_ends_without_close_notify_is_not_complete() {
    let (address, received) = server(b"");
    let scene = scene(address, TCP);
    let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
    client.send("part");
    client.tcp().shutdown(Shutdown::Write).unwrap();
    assert_eq!(received.recv_timeout(TIMEOUT).unwrap(), b"part");
    let line = scene.keygate.access_line();
    assert_eq!((&line["complete"], &line["request_bytes"]), (&false.into(), &4.into()), "{line}");
}

#[test]
fn a_stream_that_ends_without_close_notify_is_a_reset_for_the_server() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let scene = scene(listener.local_addr().unwrap(), TCP);
    for has_close_notify in [true, false] {
        let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
        client.send("part");
        let (mut tcp, _) = listener.accept().unwrap();
        tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut bytes = [0; 4];
        tcp.read_exact(&mut bytes).unwrap();
        if has_close_notify {
            client.finish();
        } else {
            client.tcp().shutdown(Shutdown::Write).unwrap();
        }
        let end = tcp.read(&mut bytes).map_err(|error| error.kind());
        let reset = Err(std::io::ErrorKind::ConnectionReset);
        assert_eq!(end, if has_close_notify { Ok(0) } else { reset });
    }
}

#[test]
fn a_listed_key_gets_an_alert_and_the_server_no_connection() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let scene = scene(listener.local_addr().unwrap(), TCP);
    let response = scene.keygate.curl(&scene.lost, &[]);
    assert!(output_text(&response).contains("access denied"), "{}", output_text(&response));
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

#[test]
fn a_connection_whose_key_becomes_listed_is_closed_after_evict_within() {
    let (address, received) = server(b"");
    let policy = "policy = { evict_within = \"700ms\" }\nprotocol = \"tcp\"";
    let scene = scene(address, policy);
    let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
    client.send("before");
    let start = Instant::now();
    write_revision(&scene.pki.path("lost.pkbf"), &[&scene.good.spki], 2);
    scene.keygate.wait_for_generation(2);
    assert_eq!(received.recv_timeout(TIMEOUT).unwrap(), b"before");
    assert!(start.elapsed() >= Duration::from_millis(700), "it had its time");
    scene.keygate.wait_for("the line about the client", |line| {
        line["message"] == "client key rejected, closing connection"
    });
}

#[test]
fn a_connection_whose_key_is_proved_compromised_is_closed_at_once() {
    let (address, received) = server(b"");
    let policy = "on_probable = \"flag\", evict_within = \"10m\"";
    let proxy = Proxy::before(address).policy(policy).service(TCP);
    let proofs = proxy.pki.path("proofs");
    std::fs::create_dir(&proofs).unwrap();
    let proxy = proxy.add("confirm", "proofs = \"proofs\"").start();
    let mut client = Client::connect(&proxy.pki, proxy.address(), &proxy.lost);
    client.send("before");
    proxy.wait_for("the flag", |line| line["message"] == "client key flagged");
    let name = format!("{}.jws", fingerprint(&proxy.lost));
    std::fs::write(proxy.pki.path("new"), proof_of(&proxy.lost)).unwrap();
    std::fs::rename(proxy.pki.path("new"), proofs.join(name)).unwrap();
    assert_eq!(received.recv_timeout(TIMEOUT).unwrap(), b"before");
}

#[test]
fn an_idle_connection_is_closed_after_idle_timeout() {
    let (address, received) = server(b"");
    let scene = scene(address, "protocol = \"tcp\"\nlimits = { idle_timeout = \"4s\" }");
    let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
    client.send("once");
    assert_eq!(received.recv_timeout(TIMEOUT).unwrap(), b"once");
}

#[test]
fn the_upstream_gets_client_and_certificate_in_a_proxy_header() {
    let (address, received) = server(b"");
    let scene = scene(address, "protocol = \"tcp\"\nforward = { send_proxy = \"v2\" }");
    let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
    let from = client.tcp().local_addr().unwrap();
    client.send("hello");
    client.finish();
    let bytes = received.recv_timeout(TIMEOUT).unwrap();
    let (header, length) = ProxyHeader::parse(&bytes, ParseConfig::default()).unwrap();
    assert_eq!(&bytes[length..], b"hello");
    let addresses = header.proxied_address().unwrap();
    assert_eq!((addresses.source, addresses.destination), (from, scene.keygate.address()));
    assert_eq!(header.authority(), Some("localhost"));
    let ssl = header.ssl().unwrap();
    assert!(ssl.client_ssl() && ssl.client_cert_conn() && ssl.verify() == 0);
    assert_eq!((ssl.version(), ssl.cn()), (Some("TLSv1.3"), Some("good")));
    let has_certificate = |tlv: &Tlv<'_>| matches!(tlv, Tlv::Custom(0x28, certificate) if **certificate == *scene.good.der);
    assert!(ssl.tlvs().any(|tlv| has_certificate(&tlv.unwrap())), "{header:?}");
}

/// `redis-cli` as a client.
fn redis_cli(scene: &Running, client: &Party, arguments: &[&str]) -> Output {
    let address = scene.keygate.address();
    let mut command = Command::new("redis-cli");
    command.args(["--tls", "-h", "localhost", "-p", &address.port().to_string(), "--cacert"]);
    command.arg(scene.pki.path("ca.pem")).arg("--cert").arg(&client.certificate);
    command.arg("--key").arg(&client.private_key).args(arguments).output().unwrap()
}

#[test]
fn redis_cli_works_through_the_proxy() {
    if skip::without("redis-server") || skip::without("redis-cli") {
        return;
    }
    let address = reserved_address();
    let mut command = Command::new("redis-server");
    command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
    let _redis = Program::start(&mut command).listening_on(address);
    let scene = scene(address, TCP);
    let value = "x".repeat(1 << 20);
    std::fs::write(scene.pki.path("value"), &value).unwrap();
    let run = |client, arguments: &[&str]| output_text(&redis_cli(&scene, client, arguments));
    assert!(run(&scene.good, &["SET", "key", "value"]).contains("OK"));
    assert!(run(&scene.good, &["GET", "key"]).contains("value"));
    assert!(run(&scene.good, &["-r", "100", "INCR", "count"]).contains("\n100\n"));
    let refused = redis_cli(&scene, &scene.lost, &["GET", "key"]);
    assert!(
        !refused.status.success() && !output_text(&refused).contains("value"),
        "{}",
        output_text(&refused)
    );
    scene
        .keygate
        .wait_for_metric("keygate_key_actions_total{action=\"reject\",service=\"test\"}", 1.0);
}

/// HAProxy sends the address of the client before the TLS handshake.
#[test]
fn a_proxy_header_is_accepted_from_haproxy_only() {
    if skip::without("haproxy") {
        return;
    }
    for send_proxy in ["send-proxy", "send-proxy-v2"] {
        let pki = Pki::new();
        let good = pki.client("good", Kind::P256);
        write_filter(&pki.path("lost.pkbf"), &[]);
        let origin = crate::support::origin::Origin::start();
        let accept = "accept_proxy = { from = [\"127.0.0.1\"] }";
        let keygate = Configuration::new(origin.address()).service(accept).start(&pki);
        let front = reserved_address();
        let text = format!(
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 5s\n timeout server 5s\n\
             listen front\n bind {front}\n server keygate {} {send_proxy}\n",
            keygate.address()
        );
        std::fs::write(pki.path("haproxy.cfg"), text).unwrap();
        let mut command = Command::new("haproxy");
        command.arg("-db").arg("-f").arg(pki.path("haproxy.cfg"));
        let _haproxy = Program::start(&mut command).listening_on(front);

        let url = format!("https://{front}/");
        let response = keygate.curl(&good, &["--interface", "127.0.0.2", &url]);
        assert_eq!(response.stdout, b"hello\n", "{send_proxy}: {}", output_text(&response));
        assert_eq!(origin.next().fields("x-forwarded-for"), ["127.0.0.2"], "{send_proxy}");

        // A client outside `accept_proxy.from` has its own address. Its PROXY header is an error.
        let direct = keygate.curl(&good, &["--interface", "127.0.0.3"]);
        assert_eq!(direct.stdout, b"hello\n", "{}", output_text(&direct));
        assert_eq!(origin.next().fields("x-forwarded-for"), ["127.0.0.3"]);
        let forged = ["--interface", "127.0.0.3", "--haproxy-protocol"];
        assert!(!keygate.curl(&good, &forged).status.success());
        // A peer in `accept_proxy.from` that sends no PROXY header is closed.
        let mut silent = TcpStream::connect(keygate.address()).unwrap();
        silent.set_read_timeout(Some(TIMEOUT)).unwrap();
        silent.write_all(b"\x16\x03\x01\x00\x05hello, I am TLS").unwrap();
        assert_eq!(silent.read(&mut [0; 64]).unwrap_or(0), 0);
        assert_eq!(origin.untaken(), 0);
    }
}
