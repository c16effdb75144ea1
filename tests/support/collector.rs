//! A collector of traces that decodes exports with the Python packages of OpenTelemetry.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use serde_json::Value;

use super::{TIMEOUT, skip};

/// The interpreter for which `scripts/install-test-packages` installs opentelemetry-proto.
const PYTHON: &str = "target/python/collector/bin/python3";

/// A running collector; ends with the test.
pub struct Collector {
    child: Child,
    pub port: u16,
    received: Mutex<Receiver<Value>>,
}

impl Collector {
    /// Starts a collector that replies with these, such as `200`, `rejects=2`, `silent` or
    /// `unfinished`; the last one is repeated. `None` skips the test.
    pub fn start(replies: &[&str]) -> Option<Self> {
        if skip::unless(Path::new(PYTHON).exists(), &format!("{PYTHON} is not installed")) {
            return None;
        }
        let mut command = Command::new(PYTHON);
        command.arg("tests/programs/otlp_collector.py").args(replies);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.next().expect("the collector ended").unwrap().parse().unwrap();
        let (sender, received) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap()); // the test may have ended
            }
        });
        Some(Self { child, port, received: Mutex::new(received) })
    }

    /// The settings of `[traces]` for this collector: spans are exported at once.
    pub fn settings(&self) -> String {
        format!("endpoint = \"http://127.0.0.1:{}\"\ninterval = \"1ms\"", self.port)
    }

    /// The next export that arrives.
    pub fn next(&self) -> Value {
        let received = self.received.lock().unwrap().recv_timeout(TIMEOUT);
        received.expect("the collector should have received an export")
    }

    /// The spans that arrive, until there are `count`, in no order.
    pub fn spans(&self, count: usize) -> Vec<Value> {
        let mut spans = Vec::new();
        while spans.len() < count {
            let Value::Array(mut more) = self.next()["spans"].take() else { panic!("no spans") };
            spans.append(&mut more);
        }
        assert_eq!(spans.len(), count, "{spans:?}");
        spans
    }

    /// Whether no export has arrived that was not taken. Does not wait.
    pub fn has_nothing(&self) -> bool {
        let received = self.received.lock().unwrap().recv_timeout(std::time::Duration::ZERO);
        received == Err(RecvTimeoutError::Timeout)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}
