//! Commands to the running proxy: `keygate reload` and `keygate drain`.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::keygate::{BINARY, keygate};
use crate::support::origin::Origin;
use crate::support::pki::Pki;
use crate::support::program::reserved_address;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{output_text, system, wait_for, write_filter};

/// Runs `command` with a configuration that names the admin address of `proxy`.
fn run(proxy: &Running, command: &[&str]) -> Output {
    let file = proxy.pki.path("admin.toml");
    std::fs::write(&file, format!("admin.listen = \"{}\"\n", proxy.admin_address())).unwrap();
    keygate(&[command, &["--config", file.to_str().unwrap()]].concat())
}

/// Standard output of a command that ended with `code`.
fn printed(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", output_text(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn parsed(output: &Output, code: i32) -> Value {
    serde_json::from_str(&printed(output, code)).unwrap()
}

#[test]
fn a_reload_waits_until_the_new_files_are_in_use() {
    let proxy = Proxy::new().start();
    proxy.rejects(&proxy.lost);
    let flagging = proxy.configuration.clone().policy("on_probable = \"flag\"");
    std::fs::write(proxy.pki.path("keygate.toml"), flagging.text()).unwrap();
    let shown = printed(&run(&proxy, &["reload"]), 0);
    assert!(shown.ends_with(" is in use, rejected: 0\n"), "{shown}");
    assert_eq!(proxy.status()["services"][0]["on_probable"], "flag");
    proxy.admits(&proxy.lost);
    let line =
        proxy.wait_for("the command", |line| line["message"] == "reload requested by an operator");
    assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
}

#[test]
fn a_reload_prints_each_rejected_file_with_the_whole_reason() {
    let proxy = Proxy::new().workers(2).start();
    let original = proxy.configuration.text();
    let config = proxy.pki.path("keygate.toml");
    let anchors = std::fs::read(proxy.pki.path("ca.pem")).unwrap();
    std::fs::write(&config, format!("wrokers = 2\nlsits = []\n{original}")).unwrap();
    std::fs::write(proxy.pki.path("lost.pkbf"), b"\x1b[31mnot a filter").unwrap();
    std::fs::write(proxy.pki.path("ca.pem"), "no certificate").unwrap();
    let shown = printed(&run(&proxy, &["reload"]), 1);
    let filter =
        format!("filter lost rejected (marker): {}: ", proxy.pki.path("lost.pkbf").display());
    for part in [
        filter.as_str(),
        "configuration rejected: ",
        "keygate.toml:1:1: wrokers: ",
        "did you mean \"workers\"?",
        "keygate.toml:2:1: lsits: ",
        "service test rejected (content): ",
        "ca.pem",
        " is in use, rejected: 3\n",
    ] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    assert_eq!(shown.lines().count(), 4, "{shown}");

    // A rejection stays until the file is good, also if the file has not changed since.
    let again = parsed(&run(&proxy, &["reload", "--json"]), 1);
    let names: Vec<_> =
        again["rejected"].as_array().unwrap().iter().map(|it| &it["kind"]).collect();
    assert_eq!(names, ["configuration", "filter", "service"]);
    assert_eq!((&again["pending"], &again["rejected"][1]["name"]), (&json!(false), &json!("lost")));

    std::fs::write(proxy.pki.path("ca.pem"), anchors).unwrap();
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki]);
    std::fs::write(&config, proxy.configuration.clone().workers(3).text()).unwrap();
    let shown = printed(&run(&proxy, &["reload"]), 0);
    assert!(shown.contains("read at the start only, restart to change them: workers\n"), "{shown}");
    assert_eq!(proxy.status()["restart_needed"], json!(["workers"]));
    std::fs::write(&config, original).unwrap();
    let last = parsed(&run(&proxy, &["reload", "--json"]), 0);
    assert_eq!((&last["rejected"], &last["restart_needed"]), (&json!([]), &json!([])));
}

#[test]
fn a_reload_names_the_command_that_fetches_a_missing_list() {
    let proxy = Proxy::new().start();
    let config = proxy.pki.path("keygate.toml");
    let list = "[[lists]]\nname = \"public\"\nformat = \"badkeys\"\npath = \"blocklist.dat\"\n";
    let configuration = proxy.configuration.clone().global(list);
    let text = configuration.set("lists.source.url", "https://lists.example/a.json").text();
    std::fs::write(&config, text).unwrap();
    let shown = printed(&run(&proxy, &["reload"]), 1);
    let remedy = format!("run `keygate fetch --config {}`", config.display());
    assert!(shown.contains(&remedy), "{shown}");
}

#[test]
fn a_proxy_that_is_not_reached_is_an_error_with_its_address() {
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("keygate.toml");
    let address = reserved_address();
    std::fs::write(&file, format!("admin.listen = \"{address}\"\n")).unwrap();
    let nowhere = directory.path().join("nowhere.sock");
    let socket = directory.path().join("unix.toml");
    std::fs::write(&socket, format!("admin.listen = \"unix:{}\"\n", nowhere.display())).unwrap();
    for command in ["reload", "drain"] {
        let output = keygate(&[command, file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(&format!("the admin address {address}: ")), "{error}");
        let output = keygate(&[command, socket.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        assert!(output_text(&output).contains("nowhere.sock"), "{}", output_text(&output));
        let output = keygate(&[command, "/nowhere/keygate.toml"]);
        assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
        let output = keygate(&[command, "--no-such-option"]);
        assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
    }
}

#[test]
fn a_drained_proxy_is_not_ready_and_serves_until_the_drain_is_undone() {
    let proxy = Proxy::new().start();
    let mut open = proxy.connect();
    let mut get = || {
        open.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let head = open.head().to_lowercase();
        open.exactly(6);
        head
    };
    assert!(!get().contains("connection: close"));
    assert_eq!(proxy.metric("keygate_drained"), 0.0);
    assert_eq!(proxy.status()["drained"], Value::Null);

    assert!(printed(&run(&proxy, &["drain"]), 0).starts_with("drained: /readyz fails"));
    assert_eq!(proxy.admin("/readyz"), (503, "drained by an operator\n".to_owned()));
    assert_eq!(proxy.admin("/livez").0, 200);
    let health = run(&proxy, &["healthcheck", "--timeout", "1m"]);
    assert_eq!(health.status.code(), Some(1), "{}", output_text(&health));
    assert_eq!(proxy.metric("keygate_drained"), 1.0);
    let status = proxy.status();
    assert_eq!(
        (&status["ready"], &status["not_ready"]),
        (&json!(false), &json!("drained by an operator"))
    );
    assert!(status["drained"]["since"].is_u64(), "{status}");
    let line = proxy.wait_for("the command", |line| {
        line["message"] == "drained by an operator, readiness fails"
    });
    assert_eq!(line["peer"], status["drained"]["peer"]);
    wait_for("the workers", || {
        let mut client = proxy.connect();
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let head = client.head().to_lowercase();
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        if head.contains("connection: close") { Ok(()) } else { Err(head) }
    });
    proxy.admits(&proxy.good);
    assert_eq!(printed(&run(&proxy, &["drain"]), 0), "drained already\n");

    assert_eq!(printed(&run(&proxy, &["drain", "--undo"]), 0), "no longer drained\n");
    assert_eq!(proxy.admin("/readyz").0, 200);
    assert_eq!(proxy.metric("keygate_drained"), 0.0);
    assert_eq!(proxy.status()["drained"], Value::Null);
    proxy.wait_for("the command", |line| line["message"] == "drain undone by an operator");
    let again = parsed(&run(&proxy, &["drain", "--undo", "--json"]), 0);
    assert_eq!(again, json!({"drained": false, "changed": false}));
    wait_for("the workers", || {
        let mut client = proxy.connect();
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let head = client.head().to_lowercase();
        if head.contains("connection: close") { Err(head) } else { Ok(()) }
    });
}

#[test]
fn a_shutdown_is_not_undone_by_a_command() {
    let proxy = Proxy::new().set("shutdown.readiness_delay", "1h").start();
    printed(&run(&proxy, &["drain"]), 0);
    proxy.signal("TERM");
    proxy.wait_for("the delay", |line| line["message"] == "no longer ready");
    for command in [&["drain", "--undo"][..], &["drain"]] {
        let output = run(&proxy, command);
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        assert!(output_text(&output).contains("the proxy is shutting down"));
    }
    assert_eq!(proxy.admin("/readyz"), (503, "shutting down\n".to_owned()));
}

#[test]
fn only_a_post_with_json_that_no_browser_sent_changes_something() {
    let proxy = Proxy::new().start();
    let json = "application/json";
    for (path, body) in [("/reload", "{}"), ("/drain", "{\"drained\":true}")] {
        assert_eq!(proxy.admin(path).0, 405, "{path}");
        assert_eq!(proxy.post(path, "text/plain", body).0, 415, "{path}");
        for wrong in ["", "{\"other\":1}", "{\"drained\":\"yes\"}"] {
            assert_eq!(proxy.post(path, json, wrong).0, 400, "{path} {wrong}");
        }
        for header in ["Origin: http://127.0.0.1", "Sec-Fetch-Site: same-origin"] {
            let content_type = format!("{json}\r\n{header}");
            assert_eq!(proxy.post(path, &content_type, body).0, 403, "{path} {header}");
        }
        // The name of another site was made to resolve to this address.
        let url = format!("http://{}{path}", proxy.admin_address());
        let headers = ["-H", "host: evil.example", "-H", "content-type: application/json"];
        let response = system("curl", &[&["-s", "-i", &url, "-d", body], &headers[..]].concat());
        let response = output_text(&response);
        assert!(response.contains("421 Misdirected Request"), "{response}");
    }
    assert_eq!(proxy.admin("/readyz").0, 200);
    assert_eq!(proxy.lines("reload requested by an operator").len(), 0);
    assert_eq!(proxy.post("/reload", json, "{}").0, 200);
}

#[test]
fn the_commands_work_over_a_unix_socket_that_the_environment_names() {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[b"a key"]);
    let socket = pki.path("admin.sock");
    let text = crate::support::proxy::Configuration::new(Origin::start().address())
        .set("admin.listen", format!("unix:{}", socket.display()));
    let config = pki.path("keygate.toml");
    std::fs::write(&config, text.text()).unwrap();
    let command = |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(arguments).env("KEYGATE_CONFIG", &config);
        command
    };
    let mut child = command(&["run"]).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the socket", || UnixStream::connect(&socket).map_err(|error| error.to_string()));
    for (arguments, shown) in [
        (&["healthcheck", "--timeout", "1m"][..], ""),
        (&["drain"], "drained: /readyz fails, and clients are served until the process ends\n"),
        (&["drain", "--undo"], "no longer drained\n"),
        (&["reload"], "snapshot 1 is in use, rejected: 0\n"),
    ] {
        assert_eq!(printed(&command(arguments).output().unwrap(), 0), shown, "{arguments:?}");
    }
    for (arguments, start) in [
        (&["status"][..], "nothing needs attention\n"),
        (&["report"], "0 clients rejected since "),
        (&["validate"], "filter lost: revision "),
        (&["config", "show"], "workers = "),
    ] {
        let shown = printed(&command(arguments).output().unwrap(), 0);
        assert!(shown.starts_with(start), "{arguments:?}: {shown}");
    }
    let status = parsed(&command(&["status", "--json"]).output().unwrap(), 0);
    assert_eq!(status["configuration_path"], json!(config.display().to_string()));
    // An argument and the option come before the variable, and an empty variable counts for
    // nothing.
    for arguments in [&["drain", "/nowhere/a.toml"][..], &["drain", "--config", "/nowhere/a.toml"]]
    {
        let output = command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
        assert!(output_text(&output).contains("/nowhere/a.toml"), "{}", output_text(&output));
    }
    // Without draining a keygate that this machine runs.
    let default = "/etc/keygate/keygate.toml";
    if !Path::new(default).exists() {
        let output = command(&["drain"]).env("KEYGATE_CONFIG", "").output().unwrap();
        assert!(output_text(&output).contains(default), "{}", output_text(&output));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
