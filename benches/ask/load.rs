//! The load: as many questions as keygate answers, or a fixed rate.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use tokio::task::{JoinSet, LocalSet, spawn_local, yield_now};

use super::harness::{quantile, usage};
use super::listener::{AskListener, Revision};
use super::peer::Peer;

/// A run of a listener.
pub struct Run {
    elapsed: Duration,
    /// CPU time of keygate.
    cpu: Duration,
    /// The latency of each question, in ascending order.
    latencies: Vec<Duration>,
}

impl Run {
    /// Questions a second.
    pub fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// Microseconds of CPU time for each question.
    pub fn cpu(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.latencies.len() as f64
    }

    /// Microseconds of latency.
    pub fn latency(&self, permille: usize) -> f64 {
        quantile(&self.latencies, permille).as_secs_f64() * 1e6
    }
}

/// Asks as much as keygate answers, for `time`.
pub fn saturate(listener: &AskListener, time: Duration) -> Run {
    run(listener, async |connections| {
        let end = Instant::now() + time;
        let mut tasks = JoinSet::new();
        for connection in connections {
            tasks.spawn_local(async move { connection.ask_until(end).await });
        }
        tasks.join_all().await.concat()
    })
}

/// Asks `rate` questions a second for `time`, each at its own time, on the connections in turn. The
/// latency of a question begins when it is due, whether or not a connection has room for it. The
/// filter is replaced by each of `revisions` in equal intervals.
pub fn pace(listener: &AskListener, time: Duration, rate: u32, revisions: &[Revision]) -> Run {
    run(listener, async |connections| {
        let count = time.as_secs() as usize * rate as usize;
        let latencies = Rc::new(RefCell::new(Vec::with_capacity(count)));
        for connection in &connections {
            let (connection, latencies) = (Rc::clone(connection), Rc::clone(&latencies));
            spawn_local(async move {
                loop {
                    let answered = connection.answered().await;
                    latencies.borrow_mut().extend(answered);
                }
            });
        }
        let start = Instant::now();
        let (mut turns, mut revisions) = (connections.iter().cycle(), revisions.iter());
        let interval = count / (revisions.len() + 1);
        for number in 0..count as u32 {
            let due = start + Duration::from_secs(1) * number / rate;
            while Instant::now() < due {
                pause().await;
            }
            if number as usize % interval == interval - 1 {
                revisions.next().into_iter().for_each(|revision| revision.put());
            }
            let mut connection = turns.next().unwrap();
            while connection.is_full() {
                pause().await;
                connection = turns.next().unwrap();
            }
            connection.ask(1, due).await;
        }
        while latencies.borrow().len() < count {
            pause().await;
        }
        latencies.take()
    })
}

/// Lets other tasks run, and then sleeps shorter than a timer of tokio. Without a sleep, a load
/// with real-time priority would use its core alone and be stopped for 50 ms of each second
/// (sched(7)).
async fn pause() {
    yield_now().await;
    std::thread::sleep(Duration::from_micros(10));
}

/// Runs `load` over new connections, and checks that keygate has allowed each question.
fn run(
    listener: &AskListener,
    load: impl AsyncFnOnce(Vec<Rc<Connection>>) -> Vec<Duration>,
) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pid = listener.keygate.pid();
    LocalSet::new().block_on(&runtime, async {
        let (connections, window) = listener.protocol.shape();
        let connections =
            (0..connections).map(|_| Rc::new(Connection::open(listener, window))).collect();
        let allowed = listener.allowed();
        let (before, start) = (usage::cpu(pid), Instant::now());
        let mut latencies = load(connections).await;
        let (elapsed, cpu) = (start.elapsed(), usage::cpu(pid) - before);
        let counted = listener.allowed() - allowed;
        assert_eq!(counted, latencies.len() as f64, "a question was not allowed");
        latencies.sort_unstable();
        Run { elapsed, cpu, latencies }
    })
}

/// A connection of a host.
struct Connection {
    stream: UnixStream,
    peer: RefCell<Box<dyn Peer>>,
    /// Most questions under way.
    window: usize,
    /// The times at which the questions under way were due. Answers of HTTP/2 can overtake each
    /// other, so that their latencies are exchanged, too.
    due: RefCell<VecDeque<Instant>>,
    /// Bytes of answers that are not whole.
    rest: Cell<Vec<u8>>,
}

impl Connection {
    fn open(listener: &AskListener, window: usize) -> Self {
        let (stream, peer) = listener.connect();
        stream.set_nonblocking(true).unwrap();
        let stream = UnixStream::from_std(stream).unwrap();
        let peer = RefCell::new(peer);
        Self { stream, peer, window, due: RefCell::default(), rest: Cell::default() }
    }

    fn is_full(&self) -> bool {
        self.due.borrow().len() >= self.window
    }

    /// Sends `count` questions.
    async fn ask(&self, count: usize, due: Instant) {
        let mut bytes = Vec::new();
        for _ in 0..count {
            self.peer.borrow_mut().ask(&mut bytes);
            self.due.borrow_mut().push_back(due);
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            self.stream.writable().await.unwrap();
            rest = match self.stream.try_write(rest) {
                Ok(written) => &rest[written..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => rest,
                Err(error) => panic!("{error}"),
            };
        }
    }

    /// Reads once, and returns the latencies of the answers.
    async fn answered(&self) -> Vec<Duration> {
        let mut bytes = self.rest.take();
        self.stream.readable().await.unwrap();
        bytes.reserve(1 << 16);
        match self.stream.try_read_buf(&mut bytes) {
            Ok(0) => panic!("keygate has closed the connection"),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        let answers = self.peer.borrow_mut().answers(&mut bytes);
        self.rest.set(bytes);
        self.due.borrow_mut().drain(..answers).map(|due| due.elapsed()).collect()
    }

    /// Keeps as many questions under way as it may. At the end, each has its answer.
    async fn ask_until(&self, end: Instant) -> Vec<Duration> {
        let mut latencies = Vec::new();
        self.ask(self.window, Instant::now()).await;
        while !self.due.borrow().is_empty() {
            let answered = self.answered().await;
            if Instant::now() < end {
                self.ask(answered.len(), Instant::now()).await;
            }
            latencies.extend(answered);
        }
        latencies
    }
}
