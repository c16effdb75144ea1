//! `keygate healthcheck` reports readiness by its exit code.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Output;

use tempfile::TempDir;

use crate::support::keygate::keygate;
use crate::support::origin::Origin;
use crate::support::pki::Pki;
use crate::support::program::reserved_address;
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, write_filter};

/// Runs `healthcheck` with a configuration whose files do not exist. A test that examines the
/// timeout sets it.
fn run_healthcheck(configuration: &(impl AsRef<[u8]> + ?Sized), arguments: &[&str]) -> Output {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("keygate.toml");
    std::fs::write(&path, configuration).unwrap();
    let requested = ["healthcheck", "--config", path.to_str().unwrap()];
    let timeout: &[&str] =
        if arguments.contains(&"--timeout") { &[] } else { &["--timeout", "1m"] };
    keygate(&[&requested[..], timeout, arguments].concat())
}

/// The configuration of a proxy whose admin address is this.
fn with_admin(address: &str) -> String {
    Configuration::new("127.0.0.1:9").set("admin.listen", address).text()
}

/// Checks that the command ended with `code` and printed one line with the reason.
fn fails(output: &Output, code: i32, parts: &[&str]) {
    assert_eq!(output.status.code(), Some(code), "{}", output_text(output));
    assert!(output.stdout.is_empty(), "{}", output_text(output));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.starts_with("keygate: ") && message.ends_with('\n'), "{message:?}");
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
    if code == 1 {
        assert_eq!(message.lines().count(), 1, "{message:?}");
    }
}

fn is_ready(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", output_text(output));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{}", output_text(output));
}

#[test]
fn a_proxy_is_ready_until_sigterm_and_unreachable_after_its_end() {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let text = Configuration::new(Origin::start().address())
        .global("shutdown = { readiness_delay = \"1h\" }");
    let mut proxy = text.start(&pki);
    let admin = proxy.admin_address();
    is_ready(&run_healthcheck(&with_admin(&admin.to_string()), &[]));

    proxy.signal("TERM");
    proxy.wait_for("the delay", |line| line["message"] == "no longer ready");
    let address = format!("the admin address {admin}: ");
    let draining = run_healthcheck(&with_admin(&admin.to_string()), &[]);
    fails(&draining, 1, &[&address, "503 Service Unavailable: shutting down"]);

    proxy.signal("TERM"); // an hour would be too long for the test
    assert_eq!(proxy.ended().code(), Some(0));
    let gone = run_healthcheck(&with_admin(&admin.to_string()), &[]);
    fails(&gone, 1, &[&address, "Connection refused"]);
}

#[test]
fn a_wildcard_address_is_checked_on_loopback() {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let text = Configuration::new(Origin::start().address());
    let proxy = text.start(&pki);
    let port = proxy.admin_address().port();
    for wildcard in [format!("0.0.0.0:{port}"), format!("[::]:{port}")] {
        is_ready(&run_healthcheck(&with_admin(&wildcard), &[]));
    }
}

/// A running proxy rejects a configuration that it cannot use and stays healthy.
#[test]
fn healthcheck_ignores_errors_elsewhere_in_the_configuration() {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let proxy = Configuration::new(Origin::start().address()).start(&pki);
    let text = with_admin(&proxy.admin_address().to_string());
    for wrong in [
        text.replace("workers = 2", "wrokers = 2"),
        text.replace("\"127.0.0.1:0\"", "\"nowhere\""),
        format!("admin = {{ listen = \"{}\" }}", proxy.admin_address()),
        format!("{text}\nname = \"unterminated\n"),
        text.replace("workers = 2", "workers = = 2"),
    ] {
        is_ready(&run_healthcheck(&wrong, &[]));
    }
}

/// The file is being edited while the process runs. Guard: `src/config/check/admin.rs`.
#[test]
fn half_typed_lines_and_other_encodings_do_not_hide_the_admin_address() {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let proxy = Configuration::new(Origin::start().address()).start(&pki);
    let admin = format!("[admin]\nlisten = \"{}\"\n", proxy.admin_address());
    for wrong in [
        format!("lo\n{admin}"),
        format!("workers = 2\nlog.lev\n{admin}"),
        format!("workers =\n\n{admin}"),
        format!("alpn = [\"h2\"\n{admin}"),
        format!("tls = {{ certificate = \"a\",\n{admin}"),
        format!("[log\nlevel = \"info\"\n{admin}"),
        format!("{admin}lis\n"),
        // The keys of a table whose header is not complete do not belong to the table before it.
        format!("{admin}[[services\nlisten = \"127.0.0.1:1\"\n"),
        format!("{admin}[log]\nlevel = \"info\"\n[log]\nformat = \"json\"\n"),
    ] {
        is_ready(&run_healthcheck(&wrong, &[]));
    }
    let comment = [b"# caf\xe9\n", admin.as_bytes()].concat();
    is_ready(&run_healthcheck(&comment, &[]));
    std::fs::write(pki.path("edited.toml"), [b"lo\n# caf\xe9\n", admin.as_bytes()].concat())
        .unwrap();
    let edited = pki.path("edited.toml");
    for command in ["status", "reload", "drain"] {
        let output = keygate(&[command, "--config", edited.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{command}: {}", output_text(&output));
    }
}

/// The default address could belong to another process.
#[test]
fn an_admin_address_that_a_syntax_error_hides_is_an_error() {
    let text = with_admin("127.0.0.1:9");
    for wrong in [
        text.replace("\"127.0.0.1:9\"", "\"127.0.0.1:9"),
        format!("name = \"\"\"\n{text}"),
        "[admin\nlisten = 127.0.0.1:9\n".to_owned(),
        "[admin]\nlis\n".to_owned(),
        "[admin]\nlisten\n".to_owned(),
        "admin.lis\nworkers = 2\n".to_owned(),
        "hunter2\n".to_owned(),
    ] {
        assert_ne!(wrong, text);
        fails(&run_healthcheck(&wrong, &[]), 2, &["not valid TOML"]);
    }
    let other_byte = b"[admin]\nlisten = \"unix:/run/caf\xe9.sock\"\n";
    fails(
        &run_healthcheck(other_byte, &[]),
        2,
        &["keygate.toml:2:24: not valid TOML: a character"],
    );
}

#[test]
fn a_proxy_that_does_not_respond_in_time_is_not_ready() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = with_admin(&silent.local_addr().unwrap().to_string());
    fails(&run_healthcheck(&text, &["--timeout", "200ms"]), 1, &["no response within 200ms"]);
}

/// A server that writes these bytes to one connection.
fn other_server(response: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        let _ = tcp.read(&mut [0; 1024]).unwrap();
        tcp.write_all(response.as_bytes()).unwrap();
    });
    address
}

#[test]
fn any_other_response_is_not_ready_and_gives_one_line() {
    for (response, problem) in [
        (
            "HTTP/1.1 404 Not Found\r\ncontent-length: 24\r\n\r\n<html>\u{1b}[1m\nnot\nhere\n</>\n",
            "404 Not Found: <html>\\u{1b}[1m",
        ),
        ("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n", "500 Internal"),
        ("+OK redis\r\n", "invalid HTTP version parsed"),
        ("", "the server closed the connection without a response"),
    ] {
        let text = with_admin(&other_server(response).to_string());
        fails(&run_healthcheck(&text, &[]), 1, &[problem]);
    }
}

#[test]
fn a_configuration_without_a_usable_admin_address_has_another_exit_code() {
    let address = reserved_address().to_string();
    for (wrong, problem) in [
        ("admin = [", "keygate.toml:1:10: not valid TOML"),
        (
            "admin = { listne = \"127.0.0.1:1\" }",
            "there is no key \"listne\"; did you mean \"listen\"?",
        ),
        ("admin = { listen = \"localhost\" }", "admin.listen: \"localhost\" is not an address"),
    ] {
        fails(&run_healthcheck(wrong, &[]), 2, &[problem]);
    }
    let missing = keygate(&["healthcheck", "--config", "/nowhere/keygate.toml"]);
    fails(&missing, 2, &["/nowhere/keygate.toml: cannot read the configuration: No such file"]);
    for timeout in ["0s", "2", "soon"] {
        let wrong = run_healthcheck(&with_admin(&address), &["--timeout", timeout]);
        assert_eq!(wrong.status.code(), Some(2), "{}", output_text(&wrong));
    }
}
