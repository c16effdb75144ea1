//! CRLs from servers that nobody on the way authenticates.
//!
//! Guards: `check_crl_candidate` in
//! `src/sources/client_auth/crl_candidate.rs`, `update` in
//! `src/fetch/update.rs`.

use std::fs::{read, read_to_string, remove_file, write};
use std::io::Write;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, SystemTime};

use super::scene::{names, rejected, succeeded};
use crate::support::client::Client;
use crate::support::keygate::keygate;
use crate::support::mirror::Fetch;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki, RevocationList};
use crate::support::proxy::{Configuration, Configure};
use crate::support::server::{Server, read_until};
use crate::support::{output_text, write_filter};

const AN_HOUR: Duration = Duration::from_secs(3600);

/// A service whose CRLs a server of the test sends.
struct Scene {
    pki: Pki,
    server: Server,
    configuration: Configuration,
}

impl Scene {
    fn new() -> Self {
        Self::to("127.0.0.1:9")
    }

    fn to(upstream: impl ToString) -> Self {
        let (pki, server) = (Pki::new(), Server::start());
        let configuration = Configuration::new(upstream);
        let scene = Self { pki, server, configuration };
        let source = format!("[{:?}]", scene.url("clients.crl"));
        scene.with_source(&source)
    }

    fn with_source(self, source: &str) -> Self {
        let crls = format!("crls = [{{ path = \"clients.crl\", source = {source} }}]");
        let configuration = self.configuration.clone().unset("services.client_auth.crls");
        let configuration = configuration.client_auth(&crls);
        let scene = Self { configuration, ..self };
        scene.configure();
        scene
    }

    fn configure(&self) {
        write(self.pki.path("keygate.toml"), self.configuration.text()).unwrap();
    }

    fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.server.address)
    }

    fn target(&self) -> PathBuf {
        self.pki.path("clients.crl")
    }

    fn start(&self, arguments: &[&str]) -> Fetch {
        let config = self.pki.path("keygate.toml");
        Fetch::start(&[&["--config", config.to_str().unwrap()], arguments].concat())
    }

    /// A run whose request gets these bytes as the response.
    fn run(&self, response: &[u8]) -> Output {
        let run = self.start(&["--json"]);
        self.respond(response);
        run.ended()
    }

    /// Responds to one request, and returns its head.
    fn respond(&self, response: &[u8]) -> String {
        let mut tcp = self.server.connection();
        let head = read_until(&mut tcp, "\r\n\r\n");
        let _ = tcp.write_all(response); // the client may close a response that is too large
        head
    }

    /// A run that fails with this message. The file in use stays.
    fn fails(&self, response: &[u8], problem: &str) {
        let before = read(self.target()).ok();
        rejected(&self.run(response), problem);
        assert!(read(self.target()).ok() == before, "the file in use has changed: {problem}");
    }

    fn list(&self, number: u64) -> Vec<u8> {
        self.pki.signed_crl(&RevocationList::new(number, &[])).der().to_vec()
    }

    fn installs(&self, list: &[u8]) {
        let row = succeeded(&self.run(&ok(list)));
        assert_eq!((&row["kind"], &row["result"]), (&"crl".into(), &"installed".into()), "{row}");
        assert!(read(self.target()).unwrap() == list);
    }
}

/// A response with this body.
fn ok(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[test]
fn a_fetched_crl_that_a_reload_would_reject_is_not_installed() {
    let scene = Scene::new();
    let dated = |number, hours: u32, expires: SystemTime| {
        let list = RevocationList::new(number, &[]);
        let list = RevocationList { issued: SystemTime::now() - AN_HOUR * hours, expires, ..list };
        scene.pki.signed_crl(&list).der().to_vec()
    };
    let tomorrow = SystemTime::now() + 24 * AN_HOUR;
    let in_use = dated(7, 3, tomorrow);
    let (namesake, stranger) = (Pki::named("Test CA"), Pki::named("Another CA"));
    let of = |pki: &Pki| pki.signed_crl(&RevocationList::new(8, &[])).der().to_vec();
    let mut future = RevocationList::new(8, &[]);
    future.issued = SystemTime::now() + 2 * AN_HOUR;
    let future = scene.pki.signed_crl(&future).der().to_vec();
    let mut forged = scene.list(8);
    *forged.last_mut().unwrap() ^= 1;
    let lies = [
        (of(&namesake), "its signature is not by CN=Test CA"),
        (forged, "its signature is not by CN=Test CA"),
        (of(&stranger), "its issuer CN=Another CA is no CA of this service"),
        (dated(6, 1, tomorrow), "number 6, issued "),
        (dated(7, 4, tomorrow), "is older than the one that was in use (number 7, "),
        (dated(8, 2, SystemTime::now() - AN_HOUR), "the list of CN=Test CA has expired at "),
        (future, "the list of CN=Test CA is dated "),
        (scene.list(8).split_last().unwrap().1.to_vec(), "not a revocation list in DER"),
        (b"<html>captive portal</html>".to_vec(), "there is no revocation list in it"),
        (Vec::new(), "there is no revocation list in it"),
        (read(scene.pki.path("ca.pem")).unwrap(), "there is no revocation list in it"),
        (b"\xfd7zXZ\0".to_vec(), "binary data"),
    ];
    let reject_all = |is_first: bool| {
        for (list, problem) in &lies {
            // Without a list in use, none is older.
            if !(is_first && problem.contains("number")) {
                scene.fails(&ok(list), problem);
            }
        }
    };
    reject_all(true);
    assert!(!scene.target().exists());
    let config = scene.pki.path("keygate.toml");
    let missing = keygate(&["validate", "--config", config.to_str().unwrap()]);
    rejected(&missing, "clients.crl: the file does not exist; `keygate fetch` downloads it");
    scene.installs(&in_use);
    reject_all(false);
    assert_eq!(names(&scene.pki.path(".clients.crl.fetch")), ["lock", "state.json"]);
    // A PEM file whose other lists nobody verifies.
    let pem = |pki: &Pki, number| pki.signed_crl(&RevocationList::new(number, &[])).pem().unwrap();
    for number in [7, 8] {
        let forged = pem(&stranger, 1) + &pem(&scene.pki, number);
        scene.fails(&ok(forged.as_bytes()), "CN=Another CA is no CA of this service");
    }
    scene.installs(&scene.list(9));
}

/// A list in the name of the CA above, which anybody can make, would reject all clients: a CA that
/// the CA above may have revoked needs a list of it.
#[test]
fn a_list_that_no_service_verifies_keeps_the_whole_file_out() {
    let scene = Scene::new();
    let root = Pki::named("Offline Root");
    let issuing = root.subordinate("Issuing CA");
    write(scene.pki.path("issuing.pem"), read(issuing.path("ca.pem")).unwrap()).unwrap();
    let issuing_alone = "client_auth = { trust_anchors = \"issuing.pem\", crls = [\"clients.crl\"] }\n\
                         server_names = [\"second\"]";
    let first = scene.configuration.clone().client_auth("trust_anchors = \"issuing.pem\"");
    let scene = Scene { configuration: first, ..scene };
    scene.configure();
    let pem = |pki: &Pki| pki.signed_crl(&RevocationList::new(1, &[])).pem().unwrap();
    let genuine = pem(&issuing);
    let forged = genuine.clone() + &pem(&Pki::named("Offline Root"));
    scene.fails(&ok(forged.as_bytes()), "CN=Offline Root is no CA of this service");
    scene.installs(genuine.as_bytes());
    scene.fails(&ok(forged.as_bytes()), "CN=Offline Root is no CA of this service");
    let many = genuine.clone() + &pem(&Pki::named("Offline Root")).repeat(257);
    scene.fails(
        &ok(many.as_bytes()),
        "it has more than 256 lists of CAs that are none of this service",
    );
    // Another service that does not know the CA either changes nothing.
    let second = scene.configuration.clone().second_service(issuing_alone);
    let scene = Scene { configuration: second, ..scene };
    scene.configure();
    scene.fails(&ok(forged.as_bytes()), "CN=Offline Root is no CA of this service");
}

#[test]
fn a_response_that_is_no_crl_leaves_the_one_in_use() {
    let scene = Scene::new();
    scene.installs(&scene.list(1));
    let gibibyte = b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n";
    let too_large = "larger than 128 MiB, the maximum; correct the URL, because no setting raises";
    scene.fails(gibibyte, too_large);
    let mebibyte = [b"100000\r\n".to_vec(), vec![b'0'; 1 << 20], b"\r\n".to_vec()].concat();
    let chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    scene.fails(&[&chunks[..], &mebibyte.repeat(129)].concat(), too_large);
    let redirect =
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/x\r\nContent-Length: 0\r\n\r\n";
    scene.fails(redirect, "302 Found to \"http://127.0.0.1:1/x\": redirects are followed to");
    scene.fails(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404 Not Found");
    let packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx";
    scene.fails(packed, "Content-Encoding");
    let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx";
    scene.fails(cut, "the response broke off after 1 bytes");
    scene.installs(&scene.list(2));
}

#[test]
fn a_server_that_hangs_or_trickles_does_not_keep_another_source_from_its_turn() {
    let scene = Scene::new();
    let [hangs, trickles] = [Server::start(), Server::start()];
    let source = |server: &Server, timeout: &str| {
        format!("{{ url = \"http://{}/clients.crl\", {timeout} }}", server.address)
    };
    let sources = format!(
        "[{}, {}, {:?}]",
        source(&hangs, "stall_timeout = \"300ms\""),
        source(&trickles, "timeout = \"1s\""),
        scene.url("clients.crl")
    );
    let scene = scene.with_source(&sources);
    let run = scene.start(&["--json"]);
    let kept = hangs.connection();
    let mut trickle = trickles.connection();
    read_until(&mut trickle, "\r\n\r\n");
    let trickling = std::thread::spawn(move || {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
        let mut result = trickle.write_all(head);
        while result.is_ok() {
            result = trickle.write_all(b"0");
            std::thread::sleep(Duration::from_millis(20)); // the pace of the trickle
        }
    });
    let list = scene.list(1);
    scene.respond(&ok(&list));
    let output = run.ended();
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let text = output_text(&output);
    for problem in ["no byte for 300ms", "not complete within 1s", "another source has the file"] {
        assert!(text.contains(problem), "{problem}: {text}");
    }
    assert!(read(scene.target()).unwrap() == list);
    trickling.join().unwrap();
    drop(kept);
}

#[test]
fn every_source_that_fails_is_named_and_an_unchanged_crl_is_not_loaded_again() {
    let scene = Scene::new();
    let sources = format!("[{:?}, {:?}]", scene.url("a.crl"), scene.url("b.crl"));
    let scene = scene.with_source(&sources);
    let run = scene.start(&[]);
    scene.respond(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
    scene.respond(&ok(b"<html>"));
    let output = run.ended();
    for problem in ["/a.crl: 503 Service Unavailable", "/b.crl: rejected: "] {
        rejected(&output, problem);
    }
    let tagged = |body: &[u8]| {
        let head =
            format!("HTTP/1.1 200 OK\r\nETag: \"one\"\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    };
    succeeded(&scene.run(&tagged(&scene.list(1))));
    let run = scene.start(&["--json"]);
    let head = scene.respond(b"HTTP/1.1 304 Not Modified\r\n\r\n");
    assert!(head.contains("if-none-match: \"one\"\r\n"), "{head}");
    let row = succeeded(&run.ended());
    assert_eq!((&row["result"], row["bytes"].as_u64()), (&"unchanged".into(), Some(0)));
}

/// The network may withhold every newer list.
#[test]
fn an_expired_crl_in_use_is_an_error_although_the_source_has_no_other() {
    let scene = Scene::new();
    let mut list = RevocationList::new(1, &[]);
    list.expires = list.issued + Duration::from_secs(1);
    let list = scene.pki.signed_crl(&list).der().to_vec();
    scene.fails(&ok(&list), "has expired at ");
    write(scene.target(), &list).unwrap();
    scene.fails(&ok(&list), "has expired at ");
    let scene = Scene {
        configuration: scene.configuration.clone().client_auth("expired_crl = \"accept\""),
        ..scene
    };
    scene.configure();
    assert_eq!(succeeded(&scene.run(&ok(&list)))["result"], "unchanged");
}

#[test]
fn each_service_that_names_the_crl_must_accept_it() {
    let scene = Scene::new();
    let stranger = Pki::named("Another CA");
    write(scene.pki.path("theirs.pem"), read(stranger.path("ca.pem")).unwrap()).unwrap();
    let second = "client_auth = { trust_anchors = \"theirs.pem\", crls = [\"clients.crl\"] }\n\
                  server_names = [\"second\"]";
    let scene =
        Scene { configuration: scene.configuration.clone().second_service(second), ..scene };
    scene.configure();
    scene.fails(&ok(&scene.list(1)), "service \"second\": ");
    let lists = [&scene.pki, &stranger]
        .map(|pki| pki.signed_crl(&RevocationList::new(1, &[])).pem().unwrap());
    scene.installs(lists.concat().as_bytes());
    // The sources of an authorizer.
    let edge = "name = \"edge\"\nlisten = \"unix:ask.sock\"\nprotocol = \"http\"\n\
                certificate_from = \"client-cert\"\n";
    let crls =
        format!("crls = [{{ path = \"edge.crl\", source = [{:?}] }}]", scene.url("edge.crl"));
    let checks = format!("client_auth = {{ trust_anchors = \"theirs.pem\", {crls} }}\n");
    let text = Configuration::new("127.0.0.1:9").text();
    write(scene.pki.path("keygate.toml"), format!("{text}\n[[authorizers]]\n{edge}{checks}"))
        .unwrap();
    let run = scene.run(&ok(scene.list(1).as_slice()));
    rejected(&run, "authorizer \"edge\": ");
    let list = stranger.signed_crl(&RevocationList::new(1, &[])).der().to_vec();
    succeeded(&scene.run(&ok(&list)));
    assert!(read(scene.pki.path("edge.crl")).unwrap() == list);
}

#[test]
fn a_fetched_file_that_lost_the_list_of_a_ca_or_distribution_point_is_not_installed() {
    let scene = Scene::new();
    let other = Pki::named("Another CA");
    let both = [&scene.pki, &other].map(|pki| read(pki.path("ca.pem")).unwrap());
    write(scene.pki.path("both.pem"), both.concat()).unwrap();
    let both = scene.configuration.clone().client_auth("trust_anchors = \"both.pem\"");
    let scene = Scene { configuration: both, ..scene };
    scene.configure();
    let list = |pki: &Pki, number, point| {
        let list = RevocationList { distribution_point: point, ..RevocationList::new(number, &[]) };
        pki.signed_crl(&list).pem().unwrap()
    };
    let [one, two] = ["http://a.example/1.crl", "http://a.example/2.crl"].map(Some);
    let lists = |number| {
        let [one, two] = [one, two].map(|point| list(&scene.pki, number, point));
        [one, two, list(&other, number, None)]
    };
    scene.installs(lists(1).concat().as_bytes());
    let [one, two, others] = lists(2);
    let lost = "no revocation list of CN=Test CA for http://a.example/2.crl is left";
    scene.fails(&ok((one.clone() + &others).as_bytes()), lost);
    let lost = "no revocation list of CN=Another CA is left";
    scene.fails(&ok((one.clone() + &two).as_bytes()), lost);
    scene.installs((one + &two + &others).as_bytes());
}

/// The file may be gone, or have been replaced by an older one.
#[test]
fn a_crl_that_is_older_than_the_one_that_the_proxy_used_is_not_installed() {
    let scene = Scene::new();
    write_filter(&scene.pki.path("lost.pkbf"), &[]);
    std::fs::create_dir(scene.pki.path("state")).unwrap();
    let configuration = scene.configuration.clone().global("state = { dir = \"state\" }");
    let scene = Scene { configuration, ..scene };
    scene.configure();
    scene.installs(&scene.list(9));
    drop(scene.configuration.start(&scene.pki));
    remove_file(scene.target()).unwrap();
    scene.fails(&ok(&scene.list(8)), "is older than the one that was in use (number 9, ");
    scene.installs(&scene.list(10));
}

#[test]
fn a_revoked_client_is_evicted_when_the_fetched_crl_arrives() {
    let origin = Origin::start();
    let scene = Scene::to(origin.address());
    write_filter(&scene.pki.path("lost.pkbf"), &[]);
    scene.installs(&scene.list(1));
    let keygate = scene.configuration.start(&scene.pki);
    let [good, revoked] = ["good", "revoked"].map(|name| scene.pki.client(name, Kind::P256));
    let [mut stays, mut goes] = [&good, &revoked].map(|client| {
        let mut client = Client::connect(&scene.pki, keygate.address(), client);
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        assert_eq!(client.exactly(6), b"hello\n");
        client
    });
    let list = scene.pki.signed_crl(&RevocationList::new(2, &[&revoked])).der().to_vec();
    scene.installs(&list);
    assert_eq!(goes.rest(), "");
    stays.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(stays.head().starts_with("HTTP/1.1 200 "));
}

#[test]
fn the_metrics_name_the_file_of_the_crl() {
    let scene = Scene::new();
    let textfile = scene.pki.path("fetch.prom");
    let run = scene.start(&["--json", "--textfile", textfile.to_str().unwrap()]);
    scene.respond(&ok(&scene.list(1)));
    succeeded(&run.ended());
    let text = read_to_string(&textfile).unwrap();
    let labels = format!("{{kind=\"crl\",name=\"{}\"}}", scene.target().display());
    for line in [
        format!("keygate_fetch_installed_total{labels} 1\n"),
        format!("keygate_fetch_failures_total{labels} 0\n"),
    ] {
        assert!(text.contains(&line), "{line} in {text}");
    }
}
