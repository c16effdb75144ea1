//! Clients without a certificate, behind the hosts that ask about connections:
//! `deploy/authorizer/envoy-network` and `deploy/authorizer/haproxy-tcp`.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;

use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};

use crate::support::authorizer::{Authorizer, RunningAuthorizer};
use crate::support::client::{Client, config_of};
use crate::support::envoy::{Envoy, GET};
use crate::support::haproxy::HaproxyFiles;
use crate::support::http_host::foreign_client;
use crate::support::origin::Origin;
use crate::support::pki::Party;
use crate::support::proxy::Configure;

/// keygate for `host`. The upstream closes each connection after its response, because the host
/// relays bytes.
fn authorizer(host: &str, mode: &str) -> RunningAuthorizer {
    let mut authorizer = Authorizer::of(host)
        .add("authorizers.client_auth", &format!("mode = \"{mode}\""))
        .asked_policy("on_unchecked = \"flag\"");
    authorizer.origin = Origin::responding(|_, tcp| {
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")?;
        Err(ErrorKind::ConnectionAborted.into())
    });
    authorizer.start()
}

/// Whether a client is served, and whether its session was resumed.
fn is_served(address: SocketAddr, config: &ClientConfig) -> (bool, bool) {
    let mut client = Client::with(config.clone(), address);
    client.send(GET);
    let text = client.whatever_comes();
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 200 OK"), "{text}");
    (!text.is_empty(), client.is_resumed())
}

/// Connections with TLS 1.2 and 1.3, two of each client. The second one of a client that is served
/// is resumed. Under TLS 1.3 a client that is closed at once may have got no ticket.
fn check_clients(keygate: &RunningAuthorizer, address: SocketAddr, mode: &str) {
    for version in [&TLS12, &TLS13] {
        let client = |party: Option<&Party>| config_of(&keygate.pki, &[version], party);
        for (name, client, expected) in [
            ("anonymous", client(None), mode == "optional"),
            ("good", client(Some(&keygate.good)), true),
            ("lost", client(Some(&keygate.lost)), false),
        ] {
            for is_second in [false, true] {
                let (served, is_resumed) = is_served(address, &client);
                assert_eq!(served, expected, "{name} {mode} {version:?}");
                if expected {
                    assert_eq!(is_resumed, is_second, "{name} {mode} {version:?}");
                }
            }
        }
    }
    let served = keygate.origin.untaken();
    assert_eq!(served, if mode == "optional" { 8 } else { 4 }, "{mode}");
}

#[test]
fn envoy_serves_a_client_without_a_certificate_by_mode_and_policy() {
    for mode in ["required", "optional"] {
        let keygate = authorizer("envoy-network", mode);
        let change = |text: String| {
            let required = "require_client_certificate: true";
            assert!(text.contains(required));
            text.replace(required, "require_client_certificate: false")
        };
        let (directory, origin) = (keygate.pki.directory(), keygate.origin.address());
        let Some(envoy) = Envoy::start("envoy-network", directory, origin, change) else { return };
        check_clients(&keygate, envoy.address, mode);
    }
}

#[test]
fn haproxy_serves_a_client_without_a_certificate_by_mode_and_policy() {
    for mode in ["required", "optional"] {
        let keygate = authorizer("haproxy-tcp", mode);
        let files = HaproxyFiles::of("haproxy-tcp", &keygate.pki, keygate.origin.address());
        let Some(files) = files else { return };
        let haproxy = files
            .replace("verify required", "verify optional ca-ignore-err all crt-ignore-err all")
            .start(&keygate.pki);
        check_clients(&keygate, haproxy.address, mode);
        // HAProxy passes a certificate on that it has not verified. It is not taken for none.
        let (_, foreign) = foreign_client();
        for version in [&TLS12, &TLS13] {
            let foreign = config_of(&keygate.pki, &[version], Some(&foreign));
            assert!(!is_served(haproxy.address, &foreign).0, "{mode}");
        }
    }
}
