//! Servers in use, under the worst requests of one client, while another client sends requests:
//! none of these fails, and each gets its own response.
//!
//! The share of a window is not seen here: without it, uploads that a server leaves unread fail
//! nothing, because requests of others go over a further connection. `shared_connections` has its
//! test. The uploads that are read are the control of the latencies.
//!
//! The table of failures and latencies is printed by
//! `KEYGATE_UPSTREAMS=all cargo test --test it -- upstream::real_servers --nocapture`.

use std::io::{BufRead, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use super::shared_connections::{attacks, haproxy, nginx};
use crate::support::client::{Client, config};
use crate::support::http2::{END_HEADERS, END_STREAM, HEADERS, PING, frame, request};
use crate::support::load::{Connection, connect};
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::{Program, python_with, reserved_address};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::skip;

/// A server, behind which requests of `/unread` get no response, and a response to `/early` comes
/// before its request was read.
struct Server {
    name: &'static str,
    program: &'static str,
    /// Whether it is tested with `KEYGATE_UPSTREAMS=all` only: its packages are large.
    is_large: bool,
    /// Attacks that do not apply. Apache and hypercorn stop reading an HTTP/2 connection while
    /// requests on it hang. A proxy shares connections to a server that leaves uploads unread.
    skips: &'static [&'static str],
    scheme: &'static str,
    start: fn(&Site) -> Program,
    settings: &'static str,
}

/// The place of a server.
struct Site {
    address: SocketAddr,
    /// [`python`], for servers that are proxies.
    origin: SocketAddr,
    /// The directory of `server.pem` and `server.key`.
    pki: Pki,
}

const SERVERS: [Server; 11] = [
    Server {
        start: |site| nginx(site.address, site.origin),
        skips: &[SMUGGLED],
        ..h2c("nginx", "nginx")
    },
    Server {
        start: |site| haproxy(site.address, site.origin),
        skips: &[SMUGGLED],
        ..h2c("HAProxy", "haproxy")
    },
    Server { start: apache, skips: &[SMUGGLED, UNREAD], ..h2c("Apache", "apache2") },
    Server { start: |site| node(site, &["2"]), ..h2c("Node, HTTP/2", "node") },
    Server { start: |site| node(site, &["1.1"]), ..http("Node", "node") },
    Server { start: apache, skips: &[SMUGGLED], ..http("Apache, HTTP/1.1", "apache2") },
    Server { start: hypercorn, ..http("hypercorn, HTTP/1.1", "python3") },
    Server { start: |site| python(site.address), ..http("Python", "python3") },
    Server { is_large: true, scheme: "https", start: go, ..h2c("Go", "go") },
    Server {
        is_large: true,
        scheme: "https",
        start: go,
        settings: HTTP1,
        ..h2c("Go, HTTP/1.1", "go")
    },
    Server { is_large: true, start: java, ..http("Java", "java") },
];

const HTTP1: &str = "http = \"1.1\"";

const fn h2c(name: &'static str, program: &'static str) -> Server {
    let start: fn(&Site) -> Program = |_| unreachable!("each row has its start");
    Server { name, program, is_large: false, skips: &[], scheme: "h2c", start, settings: "" }
}

const fn http(name: &'static str, program: &'static str) -> Server {
    Server { scheme: "http", ..h2c(name, program) }
}

fn program(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/programs", name].iter().collect()
}

fn python(address: SocketAddr) -> Program {
    let mut command = Command::new("python3");
    command.arg(program("unread.py")).arg(address.port().to_string());
    Program::start(&mut command).listening_on(address)
}

fn hypercorn(site: &Site) -> Program {
    let python = python_with("hypercorn, h2").unwrap_or("python3");
    Program::start(Command::new(python).arg(program("hold.py")).arg(port(site)))
}

fn node(site: &Site, arguments: &[&str]) -> Program {
    let mut command = Command::new("node");
    Program::start(command.arg(program("unread.mjs")).arg(port(site)).args(arguments))
}

fn go(site: &Site) -> Program {
    let built = site.pki.path("unread");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&built).arg(program("unread.go"));
    assert!(build.status().unwrap().success());
    let mut command = Command::new(built);
    Program::start(command.arg(site.address.to_string()).current_dir(site.pki.directory()))
}

fn java(site: &Site) -> Program {
    Program::start(Command::new("java").arg(program("Unread.java")).arg(port(site)))
}

/// Apache as a proxy, of HTTP/1.1 and h2c.
fn apache(site: &Site) -> Program {
    let (directory, Site { address, origin, .. }) = (site.pki.directory(), site);
    let modules = ["authz_core", "mpm_event", "http2", "proxy", "proxy_http"];
    let modules = modules
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"));
    let text = format!(
        "{}ServerRoot {}\nServerName localhost\nUser www-data\nGroup www-data\nListen {address}\n\
         ThreadLimit 500\nThreadsPerChild 500\nMaxRequestWorkers 500\n\
         PidFile apache.pid\nErrorLog error.log\nProtocols h2c http/1.1\n\
         ProxyPass / http://{origin}/\nAllowEncodedSlashes NoDecode\n",
        modules.concat(),
        directory.display(),
    );
    std::fs::write(site.pki.path("apache.conf"), text).unwrap();
    let mut command = Command::new("apache2");
    Program::start(command.args(["-X", "-f"]).arg(site.pki.path("apache.conf")))
}

fn port(site: &Site) -> String {
    site.address.port().to_string()
}

/// Clients that send requests at the same time.
const VICTIMS: usize = 4;
/// Uploads that the attacker leaves at the server.
const UPLOADS: usize = 8;
/// Length of each, in bytes.
const UPLOAD: usize = 2_000_000;
/// Time after which an upload of the attacker has stalled.
const STALL: Duration = Duration::from_millis(200);
/// A request without a response within this time has failed.
const DEADLINE: Duration = Duration::from_secs(10);
/// Time between two requests of the attacker.
const PAUSE: Duration = Duration::from_millis(30);

/// Sends `count` requests over each of [`VICTIMS`] connections, and returns the failures and the durations.
fn requests(scene: &Running, victim: &Party, count: usize) -> (Vec<String>, Vec<Duration>) {
    let config = Arc::new(config(&scene.pki, victim));
    let open = || {
        let connection = connect(scene.address(), &config).unwrap();
        connection.get_ref().sock.set_read_timeout(Some(DEADLINE)).unwrap();
        connection
    };
    let send = |thread| {
        let (mut connection, mut failures, mut durations) = (open(), Vec::new(), Vec::new());
        for number in 0..count {
            let began = Instant::now();
            let target = format!("/victim/{thread}/{number}");
            if let Err(error) = exchange(&mut connection, &target, number % 2 == 1) {
                failures.push(error);
                if failures.len() == 5 {
                    break; // each may take its deadline
                }
                connection = open();
            }
            durations.push(began.elapsed());
        }
        (failures, durations)
    };
    scope(|scope| {
        let threads: Vec<_> =
            (0..VICTIMS).map(|thread| scope.spawn(move || send(thread))).collect();
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let (failures, durations): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
        let mut durations = durations.concat();
        durations.sort_unstable();
        (failures.concat(), durations)
    })
}

/// A request, whose response has the target as its content.
fn exchange(connection: &mut Connection, target: &str, has_upload: bool) -> Result<(), String> {
    let body = vec![b'x'; if has_upload { 20_000 } else { 0 }];
    let method = if has_upload { "POST" } else { "GET" };
    let length = body.len();
    let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}");
    let request = [head.as_bytes(), b"\r\n\r\n", &body].concat();
    let error = |error: std::io::Error| format!("{method}: {error}");
    connection.get_mut().write_all(&request).map_err(error)?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if connection.read_line(&mut head).map_err(error)? == 0 {
            return Err(format!("{method}: closed after {head:?}"));
        }
    }
    let mut content = vec![0; target.len()];
    if !head.starts_with("HTTP/1.1 200 ") {
        return Err(format!("{method}: {head:?}"));
    }
    connection.read_exact(&mut content).map_err(error)?;
    let is_own = content == target.as_bytes();
    is_own.then_some(()).ok_or_else(|| format!("{method}: the response of another, {content:?}"))
}

/// Waits for the time of the next attack, because the rate of attacks is what is tested. Returns
/// whether there is one.
fn is_next(is_done: &AtomicBool) -> bool {
    std::thread::sleep(PAUSE);
    !is_done.load(Ordering::Relaxed)
}

/// Sends requests that end shared connections, one after another. Each is of another client, because
/// a client that has ended a connection gets its own.
fn send_poison(scene: &Running, attackers: &[Party], is_done: &AtomicBool) {
    let attacks = attacks();
    for (attack, attacker) in attacks.iter().zip(attackers).cycle() {
        if !is_next(is_done) {
            return;
        }
        let mut client = patient(scene, attacker);
        let _ = client.try_send(&attack.request); // the connection may end
        let _ = client.head_or_end();
    }
}

/// Leaves uploads at the server that it does not read. One of them is replaced again and again.
fn park_uploads(scene: &Running, attackers: &[Party], is_done: &AtomicBool) {
    let body = vec![b'x'; UPLOAD];
    let park = |number| {
        let mut client = patient(scene, &attackers[0]);
        client.tcp().set_write_timeout(Some(STALL)).unwrap();
        client.send(upload_head("unread", number));
        if client.send_until_stalled(&body) == body.len() {
            std::thread::sleep(STALL); // as others take, whose server reads less
        }
        client
    };
    let mut parked: Vec<Client> = (0..UPLOADS).map(park).collect();
    for number in (0..UPLOADS).cycle() {
        if !is_next(is_done) {
            return;
        }
        parked[number] = park(number);
    }
}

/// As many uploads of the same size by an honest client, which the server reads: they cost others
/// time as well, on a machine that all share.
fn send_uploads(scene: &Running, clients: &[Party], is_done: &AtomicBool) {
    let body = vec![b'x'; UPLOAD];
    for number in 0.. {
        let mut client = patient(scene, &clients[0]);
        client.tcp().set_read_timeout(Some(DEADLINE)).unwrap();
        client.send(upload_head("read", number));
        client.send(&body);
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        if number >= UPLOADS {
            std::thread::sleep(STALL); // as each upload of the attacker takes
            if !is_next(is_done) {
                return;
            }
        }
    }
}

fn upload_head(path: &str, number: usize) -> String {
    let target = format!("/{path}/{number}");
    format!("POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {UPLOAD}\r\n\r\n")
}

/// Sends uploads that are requests, to which the server responds before it has read them.
fn smuggle(scene: &Running, attackers: &[Party], is_done: &AtomicBool) {
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\nClient-Cert: forged\r\n\r\n";
    let body = smuggled.repeat(3);
    let head = format!(
        "POST /early HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    for is_late in [false, true].into_iter().cycle() {
        if !is_next(is_done) {
            return;
        }
        let mut client = patient(scene, &attackers[0]);
        if is_late {
            let _ = client.try_send(&head);
            let _ = client.head_or_end();
            let _ = client.try_send(&body);
        } else {
            let _ = client.try_send([head.as_bytes(), body.as_bytes()].concat());
            let _ = client.head_or_end();
        }
    }
}

/// A connection of the attacker, which waits for a second at most.
fn patient(scene: &Running, attacker: &Party) -> Client {
    let client = Client::connect(&scene.pki, scene.address(), attacker);
    client.tcp().set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    client
}

const SMUGGLED: &str = "smuggled requests";
const UNREAD: &str = "unread uploads";

type Attack = fn(&Running, &[Party], &AtomicBool);

const ATTACKS: [(&str, Attack); 5] = [
    ("none", |_, _, _| ()),
    ("uploads that are read", send_uploads),
    ("heads and trailers", send_poison),
    (UNREAD, park_uploads),
    (SMUGGLED, smuggle),
];

/// Starts a server, and a proxy with one worker and more `settings` of the upstream before it.
fn scene(server: &Server, settings: &str) -> (Running, Party, [Program; 2]) {
    let pki = Pki::named("Upstream CA");
    let site = Site { address: reserved_address(), origin: reserved_address(), pki };
    let origin = python(site.origin);
    let started = (server.start)(&site).listening_on(site.address);
    let proxy = Proxy::before(format!("{}://localhost:{}", server.scheme, site.address.port()));
    let proxy = proxy.workers(1).upstream(server.settings).upstream(settings);
    let proxy = proxy.limits("max_header_size = \"1MiB\"");
    let proxy = if server.scheme == "https" {
        std::fs::copy(site.pki.path("ca.pem"), proxy.pki.path("upstream.pem")).unwrap();
        proxy.upstream("tls = { trust_anchors = \"upstream.pem\" }")
    } else {
        proxy
    };
    let victim = proxy.pki.client("victim", Kind::P256);
    (proxy.start(), victim, [origin, started])
}

#[test]
fn the_worst_requests_of_a_client_fail_no_request_of_another() {
    let has_all = std::env::var_os("KEYGATE_UPSTREAMS").is_some();
    let count = if has_all { 1000 } else { 100 };
    let mut failed = Vec::new();
    eprintln!("| server | attack | failed requests of the other | median | p99 |");
    for server in SERVERS.iter().filter(|server| has_all || !server.is_large) {
        if skip::without(server.program) || skip::without("python3") {
            continue;
        }
        let (scene, victim, _programs) = scene(server, "");
        for (name, attack) in ATTACKS.iter().filter(|(name, _)| !server.skips.contains(name)) {
            let attacker = |number| scene.pki.client(&format!("{name} {number}"), Kind::P256);
            let attackers: Vec<Party> = (0..attacks().len()).map(attacker).collect();
            let is_done = AtomicBool::new(false);
            let (failures, durations) = scope(|scope| {
                scope.spawn(|| attack(&scene, &attackers, &is_done));
                let outcome = requests(&scene, &victim, count);
                is_done.store(true, Ordering::Relaxed);
                outcome
            });
            let [median, p99] = [50, 99].map(|part| durations[durations.len() * part / 100]);
            let (failed_count, sent) = (failures.len(), durations.len());
            eprintln!(
                "| {} | {name} | {failed_count} of {sent} | {median:.1?} | {p99:.1?} |",
                server.name
            );
            let errors = || scene.lines("upstream failed");
            let text = failures
                .first()
                .map(|first| format!("{}: {name}: {first}: {:?}", server.name, errors()));
            failed.extend(text);
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_trailers_of_a_request_reach_a_server_over_http2_only_if_configured() {
    if skip::without("node") {
        return;
    }
    let server = Server { start: |site| node(site, &["2"]), ..h2c("Node", "node") };
    for (settings, received) in [("", "undefined"), ("request_trailers = true", "ssss")] {
        let (scene, _, _programs) = scene(&server, settings);
        let mut client = scene.connect();
        client.send("POST /trailers HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n");
        client.send("Trailer: x-sum\r\n\r\n1\r\nx\r\n0\r\nx-sum: ssss\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        assert_eq!(client.exactly(received.len()), received.as_bytes());
    }
}

/// nghttp2 ends a connection after 1,000 resets. Guard: `record_reset` in
/// `src/proxy/upstream/isolation.rs`.
#[test]
fn a_client_that_aborts_its_requests_ends_no_connection_of_others() {
    if skip::without("node") || skip::without("python3") {
        return;
    }
    let server = Server { start: |site| node(site, &["2"]), ..h2c("Node", "node") };
    let (scene, victim, _programs) = scene(&server, "");
    let mut uploading = Client::connect(&scene.pki, scene.address(), &victim);
    uploading.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\na");
    let mut victim = Client::connect(&scene.pki, scene.address(), &victim);
    let mut session = || {
        victim.send("GET /session HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(victim.head().starts_with("HTTP/1.1 200 "));
        victim.exactly(3)
    };
    let before = session();
    let get = String::from_utf8(request("GET", &[])).unwrap();
    let get = get.replace("\u{1}/", "\u{7}/unread");
    for _ in 0..30 {
        let mut client = scene.connect_http2();
        // keygate accepts eight requests at once. The response to a PING shows that it has forwarded
        // those before.
        for streams in (1..200).step_by(2).collect::<Vec<u32>>().chunks(8).chain([&[][..]]) {
            for stream in streams {
                client.send(&frame(HEADERS, END_STREAM | END_HEADERS, *stream, get.as_bytes()));
            }
            client.send(&frame(PING, 0, 0, &[1; 8]));
            while client.frame().is_some_and(|(kind, ..)| kind != PING) {}
        }
    }
    scene.wait_for_metric("keygate_connections_active{service=\"test\"}", 2.0);
    uploading.send("b");
    assert!(uploading.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(session(), before, "the connection has survived");
}

#[test]
fn no_server_gets_a_head_above_its_own_maximum() {
    if skip::without("node") {
        return;
    }
    let small = Server { start: |site| node(site, &["2", "4096"]), ..h2c("Node", "node") };
    let large = Server { start: |site| node(site, &["2", "65535"]), ..h2c("Node", "node") };
    for (server, maximum) in [(small, 4096), (large, 65_535)] {
        let (scene, _, _programs) = scene(&server, "max_header_size = \"1MiB\"");
        for (length, status) in [(maximum - 2500, "200"), (maximum, "431"), (1000, "200")] {
            let mut client = scene.connect();
            client.send(format!(
                "GET / HTTP/1.1\r\nHost: localhost\r\nx: {}\r\n\r\n",
                "a".repeat(length)
            ));
            assert_eq!(client.head()[9..12], *status, "{length} bytes");
        }
        assert_eq!(scene.metric("keygate_upstream_connections_total{service=\"test\"}"), 1.0);
    }
}
