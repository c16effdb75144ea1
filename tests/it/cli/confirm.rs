//! Questions of `keygate confirm` and `keygate validate --online` to directories and HTTP servers.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use keygate_core::proof;
use keygate_core::spki::{Fingerprint, related};
use serde_json::{Value, json};

use crate::support::keygate::BINARY;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::reserved_address;
use crate::support::proof_source::{ProofSource, respond};
use crate::support::proxy::{Configuration, Configure, Proxy};
use crate::support::{output_text, wait_for, write_filter};

/// Runs `keygate` in `directory`, which must end with `code`.
fn run(directory: &Path, code: i32, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    let output = command.args(arguments).current_dir(directory).stdin(Stdio::null()).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", output_text(&output));
    output
}

/// The rows of `keygate confirm --json`.
fn confirm(directory: &Path, code: i32, arguments: &[&str]) -> Vec<Value> {
    let output = run(directory, code, &[&["confirm", "--json"], arguments].concat());
    let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn verdicts(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["verdict"].as_str().unwrap()).collect()
}

/// The proofs of a party by their fingerprints, uncompressed first.
fn proofs(party: &Party) -> Vec<(String, String)> {
    let created = proof::create(&party.key).unwrap();
    created.into_iter().map(|it| (it.fingerprint.to_string(), it.json)).collect()
}

/// Status and body of each response, by path.
type Responses = HashMap<String, Vec<(String, String)>>;

/// A source with these responses, status and body, by path. Others are 404.
struct Source {
    address: SocketAddr,
    responses: Arc<Mutex<Responses>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Source {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let source = Self {
            address: listener.local_addr().unwrap(),
            responses: Arc::default(),
            requests: Arc::default(),
        };
        let (responses, requests) = (Arc::clone(&source.responses), Arc::clone(&source.requests));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
                let Some(first) = head.first() else { continue };
                let path = first.split(' ').nth(1).unwrap().trim_start_matches('/').to_owned();
                requests.lock().unwrap().push(head.join("\n"));
                let mut responses = responses.lock().unwrap();
                let waiting = responses.get_mut(&path);
                let (status, body) = match waiting {
                    Some(all) if all.len() > 1 => all.remove(0),
                    Some(all) => all[0].clone(),
                    None => ("404 Not Found".to_owned(), "not known".to_owned()),
                };
                let length = body.len();
                let _ =
                    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
            }
        });
        source
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a response; the last one of a path is repeated.
    fn respond(&self, path: &str, status: &str, body: &str) {
        let mut responses = self.responses.lock().unwrap();
        let response = (status.to_owned(), body.to_owned());
        responses.entry(path.to_owned()).or_default().push(response);
    }

    fn knows(&self, party: &Party) {
        for (fingerprint, proof) in proofs(party) {
            self.respond(&fingerprint, "200 OK", &proof);
        }
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

/// A configuration whose filter has the key of `lost`, with these settings of `[confirm]`.
fn configure(pki: &Pki, lost: &[&Party], settings: &str) {
    let keys: Vec<Vec<u8>> = lost.iter().map(|party| party.spki.clone()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    write_filter(&pki.path("lost.pkbf"), &keys);
    let text = Configuration::new("127.0.0.1:9").global(&format!("[confirm]\n{settings}")).text();
    std::fs::write(pki.path("keygate.toml"), text).unwrap();
}

#[test]
fn keys_in_a_filter_are_confirmed_or_cleared_and_others_are_not_asked_about() {
    let pki = Pki::new();
    let [lost, innocent, clean, canary] =
        ["lost", "innocent", "clean", "canary"].map(|name| pki.client(name, Kind::P256));
    let source = Source::start();
    source.knows(&lost);
    source.knows(&canary);
    let url = source.url();
    configure(&pki, &[&lost, &innocent], &format!("url = \"{url}\"\ncanary = \"canary.pem\""));
    std::fs::create_dir(pki.path("proofs")).unwrap();
    let inputs = ["lost.pem", "innocent.pem", "clean.pem"];
    let options = ["--config", "keygate.toml", "--save", "proofs"];
    let rows = confirm(pki.directory(), 1, &[&options[..], &inputs].concat());
    assert_eq!(verdicts(&rows), ["confirmed", "cleared"]);
    let fingerprint = Fingerprint::of(&lost.spki).to_string();
    let expected = json!({
        "input": "lost.pem", "line": 1, "verdict": "confirmed", "fingerprint": fingerprint,
        "encoding": "presented", "source": url, "saved": format!("proofs/{fingerprint}.jws"),
        "error": null,
    });
    assert_eq!(rows[0], expected);
    assert_eq!(rows[1]["fingerprint"], Fingerprint::of(&innocent.spki).to_string());
    let kept = std::fs::read(pki.path("proofs").join(format!("{fingerprint}.jws"))).unwrap();
    assert!(proof::verify(&kept, &lost.spki).is_ok());

    let requests = source.requests();
    let clean = Fingerprint::of(&clean.spki).to_string();
    assert!(!requests.iter().any(|request| request.contains(&clean)), "{requests:?}");
    assert_eq!(requests.len(), 3, "two keys and the canary: {requests:?}");
    let first = requests[0].to_lowercase();
    assert!(first.starts_with(&format!("get /{fingerprint} http/1.1\n")), "{first}");
    for header in ["user-agent: keygate", "accept: application/json"] {
        assert!(first.contains(header), "{first}");
    }

    // Without a confirmed key the exit code is 0, and --all asks about a key in no filter, too.
    let rows = confirm(pki.directory(), 0, &["--config", "keygate.toml", "innocent.pem"]);
    assert_eq!(verdicts(&rows), ["cleared"]);
    source.requests();
    let rows = confirm(pki.directory(), 0, &["--config", "keygate.toml", "--all", "clean.pem"]);
    assert_eq!(verdicts(&rows), ["cleared"]);
    assert!(source.requests()[0].contains(&clean));
}

#[test]
fn a_dry_run_prints_the_questions_and_asks_nothing() {
    let pki = Pki::new();
    let [lost, _clean] = ["lost", "clean"].map(|name| pki.client(name, Kind::P256));
    let source = Source::start();
    configure(&pki, &[&lost], &format!("url = \"{}\"", source.url()));
    let arguments = ["confirm", "--dry-run", "--config", "keygate.toml", "lost.pem", "clean.pem"];
    let output = run(pki.directory(), 0, &arguments);
    let fingerprint = Fingerprint::of(&lost.spki).to_string();
    let expected = format!("{}/{fingerprint} presented lost.pem:1\n", source.url());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert!(source.requests().is_empty());
    // Without a configuration no filter is known: all encodings of the key are questions.
    let rows = confirm(pki.directory(), 0, &["--dry-run", "--url", &source.url(), "clean.pem"]);
    assert_eq!(rows.len(), 4);
    assert!(source.requests().is_empty());
}

#[test]
fn nothing_is_cleared_by_a_source_that_cannot_be_trusted_with_404() {
    let pki = Pki::new();
    let [lost, canary] = ["lost", "canary"].map(|name| pki.client(name, Kind::P256));
    let source = Source::start();
    let url = source.url();
    let options = ["--config", "keygate.toml", "lost.pem"];
    // A canary that the source does not know.
    configure(&pki, &[&lost], &format!("url = \"{url}\"\ncanary = \"canary.pem\""));
    let rows = confirm(pki.directory(), 3, &options);
    assert_eq!(verdicts(&rows), ["probable"]);
    assert!(rows[0]["error"].as_str().unwrap().starts_with("the check of the canary failed: "));
    // No canary.
    configure(&pki, &[&lost], &format!("url = \"{url}\"\ncanary = \"off\""));
    let rows = confirm(pki.directory(), 0, &options);
    assert_eq!((verdicts(&rows), &rows[0]["error"]), (vec!["probable"], &json!(null)));
    // A directory that is not complete.
    std::fs::create_dir(pki.path("proofs")).unwrap();
    let rows = confirm(pki.directory(), 0, &["--proofs", "proofs", "lost.pem"]);
    assert_eq!(verdicts(&rows), ["probable"]);
    // Another filter has the key as well.
    source.knows(&canary);
    configure(&pki, &[&lost], &format!("url = \"{url}\"\ncanary = \"canary.pem\""));
    assert_eq!(verdicts(&confirm(pki.directory(), 0, &options)), ["cleared"]);
    write_filter(&pki.path("own.pkbf"), &[&lost.spki]);
    let settings = format!(
        "[[filters]]\nname = \"own\"\npath = \"own.pkbf\"\n[confirm]\nfilters = [\"lost\"]\n\
         url = \"{url}\"\ncanary = \"canary.pem\""
    );
    let text = Configuration::new("127.0.0.1:9").global(&settings).text();
    std::fs::write(pki.path("keygate.toml"), text).unwrap();
    assert_eq!(verdicts(&confirm(pki.directory(), 0, &options)), ["probable"]);
}

#[test]
fn a_question_without_an_answer_is_an_exit_code_of_its_own() {
    let pki = Pki::new();
    let [lost, other] = ["lost", "other"].map(|name| pki.client(name, Kind::P256));
    let source = Source::start();
    let options = ["--url", &source.url(), "lost.pem"].map(str::to_owned);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let [first, ..] = <[_; 2]>::try_from(proofs(&lost)).unwrap();
    for (status, body, expected) in [
        ("500 Internal Server Error", "", "500 Internal Server Error"),
        ("400 Bad Request", "", "400 Bad Request"),
        ("302 Found\r\nLocation: /", "", "302 Found"),
        (
            "429 Too Many Requests\r\nRetry-After: 3600",
            "",
            "429 Too Many Requests, again in 3600 s",
        ),
        ("200 OK", "{}", "the proof does not verify: members"),
        ("200 OK", &proofs(&other)[0].1, "the proof does not verify: kid"),
        ("200 OK", &" ".repeat(20_000), "the response is larger than 16 KiB"),
    ] {
        source.responses.lock().unwrap().clear();
        source.respond(&first.0, status, body);
        let rows = confirm(pki.directory(), 3, &options);
        assert_eq!(verdicts(&rows), ["probable"], "{status}");
        let error = rows[0]["error"].as_str().unwrap();
        assert_eq!(error, expected, "{status}");
    }
    // A short pause is waited for.
    source.responses.lock().unwrap().clear();
    source.respond(&first.0, "429 Too Many Requests\r\nRetry-After: 1", "");
    source.respond(&first.0, "200 OK", &first.1);
    assert_eq!(verdicts(&confirm(pki.directory(), 1, &options)), ["confirmed"]);
    // Nothing listens.
    let closed = reserved_address();
    let rows = confirm(pki.directory(), 3, &["--url", &format!("http://{closed}"), "lost.pem"]);
    assert!(rows[0]["error"].as_str().unwrap().contains("refused"), "{rows:?}");
}

#[test]
fn a_bare_fingerprint_is_fetched_and_not_verified() {
    let pki = Pki::new();
    let [lost, other] = ["lost", "other"].map(|name| pki.client(name, Kind::P256));
    std::fs::create_dir(pki.path("proofs")).unwrap();
    std::fs::create_dir(pki.path("saved")).unwrap();
    let fingerprints = [&lost, &other].map(|party| Fingerprint::of(&party.spki).to_string());
    let path = pki.path("proofs").join(&fingerprints[0]);
    std::fs::write(path, &proofs(&lost)[0].1).unwrap();
    std::fs::write(pki.path("list"), fingerprints.join("\n")).unwrap();
    let rows = confirm(pki.directory(), 3, &["--proofs", "proofs", "--save", "saved", "list"]);
    assert_eq!(verdicts(&rows), ["unverified", "unverified"]);
    assert_eq!(rows[0]["error"], "a proof that cannot be verified without the key");
    assert_eq!(rows[0]["saved"], format!("saved/{}.jws", fingerprints[0]));
    assert_eq!((&rows[1]["line"], &rows[1]["saved"]), (&json!(2), &json!(null)));
    assert_eq!(rows[1]["error"], "not known to the source");
    let argument =
        ["--proofs", "proofs", &*fingerprints[0], &format!("sha256:{}", fingerprints[1])];
    let rows = confirm(pki.directory(), 3, &argument);
    assert_eq!(rows[0]["error"], "a proof that cannot be verified without the key");
    assert_eq!(
        (&rows[0]["line"], rows[0]["input"].as_str()),
        (&json!(null), Some(&*fingerprints[0]))
    );
    assert_eq!(rows[1]["error"], "not known to the source");
    // Other commands name it as before.
    let output = run(pki.directory(), 3, &["key", "list"]);
    assert!(output_text(&output).contains("a fingerprint is not a key"));
}

#[test]
fn wrong_usage_of_confirm_is_named() {
    let pki = Pki::new();
    let lost = pki.client("lost", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
    std::fs::write(pki.path("keygate.toml"), Configuration::new("127.0.0.1:9").text()).unwrap();
    for (code, arguments, expected) in [
        (2, &["--config", "keygate.toml", "lost.pem"][..], "has no table [confirm]"),
        (2, &["--url", "ftp://a", "lost.pem"], "is not the URL of a source"),
        (2, &["--url", "https://u:pw@a/b?c", "lost.pem"], "--url \"https://a/b\" is not"),
        (2, &["--url", "http://a", "--config", "keygate.toml", "lost.pem"], "cannot be used with"),
        (2, &["--proofs", "."], "required"),
        (2, &["--url", "http://a.example", "--api-key", "key", "lost.pem"], "in clear text"),
        (3, &["--proofs", "none", "lost.pem"], "confirm.proofs: directory none"),
        (
            3,
            &["--url", "http://127.0.0.1:9", "--save", "none", "lost.pem"],
            "none: No such file or directory; create it",
        ),
        (3, &["--proofs", ".", "none.pem"], "none.pem: No such file"),
        (3, &["--url", "https://a", "--trust-anchors", "none", "lost.pem"], "none"),
    ] {
        let output = run(pki.directory(), code, &[&["confirm"], arguments].concat());
        let shown = output_text(&output);
        assert!(shown.contains(expected), "{arguments:?}: {shown}");
    }
    let long = "x".repeat(70_000);
    let report = format!("{{\"verdict\":\"probable\",\"spki\":\"%\"}}\n{{{long}\n{{\n");
    std::fs::write(pki.path("report"), report).unwrap();
    let output = run(pki.directory(), 3, &["confirm", "--proofs", ".", "report"]);
    let shown = output_text(&output);
    let problems = [
        "report:1: not a line of `keygate report --json`: spki is not base64",
        "report:2: not a line of `keygate report --json`: longer than 64 KiB",
        "report:3: ",
    ];
    assert!(problems.iter().all(|it| shown.contains(it)), "{shown}");
    assert!(!shown.contains("report:4: "), "{shown}");
}

#[test]
fn the_report_of_one_machine_is_confirmed_on_another_and_the_proofs_are_carried_back() {
    let directory = tempfile::tempdir().unwrap();
    let carried = directory.path().join("carried");
    std::fs::create_dir(&carried).unwrap();
    let confirm_table = format!("[confirm]\nproofs = \"{}\"", carried.display());
    let proxy = Proxy::new().policy("on_probable = \"flag\"").global(&confirm_table).start();
    let mut client =
        crate::support::client::Client::connect(&proxy.pki, proxy.address(), &proxy.lost);
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 "));

    // On the machine without a network.
    let config = proxy.configuration.clone();
    let config = config.set("admin.listen", proxy.admin_address().to_string());
    let admin_config = directory.path().join("admin.toml");
    std::fs::write(&admin_config, config.text()).unwrap();
    let report = wait_for("the client in the report", || {
        let arguments = ["report", "--json", "--config", admin_config.to_str().unwrap()];
        let output = run(directory.path(), 0, &arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        if text.contains("\"spki\"") { Ok(text) } else { Err(text) }
    });
    std::fs::write(directory.path().join("report.json"), report).unwrap();

    // On a machine with one.
    let source = Source::start();
    source.knows(&proxy.lost);
    let saved = directory.path().join("saved");
    std::fs::create_dir(&saved).unwrap();
    let options = ["--url", &source.url(), "--save", "saved", "report.json"].map(str::to_owned);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let rows = confirm(directory.path(), 1, &options);
    assert_eq!(verdicts(&rows), ["confirmed"]);
    assert_eq!(source.requests().len(), 1, "the encoding that was found comes first");

    // Back: the open connection of the client ends.
    for entry in std::fs::read_dir(&saved).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, carried.join(path.file_name().unwrap())).unwrap();
    }
    let line =
        proxy.wait_for("the proof", |line| line["message"] == "compromise of a client key proved");
    assert_eq!(line["fingerprint"], rows[0]["fingerprint"]);
    let ended = client.read_to_end();
    assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
}

#[test]
fn validate_asks_the_source_about_its_canary_only_if_told_to() {
    let pki = Pki::new();
    let [lost, canary] = ["lost", "canary"].map(|name| pki.client(name, Kind::P256));
    pki.server("server");
    let source = Source::start();
    let url = source.url();
    configure(&pki, &[&lost], &format!("url = \"{url}\"\ncanary = \"canary.pem\""));
    let validate = |code: i32, arguments: &[&str]| {
        let arguments = [&["validate", "--config", "keygate.toml"], arguments].concat();
        output_text(&run(pki.directory(), code, &arguments))
    };
    let shown = validate(0, &[]);
    let expected = format!("source of proofs {url}: asked about keys in lost; canary canary.pem\n");
    assert!(shown.contains(&expected), "{shown}");
    assert!(source.requests().is_empty());
    let shown = validate(3, &["--online"]);
    assert!(shown.contains("the check of the canary failed") && shown.contains("404"), "{shown}");
    source.knows(&canary);
    let shown = validate(0, &["--online"]);
    assert!(shown.contains(&format!("source of proofs {url}: knows its canary\n")), "{shown}");
    assert_eq!(source.requests().len(), 2);
    configure(&pki, &[&lost], &format!("url = \"{url}\"\ncanary = \"off\""));
    assert!(validate(0, &["--online"]).contains("canary not checked: this source clears no key"));
    assert!(source.requests().is_empty());
}

/// Each failure of the source has its own remedy.
#[test]
fn validate_names_the_remedy_for_each_failure_of_the_source() {
    const ADD: &str = "; add the proofs of the canary to the source, or set confirm.canary";
    const CAS: &str = "; give the CAs of the source in confirm.trust_anchors";
    const NAME: &str = "; correct the name in confirm.url, or check the DNS";
    let (pki, other) = (Pki::new(), Pki::named("Other CA"));
    let [lost, canary] = ["lost", "canary"].map(|name| pki.client(name, Kind::P256));
    pki.server("server");
    let http = |url: &str, rest: &str| format!("url = \"{url}\"\ncanary = \"canary.pem\"\n{rest}");
    let https = |url: &str| http(url, "trust_anchors = \"ca.pem\"\ntimeout = \"1m\"");
    let unused = reserved_address();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    let [foreign, misnamed] = [(&other, "localhost"), (&pki, "elsewhere.example")]
        .map(|(ca, name)| ProofSource::with_tls(&ca.server_for("source", &[name])));
    let of_tls = |source: &ProofSource| format!("https://localhost:{}", source.address().port());
    let answering = |status: &str| {
        let source = ProofSource::start();
        source.reply_to_others(respond(status, "", "{}"));
        source
    };
    let statuses = [
        ("200 OK", "; replace the file by the proof of the canary, or correct confirm.url"),
        ("301 Moved", "; correct confirm.url"),
        ("401 Unauthorized", "; check confirm.api_key"),
        ("404 Not Found", ADD),
        ("429 Slow", "; try again later, or set confirm.api_key"),
        ("503 Oops", "; try again later: the source itself has failed"),
    ];
    let statuses = statuses.map(|(status, remedy)| (answering(status), remedy));
    let mut cases = vec![
        (http(&format!("http://{unused}"), ""), "; start the source, or correct confirm.url"),
        (http(&silent_url, "timeout = \"200ms\""), "; check the network to the source, or raise"),
        (https(&of_tls(&foreign)), CAS),
        (https(&of_tls(&misnamed)), CAS),
        (https("https://keygate.invalid"), NAME),
        ("proofs = \"proofs\"\ndirectory_is_complete = true".to_owned(), ADD),
    ];
    cases.extend(statuses.iter().map(|(source, remedy)| (http(&source.url(), ""), *remedy)));
    std::fs::create_dir(pki.path("proofs")).unwrap();
    for (settings, remedy) in cases {
        configure(&pki, &[&lost], &settings);
        let mut command = Command::new(BINARY);
        command.args(["validate", "--config", "keygate.toml", "--online"]);
        // No top-level domain is named `invalid` (RFC 2606). Without a name server, the resolver of
        // glibc gives up after a second.
        command.current_dir(pki.directory()).env("RES_OPTIONS", "timeout:1 attempts:1");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let shown = output_text(&output);
        assert_eq!(output.status.code(), Some(3), "{settings}: {shown}");
        assert!(shown.contains(remedy), "{settings}: {shown}");
    }
    drop(canary);
}

/// Related encodings are asked about if only they are in the filter.
#[test]
fn the_encoding_in_the_filter_is_asked_about() {
    let pki = Pki::new();
    let lost = pki.client("lost", Kind::P256);
    let (encoding, compressed) = related(&lost.spki).remove(1);
    let source = Source::start();
    source.knows(&lost);
    write_filter(&pki.path("lost.pkbf"), &[&compressed]);
    let confirm_table = format!("[confirm]\nurl = \"{}\"\ncanary = \"off\"", source.url());
    let text = Configuration::new("127.0.0.1:9").global(&confirm_table).text();
    std::fs::write(pki.path("keygate.toml"), text).unwrap();
    let rows = confirm(pki.directory(), 1, &["--config", "keygate.toml", "lost.pem"]);
    assert_eq!(rows[0]["encoding"], encoding.as_str());
    assert_eq!(rows[0]["fingerprint"], Fingerprint::of(&compressed).to_string());
    assert_eq!(source.requests().len(), 1);
}

/// The source may know another encoding than the filter of the machine without a network.
#[test]
fn every_encoding_of_a_key_in_a_report_is_asked_about() {
    let pki = Pki::new();
    let lost = pki.client("lost", Kind::P256);
    let (compressed, proof) = proofs(&lost).remove(1);
    let source = Source::start();
    source.respond(&compressed, "200 OK", &proof);
    let spki = data_encoding::BASE64.encode(&lost.spki);
    let line = json!({ "verdict": "probable", "spki": spki, "encoding": "negated-compressed" });
    std::fs::write(pki.path("report.json"), line.to_string()).unwrap();
    let rows = confirm(pki.directory(), 1, &["--url", &source.url(), "report.json"]);
    assert_eq!(verdicts(&rows), ["confirmed"]);
    assert_eq!(rows[0]["fingerprint"], compressed);
    assert_eq!(source.requests().len(), 3, "until there is a proof");
}

#[test]
fn validate_checks_the_canary_of_a_directory_and_the_permissions_of_an_api_key() {
    let pki = Pki::new();
    let [lost, canary] = ["lost", "canary"].map(|name| pki.client(name, Kind::P256));
    pki.server("server");
    std::fs::create_dir(pki.path("proofs")).unwrap();
    let validate = |code: i32, arguments: &[&str]| {
        let arguments = [&["validate", "--config", "keygate.toml"], arguments].concat();
        output_text(&run(pki.directory(), code, &arguments))
    };
    let directory = "proofs = \"proofs\"\ncanary = \"canary.pem\"\n";
    configure(&pki, &[&lost], directory);
    assert!(validate(0, &["--strict"]).contains("keys in lost; canary off\n"));
    configure(&pki, &[&lost], &format!("{directory}directory_is_complete = true"));
    let shown = validate(2, &["--strict"]);
    assert!(shown.contains("warning: source of proofs proofs: no key is cleared"), "{shown}");
    let (fingerprint, proof) = proofs(&canary).remove(0);
    std::fs::write(pki.path("proofs").join(fingerprint), proof).unwrap();
    let shown = validate(0, &["--strict"]);
    assert!(shown.contains("source of proofs proofs: knows its canary\n"), "{shown}");

    let settings = "url = \"http://127.0.0.1:9\"\ncanary = \"off\"\napi_key = \"api.key\"";
    configure(&pki, &[&lost], settings);
    std::fs::write(pki.path("api.key"), "secret").unwrap();
    let set_mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(pki.path("api.key"), mode).unwrap();
    };
    set_mode(0o600);
    validate(0, &["--strict"]);
    set_mode(0o644);
    let shown = validate(2, &["--strict"]);
    assert!(shown.contains("warning: ") && shown.contains("api.key"), "{shown}");

    // The errors of all files at once.
    for name in ["api.key", "lost.pkbf"] {
        std::fs::remove_file(pki.path(name)).unwrap();
    }
    let shown = validate(3, &[]);
    assert!(shown.contains("lost.pkbf") && shown.contains("api.key"), "{shown}");
}

#[test]
fn a_proof_in_the_state_directory_needs_no_source() {
    let pki = Pki::new();
    let lost = pki.client("lost", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
    let text = Configuration::new("127.0.0.1:9")
        .global("[state]\ndir = \"state\"\n[confirm]\nurl = \"http://127.0.0.1:9\"")
        .text();
    std::fs::write(pki.path("keygate.toml"), text).unwrap();
    std::fs::create_dir_all(pki.path("state/proofs")).unwrap();
    let (fingerprint, proof) = proofs(&lost).remove(0);
    std::fs::write(pki.path(&format!("state/proofs/{fingerprint}.jws")), proof).unwrap();
    let rows = confirm(pki.directory(), 1, &["--config", "keygate.toml", "lost.pem"]);
    assert_eq!(verdicts(&rows), ["confirmed"]);
    assert!(rows[0]["source"].as_str().unwrap().contains("state/proofs/"), "{rows:?}");
}
