//! The header fields and PROXY headers that a service gets from the old proxy and from keygate.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};

use data_encoding::BASE64;
use proxy_header::{ParseConfig, ProxyHeader, Tlv};

use super::{Scene, block, code, first_toml, running, section, table};
use crate::support::client::Client;
use crate::support::keygate::Keygate;
use crate::support::origin::Received;
use crate::support::program::reserved_address;
use crate::support::{TIMEOUT, skip};

/// The names of the header fields of a request, without those that curl adds.
fn forwarded_names(request: &Received) -> BTreeSet<String> {
    let of_curl = ["accept", "user-agent"];
    request.names().into_iter().filter(|name| !of_curl.contains(&name.as_str())).collect()
}

/// Checks that the service gets the headers in the table from both proxies, and no others.
fn is_as_the_table_says(rows: &[Vec<&'static str>], old: &Received, new: &Received) {
    let column = |index: usize| {
        let cells = rows.iter().map(move |row| row[index]);
        cells.flat_map(code).map(str::to_ascii_lowercase).collect::<BTreeSet<_>>()
    };
    // Every HTTP/1.1 client sends `Host`, which no row may have.
    let with_host = |mut names: BTreeSet<String>| {
        names.insert("host".to_owned());
        names
    };
    assert_eq!(forwarded_names(old), with_host(column(0)), "{}", old.head);
    // A cell that says `not there` has no name in it.
    assert_eq!(forwarded_names(new), with_host(column(1)), "{}", new.head);
    for row in rows {
        let both = [row[0], row[1]];
        assert!(both.iter().all(|cell| *cell == "not there" || !code(cell).is_empty()), "{row:?}");
    }
}

/// The certificate in a value of RFC 9440.
fn client_cert(request: &Received) -> Vec<u8> {
    let [value] = request.fields("client-cert")[..] else { panic!("{}", request.head) };
    BASE64.decode(value.strip_prefix(':').unwrap().strip_suffix(':').unwrap().as_bytes()).unwrap()
}

fn unescaped(value: &str) -> String {
    let mut pieces = value.split('%');
    let first = pieces.next().unwrap().to_owned();
    pieces.fold(first, |text, piece| {
        let byte = u8::from_str_radix(&piece[..2], 16).unwrap();
        text + &char::from(byte).to_string() + &piece[2..]
    })
}

const FORGED: [&str; 8] = [
    "--header",
    "X-Forwarded-For: 192.0.2.1",
    "--header",
    "X-SSL-Client-Cert: forged",
    "--header",
    "X_SSL_Client_Verify: SUCCESS",
    "--header",
    "Client-Cert: forged",
];

#[test]
fn nginx_and_keygate_send_the_headers_on_the_page() {
    if skip::without("nginx") {
        return;
    }
    let scene = Scene::new();
    let front = reserved_address();
    let _nginx = scene.nginx(&block("## nginx", "nginx")[..], front);
    let keygate = scene.keygate(&first_toml("## nginx"), reserved_address());
    let old = scene.seen(front, "old", &[]);
    let new = scene.seen(keygate.address(), "new", &[]);
    is_as_the_table_says(&table("## nginx", "| by nginx, as above |"), &old, &new);

    // Both services get the same certificate, each in the encoding that the page shows.
    assert_eq!(client_cert(&new), *scene.good.der);
    let [escaped] = old.fields("x-ssl-client-cert")[..] else { panic!("{}", old.head) };
    let begin = "-----BEGIN%20CERTIFICATE-----%0A";
    assert!(escaped.starts_with(begin) && section("## Client-Cert").contains(begin), "{escaped}");
    let base64: String = unescaped(escaped).lines().filter(|line| !line.starts_with('-')).collect();
    assert_eq!(BASE64.decode(base64.as_bytes()).unwrap(), *scene.good.der);
    assert_eq!(old.fields("x-ssl-client-verify"), ["SUCCESS"]);
    assert_eq!(old.fields("x-real-ip"), new.fields("x-forwarded-for"));
    assert_eq!(new.fields("x-forwarded-proto"), ["https"]);

    // `$host` has no port, and keygate leaves the client its own.
    let with_port = ["--header", "Host: orders.example.com:8443"];
    let old = scene.seen(front, "old-port", &with_port);
    assert_eq!(old.fields("host"), ["orders.example.com"]);
    let new = scene.seen(keygate.address(), "new-port", &with_port);
    assert_eq!(new.fields("host"), ["orders.example.com:8443"]);
    assert_eq!(new.fields("x-forwarded-host"), ["orders.example.com:8443"]);

    // Forged headers, with the line that the page has for the transition.
    let both = scene.seen(front, "old-named", &FORGED);
    assert_eq!(both.fields("client-cert"), ["forged"], "nginx forwards the field");
    assert!(both.fields("x_ssl_client_verify").is_empty(), "it drops names with '_'");
    let new = scene.seen(keygate.address(), "new-named", &FORGED);
    assert_eq!(client_cert(&new), *scene.good.der);
    assert!(!new.head.contains("forged") && !new.head.contains("SUCCESS"), "{}", new.head);
    assert_eq!(new.fields("x-forwarded-for"), ["127.0.0.1"]);
}

#[test]
fn nginx_can_remove_client_cert_until_it_is_replaced() {
    if skip::without("nginx") {
        return;
    }
    let scene = Scene::new();
    let front = reserved_address();
    let line = "proxy_set_header Client-Cert \"\";";
    assert!(section("## nginx").contains(line));
    let text = block("## nginx", "nginx")
        .replace("proxy_set_header X-Real-IP", &format!("{line} proxy_set_header X-Real-IP"));
    let _nginx = scene.nginx(&text, front);
    let old = scene.seen(front, "old", &FORGED);
    assert!(old.fields("client-cert").is_empty(), "{}", old.head);
}

#[test]
fn haproxy_and_keygate_send_the_headers_on_the_page() {
    if skip::without("haproxy") {
        return;
    }
    let scene = Scene::new();
    let front = reserved_address();
    let _haproxy = scene.haproxy(&block("### HTTP", "haproxy"), front, scene.origin.address());
    let keygate = scene.keygate(&block("### HTTP", "toml"), reserved_address());
    let old = scene.seen(front, "old", &[]);
    let new = scene.seen(keygate.address(), "new", &[]);
    is_as_the_table_says(&table("### HTTP", "| by HAProxy, as above |"), &old, &new);
    assert_eq!(client_cert(&new), *scene.good.der);
    let plain = BASE64.encode(&scene.good.der);
    assert_eq!(old.fields("x-ssl-client-cert"), [&plain]);
    assert_eq!(new.fields("client-cert"), [&format!(":{plain}:")]);
    assert_eq!(old.fields("x-ssl-client-verify"), ["0"]);

    let old = scene.seen(front, "old-named", &FORGED);
    assert_eq!(old.fields("x-forwarded-for"), ["192.0.2.1", "127.0.0.1"]);
    assert_eq!(old.fields("x_ssl_client_verify"), ["SUCCESS"]);
    assert_eq!(old.fields("x-ssl-client-cert"), [&plain]);
    let new = scene.seen(keygate.address(), "new-named", &FORGED);
    assert_eq!(new.fields("x-forwarded-for"), ["127.0.0.1"]);
    assert!(!new.head.contains("forged") && !new.head.contains("SUCCESS"), "{}", new.head);
}

/// A server of TCP that shows all that comes on a connection up to its end.
fn server() -> (SocketAddr, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = channel();
    std::thread::spawn(move || {
        for tcp in listener.incoming() {
            let (mut tcp, mut bytes) = (tcp.unwrap(), Vec::new());
            let _ = tcp.read_to_end(&mut bytes); // it may be cut
            let _ = tcp.write_all(b"bye"); // the client may be gone
            let _ = sender.send(bytes); // the test may have ended
        }
    });
    (address, received)
}

#[test]
fn haproxy_and_keygate_send_proxy_headers_with_the_name_of_the_client() {
    if skip::without("haproxy") {
        return;
    }
    let scene = Scene::new();
    let (address, received) = server();
    let front = reserved_address();
    let _haproxy = scene.haproxy(&block("### TCP", "haproxy"), front, address);
    let text = scene.placed(&block("### TCP", "toml"), front, reserved_address(), address);
    let keygate = Keygate::configured(&scene.pki, &running(&text));
    for (place, is_keygate) in [(front, false), (keygate.address(), true)] {
        let mut client = Client::connect(&scene.pki, place, &scene.good);
        let from = client.tcp().local_addr().unwrap();
        client.send("hello");
        client.finish();
        // Waiting for the listener made empty connections.
        let bytes = std::iter::repeat_with(|| received.recv_timeout(TIMEOUT).unwrap())
            .find(|bytes| bytes.ends_with(b"hello"))
            .unwrap();
        assert_eq!(client.rest(), "bye");
        let (header, length) = ProxyHeader::parse(&bytes, ParseConfig::default()).unwrap();
        assert_eq!(&bytes[length..], b"hello");
        assert_eq!(header.proxied_address().unwrap().source, from);
        let ssl = header.ssl().unwrap();
        assert_eq!((ssl.cn(), ssl.version()), (Some("good"), Some("TLSv1.3")));
        let has_certificate = ssl.tlvs().any(|tlv| matches!(tlv.unwrap(), Tlv::Custom(0x28, _)));
        assert_eq!(has_certificate, is_keygate, "{header:?}");
        assert_eq!(ssl.cipher().is_some(), is_keygate, "{header:?}");
        assert_eq!(header.authority().is_some(), is_keygate, "{header:?}");
    }
}
