//! Start and stop of the process: errors name their cause, each kind with its own exit code.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use serde_json::Value;

use crate::support::client::Client;
use crate::support::keygate::{BINARY, Keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::program::reserved_address;
use crate::support::proxy::{Configuration, Configure};
use crate::support::server::Server;
use crate::support::terminal::Terminal;
use crate::support::{TIMEOUT, output_text, skip, system, wait_until, write_filter};

/// Everything that a good configuration needs, and the configuration.
fn good() -> (Pki, Configuration) {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[b"a key"]);
    (pki, Configuration::new("127.0.0.1:9"))
}

/// Runs a command that should end by itself.
fn ends(command: &str, pki: &Pki, configuration: &Configuration) -> Output {
    let path = pki.path("keygate.toml");
    std::fs::write(&path, configuration.text()).unwrap();
    ends_with(&[command, "--config", path.to_str().unwrap()])
}

fn ends_with(arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let id = child.id().to_string();
    let (sender, output) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    output.recv_timeout(TIMEOUT).unwrap_or_else(|_| {
        system("kill", &["-s", "KILL", &id]);
        panic!("keygate {arguments:?} should have ended")
    })
}

/// Checks that the process ended with `code`, served nothing, and printed these parts of an error.
fn complains(output: &Output, code: i32, parts: &[&str]) {
    assert_eq!(output.status.code(), Some(code), "{}", output_text(output));
    assert!(output.stdout.is_empty(), "{}", output_text(output));
    let printed = String::from_utf8_lossy(&output.stderr);
    // A start logs a low limit of descriptors and the files that it has loaded before the error.
    let is_log = |line: &&str| {
        let messages = ["fewer file descriptors than permitted connections", "filter loaded"];
        messages.iter().any(|it| line.contains(&format!("\"message\":\"{it}\"")))
    };
    let message: Vec<&str> = printed.lines().skip_while(is_log).collect();
    let message = message.join("\n");
    assert!(message.starts_with("keygate: "), "{message}");
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

#[test]
fn an_unusable_filter_is_named_with_its_problem() {
    let (pki, text) = good();
    let path = pki.path("lost.pkbf");
    let content = std::fs::read(&path).unwrap();
    let size = content.len();
    let changed = |position: usize, value: u8| {
        let mut changed = content.clone();
        changed[position] = value;
        Some(changed)
    };
    let longer = [&content[..], &[0]].concat();
    for (bad, problem) in [
        (None, "No such file"),
        (Some(Vec::new()), "the file is 0 bytes long, the header alone has 24"),
        (Some(content[..23].to_vec()), "the file is 23 bytes long, the header alone has 24"),
        (changed(5, b'2'), "not a pkbfv1 filter: the file begins with \"pkbfv2\""),
        (Some(content[..size / 2].to_vec()), &*format!("the file is {} bytes long", size / 2)),
        (Some(content[..size - 1].to_vec()), &*format!("the file is {} bytes long", size - 1)),
        (Some(longer), &*format!("the file is {} bytes long", size + 1)),
        (changed(22, 0), "hash count is 0 (header offset 22)"),
        (changed(23, 2), "hash length is 2 (header offset 23), a filter has 3 to 63"),
        (changed(23, 255), "hash length is 255 (header offset 23), a filter has 3 to 63"),
        (changed(23, 63), "its header (hash length 63) requires"),
    ] {
        match bad {
            Some(bad) => std::fs::write(&path, bad).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        for command in ["run", "validate"] {
            let output = ends(command, &pki, &text);
            complains(&output, 3, &["filter \"lost\"", path.to_str().unwrap(), problem]);
        }
    }
}

#[test]
fn a_filter_over_max_size_is_named_with_both_sizes() {
    let (pki, text) = good();
    let path = pki.path("lost.pkbf");
    let size = std::fs::metadata(&path).unwrap().len();
    let with = |limit: u64| text.clone().filter(&format!("max_size = \"{limit}B\""));
    let [found, allowed] =
        [format!("the file is {size} bytes"), format!("max_size allows {} bytes", size - 1)];
    for command in ["run", "validate"] {
        let output = ends(command, &pki, &with(size - 1));
        complains(&output, 3, &["filter \"lost\"", path.to_str().unwrap(), &found, &allowed]);
    }
    assert!(ends("validate", &pki, &with(size)).status.success());
}

#[test]
fn an_invalid_configuration_is_named_with_its_line() {
    let (pki, text) = good();
    let path = pki.path("keygate.toml");
    let path = path.to_str().unwrap();
    for (place, value, problem) in [
        ("filters.colour", "red", "there is no key \"colour\""),
        ("services.upstream.retries", "3", "there is no key \"retries\""),
    ] {
        let changed = text.clone().set(place, value);
        let key = problem.split('"').nth(1).unwrap();
        let line = 1 + changed.text().lines().position(|line| line.contains(key)).unwrap();
        for command in ["run", "validate"] {
            let output = ends(command, &pki, &changed);
            complains(&output, 2, &[&format!("keygate: {path}:{line}:"), problem]);
        }
    }
    for command in ["run", "validate"] {
        let missing = pki.path("missing.toml");
        let missing = missing.to_str().unwrap();
        let output = ends_with(&[command, "--config", missing]);
        complains(&output, 2, &[missing, "cannot read the configuration", "No such file"]);
    }
}

#[test]
fn unusable_certificates_are_named_with_their_configuration_key() {
    let (pki, text) = good();
    let other = pki.server("other");
    let with_key = text.clone().set("services.tls.private_key", "other.key");
    let anchors = |path: &str| text.clone().set("services.client_auth.trust_anchors", path);
    let key = other.private_key.to_str().unwrap();
    std::fs::write(pki.path("empty.pem"), "# none\n").unwrap();
    let empty = pki.path("empty.pem");
    let empty = empty.to_str().unwrap();
    let none = "no certificate, which begins with \"BEGIN CERTIFICATE\" in PEM";
    for command in ["run", "validate"] {
        let output = ends(command, &pki, &with_key);
        complains(&output, 3, &["tls.private_key", key, "does not belong to the certificate"]);
        let output = ends(command, &pki, &anchors("empty.pem"));
        complains(&output, 3, &["client_auth.trust_anchors", empty, none]);
        let output =
            ends(command, &pki, &text.clone().set("services.tls.certificate", "empty.pem"));
        complains(&output, 3, &["tls.certificate", empty, none]);
        let output = ends(command, &pki, &anchors("gone.pem"));
        complains(&output, 3, &["client_auth.trust_anchors", "gone.pem", "No such file"]);
    }
}

#[test]
fn an_address_in_use_is_named() {
    let (pki, text) = good();
    let holder = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let taken = holder.local_addr().unwrap();
    let service = text.clone().set("services.listen", taken.to_string());
    let output = ends("run", &pki, &service);
    complains(&output, 4, &[&format!("cannot listen on {taken}: Address already in use")]);
    assert!(ends("validate", &pki, &service).status.success(), "validate listens nowhere");

    let admin = text.set("admin.listen", taken.to_string());
    let problem = format!("cannot listen on the admin address {taken}: Address already in use");
    complains(&ends("run", &pki, &admin), 4, &[&problem]);
}

#[test]
fn a_second_proxy_does_not_share_the_address_of_the_first() {
    let (pki, text) = good();
    let client = pki.client("client", Kind::P256);
    let origin = Origin::start();
    let first = Configuration::new(origin.address()).start(&pki);
    let address = first.address();
    let same = text.set("services.listen", address.to_string());
    let output = ends("run", &pki, &same);
    complains(&output, 4, &[&format!("cannot listen on {address}: Address already in use")]);
    assert_eq!(first.curl(&client, &[]).stdout, b"hello\n");
}

#[test]
fn validate_sums_up_a_good_configuration() {
    let (pki, text) = good();
    let output = ends("validate", &pki, &text);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", output_text(&output));
    let summary = String::from_utf8(output.stdout).unwrap();
    for part in [
        "filter lost: revision 1, 1 entry, 2^",
        "service test: 127.0.0.1:0 for any name, to http://127.0.0.1:9",
        "listed: reject, weak: reject, confirmed: reject, probable: reject, cleared: admit, unchecked: reject",
        &format!("{}: valid", pki.path("keygate.toml").display()),
    ] {
        assert!(summary.contains(part), "{part:?} is not in {summary:?}");
    }
}

/// An origin that responds when the test sends on the channel.
fn waiting_origin() -> (Origin, std::sync::mpsc::Sender<()>) {
    let (sender, go) = channel();
    let go = Mutex::new(go);
    let origin = Origin::responding(move |_, tcp| {
        let _ = go.lock().unwrap().recv(); // the test may have failed
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
    });
    (origin, sender)
}

#[test]
fn sigterm_lets_requests_in_flight_finish_and_ends_with_zero() {
    let (pki, _) = good();
    let client = pki.client("client", Kind::P256);
    let (origin, go) = waiting_origin();
    let text = Configuration::new(origin.address()).global("shutdown = { drain_timeout = \"1h\" }");
    let mut keygate = text.start(&pki);
    assert_eq!(keygate.admin("/readyz"), (200, "ready\n".to_owned()));

    std::thread::scope(|scope| {
        let request = scope.spawn(|| keygate.curl(&client, &[]));
        origin.next();
        keygate.signal("TERM");
        keygate.wait_for("the end of accepting", |line| line["message"] == "draining");
        wait_until("readiness to fail", || keygate.admin("/readyz").0 == 503);
        assert_eq!(keygate.status()["ready"], false);
        assert_eq!(keygate.admin("/livez").0, 200);
        wait_until("the address to be closed", || TcpStream::connect(keygate.address()).is_err());
        go.send(()).unwrap();
        let response = request.join().unwrap();
        assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
    });
    assert_eq!(keygate.ended().code(), Some(0));
    assert_eq!(keygate.lines("stopped").len(), 1);
}

/// strace delays the opening of the filter, as a slow disk does.
#[test]
fn sigterm_during_the_first_load_ends_the_process_at_once() {
    if skip::without("strace") {
        return;
    }
    let (pki, text) = good();
    let config = pki.path("keygate.toml");
    std::fs::write(&config, text.text()).unwrap();
    let filter = pki.path("lost.pkbf");
    let mut command = Command::new("strace");
    // With -D, the process that is started is the proxy and not strace.
    command.args(["-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=openat", "-e"]);
    command.args(["inject=openat:delay_enter=90000000", "-P"]).arg(&filter).arg(BINARY);
    command.args(["run", "--config"]).arg(&config).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = KillAtEnd(command.spawn().unwrap());
    let id = child.0.id();
    let status = || std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    wait_until("the signal handlers", || {
        let is_proxy = status().starts_with("Name:\tkeygate\n");
        let caught = status()
            .lines()
            .find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:\t")?, 16).ok());
        is_proxy && caught.is_some_and(|caught| caught & 1 << (15 - 1) != 0)
    });
    assert!(system("kill", &["-s", "TERM", &id.to_string()]).status.success());
    let mut log = String::new();
    std::io::Read::read_to_string(&mut child.0.stderr.take().unwrap(), &mut log).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(0), "{log}");
    assert!(log.contains("\"message\":\"stopped during the start\""), "{log}");
    assert!(!log.contains("\"message\":\"ready\""), "{log}");
}

#[test]
fn while_readiness_fails_clients_are_served_and_a_second_sigterm_ends_at_once() {
    let (pki, _) = good();
    let client = pki.client("client", Kind::P256);
    let origin = Origin::start();
    let text =
        Configuration::new(origin.address()).global("shutdown = { readiness_delay = \"1h\" }");
    let mut keygate = text.start(&pki);
    assert_eq!(keygate.curl(&client, &[]).stdout, b"hello\n");

    keygate.signal("TERM");
    keygate.wait_for("the delay", |line| line["message"] == "no longer ready");
    wait_until("readiness to fail", || keygate.admin("/readyz").0 == 503);
    let response = keygate.curl(&client, &[]);
    assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));

    keygate.signal("TERM"); // an hour would be too long for the test
    assert_eq!(keygate.ended().code(), Some(0));
    assert_eq!(keygate.lines("second stop signal, exiting at once").len(), 1);
    assert!(keygate.lines("draining").is_empty());
}

/// A drain of five seconds without a word looks like a process that hangs.
#[test]
fn on_a_terminal_the_first_ctrl_c_says_that_a_second_one_stops_at_once() {
    let (pki, _) = good();
    let client = pki.client("client", Kind::P256);
    let (server, address) = (Server::start(), reserved_address());
    let text = Configuration::new(server.address)
        .set("services.listen", address.to_string())
        .set("shutdown.drain_timeout", "1h");
    std::fs::write(pki.path("keygate.toml"), text.text()).unwrap();
    let command = format!("{BINARY} run --config keygate.toml");
    let Some(mut terminal) = Terminal::start(&command, pki.directory()) else { return };
    terminal.wait_for(" ready ");
    let mut connection = Client::connect(&pki, address, &client);
    connection.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let _in_flight = server.connection();
    terminal.interrupt();
    terminal.wait_for("stopping; press Ctrl-C again to stop at once");
    terminal.interrupt(); // an hour would be too long for the test
    assert!(terminal.ended().success());
}

#[test]
fn a_stale_admin_socket_is_replaced_and_one_in_use_is_not() {
    let (pki, text) = good();
    let socket = pki.path("admin.sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists(), "a stale socket stays");
    let text = text.set("admin.listen", format!("unix:{}", socket.display()));
    let config = pki.path("keygate.toml");
    std::fs::write(&config, text.text()).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["run", "--config"]).arg(&config).stderr(Stdio::piped());
    let mut child = KillAtEnd(command.spawn().unwrap());
    let stderr = BufReader::new(child.0.stderr.take().unwrap());
    let mut lines =
        stderr.lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let ready = lines.find(|line| line["message"] == "ready").unwrap();
    assert_eq!(ready["address"], format!("unix:{}", socket.display()));
    assert_eq!(request_page(&socket, "/readyz"), "ready\n");
    assert!(
        request_page(&socket, "/metrics").contains("keygate_filter_revision{filter=\"lost\"} 1\n")
    );

    // The command sends its request over the socket, and no update waits.
    let accept = ends_with(&["filter", "accept", "lost", "--config", config.to_str().unwrap()]);
    complains(&accept, 3, &["lost: no update waits to be accepted"]);
    let health = ["healthcheck", "--config", config.to_str().unwrap()];
    assert_eq!(ends_with(&health).status.code(), Some(0));

    let problem = format!("cannot listen on the admin address unix:{}", socket.display());
    complains(&ends("run", &pki, &text), 4, &[&problem, "Address already in use"]);
    assert_eq!(request_page(&socket, "/readyz"), "ready\n");

    // `validate` and `run` have the same line for a socket that cannot be bound.
    let missing = pki.path("missing");
    let address = format!("unix:{}/a", missing.display());
    let elsewhere = text.clone().set("admin.listen", address.as_str());
    let problem = format!(
        "cannot listen on the admin address unix:{0}/a: there is no directory {0}; create it",
        missing.display()
    );
    complains(&ends("run", &pki, &elsewhere), 4, &[&problem]);
    complains(&ends("validate", &pki, &elsewhere), 4, &[&problem]);
    std::fs::write(&config, text.text()).unwrap();

    drop(child);
    let accept = ends_with(&["filter", "accept", "lost", "--config", config.to_str().unwrap()]);
    let problem =
        format!("the admin address unix:{}: Connection refused; start keygate", socket.display());
    complains(&accept, 3, &[&problem]);
    complains(&ends_with(&health), 1, &[&problem]);
}

struct KillAtEnd(std::process::Child);

impl Drop for KillAtEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn request_page(socket: &Path, path: &str) -> String {
    let url = format!("http://admin{path}");
    let output = system("curl", &["-sS", "--unix-socket", socket.to_str().unwrap(), &url]);
    assert!(output.status.success(), "{}", output_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_limit_of_descriptors_is_raised_and_a_low_one_is_a_warning() {
    if skip::without("prlimit") {
        return;
    }
    let start = |limit: &str, most: u32| {
        let (pki, configuration) = good();
        let configuration = configuration
            .limits(&format!("max_connections = {most}"))
            .upstream(&format!("max_connections = {most}"));
        let mut command = Command::new("prlimit");
        command.args([&format!("--nofile={limit}"), BINARY]);
        let keygate = Keygate::run_by(command, &pki, &configuration.text());
        let warning = keygate.matching_lines(|line| line["needed"].is_number());
        (keygate.metric("process_max_fds"), warning)
    };
    let (limit, warnings) = start("64:600", 100);
    assert_eq!((limit, warnings.len()), (600.0, 0), "{warnings:?}");
    let (limit, warnings) = start("64:600", 200);
    assert_eq!((limit, warnings.len()), (600.0, 1), "{warnings:?}");
    assert_eq!((&warnings[0]["limit"], &warnings[0]["needed"]), (&600.into(), &656.into()));
    assert_eq!(warnings[0]["level"], "WARN");
    assert!(warnings[0]["remedy"].as_str().unwrap().contains("LimitNOFILE="), "{warnings:?}");
}
