//! The test acts as the service manager: notifications, the watchdog, inherited sockets, and the
//! unit as systemd's own tools see it.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::keygate::{BINARY, Keygate};
use crate::support::load::Load;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::program::{Program, reserved_address};
use crate::support::proxy::{Configuration, Configure};
use crate::support::threads::{StoppedThread, workers};
use crate::support::{
    TIMEOUT, output_text, skip, system, wait_until, write_filter, write_revision,
};

/// The socket of a service manager, which receives notifications.
struct Manager(UnixDatagram);

impl Manager {
    fn new(pki: &Pki) -> Self {
        let socket = UnixDatagram::bind(pki.path("notify")).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self(socket)
    }

    fn command(&self, watchdog: &str) -> Command {
        let mut command = Command::new(BINARY);
        let address = self.0.local_addr().unwrap();
        command.env("NOTIFY_SOCKET", address.as_pathname().unwrap());
        command.env("WATCHDOG_USEC", watchdog);
        command
    }

    fn next(&self) -> String {
        let mut message = [0; 4096];
        loop {
            match self.0.recv(&mut message) {
                Ok(length) => return String::from_utf8(message[..length].to_vec()).unwrap(),
                // A process that was stopped and goes on.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("no message: {error}"),
            }
        }
    }

    /// The next message that is not `WATCHDOG=1`.
    fn next_notification(&self) -> String {
        std::iter::repeat_with(|| self.next()).find(|message| message != ALIVE).unwrap()
    }

    /// The notifications so far.
    fn all(&self) -> Vec<String> {
        self.0.set_nonblocking(true).unwrap();
        let mut message = [0; 4096];
        let mut all = Vec::new();
        loop {
            match self.0.recv(&mut message) {
                Ok(length) => all.push(String::from_utf8(message[..length].to_vec()).unwrap()),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    self.0.set_nonblocking(false).unwrap();
                    return all;
                }
            }
        }
    }
}

const ALIVE: &str = "WATCHDOG=1\n";

#[test]
fn the_service_manager_is_notified_of_start_reload_and_stop() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    let manager = Manager::new(&pki);
    let mut keygate = Keygate::run_by(
        manager.command("1000000"),
        &pki,
        &Configuration::new(origin.address()).text(),
    );
    assert_eq!(manager.next_notification(), "READY=1\nSTATUS=serving, snapshot 1, services: 1\n");

    write_revision(&pki.path("lost.pkbf"), &[], 2);
    keygate.signal("HUP");
    let message = manager.next_notification();
    let reloading: Vec<&str> = message.lines().collect();
    assert_eq!((reloading[0], reloading[2]), ("RELOADING=1", "STATUS=reloading"));
    let since_boot: f64 = reloading[1].strip_prefix("MONOTONIC_USEC=").unwrap().parse().unwrap();
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    assert!((uptime - since_boot / 1e6).abs() < 60.0, "{since_boot} us, up for {uptime} s");
    // `READY=1` follows when the file, which has just been written, is in use.
    assert_eq!(manager.next_notification(), "READY=1\nSTATUS=serving, snapshot 2, services: 1\n");
    assert_eq!(keygate.status()["generation"], 2);

    while manager.next() != ALIVE {}
    keygate.signal("TERM");
    assert_eq!(manager.next_notification(), "STOPPING=1\nSTATUS=draining\n");
    assert!(keygate.ended().success());
}

/// A thread is stopped as by a debugger, and the others run.
#[test]
fn a_hung_worker_triggers_the_watchdog() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    let manager = Manager::new(&pki);
    let keygate = Keygate::run_by(
        manager.command("1000000"),
        &pki,
        &Configuration::new(origin.address()).text(),
    );
    let stopped = StoppedThread::stop(&workers(&keygate)[0]);

    let hangs = "a worker hangs, watchdog notifications stop";
    // Notifications are read meanwhile, because a full socket takes no more.
    wait_until("the hung worker", || {
        manager.all();
        !keygate.lines(hangs).is_empty()
    });
    manager.all();
    keygate.wait_for_lines("two more looks", 3, |line| line["message"] == hangs);
    let since = manager.all();
    assert!(since.is_empty(), "watchdog notifications were sent: {since:?}");

    drop(stopped);
    while manager.next() != ALIVE {}
}

#[test]
fn a_service_manager_that_reads_nothing_stops_no_thread() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    let manager = Manager::new(&pki);
    // A notification each millisecond fills the queue of the socket.
    let mut keygate = Keygate::run_by(
        manager.command("2000"),
        &pki,
        &Configuration::new(origin.address()).text(),
    );
    let rejected = |line: &Value| line["message"] == "cannot notify the service manager";
    keygate.wait_for("the full queue", rejected);
    assert_eq!(keygate.admin("/livez").0, 200, "the control thread responds");
    keygate.signal("TERM");
    assert!(keygate.ended().success(), "the main thread handles signals");
}

/// Starts a process with this socket as descriptor 3, as systemd does.
fn activated(socket: &TcpListener) -> Command {
    let mut command = Command::new("sh");
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"";
    command.args(["-c", script, BINARY]).stdin(OwnedFd::from(socket.try_clone().unwrap()));
    command
}

fn on(address: SocketAddr, origin: &Origin) -> Configuration {
    Configuration::new(origin.address()).set("services.listen", address.to_string())
}

#[test]
fn a_restart_with_an_inherited_socket_drops_no_client() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let client = pki.client("client", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let text = on(address, &origin).text();
    let mut keygate = Keygate::run_by(activated(&socket), &pki, &text);
    assert_eq!(keygate.address(), address);
    let load = Load::start(address, &pki, &client);
    for _ in 0..3 {
        load.wait_for(100);
        keygate.signal("TERM");
        assert!(keygate.ended().success());
        // Between the two, clients wait in the queue.
        keygate = Keygate::run_by(activated(&socket), &pki, &text);
    }
    load.wait_for(100);
    let failures = load.failures();
    assert!(failures.is_empty(), "{failures:#?}");

    // Every worker accepts from it, also after a configuration without it.
    let elsewhere = reserved_address();
    for (place, generation) in [(elsewhere, 2), (address, 3)] {
        std::fs::write(pki.path("keygate.toml"), on(place, &origin).text()).unwrap();
        keygate.signal("HUP");
        keygate.wait_for_generation(generation);
    }
    let response = keygate.curl(&client, &[]);
    assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
}

#[test]
fn an_inherited_socket_without_a_configured_address_is_an_error_that_names_both() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = pki.path("keygate.toml");
    std::fs::write(&config, on("127.0.0.1:8443".parse().unwrap(), &origin).text()).unwrap();
    let output = activated(&socket).args(["run", "--config"]).arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
    let printed = String::from_utf8_lossy(&output.stderr);
    let address = socket.local_addr().unwrap();
    assert!(printed.contains(&format!("listens on {address}")), "{printed}");
    assert!(printed.contains("listens on 127.0.0.1:8443, 127.0.0.1:0 (admin)"), "{printed}");

    // The admin address is one of them.
    let text = on("127.0.0.1:0".parse().unwrap(), &origin);
    let text = text.set("admin.listen", address.to_string()).text();
    let keygate = Keygate::run_by(activated(&socket), &pki, &text);
    assert_eq!(keygate.admin_address(), address);
    assert_eq!(keygate.admin("/readyz").0, 200);
}

#[test]
fn systemd_passes_a_socket_and_starts_keygate_with_the_first_client() {
    if skip::without("systemd-socket-activate") {
        return;
    }
    let (pki, origin) = (Pki::new(), Origin::start());
    let client = pki.client("client", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let address = reserved_address();
    std::fs::write(pki.path("keygate.toml"), on(address, &origin).text()).unwrap();
    let mut command = Command::new("systemd-socket-activate");
    command.args(["--listen", &address.to_string(), BINARY, "run", "--config"]);
    let _keygate = Program::start(command.arg(pki.path("keygate.toml"))).listening_on(address);
    let file = |path: &Path| path.to_str().unwrap().to_owned();
    let (ca, certificate, key) =
        (file(&pki.path("ca.pem")), file(&client.certificate), file(&client.private_key));
    let url = format!("https://{address}/");
    let own = ["-sS", "--max-time", "100", "--cacert", &ca, "--cert", &certificate, "--key", &key];
    let response = system("curl", &[&own[..], &[&url]].concat());
    assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
}

/// In tenths: systemd calls up to 2.0 "OK" with a smile, and up to 4.9 plain "OK".
const MOST_EXPOSED: &str = "20";

#[test]
fn systemd_analyze_finds_no_fault_in_the_unit_and_little_exposure() {
    if skip::without("systemd-analyze") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd");
    let fetch = ["keygate-fetch.service", "keygate-fetch.timer"];
    for name in [&["keygate.service", "keygate.socket"][..], &fetch].concat() {
        let unit = std::fs::read_to_string(units.join(name)).unwrap();
        // The check of the package covers the pages, which the package installs.
        let lines = unit.lines().filter(|line| !line.starts_with("Documentation="));
        let unit = lines.collect::<Vec<_>>().join("\n").replace("/usr/bin/keygate", BINARY);
        std::fs::write(directory.path().join(name), unit).unwrap();
        let path = directory.path().join(name);
        let verified = system("systemd-analyze", &["verify", path.to_str().unwrap()]);
        assert!(
            verified.status.success() && verified.stderr.is_empty() && verified.stdout.is_empty(),
            "{name}: {}",
            output_text(&verified)
        );
    }
    let threshold = format!("--threshold={MOST_EXPOSED}");
    for name in ["keygate.service", "keygate-fetch.service"] {
        let unit = units.join(name);
        let looked = ["security", "--offline=true", &threshold, unit.to_str().unwrap()];
        let looked = system("systemd-analyze", &looked);
        assert!(looked.status.success(), "{}", output_text(&looked));
    }
}
