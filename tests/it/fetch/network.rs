//! Credentials for the source, redirects, and an HTTP proxy.
//!
//! Guards: `message`, `redirect` and `connect` in `src/fetch/client.rs`, `tunnel` in
//! `src/http_client.rs`.

use std::fs::{Permissions, read, set_permissions, write};
use std::io::{Write, copy};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::scene::{Scene, rejected, write_large};
use crate::support::mirror::Fetch;
use crate::support::output_text;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::server::{Server, read_until};

/// A scene whose source needs a header field and a client certificate, unless `settings` change it.
fn private_scene(settings: &str) -> Option<Scene> {
    let credentials =
        ", headers = \"secret\", certificate = \"fetcher.pem\", private_key = \"fetcher.key\"";
    let mut scene = Scene::new(&format!("{credentials}{settings}"))?;
    scene.pki.client("fetcher", Kind::P256);
    write(scene.pki.path("secret"), "Authorization: Bearer abc\n").unwrap();
    for file in ["secret", "fetcher.key"] {
        set_permissions(scene.pki.path(file), Permissions::from_mode(0o600)).unwrap();
    }
    set_url(&mut scene, "private/lost.pkbf");
    Some(scene)
}

fn set_url(scene: &mut Scene, path: &str) {
    let url = scene.mirror.url(path);
    scene.configuration = scene.configuration.clone().set("filters.source.url", url.as_str());
    scene.configure();
}

#[test]
fn a_source_gets_the_header_fields_and_the_client_certificate() {
    let Some(mut scene) = private_scene("") else { return };
    let first = scene.publish(1);
    scene.fetched();
    assert!(read(scene.target()).unwrap() == first);
    // A query selects the file or signs the URL. No message has it.
    set_url(&mut scene, "private/lost.pkbf?sig=a/b@c&x=1");
    scene.publish(2);
    let row = scene.fetched();
    assert_eq!(row["url"], scene.mirror.url("private/lost.pkbf"));
    let requests = scene.mirror.requests(2);
    assert!(requests[1].ends_with(" auth=Bearer abc client=SUCCESS args=sig=a/b@c&x=1"));

    write(scene.pki.path("secret"), "Authorization: Bearer other\n").unwrap();
    scene.fails("private/lost.pkbf: 401 Unauthorized; let the source permit");
    write(scene.pki.path("secret"), "Authorization Bearer\n").unwrap();
    scene.fails("secret: line 1 is not `Name: value`");
    write(scene.pki.path("secret"), "Range: bytes=1-\n").unwrap();
    scene.fails("secret: line 1 is not `Name: value`");
    set_permissions(scene.pki.path("secret"), Permissions::from_mode(0o644)).unwrap();
    scene.fails("everybody can read the private key in ");
    set_permissions(scene.pki.path("secret"), Permissions::from_mode(0o640)).unwrap();
    write(scene.pki.path("secret"), "Authorization: Bearer abc\n").unwrap();
    write(scene.pki.path("fetcher.key"), "").unwrap();
    scene.fails("fetcher.pem: no usable private key");
}

#[test]
fn a_redirect_is_followed_to_named_hosts_without_the_credentials() {
    let Some(mut scene) = private_scene(", redirect_hosts = [\"a.example\"]") else { return };
    let first = scene.publish(1);
    set_url(&mut scene, "elsewhere/lost.pkbf");
    let other = scene.mirror.other().to_string();
    let location = format!(
        "302 Found to \"https://{other}/lost.pkbf\": redirects are followed to redirect_hosts"
    );
    scene.fails(&location);
    let plain = scene.configuration.clone();
    let own = scene.mirror.url("").replace("https://", "").replace('/', "");
    let hosts = toml::Value::from(vec![other.as_str(), own.as_str()]);
    scene.configuration = plain.clone().set("filters.source.redirect_hosts", hosts);
    scene.configure();
    scene.fetched();
    assert!(read(scene.target()).unwrap() == first);
    let requests = scene.mirror.requests(3);
    let last = requests.last().unwrap();
    assert!(last.ends_with(" auth=- client=NONE args=sig=secret"), "{last}");
    assert!(requests[1].contains(" auth=Bearer abc client=SUCCESS "), "{}", requests[1]);

    set_url(&mut scene, "clear/lost.pkbf");
    scene.fails("redirects are followed to redirect_hosts over https:// only");
    set_url(&mut scene, "loop/lost.pkbf");
    scene.fails("loop/lost.pkbf: more than 5 redirects");
    // On its own server, a redirect keeps the credentials.
    scene.publish(2);
    set_url(&mut scene, "moved/private/lost.pkbf");
    scene.fetched();
}

/// A proxy that connects as CONNECT asks, if the request has `Proxy-Authorization`. Returns its
/// address and the heads of its requests.
fn connect_proxy() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, heads) = channel();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let head = read_until(&mut client, "\r\n\r\n");
            let target = head.split(' ').nth(1).unwrap().to_owned();
            let is_permitted = head.contains("proxy-authorization: Basic eDp5\r\n");
            let _ = sender.send(head);
            if !is_permitted {
                let refusal =
                    "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
                client.write_all(refusal.as_bytes()).unwrap();
                continue;
            }
            let server = TcpStream::connect(target).unwrap();
            client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || copy(&mut from, &mut to));
            let (mut from, mut to) = (server, client);
            thread::spawn(move || {
                let _ = copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    (address, heads)
}

#[test]
fn a_proxy_connects_to_a_source_over_tls_and_its_credentials_go_no_further() {
    let (proxy, heads) = connect_proxy();
    let Some(scene) = private_scene(&format!(", proxy = \"http://{proxy}\"")) else { return };
    let first = scene.publish(1);
    scene.fails("the proxy responds 407 Proxy Authentication Required to CONNECT");
    heads.recv().unwrap();
    let fields = "Authorization: Bearer abc\nProxy-Authorization: Basic eDp5\n";
    write(scene.pki.path("secret"), fields).unwrap();
    scene.fetched();
    assert!(read(scene.target()).unwrap() == first);
    let head = heads.recv().unwrap();
    let url = scene.mirror.url("");
    let authority = url.trim_start_matches("https://").trim_end_matches('/');
    assert!(head.starts_with(&format!("CONNECT {authority} HTTP/1.1\r\n")), "{head}");
    assert!(!head.contains("Bearer"), "{head}");
}

#[test]
fn a_proxy_gets_the_absolute_url_of_a_source_without_tls() {
    let (pki, server) = (Pki::new(), Server::start());
    let source = format!(
        "minisign_key = \"keys.pub\"\nsource = {{ url = \"http://a.example/lost.pkbf?b\", proxy = \"http://{}\" }}",
        server.address
    );
    let configuration = Configuration::new("127.0.0.1:9").filter(&source);
    write(pki.path("keygate.toml"), configuration.text()).unwrap();
    write_large(&pki.path("whole"), 1, 1);
    let run = Fetch::start(&["--config", pki.path("keygate.toml").to_str().unwrap()]);
    let mut tcp = server.connection();
    let head = read_until(&mut tcp, "\r\n\r\n");
    assert!(head.starts_with("GET http://a.example/lost.pkbf?b HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("host: a.example\r\n"), "{head}");
    tcp.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").unwrap();
    drop(tcp);
    let output = run.ended();
    rejected(&output, "http://a.example/lost.pkbf: 404 Not Found");
    assert!(!output_text(&output).contains("?b"), "{}", output_text(&output));
}
