//! The address for readers: monitoring reads there, and nothing can be changed.
//!
//! Guards: `is_for_readers` in `src/admin/routes.rs`, `src/admin/readers.rs`, `CredentialTable::Readers`.

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};

use crate::support::keygate::keygate;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::{Program, reserved_address};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{TIMEOUT, blocks, output_text, shell, skip, system, wait_until, write_filter};

/// The pages that readers get.
const PAGES: [&str; 10] = [
    "/.well-known/jwks.json",
    "/",
    "/key-uses?worker=0",
    "/livez",
    "/metrics",
    "/readyz",
    "/report",
    "/report.txt",
    "/status",
    "/status.txt",
];
/// The commands, and spellings of them.
const COMMANDS: [&str; 10] = [
    "/drain",
    "/reload",
    "/filters/lost/accept",
    "/lists/lost/accept",
    "/services/test/accept",
    "/%72eload",
    "/metrics/../reload",
    "//reload",
    "/reload/",
    "/RELOAD",
];

fn on_socket(proxy: Proxy) -> Running {
    let socket = format!("unix:{}", proxy.pki.path("readers.sock").display());
    proxy.set("admin.readers.listen", socket).start()
}

/// Requests `url` over the Unix socket. The output begins with the status code.
fn curl(proxy: &Running, arguments: &[&str]) -> String {
    let socket = proxy.pki.path("readers.sock");
    let common = ["-sS", "--path-as-is", "--max-time", "50", "--unix-socket"];
    let format = ["-w", "\n%{http_code}"];
    let socket = [socket.to_str().unwrap()];
    let arguments = [&common[..], &socket, &format, arguments].concat();
    let output = system("curl", &arguments);
    assert!(output.status.success(), "{}", output_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn code(response: &str) -> &str {
    response.rsplit('\n').next().unwrap()
}

#[test]
fn readers_get_every_page_and_no_command_in_any_spelling() {
    let proxy = on_socket(Proxy::new());
    for page in PAGES {
        let url = format!("http://localhost{page}");
        assert_eq!(code(&curl(&proxy, &[&url])), "200", "{page}");
        assert_eq!(code(&curl(&proxy, &["-I", &url])), "200", "HEAD {page}");
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
            let response = curl(&proxy, &["-X", method, &url]);
            assert_eq!(code(&response), "405", "{method} {page}");
        }
    }
    let json = ["-H", "Content-Type: application/json"];
    for path in COMMANDS {
        let url = format!("http://localhost{path}");
        let of_path = |arguments: &[&str]| curl(&proxy, &[arguments, &[&url]].concat());
        for method in ["POST", "GET", "PUT", "DELETE", "OPTIONS"] {
            let method = ["-X", method];
            let response = of_path(&[&method[..], &json, &["-d", "{}"]].concat());
            assert!(["403", "404", "405"].contains(&code(&response)), "{method:?} {path}");
        }
        assert!(["403", "404"].contains(&code(&of_path(&["-I"]))), "HEAD {path}");
        for header in ["X-HTTP-Method-Override: POST", "X-Original-URL: /reload"] {
            let response = of_path(&["-H", header]);
            assert!(["403", "404"].contains(&code(&response)), "{header} {path}");
        }
        let target = format!("http://127.0.0.1{path}");
        let absolute = ["--request-target", &target, "-X", "POST", "-d", "{}"];
        let response = of_path(&[&absolute[..], &json].concat());
        assert!(["403", "404", "405"].contains(&code(&response)), "absolute {path}: {response}");
    }
    let drain = [&json[..], &["-d", r#"{"drained":true}"#, "http://localhost/drain"]].concat();
    let response = curl(&proxy, &drain);
    assert!(response.contains("use the address in admin.listen"), "{response}");
    assert_eq!(code(&response), "403");
    // The files were not read again, and the instance still serves.
    assert!(proxy.lines("reload requested by an operator").is_empty());
    assert_eq!(proxy.admin("/readyz").0, 200);
    // The admin address still takes commands.
    assert_eq!(proxy.post("/reload", "application/json", "{}").0, 200);
}

#[test]
fn the_socket_of_readers_belongs_to_its_group() {
    let ids = |option: &str| String::from_utf8(system("id", &[option]).stdout).unwrap();
    // root may give the socket to every group, another user to its last one.
    let all = ids("-G");
    let group = if ids("-u").trim() == "0" { "1" } else { all.split_whitespace().last().unwrap() };
    let proxy = on_socket(Proxy::new().set("admin.readers.socket_group", group));
    let metadata = fs::metadata(proxy.pki.path("readers.sock")).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o660);
    assert_eq!(metadata.gid().to_string(), group);
}

#[test]
fn readers_that_keep_connections_do_not_keep_out_the_admin_address() {
    let proxy = on_socket(Proxy::new());
    let open = || UnixStream::connect(proxy.pki.path("readers.sock")).unwrap();
    let mut idle: Vec<UnixStream> = (0..200).map(|_| open()).collect();
    // The first one was closed to make room.
    let mut first = idle.swap_remove(0);
    first.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(first.read(&mut [0]).unwrap_or_default(), 0);
    for _ in 0..10 {
        assert_eq!(proxy.admin("/readyz").0, 200);
    }
    assert_eq!(code(&curl(&proxy, &["http://localhost/metrics"])), "200");
    // The handshakes of readers take no time of the thread that serves operators.
    let threads = fs::read_dir(format!("/proc/{}/task", proxy.pid())).unwrap();
    let names = threads.map(|it| fs::read_to_string(it.unwrap().path().join("comm")).unwrap());
    assert!(names.into_iter().any(|name| name.trim() == "keygate-readers"));
    // A connection of the admin address is not closed for readers.
    let mut admin = TcpStream::connect(proxy.admin_address()).unwrap();
    let _more: Vec<UnixStream> = (0..200).map(|_| open()).collect();
    assert_eq!(code(&curl(&proxy, &["http://localhost/livez"])), "200");
    admin.set_nonblocking(true).unwrap();
    let waits = admin.read(&mut [0]).unwrap_err();
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock);
}

/// The keys of the files for TLS, each with its file, and the file that it is a copy of.
const FILES: [(&str, &str, &str); 3] = [
    ("certificate", "readers.pem", "server.pem"),
    ("private_key", "readers.key", "server.key"),
    ("client_ca", "readers-ca.pem", "ca.pem"),
];

/// A proxy with TLS towards readers, and the URL of its metrics.
fn with_tls(proxy: Proxy) -> (Running, String) {
    let mut proxy = proxy.set("admin.readers.listen", "127.0.0.1:0");
    for (key, file, of) in FILES {
        fs::copy(proxy.pki.path(of), proxy.pki.path(file)).unwrap();
        proxy = proxy.set(&format!("admin.readers.tls.{key}"), file);
    }
    started(proxy)
}

fn started(proxy: Proxy) -> (Running, String) {
    let running = proxy.start();
    let line = running.wait_for("the address", |it| it["message"] == "listening for readers");
    let address = line["address"].as_str().unwrap();
    let url = format!("https://{address}/metrics");
    (running, url)
}

/// Reads `url` of a server with a certificate of `pki`.
fn over_tls(pki: &Pki, url: &str, client: Option<&Party>) -> Output {
    let ca = pki.path("ca.pem");
    let mut arguments = vec!["-sS", "--fail", "--max-time", "50", "--cacert", ca.to_str().unwrap()];
    if let Some(client) = client {
        arguments.extend(["--cert", client.certificate.to_str().unwrap()]);
        arguments.extend(["--key", client.private_key.to_str().unwrap()]);
    }
    system("curl", &[&arguments[..], &[url]].concat())
}

#[test]
fn readers_over_tls_need_a_certificate_of_the_ca_and_a_key_that_is_not_listed() {
    let proxy = Proxy::new();
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki]);
    let (proxy, url) = with_tls(proxy);
    let output = over_tls(&proxy.pki, &url, Some(&proxy.good));
    assert!(output.status.success(), "{}", output_text(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("keygate_connections"));
    assert!(!over_tls(&proxy.pki, &url, None).status.success(), "without a certificate");
    assert!(!over_tls(&proxy.pki, &url, Some(&proxy.lost)).status.success(), "with a listed key");
    let other = Pki::new().client("other", Kind::P256);
    assert!(!over_tls(&proxy.pki, &url, Some(&other)).status.success(), "of another CA");
    let reload = url.replace("/metrics", "/reload");
    let output = over_tls(&proxy.pki, &reload, Some(&proxy.good));
    assert!(output_text(&output).contains("403"), "{}", output_text(&output));
    let plain = system("curl", &["-sS", "--max-time", "50", &url.replace("https", "http")]);
    assert!(!plain.status.success(), "without TLS");
}

/// The commands of the page, on loopback.
#[test]
fn openssl_makes_the_certificates_of_readers_as_the_page_says() {
    if skip::without("openssl") {
        return;
    }
    let page = include_str!("../../../docs/operations.md");
    let section = page.split_once("### Address for readers\n").unwrap().1;
    let section = section.split_once("\n### ").unwrap().0.replace("10.0.0.5", "127.0.0.1");
    let [certificates, reading] = &blocks(&section, "sh")[..] else { panic!("{section}") };
    let proxy = Proxy::new();
    shell(proxy.pki.directory(), certificates);
    let mut proxy = proxy.set("admin.readers.listen", "127.0.0.1:0");
    for (key, file, _) in FILES {
        proxy = proxy.set(&format!("admin.readers.tls.{key}"), file);
    }
    let (proxy, url) = started(proxy);
    let address = url.trim_start_matches("https://").trim_end_matches("/metrics");
    let reading = reading.replace("127.0.0.1:9465", address);
    let text = output_text(&shell(proxy.pki.directory(), &reading));
    assert!(text.contains("keygate_connections") && text.contains("1 of 1 instances"), "{text}");
}

#[test]
fn prometheus_scrapes_with_the_job_of_the_packages_and_not_with_a_listed_key() {
    if skip::without("prometheus") {
        return;
    }
    let (proxy, url) = with_tls(Proxy::new());
    let address = url.trim_start_matches("https://").trim_end_matches("/metrics");
    for (client, up) in [(&proxy.good, 1), (&proxy.lost, 0)] {
        let directory = proxy.pki.path(&format!("up-{up}"));
        fs::create_dir_all(directory.join("keygate")).unwrap();
        for (of, name) in [
            (&proxy.pki.path("ca.pem"), "ca.pem"),
            (&client.certificate, "prometheus.pem"),
            (&client.private_key, "prometheus.key"),
        ] {
            fs::copy(of, directory.join("keygate").join(name)).unwrap();
        }
        let job = fs::read_to_string("deploy/prometheus/scrape.yml").unwrap();
        assert!(job.contains("10.0.0.5:9465"), "{job}");
        let job = job.replace("10.0.0.5:9465", address);
        let file = directory.join("prometheus.yml");
        fs::write(
            &file,
            format!("global: {{ scrape_interval: 500ms, scrape_timeout: 500ms }}\n{job}"),
        )
        .unwrap();
        let own = reserved_address();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address={own}"));
        let _prometheus = Program::start(&mut command).listening_on(own);
        let api = format!("http://{own}/api/v1/query?query=up");
        let wanted = format!("\"{up}\"]");
        wait_until("a scrape", || {
            let output = system("curl", &["-sS", &api]);
            String::from_utf8_lossy(&output.stdout).contains(&wanted)
        });
    }
}

#[test]
fn changed_files_of_readers_take_effect_and_a_bad_file_keeps_the_last_good_one() {
    let (proxy, url) = with_tls(Proxy::new());
    let (old, new) = (&proxy.pki, Pki::named("new"));
    let (good, next) = (&proxy.good, new.client("next", Kind::P256));
    new.server("next-server");
    let reads =
        |server: &Pki, client: &Party| over_tls(server, &url, Some(client)).status.success();
    let reload = || {
        let (code, body) = proxy.post("/reload", "application/json", "{}");
        assert_eq!(code, 200, "{body}");
        body
    };
    assert!(reads(old, good) && !reads(old, &next));
    fs::copy(new.path("ca.pem"), old.path("readers-ca.pem")).unwrap();
    reload();
    assert!(!reads(old, good) && reads(old, &next), "the CA");
    fs::copy(new.path("next-server.pem"), old.path("readers.pem")).unwrap();
    fs::copy(new.path("next-server.key"), old.path("readers.key")).unwrap();
    reload();
    assert!(!reads(old, &next) && reads(&new, &next), "certificate and key");
    let metrics = || proxy.admin("/metrics").1;
    let is_usable = |unit: &str, value: u8| {
        let labels = format!("{{files=\"{unit}\",service=\"[admin.readers]\"}} {value}");
        metrics().lines().any(|line| {
            line.starts_with("keygate_credential_last_reload_successful") && line.ends_with(&labels)
        })
    };
    for (key, file, _) in FILES {
        let before = fs::read(old.path(file)).unwrap();
        fs::write(old.path(file), "no PEM").unwrap();
        let rejected = reload();
        let problem = format!("admin.readers: tls.{key} ");
        assert!(rejected.contains(&problem), "{rejected}");
        assert!(proxy.admin("/status.txt").1.contains(&problem), "the status names {key}");
        assert!(reads(&new, &next) && !reads(&new, good), "the last good {key} is in use");
        let unit = if key == "client_ca" { "asker_ca" } else { "server" };
        assert!(is_usable(unit, 0), "{}", metrics());
        fs::write(old.path(file), before).unwrap();
        assert!(reload().contains("\"rejected\":[]"));
        assert!(is_usable(unit, 1), "{}", metrics());
    }
    // The dates of the files are on the status page and among the metrics.
    assert!(proxy.admin("/status").1.contains("[admin.readers]"));
}

#[test]
fn other_paths_of_readers_need_no_restart_and_without_the_table_nobody_reads() {
    let (proxy, url) = with_tls(Proxy::new());
    let new = Pki::named("new");
    let next = new.client("next", Kind::P256);
    let file = proxy.pki.path("keygate.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::copy(new.path("ca.pem"), proxy.pki.path("next-ca.pem")).unwrap();
    fs::write(&file, text.replace("\"readers-ca.pem\"", "\"next-ca.pem\"")).unwrap();
    let (_, body) = proxy.post("/reload", "application/json", "{}");
    assert!(body.contains("\"restart_needed\":[]"), "{body}");
    let reads = |client: &Party| over_tls(&proxy.pki, &url, Some(client)).status.success();
    assert!(reads(&next) && !reads(&proxy.good));
    let without = proxy.configuration.clone().unset("admin.readers").text();
    assert!(text.contains("readers") && !without.contains("readers"), "{without}");
    fs::write(&file, without).unwrap();
    let (_, body) = proxy.post("/reload", "application/json", "{}");
    assert!(body.contains("\"restart_needed\":[\"admin\"]"), "{body}");
    assert!(!reads(&next) && !reads(&proxy.good));
}

#[test]
fn a_socket_of_readers_may_have_tls_too() {
    let proxy = Proxy::new();
    let socket = proxy.pki.path("readers.sock");
    let mut proxy = proxy.set("admin.readers.listen", format!("unix:{}", socket.display()));
    for (key, _, file) in FILES {
        proxy = proxy.set(&format!("admin.readers.tls.{key}"), file);
    }
    let proxy = proxy.start();
    let socket = ["--unix-socket", socket.to_str().unwrap(), "-sS", "--max-time", "50"];
    let ca = proxy.pki.path("ca.pem");
    let read = |client: &[&str]| {
        let url = ["--cacert", ca.to_str().unwrap(), "https://localhost/livez"];
        system("curl", &[&socket[..], client, &url].concat())
    };
    let (certificate, key) = (&proxy.good.certificate, &proxy.good.private_key);
    let client = ["--cert", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let output = read(&client);
    assert!(output.status.success(), "{}", output_text(&output));
    assert!(!read(&[]).status.success(), "without a certificate");
    let plain = system("curl", &[&socket[..], &["http://localhost/livez"]].concat());
    assert!(!plain.status.success(), "without TLS");
}

#[test]
fn a_configuration_that_lets_every_peer_read_is_rejected() {
    for (settings, problem) in [
        ("listen = \"127.0.0.1:9465\"", "admin.readers.tls: the table is missing"),
        (
            "listen = \"127.0.0.1:9464\"\ntls = { certificate = \"server.pem\", private_key = \"server.key\", client_ca = \"ca.pem\" }",
            "give the readers an address of their own",
        ),
        (
            "listen = \"127.0.0.1:9465\"\ntls = { certificate = \"server.pem\", private_key = \"server.key\", client_ca = \"absent.pem\" }",
            "keygate.toml:1: admin.readers: tls.client_ca",
        ),
    ] {
        let proxy = Proxy::new().set("admin.listen", "127.0.0.1:9464");
        write_filter(&proxy.pki.path("lost.pkbf"), &[]);
        let text = proxy.configuration.add("admin.readers", settings).text();
        let config = proxy.pki.path("keygate.toml");
        fs::write(&config, text).unwrap();
        let output = keygate(&["validate", config.to_str().unwrap()]);
        let printed = output_text(&output);
        assert!(!output.status.success() && printed.contains(problem), "{settings}: {printed}");
    }
}
