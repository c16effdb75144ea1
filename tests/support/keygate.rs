//! The real binary, run as an operator runs it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;

use super::json::strict;
use super::pki::{Party, Pki};
use super::wait::{has_outlasted_linger, wait_for};
use super::{TIMEOUT, output_text, system};

pub const BINARY: &str = env!("CARGO_BIN_EXE_keygate");

/// A running proxy. Ends with the test.
pub struct Keygate {
    child: Child,
    log: Arc<Log>,
    /// Standard output.
    access: Arc<Log>,
    address: SocketAddr,
    admin: SocketAddr,
    ca: PathBuf,
}

/// Every line of the log, as JSON.
#[derive(Default)]
struct Log {
    lines: Mutex<Vec<Value>>,
    more: Condvar,
}

/// Runs the binary to its end. With `--json`, no object that it prints has a member twice.
pub fn keygate(arguments: &[&str]) -> Output {
    let output = system(BINARY, arguments);
    if arguments.contains(&"--json") {
        String::from_utf8_lossy(&output.stdout).lines().for_each(|line| drop(strict(line)));
    }
    output
}

impl Keygate {
    /// Starts with the text of a configuration and waits until it is ready.
    pub fn configured(pki: &Pki, configuration: &str) -> Self {
        Self::run_by(Command::new(BINARY), pki, configuration)
    }

    /// Starts in a directory that has the files of a [`Pki`].
    pub fn in_directory(directory: &Path, configuration: &str) -> Self {
        Self::run_in(Command::new(BINARY), directory, configuration)
    }

    /// Starts without the capabilities by which root overrides file modes.
    pub fn unprivileged(pki: &Pki, configuration: &str) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-dac_override,-dac_read_search", BINARY]);
        let is_root = system("id", &["-u"]).stdout == b"0\n";
        Self::run_by(if is_root { command } else { Command::new(BINARY) }, pki, configuration)
    }

    /// Starts with another command, to which the arguments are added.
    pub fn run_by(command: Command, pki: &Pki, configuration: &str) -> Self {
        Self::run_in(command, pki.directory(), configuration)
    }

    fn run_in(mut command: Command, directory: &Path, configuration: &str) -> Self {
        let path = directory.join("keygate.toml");
        std::fs::write(&path, configuration).unwrap();
        command.args(["run", "--config"]).arg(&path).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Log::default());
        let stderr = child.stderr.take().unwrap();
        let lines = Arc::clone(&log);
        std::thread::spawn(move || lines.read(stderr));
        let access = Arc::new(Log::default());
        let (stdout, lines) = (child.stdout.take().unwrap(), Arc::clone(&access));
        std::thread::spawn(move || lines.read(stdout));
        let ready = log.wait("the proxy to be ready", |line| line["message"] == "ready");
        let address = |line: &Value| line["address"].as_str().unwrap().parse().unwrap();
        let lines = log.lines.lock().unwrap().clone();
        let listening = || lines.iter().filter(|line| line["message"] == "listening");
        let of_service = listening().find(|line| line["authorizer"].is_null());
        let parsed = |line: &Value| line["address"].as_str().unwrap().parse().ok();
        Self {
            // An authorizer may have a Unix socket instead.
            address: of_service
                .map(address)
                .or_else(|| listening().find_map(parsed))
                .unwrap_or_else(|| address(&ready)),
            admin: address(&ready),
            child,
            log,
            access,
            ca: directory.join("ca.pem"),
        }
    }

    /// The address of the first service, or else of the first authorizer over TCP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of an authorizer, or `unix:` and the path of its socket.
    pub fn authorizer_address(&self, name: &str) -> String {
        let wanted = |line: &Value| line["message"] == "listening" && line["authorizer"] == name;
        let line = self.wait_for("the address of an authorizer", wanted);
        line["address"].as_str().unwrap().to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A number of KiB in `/proc/PID/status`, such as `VmRSS`.
    pub fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// CPU time of all threads so far, in ticks of 10 ms.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        // The name of the program in parentheses may have spaces. User and system time are the
        // 14th and the 15th field.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    /// From now on `VmHWM` is the most memory since now.
    pub fn forget_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.pid()), "5").unwrap();
    }

    /// Waits for a line of the log, from the first on.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.log.wait(what, wanted)
    }

    /// Waits for a line of the access log.
    pub fn access_line(&self) -> Value {
        self.access_lines(1).remove(0)
    }

    /// Waits for `count` lines of the access log.
    pub fn access_lines(&self, count: usize) -> Vec<Value> {
        let enough = |lines: &[Value]| (lines.len() >= count).then(|| lines.to_vec());
        self.access.wait_for("a line of the access log", enough)
    }

    /// Waits for `count` log lines that are `wanted`, and returns all of them.
    pub fn wait_for_lines(
        &self,
        what: &str,
        count: usize,
        wanted: impl Fn(&Value) -> bool,
    ) -> Vec<Value> {
        self.log.wait_for(what, |lines| {
            let found: Vec<_> = lines.iter().filter(|line| wanted(line)).cloned().collect();
            (found.len() >= count).then_some(found)
        })
    }

    /// Waits for the snapshot with this number to be in use.
    pub fn wait_for_generation(&self, generation: u64) {
        self.wait_for("a snapshot", |line| {
            line["message"] == "snapshot in use" && line["generation"] == generation
        });
    }

    /// The log lines so far with this `message`.
    pub fn lines(&self, message: &str) -> Vec<Value> {
        self.matching_lines(|line| line["message"] == message)
    }

    /// The lines about state that was not saved. A busy disk is no failure: keygate tries again.
    pub fn failed_saves(&self) -> Vec<Value> {
        const MESSAGES: [&str; 2] =
            ["answers about keys cannot be saved", "cannot save rollback state"];
        self.matching_lines(|line| {
            MESSAGES.iter().any(|message| line["message"] == *message)
                && !line["error"].as_str().unwrap().contains("no result after")
        })
    }

    /// The log lines so far for which `wanted` is true.
    pub fn matching_lines(&self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let lines = self.log.lines.lock().unwrap();
        lines.iter().filter(|line| wanted(line)).cloned().collect()
    }

    /// Status and body of a page of the admin address. A request that takes too long, because the
    /// machine has paused, is repeated.
    pub fn admin(&self, path: &str) -> (u16, String) {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n");
        wait_for("a page of the admin address", || match self.request_admin(&head, "") {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(error.to_string()),
            response => Ok(response.unwrap()),
        })
    }

    /// Status and body of the response of the admin address to a POST.
    pub fn post(&self, path: &str, content_type: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n"
        );
        self.request_admin(&head, body).unwrap()
    }

    fn request_admin(&self, head: &str, body: &str) -> std::io::Result<(u16, String)> {
        let mut tcp = TcpStream::connect(self.admin)?;
        tcp.set_read_timeout(Some(TIMEOUT))?;
        tcp.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes())?;
        let mut response = String::new();
        tcp.read_to_string(&mut response)?;
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        Ok((head[9..12].parse().unwrap(), body.to_owned()))
    }

    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Every series and its value.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let (_, scrape) = self.admin("/metrics");
        let series = scrape.lines().filter(|line| !line.starts_with('#'));
        let series = series.map(|line| line.rsplit_once(' ').unwrap());
        series.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
    }

    /// The value of a series, as `name{label="value"}` with its labels in alphabetical order.
    pub fn metric(&self, series: &str) -> f64 {
        let (_, scrape) = self.admin("/metrics");
        let lines = scrape.lines().filter_map(|line| line.rsplit_once(' '));
        let values: Vec<_> = lines.filter(|(name, _)| *name == series).collect();
        let [(_, value)] = values.as_slice() else { panic!("no series {series} in\n{scrape}") };
        value.parse().unwrap()
    }

    pub fn status(&self) -> Value {
        strict(&self.admin("/status").1)
    }

    /// Polls the status until `wanted` is true: the log line of a change is written a moment before
    /// the status shows it.
    pub fn wait_for_status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, || {
            let status = self.status();
            if wanted(&status) { Ok(status) } else { Err(format!("the status is {status}")) }
        })
    }

    /// Polls a series until it has this value: a client reads its rejection a moment before it is
    /// counted.
    pub fn wait_for_metric(&self, series: &str, value: f64) {
        wait_for(&format!("{series} to be {value}"), || {
            let found = self.metric(series);
            if found.total_cmp(&value).is_eq() { Ok(()) } else { Err(format!("it is {found}")) }
        });
    }

    /// Waits until a counter that keeps growing is at least `value`.
    pub fn wait_for_counter(&self, series: &str, value: f64) {
        wait_for(&format!("{series} to be {value} or more"), || {
            let found = self.metric(series);
            if found >= value { Ok(()) } else { Err(format!("it is {found}")) }
        });
    }

    /// `curl` as a client: quiet, with the body on standard output.
    pub fn curl(&self, client: &Party, arguments: &[&str]) -> Output {
        let url = format!("https://{}/", self.address);
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (ca, cert, key) =
            (text(&self.ca), text(&client.certificate), text(&client.private_key));
        let own = ["--silent", "--show-error", "--max-time", "100", "--cacert", &ca];
        let credentials = ["--cert", &cert, "--key", &key];
        let has_url = arguments.iter().any(|argument| argument.starts_with("https://"));
        let url: &[&str] = if has_url { &[] } else { &[&url] };
        let arguments = [&own[..], &credentials, arguments, url].concat();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let began = Instant::now();
            let output = system("curl", &arguments);
            let is_broken = output_text(&output).contains("Broken pipe");
            // A rejected client that could not read its alert tries again.
            if !is_broken || !has_outlasted_linger(began) || Instant::now() >= deadline {
                return output;
            }
        }
    }

    /// What `curl` shows about a client that is rejected. During a pause of the machine, the
    /// lingering close of the connection ends, and its reset may precede the alert. Such a client
    /// tries again.
    pub fn rejection(&self, client: &Party) -> String {
        wait_for("an alert or a response", || {
            let output = self.curl(client, &[]);
            let text = output_text(&output);
            // In the handshake, while sending, and while receiving.
            let is_failed = matches!(output.status.code(), Some(35 | 55 | 56));
            if is_failed && !text.contains("alert") { Err(text) } else { Ok(text) }
        })
    }

    pub fn signal(&self, signal: &str) {
        let killed = system("kill", &["-s", signal, &self.child.id().to_string()]);
        assert!(killed.status.success());
        if signal == "STOP" {
            wait_for("the stop of all threads", || self.is_stopped());
        }
    }

    /// Whether all threads are stopped. The first thread to run after SIGSTOP stops the others,
    /// which answer until then.
    fn is_stopped(&self) -> Result<(), String> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        for thread in threads {
            let status = std::fs::read_to_string(thread.unwrap().path().join("status"));
            let status = status.map_err(|error| error.to_string())?;
            if !status.contains("\nState:\tT") {
                return Err(status);
            }
        }
        Ok(())
    }

    /// Waits for the end of the process.
    pub fn ended(&mut self) -> ExitStatus {
        // The log ends when the process has: then `wait` returns at once.
        self.log.wait("the end of the log", |line| line["message"] == END);
        self.child.wait().unwrap()
    }
}

impl Drop for Keygate {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
        if std::thread::panicking() {
            let lines = self.log.lines.lock();
            // A wait that timed out panicked while it held the lock.
            for line in lines.unwrap_or_else(PoisonError::into_inner).iter() {
                eprintln!("{line}");
            }
        }
    }
}

/// A line of our own after the last of the log.
const END: &str = "(end of the log)";

impl Log {
    fn read(&self, stderr: impl Read) {
        for line in BufReader::new(stderr).lines() {
            let line = line.unwrap();
            let parsed = serde_json::from_str(&line);
            self.push(parsed.unwrap_or_else(|_| serde_json::json!({ "message": line })));
        }
        self.push(serde_json::json!({ "message": END }));
    }

    fn push(&self, line: Value) {
        self.lines.lock().unwrap().push(line);
        self.more.notify_all();
    }

    fn wait(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.wait_for(what, |lines| lines.iter().find(|line| wanted(line)).cloned())
    }

    fn wait_for<T>(&self, what: &str, wanted: impl Fn(&[Value]) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        let mut lines = self.lines.lock().unwrap();
        loop {
            if let Some(found) = wanted(&lines) {
                return found;
            }
            let ended = lines.last().is_some_and(|line| line["message"] == END);
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!ended && !left.is_zero(), "waited for {what} in vain; the log is {lines:#?}");
            lines = self.more.wait_timeout(lines, left).unwrap().0;
        }
    }
}
