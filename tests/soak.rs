//! Mixed traffic for a long time: HTTP/1.1 and HTTP/2, uploads, clients that disconnect, upstreams
//! that fail, and reloads of filters and configurations. No response is wrong, and memory and file
//! descriptors do not grow.
//!
//! Takes five seconds; `KEYGATE_SOAK_SECONDS=600 cargo test --release --test soak` takes ten
//! minutes.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails where it stands"
)]

mod support;

use std::io::{ErrorKind, Write};
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::client::Client;
use support::http2::{Came, END_HEADERS, HEADERS, Http2, RST_STREAM, frame, request};
use support::keygate::Keygate;
use support::load::Load;
use support::origin::Origin;
use support::pki::{Kind, Party, Pki};
use support::proxy::{Configuration, Configure};
use support::{output_text, write_revision};

/// Maximum growth of memory after the first tenth of the test, in KiB.
const MAX_GROWTH: u64 = 16 << 10;
/// Maximum growth of the number of file descriptors, for pooled connections.
const MAX_FILES: usize = 64;

struct Scene {
    pki: Pki,
    keygate: Keygate,
    good: Party,
    lost: Party,
    stop: AtomicBool,
    wrong: Mutex<Vec<String>>,
    done: AtomicUsize,
}

impl Scene {
    fn keep_doing(&self, what: &str, one: impl Fn(&Self) -> Result<(), String>) {
        while !self.stop.load(Ordering::Relaxed) {
            if let Err(problem) = one(self) {
                self.wrong.lock().unwrap().push(format!("{what}: {problem}"));
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn connect(&self) -> Client {
        Client::connect(&self.pki, self.keygate.address(), &self.good)
    }

    fn files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.keygate.pid())).unwrap().count()
    }
}

type Job = fn(&Scene) -> Result<(), String>;

fn check(is_so: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(problem()) }
}

/// A complete body arrives complete, over HTTP/1.1 and HTTP/2.
fn upload(scene: &Scene, version: &str) -> Result<(), String> {
    let body = format!("@{}", scene.pki.path("body").display());
    let response =
        scene.keygate.curl(&scene.good, &[version, "--data-binary", &body, "-w", " %{http_code}"]);
    check(response.stdout == b"3000000 200", || output_text(&response))
}

/// A client whose key is in the filter never gets a response.
fn refused(scene: &Scene) -> Result<(), String> {
    let response = scene.keygate.curl(&scene.lost, &[]);
    check(output_text(&response).contains("access denied"), || output_text(&response))
}

/// A response that the upstream truncates never looks complete.
fn dying(scene: &Scene) -> Result<(), String> {
    let url = format!("https://{}/die", scene.keygate.address());
    let response = scene.keygate.curl(&scene.good, &[&url]);
    check(!response.status.success(), || output_text(&response))
}

/// Clients that disconnect in the handshake, in a head, in a body, in a response, in a stream.
fn going_away(scene: &Scene) -> Result<(), String> {
    drop(std::net::TcpStream::connect(scene.keygate.address()));
    scene.connect().send("GET / HTTP/1.1\r\nHost: loc");
    scene.connect().send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf");
    let mut client = scene.connect();
    client.send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = client.head();
    drop(client);
    let mut client = Http2::connect(&scene.pki, scene.keygate.address(), &scene.good);
    client.send(&frame(HEADERS, END_HEADERS, 1, &request("POST", &[])));
    client.send(&frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()));
    client.send_get(3);
    let came = client.next();
    check(head.starts_with("HTTP/1.1 200 ") && came == Came::Response(0x88, 3), || {
        format!("{head:?} {came:?}")
    })
}

#[test]
fn nothing_goes_wrong_and_nothing_grows() {
    let seconds = std::env::var("KEYGATE_SOAK_SECONDS").map_or(5, |text| text.parse().unwrap());
    let length = Duration::from_secs(seconds);
    let large = vec![b'x'; 8 << 20];
    let origin = Origin::responding(move |request, tcp| {
        let target = request.head.split(' ').nth(1).unwrap();
        match target {
            "/die" => {
                tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nten bytes.")?;
                Err(ErrorKind::ConnectionAborted.into())
            }
            "/large" => {
                write!(tcp, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", large.len())?;
                tcp.write_all(&large)
            }
            _ if request.body.is_empty() => {
                tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
            }
            _ => {
                let text = request.body.len().to_string();
                write!(tcp, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len())
            }
        }
    });
    let pki = Pki::new();
    let [good, lost] = ["good", "lost"].map(|name| pki.client(name, Kind::P256));
    write_revision(&pki.path("lost.pkbf"), &[&lost.spki], 1);
    std::fs::write(pki.path("body"), vec![b'b'; 3_000_000]).unwrap();
    // Millions of lines would slow the test down.
    let configuration = Configuration::new(origin.address())
        .global("log = { level = \"info,keygate::client_key=off,keygate::proxy=off\" }");
    let keygate = configuration.start(&pki);
    let scene = Arc::new(Scene {
        pki,
        keygate,
        good,
        lost,
        stop: AtomicBool::new(false),
        wrong: Mutex::default(),
        done: AtomicUsize::new(0),
    });
    let load = Load::start(scene.keygate.address(), &scene.pki, &scene.good);
    let jobs: [(&str, Job); 5] = [
        ("an upload over HTTP/1.1", |scene| upload(scene, "--http1.1")),
        ("an upload over HTTP/2", |scene| upload(scene, "--http2")),
        ("a refused client", refused),
        ("a dying upstream", dying),
        ("clients that go away", going_away),
    ];
    let threads: Vec<_> = jobs
        .into_iter()
        .map(|(what, job)| {
            let scene = Arc::clone(&scene);
            std::thread::spawn(move || scene.keep_doing(what, job))
        })
        .collect();

    let start = Instant::now();
    let (mut memory, mut files, mut round) = (0, 0, 1);
    while start.elapsed() < length {
        // The interval between replaced files.
        std::thread::sleep(Duration::from_secs(1));
        round += 1;
        origin.taken(|_| true); // or the bodies of all uploads are kept
        write_revision(&scene.pki.path("lost.pkbf"), &[&scene.lost.spki], round);
        if round % 3 == 0 {
            let evict =
                configuration.clone().policy(&format!("evict_within = \"{}s\"", 5 + round % 7));
            let next = scene.pki.path("next.toml");
            std::fs::write(&next, evict.text()).unwrap();
            std::fs::rename(next, scene.pki.path("keygate.toml")).unwrap();
        }
        if memory == 0 && start.elapsed() > length / 10 {
            (memory, files) = (scene.keygate.memory("VmRSS"), scene.files());
        }
    }
    let (memory_now, files_now) = (scene.keygate.memory("VmRSS"), scene.files());
    scene.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(load.failures(), Vec::<String>::new());
    drop(load);
    assert_eq!(*scene.wrong.lock().unwrap(), Vec::<String>::new());
    let done = scene.done.load(Ordering::Relaxed);
    assert!(done > 50, "only {done} things were done");
    assert!(memory_now <= memory + MAX_GROWTH, "{memory} KiB became {memory_now} KiB");
    assert!(files_now <= files + MAX_FILES, "{files} files became {files_now}");
    // All connections are closed.
    scene.keygate.wait_for_metric("keygate_connections_active{service=\"test\"}", 0.0);
    let failed = "keygate_config_reloads_total{result=\"refused\"}";
    assert_eq!(scene.keygate.metric(failed), 0.0);
    let loaded = scene.keygate.metric("keygate_config_reloads_total{result=\"loaded\"}");
    assert!(loaded >= 1.0, "{loaded} configurations were loaded");
    let pid = scene.keygate.pid().to_string();
    assert!(Command::new("kill").args(["-0", &pid]).status().unwrap().success());
    drop(origin);
}
