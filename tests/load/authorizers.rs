//! Authorizers under full load while filters are swapped.
//!
//! `KEYGATE_LOAD_QUESTIONS=200000` is the long form: so many questions between two swaps.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::support::authorizer::Authorizer;
use crate::support::grpc;
use crate::support::http_host::escaped_pem;
use crate::support::http2::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    frame, read_frame,
};
use crate::support::pki::Party;
use crate::support::spop::{SpopPeer, arguments, notify};
use crate::support::{TIMEOUT, wait_for, write_revision};

/// Connections that ask, half of them about a client whose key comes and goes.
const CONNECTIONS: usize = 8;
/// Questions under way on one connection.
const WINDOW: u64 = 32;
const SWAPS: u32 = 3;
/// Growth of the process under load, in KiB.
const MAX_GROWTH: u64 = 32 << 10;

/// Questions between two swaps.
fn questions() -> usize {
    std::env::var("KEYGATE_LOAD_QUESTIONS").map_or(4000, |count| count.parse().unwrap())
}

/// A connection of a host, for questions about one client.
trait Asker: Send {
    /// Sends a burst of questions and returns whether each is answered with "allowed".
    fn ask(&mut self) -> Vec<bool>;
}

struct OverSpop(SpopPeer, Vec<u8>);

impl OverSpop {
    fn connect(socket: &Path, client: &Party) -> Box<dyn Asker> {
        let questions = (0..WINDOW)
            .flat_map(|stream| notify(stream, "keygate-request", &arguments(&client.der)));
        Box::new(Self(SpopPeer::connect(socket), questions.collect()))
    }
}

impl Asker for OverSpop {
    fn ask(&mut self) -> Vec<bool> {
        self.0.send(&self.1);
        let answers = (0..WINDOW).map(|stream| {
            let ack = self.0.frame();
            assert_eq!(ack.stream, stream);
            match (ack.text("txn.action").as_str(), ack.text("txn.verdict").as_str()) {
                ("admit", "clean") => true,
                ("reject", "probable") => false,
                answer => panic!("{answer:?}"),
            }
        });
        answers.collect()
    }
}

/// HTTP/1.1 with the certificate of RFC 9440.
struct OverHttp(UnixStream, Vec<u8>);

impl OverHttp {
    fn connect(socket: &Path, client: &Party) -> Box<dyn Asker> {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let certificate = data_encoding::BASE64.encode(&client.der);
        let request =
            format!("GET / HTTP/1.1\r\nHost: localhost\r\nClient-Cert: :{certificate}:\r\n\r\n");
        Box::new(Self(stream, request.into_bytes()))
    }
}

impl Asker for OverHttp {
    fn ask(&mut self) -> Vec<bool> {
        self.0.write_all(&self.1).unwrap();
        let mut response = Vec::new();
        let mut piece = [0; 4096];
        let (head, length) = loop {
            let count = self.0.read(&mut piece).unwrap();
            assert!(count > 0, "the connection was closed");
            response.extend(&piece[..count]);
            let text = String::from_utf8_lossy(&response).to_ascii_lowercase();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head
                .split("content-length: ")
                .nth(1)
                .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
            if body.len() >= length {
                break (head.to_owned(), length);
            }
        };
        let status = |word: &str| head.contains(&format!("client-key-status: {word}"));
        match head.get(9..12) {
            Some("200") if status("clean") && length == 0 => vec![true],
            Some("403") if status("probable") => vec![false],
            _ => panic!("{head}"),
        }
    }
}

/// gRPC with Envoy's messages, as frames of HTTP/2: the calls of one connection, [`WINDOW`] at a
/// time.
struct OverGrpc {
    stream: UnixStream,
    question: Vec<u8>,
    next: u32,
}

impl OverGrpc {
    fn connect(socket: &Path, client: &Party) -> Box<dyn Asker> {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let window = (1_u32 << 30).to_be_bytes();
        stream.write_all(PREFACE).unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        stream.write_all(&frame(WINDOW_UPDATE, 0, 0, &window)).unwrap();
        let question = grpc::prefixed(&grpc::about(escaped_pem(&client.der).as_bytes()));
        Box::new(Self { stream, question, next: 1 })
    }
}

impl Asker for OverGrpc {
    fn ask(&mut self) -> Vec<bool> {
        let head = grpc::head();
        let calls = (0..WINDOW).flat_map(|_| {
            let call = [
                frame(HEADERS, END_HEADERS, self.next, &head),
                frame(DATA, END_STREAM, self.next, &self.question),
            ];
            self.next += 2;
            call.concat()
        });
        self.stream.write_all(&calls.collect::<Vec<_>>()).unwrap();
        let mut answers = Vec::new();
        while answers.len() < usize::try_from(WINDOW).unwrap() {
            let (kind, flags, _, payload) = read_frame(&mut self.stream).unwrap();
            let has = |text: &[u8]| payload.windows(text.len()).any(|window| window == text);
            match kind {
                DATA if payload.is_empty() => {}
                // PERMISSION_DENIED in `CheckResponse.status`.
                DATA if payload[5..].starts_with(&[0x0a, 2, 8, 7]) && has(b"probable") => {
                    answers.push(false);
                }
                DATA if has(b"clean") && !has(b"probable") => answers.push(true),
                DATA | GOAWAY | RST_STREAM => panic!("{kind} {payload:?}"),
                SETTINGS if flags == 0 => {
                    self.stream.write_all(&frame(SETTINGS, 1, 0, &[])).unwrap();
                }
                _ => {}
            }
        }
        answers
    }
}

/// The key of the second client: not in the filter, in it, or in the course of a swap.
const UNLISTED: u32 = 0;
const LISTED: u32 = 1;
const CHANGING: u32 = 2;

/// Swaps the filter under the load of [`CONNECTIONS`] connections, and checks every answer.
fn swap_under_load(host: &str, connect: impl Fn(&Path, &Party) -> Box<dyn Asker> + Sync) {
    let keygate = Authorizer::of(host);
    let path = keygate.pki.path("lost.pkbf");
    write_revision(&path, &[b"one", b"two"], 1);
    let keygate = keygate.start();
    let (state, stop) = (AtomicU32::new(UNLISTED), AtomicBool::new(false));
    let answers: [AtomicUsize; 2] = Default::default();
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for number in 0..CONNECTIONS {
            let is_good = number % 2 == 0;
            let client = if is_good { &keygate.good } else { &keygate.lost };
            let mut asker = connect(&keygate.socket(), client);
            let (state, stop, answers) = (&state, &stop, &answers[number % 2]);
            scope.spawn(move || {
                // A wrong answer stops the test, which waits for answers.
                let _stop = StopAtEnd(stop);
                while !stop.load(Ordering::Relaxed) {
                    let before = state.load(Ordering::SeqCst);
                    let allowed = asker.ask();
                    let after = state.load(Ordering::SeqCst);
                    if is_good {
                        assert!(allowed.iter().all(|allowed| *allowed), "a clean client");
                    } else if before == after && before != CHANGING {
                        let right = before == UNLISTED;
                        assert!(allowed.iter().all(|allowed| *allowed == right), "{before}");
                    }
                    answers.fetch_add(allowed.len(), Ordering::Relaxed);
                }
            });
        }
        let wait_for_answers = || {
            let wanted =
                answers.each_ref().map(|count| count.load(Ordering::Relaxed) + questions());
            wait_for("answers about both clients", || {
                let found = answers.each_ref().map(|count| count.load(Ordering::Relaxed));
                let is_enough = found.iter().zip(&wanted).all(|(found, wanted)| found >= wanted);
                assert!(!stop.load(Ordering::Relaxed), "a wrong answer");
                if is_enough { Ok(()) } else { Err(format!("{found:?} of {wanted:?}")) }
            });
        };
        wait_for_answers();
        let memory = keygate.memory("VmRSS");
        for swap in 1..=SWAPS {
            let is_listed = swap % 2 == 1;
            state.store(CHANGING, Ordering::SeqCst);
            let mut keys = vec![&b"one"[..], b"two"];
            keys.extend(is_listed.then_some(keygate.lost.spki.as_slice()));
            write_revision(&path, &keys, swap + 1);
            keygate.wait_for_generation(u64::from(swap) + 1);
            state.store(if is_listed { LISTED } else { UNLISTED }, Ordering::SeqCst);
            wait_for_answers();
        }
        let grown = keygate.memory("VmRSS").saturating_sub(memory);
        assert!(grown < MAX_GROWTH, "{grown} KiB under load");
    });
    let series =
        |result: &str| format!("keygate_questions_total{{result=\"{result}\",service=\"edge\"}}");
    for result in
        ["malformed", "no_certificate", "oversize", "not_verified", "not_allowed", "draining"]
    {
        assert_eq!(keygate.metric(&series(result)), 0.0, "{result}");
    }
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn every_answer_over_spop_is_right_while_filters_are_swapped() {
    swap_under_load("haproxy", OverSpop::connect);
}

#[test]
fn every_answer_over_http_is_right_while_filters_are_swapped() {
    swap_under_load("caddy", OverHttp::connect);
}

#[test]
fn every_answer_over_grpc_is_right_while_filters_are_swapped() {
    swap_under_load("envoy", OverGrpc::connect);
}
