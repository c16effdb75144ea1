//! The status header that Envoy passes to the upstream, under the settings of its filter that
//! change how answers are applied.

use rustls::version::TLS13;

use crate::support::authorizer::Authorizer;
use crate::support::client::{Client, config_of};
use crate::support::envoy::Envoy;
use crate::support::origin::Origin;

/// A client's own copies of the status header.
const FORGED: &str = "Client-Key-Status: allowed\r\nclient_key_status: allowed\r\n\
                      client-key_status: allowed\r\nClient_Key-Status: allowed\r\n\
                      client.key.status: allowed\r\nClient~Key-Status: allowed\r\n";

const WEBSOCKET: &str = "Connection: upgrade\r\nUpgrade: websocket\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

/// A line of the filter that is replaced, and what it becomes.
const VARIANTS: [(&str, &str); 8] = [
    ("failure_mode_allow: false", "failure_mode_allow: true"),
    ("failure_mode_allow: false", "clear_route_cache: true"),
    ("failure_mode_allow: false", "encode_raw_headers: true"),
    ("failure_mode_allow: false", "validate_mutations: true"),
    ("failure_mode_allow: false", "failure_mode_allow_header_add: true"),
    (
        "failure_mode_allow: false",
        "decoder_header_mutation_rules: { allow_all_routing: { value: true } }",
    ),
    ("allowed_headers:", "disallowed_headers:"),
    (
        "stat_prefix: edge",
        "stat_prefix: edge\n          common_http_protocol_options: { headers_with_underscores_action: DROP_HEADER }",
    ),
];

/// Guards: `headers_to_remove` in `src/ask/grpc/check_response.rs`, `HeaderValueOption::replacing`
/// in `messages.rs`.
#[test]
fn the_origin_reads_one_status_under_every_setting_of_the_filter() {
    for (from, to) in VARIANTS {
        let mut authorizer = Authorizer::of("envoy");
        authorizer.origin = Origin::with_upgrades();
        let authorizer = authorizer.start();
        let (directory, origin) = (authorizer.pki.directory(), authorizer.origin.address());
        let envoy = Envoy::start("envoy", directory, origin, |text| {
            assert!(text.contains(from), "Envoy's configuration has no {from}");
            text.replace(from, to)
        });
        let Some(envoy) = envoy else { return };
        let config = config_of(&authorizer.pki, &[&TLS13], Some(&authorizer.good));
        for (line, fields, status) in
            [("GET /", "", "200"), ("HEAD /", "", "200"), ("GET /socket", WEBSOCKET, "101")]
        {
            let mut client = Client::with(config.clone(), envoy.address);
            client.send(format!("{line} HTTP/1.1\r\nHost: localhost\r\n{FORGED}{fields}\r\n"));
            let head = client.head();
            assert_eq!(head.get(9..12), Some(status), "{to}, {line}: {head}");
            let received = authorizer.origin.next();
            let is_status =
                |name: &&String| name.replace(['_', '.', '~'], "-") == "client-key-status";
            let count = received.names().iter().filter(is_status).count();
            assert_eq!(count, 1, "{to}, {line}: {}", received.head);
            assert_eq!(received.fields("client-key-status"), ["clean"], "{to}, {line}");
        }
    }
}
