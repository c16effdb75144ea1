//! Idle clients, and honest ones that measure their latencies, while one client and one stranger
//! make keygate hold as much memory as they can.
//!
//! The client has a certificate. It does not read its downloads, and sends uploads that no server
//! reads. The stranger has none, and sends ClientHellos without their end.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{Builder, scope, sleep};
use std::time::{Duration, Instant};

use super::client::{config, connect_from};
use super::http2::{
    DATA, END_HEADERS, END_STREAM, HEADERS, Http2, SETTINGS, WINDOW_UPDATE, field, frame,
};
use super::keygate::Keygate;
use super::load::{Connection, connect, send_get};
use super::pki::{Kind, Party, Pki};
use super::wait_until;

/// The numbers of a scene.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Idle clients. Ten connections have one certificate.
    pub idle: usize,
    /// Connections that the client holds for downloads and uploads.
    pub connections: usize,
    /// Connections that the stranger holds.
    pub hellos: usize,
    /// Requests that are measured. One in ten is an upload, and one has a new connection.
    pub requests: usize,
}

/// Traffic beside the requests that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    Nothing,
    /// Honest handshakes and requests, as many a second as the attack has.
    Honest,
    Attack,
}

/// Latencies in ascending order, and failed requests.
#[derive(Debug, Default)]
pub struct Figures {
    pub requests: Vec<Duration>,
    pub uploads: Vec<Duration>,
    pub new_connections: Vec<Duration>,
    pub failures: Vec<String>,
}

/// Time between two connections of the client, and of the stranger, once they hold all. The attack
/// is on the memory; without pauses it would measure who gets the processor.
const PACE: Duration = Duration::from_millis(20);
/// Length of an upload that is measured, in bytes.
const UPLOAD: usize = 20_000;

/// An origin that responds at once, sends 4 MiB for `GET /?`, and does not read `POST /?`.
pub fn origin() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for tcp in listener.incoming() {
            let thread = Builder::new().stack_size(128 << 10);
            thread.spawn(move || drop(respond(&tcp.unwrap()))).unwrap();
        }
    });
    address
}

fn respond(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let mut is_yielding = false;
    let (mut reader, mut writer) = (BufReader::new(tcp), tcp);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        if head.contains(" /?") && !std::mem::replace(&mut is_yielding, true) {
            yield_to_others();
        }
        if head.starts_with("GET /?") {
            let length = 4 << 20;
            write!(writer, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n")?;
            for _ in 0..length / 65_536 {
                writer.write_all(&[b'x'; 65_536])?;
            }
            continue;
        }
        if head.starts_with("POST /?") {
            sleep(Duration::from_secs(60)); // a handler that is busy
            return Ok(());
        }
        if head.starts_with("POST") {
            reader.read_exact(&mut [0; UPLOAD])?;
        }
        writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")?;
    }
}

/// Gives the thread the lowest priority. The honest client shares its processor with the attackers
/// and their server, and measures keygate only.
fn yield_to_others() {
    rustix::process::nice(19).unwrap();
}

/// Opens idle connections, each after one request. The TLS state of some is kept, so that they can
/// send another one.
pub fn idle(
    keygate: &Keygate,
    pki: &Pki,
    count: usize,
    kept: usize,
) -> (Vec<TcpStream>, Vec<Connection>) {
    const THREADS: usize = 8;
    let names = count.div_ceil(10);
    let clients: Vec<_> = (0..names)
        .map(|number| Arc::new(config(pki, &pki.client(&format!("client {number}"), Kind::P256))))
        .collect();
    let open = |first: usize| -> Vec<Connection> {
        let numbers = (first..count).step_by(THREADS);
        numbers.map(|number| open(keygate, &clients[number % names]).unwrap()).collect()
    };
    let open = &open;
    let mut connections: Vec<Connection> = scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|first| scope.spawn(move || open(first))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let kept = connections.split_off(count - kept);
    (connections.into_iter().map(|it| it.into_inner().sock).collect(), kept)
}

fn open(keygate: &Keygate, client: &Arc<rustls::ClientConfig>) -> io::Result<Connection> {
    let mut connection = connect(keygate.address(), client)?;
    send_get(&mut connection, "localhost", false)?;
    Ok(connection)
}

/// Measures requests of honest clients, with other traffic beside them.
pub fn measure(keygate: &Keygate, pki: &Pki, scale: Scale, beside: Beside) -> Figures {
    let parties = ["honest", "other"].map(|name| pki.client(name, Kind::P256));
    let attacker = pki.client("attacker", Kind::P256);
    let [honest, other] = parties.each_ref().map(|party| Arc::new(config(pki, party)));
    let is_over = AtomicBool::new(false);
    let (is_over, is_full) =
        (&is_over, &Barrier::new(if beside == Beside::Attack { 3 } else { 1 }));
    let other = &other;
    scope(|scope| {
        match beside {
            Beside::Nothing => {}
            Beside::Honest => {
                for _ in 0..2 {
                    scope.spawn(move || {
                        while !is_over.load(Ordering::Relaxed) {
                            sleep(PACE);
                            let _ = open(keygate, other); // measured by the other thread only
                        }
                    });
                }
            }
            Beside::Attack => {
                let attacker = &attacker;
                scope.spawn(move || hold(keygate, pki, attacker, scale, (is_full, is_over)));
                scope.spawn(move || begin_hellos(keygate, scale, (is_full, is_over)));
            }
        }
        is_full.wait();
        let figures = std::panic::catch_unwind(AssertUnwindSafe(|| {
            if beside == Beside::Attack {
                wait_for_rejections(keygate);
            }
            send(keygate, &honest, scale.requests)
        }));
        is_over.store(true, Ordering::Relaxed);
        figures.unwrap()
    })
}

/// Waits until both attackers have had their shares: keygate has read what they sent.
fn wait_for_rejections(keygate: &Keygate) {
    for class in ["handshake", "request"] {
        let rejections = format!("keygate_buffer_rejections_total{{class=\"{class}\"}}");
        wait_until("the share of an attacker", || keygate.metric(&rejections) > 0.0);
    }
}

/// Sends requests over a few connections, uploads and requests over new connections.
fn send(keygate: &Keygate, client: &Arc<rustls::ClientConfig>, count: usize) -> Figures {
    let mut connections: Vec<_> = (0..8).map(|_| open(keygate, client).unwrap()).collect();
    let mut figures = Figures::default();
    for number in 0..count {
        let start = Instant::now();
        let connection = &mut connections[number % 8];
        let (result, latencies) = match number % 10 {
            0 => (upload(connection), &mut figures.uploads),
            1 => (open(keygate, client).map(drop), &mut figures.new_connections),
            _ => (send_get(connection, "localhost", false).map(drop), &mut figures.requests),
        };
        latencies.push(start.elapsed());
        if let Err(error) = result {
            figures.failures.push(error.to_string());
            connections[number % 8] = open(keygate, client).unwrap();
        }
    }
    let latencies = [&mut figures.requests, &mut figures.uploads, &mut figures.new_connections];
    latencies.into_iter().for_each(|latencies| latencies.sort_unstable());
    figures
}

fn upload(connection: &mut Connection) -> io::Result<()> {
    let head = format!("POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: {UPLOAD}\r\n\r\n");
    connection.get_mut().write_all(head.as_bytes())?;
    connection.get_mut().write_all(&[b'x'; UPLOAD])?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if connection.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    if !head.starts_with("HTTP/1.1 200 ") {
        return Err(io::Error::other(head));
    }
    connection.read_exact(&mut [0; 6])
}

/// Downloads that the client does not read, and uploads that no server reads, over HTTP/2.
fn hold(
    keygate: &Keygate,
    pki: &Pki,
    attacker: &Party,
    scale: Scale,
    (is_full, is_over): (&Barrier, &AtomicBool),
) {
    yield_to_others();
    let mut held = VecDeque::new();
    for number in 0.. {
        if number == scale.connections {
            is_full.wait();
        }
        if number >= scale.connections {
            sleep(PACE);
            held.pop_front();
        }
        if is_over.load(Ordering::Relaxed) && number >= scale.connections {
            return;
        }
        let mut client = Http2::connect(pki, keygate.address(), attacker);
        // keygate reads no more while the client has its share.
        client.tcp().set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        if number % 2 == 0 {
            let window = i32::MAX.unsigned_abs();
            client.send(&frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat()));
            client.send(&frame(WINDOW_UPDATE, 0, 0, &(window - 65_535).to_be_bytes()));
            let get = request("GET", &[]);
            let requests = (1..200).step_by(2);
            let requests: Vec<_> = requests
                .flat_map(|stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &get))
                .collect();
            client.send(&requests);
        } else {
            let post = request("POST", &[("content-length", "10000000")]);
            for stream in [1, 3, 5, 7] {
                client.send(&frame(HEADERS, END_HEADERS, stream, &post));
                client.send(&frame(DATA, 0, stream, &[b'x'; 16_000]));
            }
        }
        held.push_back(client);
    }
}

/// The fields of a request of the target `/?`.
fn request(method: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let pseudo =
        [(":method", method), (":scheme", "https"), (":path", "/?"), (":authority", "localhost")];
    pseudo.iter().chain(more).flat_map(|(name, value)| field(name, value)).collect()
}

/// ClientHellos without their end, of one address.
fn begin_hellos(keygate: &Keygate, scale: Scale, (is_full, is_over): (&Barrier, &AtomicBool)) {
    yield_to_others();
    let mut held = VecDeque::new();
    let message = [&[22, 3, 1, 0x3e, 0x80, 1, 0, 0x3e, 0xf0][..], &[b'x'; 15_990]].concat();
    for number in 0.. {
        if number == scale.hellos {
            is_full.wait();
        }
        if number >= scale.hellos {
            sleep(PACE);
            held.pop_front();
        }
        if is_over.load(Ordering::Relaxed) && number >= scale.hellos {
            return;
        }
        let mut tcp = connect_from([127, 0, 0, 9], keygate.address());
        let _ = tcp.write_all(&message); // may be closed
        held.push_back(tcp);
    }
}
