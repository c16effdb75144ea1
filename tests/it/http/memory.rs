//! One client or address that makes keygate buffer as much as it can, while others are served.
//!
//! `KEYGATE_MEMORY=512` takes the numbers of a machine with 512 MiB, and the default budget.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::{ClientConnection, StreamOwned};
use socket2::SockRef;

use crate::support::attacked;
use crate::support::client::{self, connect_from};
use crate::support::http2::{
    CONTINUATION, Came, DATA, END_HEADERS, GOAWAY, HEADERS, Http2, PING, SETTINGS, WINDOW_UPDATE,
    frame, read_frame, request,
};
use crate::support::load::send_get;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure, Proxy, Running};
use crate::support::server::{Server, settings};
use crate::support::{wait_until, write_filter};

const ENHANCE_YOUR_CALM: u32 = 11;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_WINDOW: u32 = (1 << 31) - 1;
const MIB: u64 = 1 << 10; // in KiB

/// The numbers of a test.
struct Scale {
    /// Connections of the client that holds memory.
    connections: usize,
    /// `max_buffered`.
    budget: String,
    /// Maximum growth of the resident memory, in KiB.
    growth: u64,
}

impl Scale {
    /// The long form if `KEYGATE_MEMORY` is set, else `short`.
    fn of(short: Self, connections: usize) -> Self {
        let Ok(mib) = std::env::var("KEYGATE_MEMORY") else { return short };
        let mib: u64 = mib.parse().expect("KEYGATE_MEMORY is in MiB");
        // The default budget for that much memory, a reserve for files apart.
        Self { connections, budget: format!("{}MiB", mib / 2), growth: mib * MIB * 3 / 4 }
    }

    fn start(&self, proxy: Proxy) -> Running {
        let proxy = proxy.workers(1).limits("max_connections = 20000");
        proxy.set("max_buffered", self.budget.as_str()).start()
    }
}

/// Runs `attack` while another client sends requests, which must all be served. Returns how much
/// the resident memory grew, in KiB.
fn growth_while_others_are_served(proxy: &Running, attack: impl FnOnce()) -> u64 {
    let other = proxy.pki.client("other", Kind::P256);
    proxy.admits(&other);
    proxy.keygate.forget_peak();
    let before = proxy.keygate.memory("VmHWM");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) || count < 3 {
                proxy.admits(&other);
                count += 1;
            }
        });
        let attacked = std::panic::catch_unwind(AssertUnwindSafe(attack));
        is_over.store(true, Ordering::Relaxed);
        served.join().unwrap();
        attacked.unwrap();
    });
    proxy.keygate.memory("VmHWM") - before
}

fn buffered(proxy: &Running, class: &str) -> f64 {
    proxy.metric(&format!("keygate_buffered_bytes{{class=\"{class}\"}}"))
}

fn rejections(proxy: &Running, class: &str) -> f64 {
    proxy.metric(&format!("keygate_buffer_rejections_total{{class=\"{class}\"}}"))
}

#[test]
fn downloads_that_one_client_does_not_read_stay_within_its_share() {
    let short = Scale { connections: 5, budget: "8MiB".to_owned(), growth: 32 * MIB };
    let scale = Scale::of(short, 60);
    let origin = Origin::responding(|request, tcp| {
        if !request.head.starts_with("GET /?") {
            return tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n");
        }
        let length = 4 << 20;
        write!(tcp, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n")?;
        tcp.write_all(&vec![b'x'; length])
    });
    let proxy = scale.start(Proxy::to(origin).upstream("max_connections = 10000"));
    let mut clients = Vec::new();
    let grown = growth_while_others_are_served(&proxy, || {
        for _ in 0..scale.connections {
            let mut client = proxy.connect_http2();
            open_windows(&mut client);
            for stream in (1..200).step_by(2) {
                let path = request("GET", &[]);
                let path = String::from_utf8(path).unwrap().replace("\u{1}/", "\u{2}/?");
                client.send(&frame(HEADERS, 5, stream, path.as_bytes()));
            }
            clients.push(client);
        }
        wait_until("responses to wait", || rejections(&proxy, "response") > 0.0);
    });
    assert!(grown < scale.growth, "{grown} KiB");
    let held = buffered(&proxy, "response") + buffered(&proxy, "request");
    let limit = proxy.metric("keygate_buffer_limit_bytes");
    assert!(held > 0.0 && held < limit * 0.75, "{held} of {limit}");
    let line = proxy
        .wait_for("the line", |line| line["message"] == "client holds its share of the memory");
    assert!(line["fingerprint"].is_string() && line["peer"].is_string(), "{line}");
    drop(clients);
    wait_until("the memory to be free", || {
        buffered(&proxy, "response") + buffered(&proxy, "request") == 0.0
    });
}

/// Lets the client take any number of bytes.
fn open_windows(client: &mut Http2) {
    client.send(&settings(&[(INITIAL_WINDOW_SIZE, MAX_WINDOW)]));
    client.send(&frame(WINDOW_UPDATE, 0, 0, &(MAX_WINDOW - 65_535).to_be_bytes()));
}

#[test]
fn small_responses_that_one_client_does_not_read_stay_within_its_share() {
    let length = 15 << 10;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
    do_not_read("2xx", head + &"x".repeat(length));
}

/// h2 keeps the head of a response whose request has ended.
#[test]
fn heads_of_responses_that_one_client_does_not_read_stay_within_its_share() {
    let location = "x".repeat(15 << 10);
    let fields = format!("location: /{location}\r\ncontent-length: 0\r\n");
    do_not_read("3xx", format!("HTTP/1.1 302 Found\r\n{fields}\r\n"));
}

/// Trailers of gRPC have some KiB of details.
#[test]
fn trailers_of_responses_that_one_client_does_not_read_stay_within_its_share() {
    let details = "x".repeat(15 << 10);
    let fields = "transfer-encoding: chunked\r\ntrailer: grpc-status-details-bin\r\n";
    let trailers = format!("0\r\ngrpc-status-details-bin: {details}\r\n\r\n");
    do_not_read("2xx", format!("HTTP/1.1 200 OK\r\n{fields}\r\n{trailers}"));
}

/// One client reads none of its responses. Each is `response`, whose status has this class.
fn do_not_read(code: &str, response: String) {
    let origin = Origin::responding(move |_, tcp| tcp.write_all(response.as_bytes()));
    let proxy = Proxy::to(origin).workers(1).set("max_buffered", "8MiB").start();
    let mut clients: Vec<_> = (0..8).map(|_| proxy.connect_http2()).collect();
    for client in &mut clients {
        SockRef::from(client.tcp()).set_recv_buffer_size(4096).unwrap();
        open_windows(client);
    }
    proxy.keygate.forget_peak();
    let before = proxy.keygate.memory("VmHWM");
    let series = format!("keygate_requests_total{{code=\"{code}\",service=\"test\"}}");
    let served = || proxy.metric(&series);
    let has_share = || rejections(&proxy, "request") == 0.0;
    // Each round ends before the next one, so that few requests are in flight. The kernel takes the
    // first ones.
    for round in (0..100).take_while(|_| has_share()) {
        for client in &mut clients {
            (0..10).for_each(|number| client.send_get(2 * (10 * round + number) + 1));
        }
        let total = f64::from(80 * (round + 1));
        wait_until("the responses", || served() >= total || !has_share());
    }
    assert!(!has_share());
    assert!(buffered(&proxy, "response") > f64::from(2 << 20));
    let grown = proxy.keygate.memory("VmHWM") - before;
    assert!(grown < 16 * MIB, "{grown} KiB");
}

#[test]
fn heads_that_one_client_does_not_end_stay_within_its_share() {
    let short = Scale { connections: 80, budget: "8MiB".to_owned(), growth: 16 * MIB };
    let scale = Scale::of(short, 900);
    let proxy = scale.start(Proxy::new());
    // One string in a HEADERS frame and a CONTINUATION, which h2 keeps until it has all of it.
    let string = [b"\0\x01a\x7f\xff\xff\x7f", &[b'x'; 65_000][..]].concat();
    let begin = frame(HEADERS, 0, 1, &string);
    let rest = [frame(CONTINUATION, 0, 1, &string), frame(CONTINUATION, 0, 1, &string)].concat();
    let head = [begin, rest].concat();
    let mut clients = Vec::new();
    let grown = growth_while_others_are_served(&proxy, || {
        for _ in 0..scale.connections {
            let mut client = proxy.connect_http2();
            client.tcp().set_nonblocking(true).unwrap();
            // As much as the sockets take, in records that are read beyond the share.
            head.chunks(1000).for_each(|piece| client.send(piece));
            clients.push(client);
        }
        wait_until("heads to wait", || rejections(&proxy, "tls") > 40.0);
    });
    assert!(grown < scale.growth, "{grown} KiB");
    let (held, limit) = (buffered(&proxy, "tls"), proxy.metric("keygate_buffer_limit_bytes"));
    // Each connection may have some KiB beyond the share.
    assert!(held > limit * 0.4 && held < limit * 0.65, "{held} of {limit}");
}

#[test]
fn a_client_that_leaves_within_a_header_block_beyond_its_share_is_noticed() {
    let origin = Origin::responding(|_, tcp| {
        let length = 1 << 20;
        write!(tcp, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n")?;
        tcp.write_all(&vec![b'x'; length])
    });
    let proxy = Proxy::to(origin).workers(1).set("max_buffered", "1MiB").start();
    let mut greedy = proxy.connect_http2();
    open_windows(&mut greedy);
    (0..16).for_each(|number| greedy.send_get(2 * number + 1));
    wait_until("the share", || rejections(&proxy, "response") > 0.0);
    let string = [b"\0\x01a\x7f\xff\xff\x7f", &[b'x'; 20_000][..]].concat();
    let waiting = rejections(&proxy, "tls");
    let mut client = proxy.connect_http2();
    frame(HEADERS, 0, 1, &string).chunks(1000).for_each(|piece| client.send(piece));
    wait_until("the block to wait", || rejections(&proxy, "tls") > waiting);
    assert_eq!(proxy.metric("keygate_connections_active{service=\"test\"}"), 2.0);
    drop(client);
    proxy.wait_for_metric("keygate_connections_active{service=\"test\"}", 1.0);
}

#[test]
fn what_an_http2_server_sends_before_the_client_reads_counts_for_the_client() {
    let server = Server::start();
    let url = format!("h2c://{}", server.address);
    std::thread::spawn(move || {
        while let Some(mut tcp) = server.next() {
            tcp.read_exact(&mut [0; 24]).unwrap();
            tcp.write_all(&settings(&[])).unwrap();
            std::thread::spawn(move || {
                while let Ok((kind, _, stream, _)) = read_frame(&mut tcp) {
                    if kind == HEADERS {
                        let window = frame(DATA, 0, stream, &[b'x'; 16_000]).repeat(4);
                        let head = frame(HEADERS, END_HEADERS, stream, &[0x88]);
                        tcp.write_all(&[head, window].concat()).unwrap();
                    }
                }
            });
        }
    });
    let proxy = Proxy::before(url).workers(1).set("max_buffered", "8MiB").start();
    let mut forwarded = 0;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = proxy.connect_http2();
        client.send(&settings(&[(INITIAL_WINDOW_SIZE, 0)]));
        (0..100).for_each(|number| client.send_get(2 * number + 1));
        for _ in 0..100 {
            let Came::Response(status, _) = client.next() else { panic!("a response") };
            forwarded += u32::from(status == 0x88);
        }
        clients.push(client);
    }
    // A share is three quarters of 6 MiB. Each of these has 64 KiB in keygate.
    assert!((10..(9 << 19) / (64 << 10)).contains(&forwarded), "{forwarded} were forwarded");
}

#[test]
fn a_client_that_reads_slowly_gets_all_of_its_responses() {
    // The share has room for the requests and for less than half of a response.
    let origin = Origin::responding(|_, tcp| {
        let length = 1 << 20;
        write!(tcp, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n")?;
        tcp.write_all(&vec![b'x'; length])
    });
    let proxy = Proxy::to(origin).workers(1).set("max_buffered", "1MiB").start();
    let mut client = proxy.connect_http2();
    open_windows(&mut client);
    // As many as begin before the first response.
    let streams = 8;
    (0..streams).for_each(|number| client.send_get(2 * number + 1));
    wait_until("responses to wait", || rejections(&proxy, "response") > 0.0);
    let mut received = 0;
    while received < streams as usize * (1 << 20) {
        match client.frame().expect("the connection is open") {
            (DATA, _, _, data) => received += data.len(),
            (kind, ..) => assert!([HEADERS, SETTINGS, WINDOW_UPDATE].contains(&kind), "{kind}"),
        }
    }
}

#[test]
fn a_connection_that_waits_for_its_share_hibernates_until_then() {
    let origin = Origin::responding(|request, tcp| {
        let length = if request.head.starts_with("GET") { 1 << 20 } else { 0 };
        write!(tcp, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n")?;
        tcp.write_all(&vec![b'x'; length])
    });
    let proxy = Proxy::to(origin).workers(1).set("max_buffered", "1MiB").start();
    let config = client::config(&proxy.pki, &proxy.good);
    let name = "localhost".try_into().unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut tcp = TcpStream::connect(proxy.address()).unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp).unwrap();
    }
    let mut greedy = proxy.connect_http2();
    open_windows(&mut greedy);
    (0..16).for_each(|number| greedy.send_get(2 * number + 1));
    wait_until("the share", || rejections(&proxy, "response") > 0.0);
    let mut record = Vec::new();
    let head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000\r\n\r\n";
    tls.writer().write_all(&[&head[..], &[b'x'; 8000]].concat()).unwrap();
    tls.write_tls(&mut record).unwrap();
    let (first, rest) = record.split_at(4000);
    tcp.write_all(first).unwrap();
    wait_until("a part of the record", || buffered(&proxy, "tls") > 0.0);
    proxy.wait_for_metric("keygate_connections_hibernating{service=\"test\"}", 1.0);
    let asleep = || proxy.metric("keygate_connections_hibernating{service=\"test\"}");
    assert!((0..50).all(|_| asleep() == 1.0), "it waits without its buffers");
    drop(greedy);
    tcp.write_all(rest).unwrap();
    let mut stream = StreamOwned::new(tls, tcp);
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
}

#[test]
fn uploads_that_no_server_reads_stay_within_the_share_of_their_client() {
    let short = Scale { connections: 20, budget: "8MiB".to_owned(), growth: 16 * MIB };
    let scale = Scale::of(short, 600);
    let server = Server::start();
    let url = format!("h2c://{}", server.address);
    // The server has connections, and no window for uploads.
    std::thread::spawn(move || {
        let mut connections = Vec::new();
        while let Some(mut tcp) = server.next() {
            tcp.read_exact(&mut [0; 24]).unwrap();
            tcp.write_all(&settings(&[(INITIAL_WINDOW_SIZE, 0)])).unwrap();
            connections.push(tcp);
        }
    });
    let proxy = scale.start(Proxy::before(url));
    proxy.keygate.forget_peak();
    let before = proxy.keygate.memory("VmHWM");
    let mut clients = Vec::new();
    for _ in 0..scale.connections {
        let mut client = proxy.connect_http2();
        let head = request("POST", &[("content-length", "10000000")]);
        for stream in [1, 3, 5, 7] {
            client.send(&frame(HEADERS, END_HEADERS, stream, &head));
            client.send(&frame(DATA, 0, stream, &[b'x'; 16_000]));
        }
        client.send(&frame(PING, 0, 0, &[1; 8]));
        while client.frame().unwrap().0 != PING {}
        clients.push(client);
    }
    let grown = proxy.keygate.memory("VmHWM") - before;
    assert!(grown < scale.growth, "{grown} KiB");
    let rejected = || proxy.metric("keygate_requests_total{code=\"4xx\",service=\"test\"}");
    wait_until("rejections", || rejected() > 0.0 && buffered(&proxy, "upload") > 0.0);
    let held = buffered(&proxy, "upload") + buffered(&proxy, "request");
    let limit = proxy.metric("keygate_buffer_limit_bytes");
    assert!(held > limit * 0.4 && held < limit * 0.57, "{held} of {limit}");
}

#[test]
fn the_windows_of_an_upload_grow_while_its_server_reads() {
    let origin = Origin::start();
    let proxy = Proxy::to(origin).workers(1).start();
    let mut client = proxy.connect_http2();
    let total: usize = 4 << 20;
    let length = total.to_string();
    client.send(&frame(HEADERS, END_HEADERS, 1, &request("POST", &[("content-length", &length)])));
    let (mut initial, mut window, mut of_connection) = (65_535_i64, 65_535_i64, 65_535_i64);
    let (mut sent, mut most) = (0, 0);
    while sent < total {
        let open = usize::try_from(window.min(of_connection)).unwrap_or(0);
        let size = open.min(16_384).min(total - sent);
        if size > 0 {
            let last = u8::from(sent + size == total);
            if last == 1 {
                wait_until("the window to be held", || buffered(&proxy, "upload") > 0.0);
            }
            client.send(&frame(DATA, last, 1, &vec![b'x'; size]));
            sent += size;
            let sent = i64::try_from(size).unwrap();
            (window, of_connection) = (window - sent, of_connection - sent);
            if most > 0 {
                continue;
            }
        }
        match client.frame().expect("the connection is open") {
            (SETTINGS, 0, _, settings) => {
                for setting in settings.chunks(6) {
                    if setting[..2] == INITIAL_WINDOW_SIZE.to_be_bytes() {
                        let next = i64::from(u32::from_be_bytes(setting[2..].try_into().unwrap()));
                        (window, initial) = (window + next - initial, next);
                        most = most.max(next);
                    }
                }
                client.send(&frame(SETTINGS, 1, 0, b""));
            }
            (WINDOW_UPDATE, _, stream, more) => {
                let more = i64::from(u32::from_be_bytes(more.try_into().unwrap()));
                *(if stream == 0 { &mut of_connection } else { &mut window }) += more;
            }
            (kind, ..) => assert_ne!(kind, GOAWAY),
        }
    }
    assert!(matches!(client.next(), Came::Response(0x88, 1)));
    assert_eq!(most, 256 << 10);
    wait_until("the windows to be free", || buffered(&proxy, "upload") == 0.0);
}

/// The beginning of a ClientHello of `length` bytes that never ends.
fn unfinished_hello(length: usize) -> Vec<u8> {
    let mut message = vec![1];
    message.extend(&u32::try_from(length).unwrap().to_be_bytes()[1..]);
    message.resize(length - 8, b'x');
    let records = message.chunks(16_000).map(|part| {
        [&[22, 3, 1][..], &u16::try_from(part.len()).unwrap().to_be_bytes(), part].concat()
    });
    records.collect::<Vec<_>>().concat()
}

#[test]
fn a_client_hello_longer_than_17_kib_gets_an_alert() {
    let proxy = Proxy::new().start();
    let mut tcp = connect_from([127, 0, 0, 2], proxy.address());
    let _ = tcp.write_all(&unfinished_hello(60_000)); // may meet the close
    let mut alert = [0; 7];
    tcp.read_exact(&mut alert).unwrap();
    assert_eq!(alert, [21, 3, 3, 0, 2, 2, 50]);
}

#[test]
fn unfinished_client_hellos_of_one_address_stay_within_its_share() {
    let short = Scale { connections: 600, budget: "8MiB".to_owned(), growth: 24 * MIB };
    let scale = Scale::of(short, 3800);
    let proxy = scale
        .start(Proxy::new().limits("max_connections_per_ip = 10000, handshake_timeout = \"1m\""));
    let hello = unfinished_hello(16_000);
    let mut connections = Vec::new();
    let grown = growth_while_others_are_served(&proxy, || {
        for _ in 0..scale.connections {
            let mut tcp = connect_from([127, 0, 0, 2], proxy.address());
            let _ = tcp.write_all(&hello); // may be closed
            connections.push(tcp);
        }
        wait_until("rejections or a share for all", || {
            let waiting = buffered(&proxy, "handshake") / 16_000.0;
            rejections(&proxy, "handshake") + waiting > scale.connections as f64 * 0.9
        });
    });
    assert!(grown < scale.growth, "{grown} KiB");
    let (held, limit) = (buffered(&proxy, "handshake"), proxy.metric("keygate_buffer_limit_bytes"));
    assert!(held > 0.0 && held < limit / 4.0 * 0.76, "{held} of {limit}");
    drop(connections);
    wait_until("the memory to be free", || buffered(&proxy, "handshake") == 0.0);
}

#[test]
fn handshakes_that_fill_the_memory_do_not_keep_another_address_out() {
    let proxy = Proxy::new().workers(1).set("max_buffered", "1MiB").start();
    // Smaller ones fill what larger ones leave of 256 KiB, until no first part of a message fits.
    // Each has an address of its own, so that it has a share.
    let lengths = [(16_000, 20), (4000, 8), (1000, 8), (300, 8), (100, 8)];
    let lengths = lengths.into_iter().flat_map(|(length, count)| vec![length; count]);
    let connect = |(address, length)| {
        let mut tcp = connect_from([127, 0, 0, address], proxy.address());
        let _ = tcp.write_all(&unfinished_hello(length)); // may be closed
        tcp
    };
    let _connections: Vec<_> = (2..).zip(lengths).map(connect).collect();
    let served = proxy.pki.client("served", Kind::P256);
    proxy.admits(&served); // the worker has read what was sent before
    let name = "localhost".try_into().unwrap();
    let config = client::config(&proxy.pki, &proxy.good);
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    let (first, rest) = hello.split_at(200);
    let mut tcp = connect_from([127, 0, 0, 100], proxy.address());
    tcp.write_all(first).unwrap();
    proxy.admits(&served);
    tcp.write_all(rest).unwrap();
    let mut stream = StreamOwned::new(tls, tcp);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
}

/// `cargo bench --bench scale -- --attacked` measures the same with 10,000 idle clients.
#[test]
fn others_are_served_beside_the_worst_client_and_stranger() {
    let scale = attacked::Scale { idle: 300, connections: 12, hellos: 300, requests: 300 };
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let limits = "max_connections = 2000, max_connections_per_ip = 2000";
    let configuration = Configuration::new(attacked::origin()).workers(1).limits(limits);
    // A quarter of the share of clients is 3 MiB. Connections that the client has left, and that
    // keygate has not closed yet, take less.
    let keygate = configuration.set("max_buffered", "16MiB").start(&pki);
    let (_idle, mut kept) = attacked::idle(&keygate, &pki, scale.idle, 20);
    keygate.forget_peak();
    let before = keygate.memory("VmHWM");
    let figures = attacked::measure(&keygate, &pki, scale, attacked::Beside::Attack);
    let grown = keygate.memory("VmHWM") - before;
    assert_eq!(figures.failures, Vec::<String>::new());
    assert!(grown < 32 * MIB, "{grown} KiB");
    kept.iter_mut().for_each(|idle| _ = send_get(idle, "localhost", false).unwrap());
    assert!(keygate.metric("keygate_connections_active{service=\"test\"}") >= 300.0);
}

/// The code of GOAWAY after `count` frames; `None` if the connection stays open.
fn goaway_after(proxy: &Running, flood: &[u8], count: usize) -> Option<u32> {
    let mut client = proxy.connect_http2();
    let piece = flood.repeat(500);
    for _ in 0..count / 500 {
        client.send(&piece);
        client.send(&frame(PING, 0, 0, b"the last"));
        loop {
            match client.frame()? {
                (PING, 1, _, payload) if payload == b"the last" => break,
                (GOAWAY, _, _, payload) => {
                    return Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
                }
                _ => {}
            }
        }
    }
    None
}

#[test]
fn floods_of_control_frames_end_the_connection() {
    let proxy = Proxy::new().workers(1).start();
    let update = frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes());
    for flood in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, b""), update] {
        assert_eq!(goaway_after(&proxy, &flood, 5000), None, "{flood:?}");
        assert_eq!(goaway_after(&proxy, &flood, 30_000), Some(ENHANCE_YOUR_CALM), "{flood:?}");
    }
    proxy.wait_for_metric("keygate_http2_misuses_total{service=\"test\"}", 3.0);
}
