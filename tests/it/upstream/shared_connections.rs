//! Requests that end the HTTP/2 connection to a server, which other clients share: their requests
//! are served.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use keygate_core::spki::Fingerprint;
use tokio::sync::Notify;

use crate::support::client::Client;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party};
use crate::support::program::{Program, python_with, reserved_address};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{skip, wait_for, wait_until};

/// Number of requests of others in flight.
const VICTIMS: usize = 6;

/// A server in front of an origin that holds each POST.
struct Held {
    lock: &'static RwLock<()>,
    origin: Origin,
    address: SocketAddr,
    _program: Program,
}

fn held(start: impl FnOnce(SocketAddr, SocketAddr) -> Program) -> Held {
    let lock: &'static RwLock<()> = Box::leak(Box::default());
    let origin = Origin::responding(move |request, tcp| {
        if request.head.starts_with("POST /hold ") {
            drop(lock.read());
        }
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
    });
    let address = reserved_address();
    let program = start(address, origin.address()).listening_on(address);
    Held { lock, origin, address, _program: program }
}

/// nginx as a proxy. It ends a connection after 1,000 requests.
pub(super) fn nginx(address: SocketAddr, origin: SocketAddr) -> Program {
    let directory = std::env::temp_dir().join(format!("keygate-test-nginx-{}", address.port()));
    std::fs::create_dir_all(&directory).unwrap();
    let text = format!(
        "daemon off; master_process off; pid nginx.pid; error_log error.log; worker_processes 1;
         events {{}}
         http {{
           access_log off; proxy_read_timeout 10m; keepalive_timeout 10m;
           client_max_body_size 0; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f;
           uwsgi_temp_path u; scgi_temp_path s;
           server {{ listen {address} http2; location / {{ proxy_pass http://{origin}; }} }}
         }}"
    );
    std::fs::write(directory.join("nginx.conf"), text).unwrap();
    let mut command = Command::new("nginx");
    Program::start(command.arg("-p").arg(&directory).arg("-c").arg(directory.join("nginx.conf")))
}

pub(super) fn haproxy(address: SocketAddr, origin: SocketAddr) -> Program {
    let file = std::env::temp_dir().join(format!("keygate-test-{}.cfg", address.port()));
    let text = format!(
        "defaults
    mode http
    timeout connect 10m
    timeout client 10m
    timeout server 10m
frontend f
    bind {address} proto h2
    default_backend b
backend b
    server s {origin}
"
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("haproxy");
    Program::start(command.arg("-db").arg("-f").arg(&file))
}

/// A request that ends the connection of some server, and the status that it gets.
pub(super) struct Attack {
    name: &'static str,
    pub(super) request: Vec<u8>,
    status: &'static str,
}

pub(super) fn attacks() -> Vec<Attack> {
    let get = |target: &[u8], fields: &[u8]| {
        [b"GET ", target, b" HTTP/1.1\r\nHost: localhost\r\n", fields, b"\r\n"].concat()
    };
    let field = |name: &str, value: &[u8]| [name.as_bytes(), b": ", value, b"\r\n"].concat();
    let trailer = field("x-sum", &[b's'; 100]);
    let post = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\
                 Trailer: x-sum\r\n\r\n1\r\nx\r\n0\r\n";
    let long = vec![b'a'; 9000];
    let many: Vec<u8> = (0..95).flat_map(|n| field(&format!("x-{n}"), b"a")).collect();
    let fields: Vec<u8> = (0..9).flat_map(|n| field(&format!("x-{n}"), &[b'a'; 2000])).collect();
    [
        ("a trailer", [&post[..], &trailer, b"\r\n"].concat(), "200"),
        ("a long field", get(b"/", &field("x-long", &long)), "431"),
        ("a long target", get(&[b"/", &long[..]].concat(), b""), "431"),
        ("a long cookie", get(b"/", &field("cookie", &long)), "431"),
        // 28 bits each in the Huffman code of HPACK.
        ("bytes of long codes", get(b"/", &field("x-long", &[0xf9; 3000])), "431"),
        ("long fields", get(b"/", &fields), "431"),
        ("many fields", get(b"/", &many), "200"),
        ("a target outside of ASCII", get(b"/\xc3\xa9", b""), "400"),
        ("an empty cookie", get(b"/", b"cookie: a=1\r\ncookie:\r\n"), "200"),
    ]
    .map(|(name, request, status)| Attack { name, request, status })
    .into()
}

/// The status that an attack gets while requests of others are in flight, and the number of those
/// that get 200. `is_held` waits until they are there.
fn outcome(
    scene: &Running,
    victim: &Party,
    attack: &Attack,
    is_held: impl FnOnce(),
    release: impl FnOnce(),
) -> (String, usize) {
    let victims = (0..VICTIMS).map(|_| {
        let mut client = Client::connect(&scene.pki, scene.address(), victim);
        client.send("POST /hold HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx");
        client
    });
    let mut victims: Vec<Client> = victims.collect();
    is_held();
    let mut attacker = scene.connect();
    attacker.send(&attack.request);
    let status = attacker.head()[9..12].to_owned();
    release();
    let heads = victims.iter_mut().filter_map(Client::head_or_end);
    (status, heads.filter(|head| head.starts_with("HTTP/1.1 200 ")).count())
}

/// Runs each attack, and fails with all outcomes.
fn check(outcome: impl Fn(&Attack) -> (String, usize)) {
    let attacks = attacks();
    let outcomes: Vec<_> = attacks.iter().map(|it| (it.name, outcome(it))).collect();
    let wanted = attacks.iter().map(|it| (it.name, (it.status.to_owned(), VICTIMS)));
    assert_eq!(outcomes, wanted.collect::<Vec<_>>());
}

fn no_request_of_others_fails(server: &Held) {
    let proxy = Proxy::before(format!("h2c://{}", server.address)).workers(1);
    let victim = proxy.pki.client("victim", Kind::P256);
    let scene = proxy.start();
    check(|attack| {
        server.origin.untaken();
        let held = server.lock.write().unwrap();
        let is_held = || (0..VICTIMS).for_each(|_| drop(server.origin.next()));
        outcome(&scene, &victim, attack, is_held, || drop(held))
    });
    assert_eq!(scene.metric("keygate_upstream_connections_total{service=\"test\"}"), 1.0);
}

#[test]
fn no_request_ends_a_connection_to_nginx() {
    if !skip::without("nginx") {
        no_request_of_others_fails(&held(nginx));
    }
}

#[test]
fn no_request_ends_a_connection_to_haproxy() {
    if !skip::without("haproxy") {
        no_request_of_others_fails(&held(haproxy));
    }
}

/// One of the programs beside the tests. Ends with the test.
struct Python(Child);

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn no_request_ends_a_connection_to_hypercorn() {
    let Some(python) = python_with("hypercorn, h2") else { return };
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/hold.py");
    let mut child =
        Python(Command::new(python).arg(program).stdout(Stdio::piped()).spawn().unwrap());
    let mut port = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let proxy = Proxy::before(format!("h2c://127.0.0.1:{}", port.trim())).workers(1);
    let victim = proxy.pki.client("victim", Kind::P256);
    let scene = proxy.start();
    check(|attack| {
        let url = |path: &str| format!("https://{}{path}", scene.address());
        let is_held = || wait_until("the requests", || scene.code(&[&url("/held")]) == "206");
        let release = || assert_eq!(scene.code(&[&url("/release")]), "200");
        outcome(&scene, &victim, attack, is_held, release)
    });
}

/// An h2c server. A request of `/poison` ends its connection, one of `/hold` waits for
/// [`Fragile::release`].
struct Fragile {
    address: SocketAddr,
    held: Arc<AtomicUsize>,
    release: Arc<Notify>,
}

impl Fragile {
    fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self { address, held: Arc::default(), release: Arc::default() };
        let shared = (Arc::clone(&server.held), Arc::clone(&server.release));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    let (tcp, _) = listener.accept().await.unwrap();
                    let (held, release) = shared.clone();
                    tokio::spawn(Self::serve(tcp, held, release));
                }
            });
        });
        server
    }

    async fn serve(tcp: tokio::net::TcpStream, held: Arc<AtomicUsize>, release: Arc<Notify>) {
        let mut connection = h2::server::handshake(tcp).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            if request.uri().path() == "/poison" {
                return;
            }
            let release = Arc::clone(&release);
            let (held, is_held) = (Arc::clone(&held), request.uri().path() == "/hold");
            tokio::spawn(async move {
                if is_held {
                    let released = release.notified();
                    held.fetch_add(1, Ordering::SeqCst);
                    released.await;
                    held.fetch_sub(1, Ordering::SeqCst);
                }
                let _ = respond.send_response(hyper::Response::new(()), true); // may be closed
            });
        }
    }

    fn wait_for_held(&self, count: usize) {
        wait_until("the held requests", || self.held.load(Ordering::SeqCst) == count);
    }
}

#[test]
fn a_client_that_ends_a_connection_gets_its_own_and_only_its_retry_ends_that() {
    let server = Fragile::start();
    let proxy = Proxy::before(format!("h2c://{}", server.address)).workers(1);
    let victim = proxy.pki.client("victim", Kind::P256);
    let scene = proxy.start();
    let poison = || scene.code(&["--path-as-is", &format!("https://{}/poison", scene.address())]);
    let isolations = || scene.metric("keygate_upstream_isolations_total{service=\"test\"}");
    for (round, of_post) in [" 502 ", " 200 ", " 200 "].into_iter().enumerate() {
        let [mut get, mut post] = ["GET", "POST"].map(|method| {
            let mut client = Client::connect(&scene.pki, scene.address(), &victim);
            let length = if method == "POST" { "Content-Length: 1\r\n" } else { "" };
            client.send(format!("{method} /hold HTTP/1.1\r\nHost: localhost\r\n{length}\r\n"));
            if method == "POST" {
                client.send("x");
            }
            client
        });
        server.wait_for_held(2);
        assert_eq!(poison(), "502");
        if round < 1 {
            assert!(post.head().contains(of_post), "a POST is not sent twice");
            // The held tasks of the connection before wait as well.
            server.wait_for_held(3);
        }
        server.release.notify_waiters();
        assert!(get.head().contains(" 200 "), "round {round}");
        if round >= 1 {
            assert!(post.head().contains(of_post), "round {round}");
        }
        server.wait_for_held(0);
        // Its own connection has failed as well, which its next request reports.
        assert_eq!(isolations(), if round < 1 { 0.0 } else { 1.0 });
    }
    let line = scene.wait_for("the isolation", |line| {
        line["message"] == "client ends upstream connections, isolating it"
    });
    assert_eq!(line["fingerprint"], Fingerprint::of(&scene.good.spki).to_string());
}

#[test]
fn requests_that_fail_with_one_connection_share_the_next_and_are_one_failure_of_the_server() {
    let servers = [Fragile::start(), Fragile::start()];
    let urls = servers.each_ref().map(|server| format!("h2c://{}", server.address));
    let proxy = Proxy::new().servers(&urls).workers(1);
    let proxy = proxy.upstream("balance = \"round-robin\"\nmax_failures = 3");
    let victim = proxy.pki.client("victim", Kind::P256);
    let scene = proxy.start();
    let send = |client: &Party, head: &str| {
        let mut client = Client::connect(&scene.pki, scene.address(), client);
        client.send(format!("{head} HTTP/1.1\r\nHost: localhost\r\n"));
        client.send(if head.starts_with("POST") { "Content-Length: 1\r\n\r\nx" } else { "\r\n" });
        client
    };
    let wait_for_held = |count: usize| {
        wait_for("the held requests", || {
            let held = servers.each_ref().map(|it| it.held.load(Ordering::SeqCst));
            (held.iter().sum::<usize>() == count).then_some(()).ok_or(format!("{held:?}"))
        });
    };
    // The servers get the same number of each, because they take turns.
    let mut posts: Vec<Client> = (0..VICTIMS * 2).map(|_| send(&victim, "POST /hold")).collect();
    wait_for_held(VICTIMS * 2);
    let mut gets: Vec<Client> = (0..VICTIMS * 2).map(|_| send(&victim, "GET /hold")).collect();
    wait_for_held(VICTIMS * 4);
    assert!(send(&scene.good, "POST /poison").head().contains(" 502 "));
    wait_for_held(VICTIMS * 5); // with the tasks of the connection that has ended
    servers.iter().for_each(|server| server.release.notify_waiters());
    let served = [&mut posts, &mut gets].map(|clients| {
        let heads = clients.iter_mut().filter_map(Client::head_or_end);
        heads.filter(|head| head.contains(" 200 ")).count()
    });
    assert_eq!(served, [VICTIMS, VICTIMS * 2], "a POST is not sent twice");
    assert_eq!(scene.metric("keygate_upstream_connections_total{service=\"test\"}"), 3.0);
    assert_eq!(scene.metric("keygate_upstream_isolations_total{service=\"test\"}"), 0.0);
    assert!(scene.lines("upstream server ejected").is_empty());
}

/// An h2c server with the windows of RFC 9113, 64 KiB for a stream and for its connection. It reads
/// an upload, and of one to `/unread` only what the windows permit, which it counts.
fn window_server(unread: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                tokio::spawn(read_uploads(tcp, Arc::clone(&unread)));
            }
        });
    });
    address
}

async fn read_uploads(tcp: tokio::net::TcpStream, unread: Arc<AtomicUsize>) {
    let mut connection = h2::server::handshake(tcp).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let (is_read, unread) = (request.uri().path() != "/unread", Arc::clone(&unread));
        let mut body = request.into_body();
        tokio::spawn(async move {
            while let Some(Ok(data)) = body.data().await {
                if is_read {
                    let _ = body.flow_control().release_capacity(data.len());
                } else {
                    unread.fetch_add(data.len(), Ordering::SeqCst);
                }
            }
            let _ = respond.send_response(hyper::Response::new(()), true); // may be closed
        });
    }
}

#[test]
fn an_upload_that_its_server_does_not_read_leaves_window_for_others() {
    let unread = Arc::<AtomicUsize>::default();
    let address = window_server(Arc::clone(&unread));
    let proxy = Proxy::before(format!("h2c://{address}")).workers(1);
    let victim = proxy.pki.client("victim", Kind::P256);
    let scene = proxy.start();
    let mut stalled = scene.connect();
    let body = vec![b'x'; 100_000];
    let head = |path: &str| format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ");
    stalled.send([head("/unread").as_bytes(), b"100000\r\n\r\n", &body].concat());
    wait_until("the share of the client", || unread.load(Ordering::SeqCst) >= 49_151);
    let upload = |client: &Party| {
        let mut client = Client::connect(&scene.pki, scene.address(), client);
        client.tcp().set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.send([head("/").as_bytes(), b"100000\r\n\r\n", &body].concat());
        client.head_or_end().is_some_and(|head| head.starts_with("HTTP/1.1 200 "))
    };
    let served = (0..VICTIMS).filter(|_| upload(&victim)).count();
    assert_eq!(served, VICTIMS);
    assert_eq!(unread.load(Ordering::SeqCst), 49_151, "three quarters");
    assert!(upload(&scene.good), "its next upload goes over another connection");
    assert_eq!(scene.metric("keygate_upstream_connections_total{service=\"test\"}"), 2.0);
}
