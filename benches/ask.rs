//! Questions of other proxies: CPU time of one question, questions a second of one worker, and
//! latency at 20,000 questions a second.
//!
//! HAProxy with thousands of requests a second is the real case: a few connections, each with many
//! questions under way. `cargo bench --bench ask` prints for each protocol:
//!
//! * questions a second, and CPU time of keygate for each, while clients keep 64 questions under way
//!   on each of four connections;
//! * the latency at 50 %, 99 % and 99.9 % of questions that are sent at a fixed rate, 20,000 a second,
//!   from the moment at which each was due.
//!
//! keygate has one worker, on the first core. The clients run on the second. `KEYGATE=path` measures
//! another binary. `-- --seconds 2` is shorter.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark may fail loudly"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::pki::{Kind, Pki};
use support::spop::{FRAME_SIZE, arguments, hello, notify};
use support::write_filter;

const CONNECTIONS: usize = 4;
/// Questions under way on each connection.
const WINDOW: usize = 64;
/// Questions a second in the measurement of the latency.
const RATE: u64 = 20_000;
/// Interval of the bursts of that measurement. HAProxy sends what its event loop has collected.
const BURST: Duration = Duration::from_micros(500);

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let seconds = arguments.iter().position(|argument| argument == "--seconds");
    let seconds = seconds.map_or(5, |place| arguments[place + 1].parse().unwrap());
    let time = Duration::from_secs(seconds);
    let bench = Spop::start();
    let (answers, cpu) = bench.most(time);
    println!(
        "spop: {:.0} questions a second, {:.2} µs of CPU for each",
        answers as f64 / time.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / answers as f64
    );
    let (mut latencies, cpu) = bench.paced(time);
    latencies.sort_unstable();
    let at = |permille: usize| latencies[(latencies.len() - 1) * permille / 1000].as_micros();
    println!(
        "spop: at {RATE} a second: 50 % {} µs, 99 % {} µs, 99.9 % {} µs, {:.2} µs of CPU for each",
        at(500),
        at(990),
        at(999),
        cpu.as_secs_f64() * 1e6 / latencies.len() as f64
    );
}

/// keygate with one worker and the questions of a client that is clean.
struct Spop {
    keygate: Child,
    pki: Pki,
    question: Vec<u8>,
}

impl Spop {
    fn start() -> Self {
        let pki = Pki::new();
        let (good, lost) = (pki.client("good", Kind::P256), pki.client("lost", Kind::P256));
        write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
        let configuration = format!(
            "workers = 1\nadmin = {{ listen = \"127.0.0.1:0\" }}\n\
             [[filters]]\nname = \"lost\"\npath = \"lost.pkbf\"\n\
             [[authorizers]]\nname = \"edge\"\nlisten = \"unix:{}\"\nprotocol = \"spop\"\n",
            pki.path("ask.sock").display()
        );
        let file = pki.path("keygate.toml");
        std::fs::write(&file, configuration).unwrap();
        let own = support::keygate::BINARY.to_owned();
        let binary = std::env::var("KEYGATE").unwrap_or(own);
        let mut keygate = Command::new("taskset")
            .args(["-c", "0", &binary, "run", "--config"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(keygate.stderr.take().unwrap());
        let mut lines = log.lines();
        let is_ready = |line: std::io::Result<String>| line.unwrap().contains("\"ready\"");
        assert!(lines.by_ref().any(is_ready), "keygate did not start");
        std::thread::spawn(move || lines.count()); // a full pipe would block the log
        support::system("taskset", &["-cp", "1", &std::process::id().to_string()]);
        let question = notify(300, "keygate-request", &arguments(&good.der));
        Self { keygate, pki, question }
    }

    fn connect(&self) -> UnixStream {
        let mut stream = UnixStream::connect(self.pki.path("ask.sock")).unwrap();
        stream.write_all(&hello(FRAME_SIZE, false)).unwrap();
        assert_eq!(read_frames(&mut stream, &mut Vec::new()), 1);
        stream
    }

    /// The CPU time of keygate until now.
    fn cpu(&self) -> Duration {
        let schedstat = format!("/proc/{}/task", self.keygate.id());
        let tasks = std::fs::read_dir(Path::new(&schedstat)).unwrap();
        let spent = tasks.map(|task| {
            let times = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
            times.split(' ').next().unwrap().parse::<u64>().unwrap()
        });
        Duration::from_nanos(spent.sum())
    }

    /// Answers in `time` to as many questions as keygate answers, and the CPU time of keygate.
    fn most(&self, time: Duration) -> (usize, Duration) {
        let before = self.cpu();
        let end = Instant::now() + time;
        let answers = std::thread::scope(|scope| {
            let clients = (0..CONNECTIONS).map(|_| {
                let mut stream = self.connect();
                scope.spawn(move || {
                    let questions = self.question.repeat(WINDOW);
                    let (mut rest, mut answers) = (Vec::new(), 0);
                    stream.write_all(&questions).unwrap();
                    while Instant::now() < end {
                        let count = read_frames(&mut stream, &mut rest);
                        answers += count;
                        stream.write_all(&questions[..count * self.question.len()]).unwrap();
                    }
                    answers
                })
            });
            clients.collect::<Vec<_>>().into_iter().map(|client| client.join().unwrap()).sum()
        });
        (answers, self.cpu() - before)
    }

    /// The latency of each question of a fixed rate, and the CPU time of keygate.
    fn paced(&self, time: Duration) -> (Vec<Duration>, Duration) {
        let before = self.cpu();
        let bursts = u32::try_from(time.as_micros() / BURST.as_micros()).unwrap();
        let size = usize::try_from(RATE * u64::from(BURST.subsec_micros()) / 1_000_000).unwrap();
        let start = Instant::now() + Duration::from_millis(50);
        let streams: Vec<_> = (0..CONNECTIONS).map(|_| self.connect()).collect();
        let latencies = std::thread::scope(|scope| {
            let readers: Vec<_> = streams
                .iter()
                .enumerate()
                .map(|(number, stream)| {
                    let mut stream = stream.try_clone().unwrap();
                    scope.spawn(move || {
                        let mut rest = Vec::new();
                        let (mut latencies, mut answers) = (Vec::new(), 0);
                        for burst in (u32::try_from(number).unwrap()..bursts).step_by(CONNECTIONS) {
                            let due = start + BURST * burst;
                            while answers < size {
                                answers += read_frames(&mut stream, &mut rest);
                            }
                            answers -= size;
                            latencies.extend(vec![due.elapsed(); size]);
                        }
                        latencies
                    })
                })
                .collect();
            let questions = self.question.repeat(size);
            for burst in 0..bursts {
                let due = start + BURST * burst;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let mut stream = &streams[burst as usize % CONNECTIONS];
                stream.write_all(&questions).unwrap();
            }
            readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
        });
        (latencies, self.cpu() - before)
    }
}

impl Drop for Spop {
    fn drop(&mut self) {
        let _ = self.keygate.kill(); // it may have ended
        let _ = self.keygate.wait();
    }
}

/// Reads what is there and returns the number of whole frames; a part of one stays in `rest`.
fn read_frames(stream: &mut UnixStream, rest: &mut Vec<u8>) -> usize {
    let mut bytes = [0; 1 << 16];
    let length = stream.read(&mut bytes).unwrap();
    assert!(length > 0, "keygate has closed the connection");
    rest.extend(&bytes[..length]);
    let (mut start, mut frames) = (0, 0);
    while let Some(length) = rest[start..].first_chunk::<4>() {
        let end = start + 4 + u32::from_be_bytes(*length) as usize;
        if end > rest.len() {
            break;
        }
        (start, frames) = (end, frames + 1);
    }
    rest.drain(..start);
    frames
}
