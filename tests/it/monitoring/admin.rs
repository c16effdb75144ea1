//! The admin address under peers that keep its connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::support::keygate::BINARY;
use crate::support::proxy::{Configure, Proxy};
use crate::support::{TIMEOUT, output_text, system, wait_for, write_filter};

/// More connections than the admin address has places.
const CONNECTIONS: usize = 100;

/// Sends requests until the peer takes no more bytes, and reads no response.
fn fill(mut stream: impl Write) {
    let requests = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(50);
    while stream.write_all(requests.as_bytes()).is_ok() {}
}

#[test]
fn probes_and_scrapes_are_served_while_others_pipeline_and_do_not_read() {
    let proxy = Proxy::new().start();
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(proxy.admin_address()).unwrap();
        stream.set_nonblocking(true).unwrap();
        fill(&stream);
        silent.push(stream);
    }
    for path in ["/livez", "/readyz", "/metrics", "/livez"] {
        assert_eq!(proxy.admin(path).0, 200, "{path}");
    }
    // The first ones were closed to make room.
    let mut first = silent.swap_remove(0);
    first.set_nonblocking(false).unwrap();
    first.set_read_timeout(Some(TIMEOUT)).unwrap();
    let ended = first.read_to_end(&mut Vec::new());
    assert!(ended.is_ok() || ended.is_err_and(|error| error.raw_os_error() == Some(104)));
}

#[test]
fn probes_are_served_on_a_unix_socket_while_others_do_not_read() {
    let proxy = Proxy::new();
    let socket = proxy.pki.path("admin.sock");
    let text =
        proxy.configuration.clone().set("admin.listen", format!("unix:{}", socket.display()));
    write_filter(&proxy.pki.path("lost.pkbf"), &[]);
    let config = proxy.pki.path("keygate.toml");
    std::fs::write(&config, text.text()).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["run", "--config"]).arg(&config).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    wait_for("the socket", || UnixStream::connect(&socket).map_err(|error| error.to_string()));
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = UnixStream::connect(&socket).unwrap();
        stream.set_nonblocking(true).unwrap();
        fill(&stream);
        silent.push(stream);
    }
    assert_eq!(page(&socket, "/livez"), "alive\n");
    assert_eq!(page(&socket, "/readyz"), "ready\n");
    child.kill().unwrap();
    child.wait().unwrap();
}

fn page(socket: &Path, path: &str) -> String {
    let url = format!("http://localhost{path}");
    let arguments = ["-sS", "--max-time", "50", "--unix-socket", socket.to_str().unwrap(), &url];
    let output = system("curl", &arguments);
    assert!(output.status.success(), "{}", output_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn idle_connections_of_one_peer_do_not_keep_out_probes_of_another() {
    let proxy = Proxy::new().start();
    let from_other_address = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
        socket.connect(&proxy.admin_address().into()).unwrap();
        socket
    };
    let _idle: Vec<_> = (0..2 * CONNECTIONS).map(|_| from_other_address()).collect();
    let began = Instant::now();
    for _ in 0..10 {
        assert_eq!(proxy.admin("/readyz").0, 200);
    }
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}
