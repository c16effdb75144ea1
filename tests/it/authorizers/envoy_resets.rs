//! Clients of Envoy that reset their requests at once ("rapid reset"). Each reset is one of
//! Envoy's question to keygate, on the connection with the questions about other clients.

use crate::support::authorizer::Authorizer;
use crate::support::envoy::Envoy;
use crate::support::http2::{
    Came, END_HEADERS, END_STREAM, HEADERS, Http2, RST_STREAM, frame, request,
};
use crate::support::program::reserved_address;
use crate::support::system;

/// Connections of listed clients, and requests that each of them resets. Envoy closes a connection
/// with 250.
const ATTACKERS: usize = 12;
const RESETS: u32 = 200;

/// Requests of a clean client.
const REQUESTS: u32 = 20;

/// Frames on the streams from 3 on.
fn on_streams(count: u32, frames: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (1..=count).flat_map(|index| frames(2 * index + 1)).collect()
}

fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &request("GET", &[]))
}

/// Envoy is stopped while the clients write, so that the resets reach it together and it queues the
/// resets of the questions together. An error of keygate admits the client, and is not hidden by a
/// second question.
///
/// Guard: `max_outbound_control_frames` of the files.
#[test]
fn resets_of_listed_clients_fail_no_question() {
    for host in ["envoy", "envoy-xfcc"] {
        let authorizer = Authorizer::of(host).start();
        let admin = reserved_address();
        let change = |text: String| {
            let open = text.replace("failure_mode_allow: false", "failure_mode_allow: true");
            let port = admin.port();
            let address = format!("{{ address: 127.0.0.1, port_value: {port} }}");
            format!("admin: {{ address: {{ socket_address: {address} }} }}\n{open}")
                .replace("num_retries: 5", "num_retries: 0")
        };
        let (directory, origin) = (authorizer.pki.directory(), authorizer.origin.address());
        let Some(envoy) = Envoy::start(host, directory, origin, change) else { return };
        let connect = |party| Http2::connect(&authorizer.pki, envoy.address, party);
        let mut listed: Vec<_> = (0..ATTACKERS).map(|_| connect(&authorizer.lost)).collect();
        let mut clean: Vec<_> = (0..4).map(|_| connect(&authorizer.good)).collect();
        for client in listed.iter_mut().chain(&mut clean) {
            client.send_get(1);
            assert!(matches!(client.next(), Came::Response(_, 1)));
        }
        let cancel = |stream| frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        let mut attack = on_streams(RESETS, |stream| [get(stream), cancel(stream)].concat());
        attack.extend(get(2 * RESETS + 3));
        let requests = on_streams(REQUESTS, get);
        envoy.program.signal("STOP");
        let (before, after) = listed.split_at_mut(ATTACKERS / 2);
        before.iter_mut().for_each(|client| client.send(&attack));
        clean.iter_mut().for_each(|client| client.send(&requests));
        after.iter_mut().for_each(|client| client.send(&attack));
        envoy.program.signal("CONT");
        for client in &mut clean {
            for _ in 0..REQUESTS {
                assert!(matches!(client.next(), Came::Response(_, _)), "{host}");
            }
        }
        for client in &mut listed {
            assert!(matches!(client.next(), Came::Response(_, _)), "{host}");
        }
        let stats = system("curl", &["-s", &format!("http://{admin}/stats?usedonly")]);
        let stats = String::from_utf8(stats.stdout).unwrap();
        let stat = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.map_or(0, |number| number.parse().unwrap())
        };
        let resets = ATTACKERS * usize::try_from(RESETS).unwrap();
        assert_eq!(stat("cluster.keygate.upstream_rq_tx_reset"), resets, "{stats}");
        for error in [
            "cluster.keygate.http2.outbound_control_flood",
            "cluster.keygate.http2.outbound_flood",
            "cluster.keygate.upstream_cx_destroy_with_active_rq",
            "http.edge.ext_authz.error",
            "http.edge.ext_authz.failure_mode_allowed",
        ] {
            assert_eq!(stat(error), 0, "{host}: {error}");
        }
        assert_eq!(stat("http.edge.ext_authz.denied"), 2 * ATTACKERS, "{host}");
        let served = clean.len() * (1 + usize::try_from(REQUESTS).unwrap());
        assert_eq!(authorizer.origin.untaken(), served, "{host}: requests of clean clients");
    }
}
