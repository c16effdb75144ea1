//! One view of several instances: `status`, `report` and `evidence` ask all of them.
//!
//! Guards: `src/cli/instances.rs`, `joined` in `src/cli/status.rs`, `of_instances` in
//! `src/cli/report.rs`.

use std::fs::write;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Output;
use std::time::{Duration, Instant};

use keygate_core::spki::Fingerprint;
use serde_json::Value;

use crate::support::client::Client;
use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::output_text;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::reserved_address;
use crate::support::proxy::{Configuration, Configure};

/// Time for a response, and for the responses of all instances.
const TIMES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];

struct Fleet {
    pki: Pki,
    good: Party,
    stolen: Party,
    instances: Vec<Keygate>,
    _origin: Origin,
}

impl Fleet {
    /// Instances with the key of `stolen` on their list. The last one has another list.
    fn new(count: usize, settings: impl Fn(Configuration) -> Configuration) -> Self {
        let (pki, origin) = (Pki::new(), Origin::start());
        let [good, stolen] = ["good", "stolen"].map(|name| pki.client(name, Kind::P256));
        let configuration = Configuration::new(origin.address())
            .unset("filters")
            .global("[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\n");
        let instances = (1..=count).map(|number| {
            // No other program gets the port of an instance that has ended.
            let admin = reserved_address().to_string();
            let text = settings(configuration.clone().set("admin.listen", admin)).text();
            let directory = pki.copied(&format!("instance-{number}"));
            let other = if number == count { "# other\n" } else { "" };
            let list = format!("{other}{}\n", Fingerprint::of(&stolen.spki));
            write(directory.join("deny.txt"), list).unwrap();
            Keygate::in_directory(&directory, &text)
        });
        let instances = instances.collect();
        Self { pki, good, stolen, instances, _origin: origin }
    }

    /// The admin addresses.
    fn addresses(&self) -> Vec<String> {
        self.instances.iter().map(|it| it.admin_address().to_string()).collect()
    }

    fn is_served(&self, instance: usize) {
        let mut client = Client::connect(&self.pki, self.instances[instance].address(), &self.good);
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "));
    }

    fn is_rejected(&self, instance: usize) {
        let output = self.instances[instance].curl(&self.stolen, &[]);
        assert!(output_text(&output).contains("access denied"), "{}", output_text(&output));
    }
}

/// Runs a command for `addresses`, which must end with `code`. Returns its output, and what it
/// wrote to standard error.
fn run(code: i32, command: &[&str], addresses: &[String]) -> (String, String) {
    let admin = addresses.iter().flat_map(|it| ["--admin", it]);
    let output = keygate(&command.iter().copied().chain(admin).collect::<Vec<_>>());
    texts(code, &output)
}

fn texts(code: i32, output: &Output) -> (String, String) {
    assert_eq!(output.status.code(), Some(code), "{}", output_text(output));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_owned()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_dead_instance_and_one_that_never_answers_are_lines_and_the_others_are_one_view() {
    let mut fleet = Fleet::new(4, |it| it);
    let all = fleet.addresses();
    let [first, second, dead, hung] = &all[..] else { panic!("{all:?}") };
    for instance in [0, 0, 1] {
        fleet.is_rejected(instance);
    }
    fleet.is_served(0);
    fleet.is_served(1);
    fleet.instances[2].signal("KILL");
    fleet.instances[2].ended();
    fleet.instances[3].signal("STOP");

    let began = Instant::now();
    let (text, errors) = run(0, &["status"], &all);
    assert!(began.elapsed() < TIMES[1], "{:?}", began.elapsed());
    assert_eq!(errors, "");
    assert!(text.starts_with("2 of 4 instances responded\n"), "{text}");
    let line = |text: &str, address: &str, word: &str| {
        text.lines().any(|line| line.contains(address) && line.contains(word))
    };
    assert!(line(&text, first, ", ready") && line(&text, second, ", ready"), "{text}");
    assert!(line(&text, dead, "no response: the admin address"), "{text}");
    assert!(line(&text, hung, "no response within 10s"), "{text}");
    assert!(text.contains("\nlists\n  deny, entries 1, sha256 "), "{text}");
    assert!(text.contains("\nservices\n  test, "), "{text}");
    assert!(text.matches(", on all\n").count() >= 2, "{text}");

    let (text, errors) = run(0, &["status", "--json"], &all);
    assert_eq!(errors, "");
    let status = json(&text);
    let instances = status["instances"].as_array().unwrap();
    assert_eq!(instances.len(), 4, "{text}");
    assert_eq!(instances[0]["ready"], true, "{text}");
    assert!(instances[2]["error"].is_string() && instances[3]["error"].is_string(), "{text}");
    assert_eq!(status["lists"].as_array().unwrap().len(), 1, "{text}");
    assert_eq!(status["lists"][0]["instances"], serde_json::json!([first, second]));

    let (text, errors) = run(0, &["report"], &all);
    assert!(line(&errors, dead, "the admin address"), "{errors}");
    assert!(line(&errors, hung, "no response within"), "{errors}");
    let fingerprint = Fingerprint::of(&fleet.stolen.spki).to_string();
    assert_eq!(text.matches(&fingerprint).count(), 1, "{text}");
    assert!(text.contains("listed (in deny), reject, 3 times from "), "{text}");
    assert!(text.contains(", on all\n"), "{text}");
    let all = &all[..3]; // the last one takes ten seconds each time
    let (text, _) = run(0, &["report", "--json"], all);
    let row = json(&text);
    assert_eq!(row["count"], 3, "{text}");
    assert_eq!(row["instances"], serde_json::json!([first, second]));
    let (text, _) = run(3, &["report", "--clients"], all); // one is missing
    assert_eq!(text.lines().count(), 2, "a comment and a key: {text}");
    let (text, _) = run(0, &["report", "--classical", "--json"], all);
    assert_eq!(json(&text)["instances"], serde_json::json!([first, second]));

    // Without a response from any instance, the command fails.
    for command in ["status", "report"] {
        let (text, errors) = run(3, &[command], std::slice::from_ref(dead));
        assert!(line(&(text + &errors), dead, "the admin address"), "{command}");
    }
    fleet.instances[3].signal("CONT");
}

#[test]
fn instances_that_differ_have_a_row_each() {
    let fleet = Fleet::new(3, |it| it);
    let all = fleet.addresses();
    fleet.is_rejected(2);
    let (text, _) = run(0, &["status", "--json"], &all);
    let status = json(&text);
    let lists = status["lists"].as_array().unwrap();
    assert_eq!(lists.len(), 2, "{text}");
    assert_eq!(lists[0]["instances"], serde_json::json!(all[..2]));
    assert_eq!(lists[1]["instances"], serde_json::json!(all[2..]));
    let (text, _) = run(0, &["status"], &all);
    assert!(text.contains(&format!(", on {}, {}\n", all[0], all[1])), "{text}");
    let (text, _) = run(0, &["report"], &all);
    assert!(text.contains(&format!(", on {}\n", all[2])), "{text}");
}

#[test]
fn a_file_and_a_host_name_have_instances_too() {
    let fleet = Fleet::new(3, |it| it);
    let all = fleet.addresses();
    let file = fleet.pki.path("instances");
    let port = fleet.instances[0].admin_address().port();
    // An address that is given twice is asked once.
    write(&file, format!("# The fleet\n{}\n\n  {}\n{}\n", all[1], all[2], all[1])).unwrap();
    let host = format!("localhost:{port}");
    let arguments = ["status", "--json", "--instances", file.to_str().unwrap(), "--admin", &host];
    let (text, _) = texts(0, &keygate(&arguments));
    let status = json(&text);
    let answered = status["instances"].as_array().unwrap().iter();
    let answered: Vec<_> = answered.filter(|it| it["error"].is_null()).collect();
    assert_eq!(answered.len(), 3, "{text}");

    // A host without an address is a line, and the others respond.
    write(&file, format!("nosuch.invalid:9464\n{}\n", all[1])).unwrap();
    let (text, _) = texts(0, &keygate(&["status", "--instances", file.to_str().unwrap()]));
    assert!(text.contains("1 of 2 instances responded"), "{text}");
    let is_about = |it: &str| it.contains("nosuch.invalid") && it.contains("correct the name");
    assert!(text.lines().any(is_about), "{text}");
    // The files for TLS are for the instances that are given.
    let (_, errors) = texts(2, &keygate(&["status", "--ca", "a", "--client", "b", "c"]));
    assert!(errors.contains("--admin"), "{errors}");

    let many: String = (0..1001).map(|port| format!("127.0.0.1:{}\n", port + 1)).collect();
    for (content, problem) in [
        (many.as_str(), "more than 1000 instances; ask them in parts"),
        ("10.0.0.1\n", "\"10.0.0.1\": write 10.0.0.1:9464, unix:/PATH or HOST:9464"),
        ("no host:1\n", "\"no host:1\": write"),
    ] {
        write(&file, content).unwrap();
        let (_, errors) = texts(2, &keygate(&["status", "--instances", file.to_str().unwrap()]));
        assert!(errors.contains(problem), "{errors}");
    }
}

#[test]
fn a_response_that_is_too_long_or_no_response_of_keygate_is_a_line() {
    let fleet = Fleet::new(1, |it| it);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let foreign = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (number, tcp) in listener.incoming().enumerate() {
            let mut tcp = tcp.unwrap();
            let _ = tcp.read(&mut [0; 4096]);
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
            let _ = tcp.write_all(head.as_bytes());
            let chunk = if number == 0 { vec![b' '; 1 << 20] } else { b"\x1b[2Jno JSON".to_vec() };
            let count = if number == 0 { 100 } else { 1 };
            (0..count).try_for_each(|_| tcp.write_all(&chunk)).unwrap_or_default();
        }
    });
    let addresses = [foreign.clone(), fleet.addresses().swap_remove(0)];
    for problem in ["length limit exceeded", "unexpected response"] {
        let (text, _) = run(0, &["status"], &addresses);
        assert!(text.starts_with("1 of 2 instances responded\n"), "{text}");
        let line = text.lines().find(|line| line.contains(&foreign)).unwrap();
        assert!(line.contains(problem) && !line.contains('\x1b'), "{line}");
    }
}

#[test]
fn instances_are_read_over_tls_at_their_addresses_for_readers() {
    let fleet = Fleet::new(2, |mut it| {
        it = it.set("admin.readers.listen", "127.0.0.1:0");
        for (key, file) in
            [("certificate", "server.pem"), ("private_key", "server.key"), ("client_ca", "ca.pem")]
        {
            it = it.set(&format!("admin.readers.tls.{key}"), file);
        }
        it
    });
    fleet.is_rejected(0);
    let of = |instance: &Keygate| {
        let line = instance.wait_for("the address", |it| it["message"] == "listening for readers");
        line["address"].as_str().unwrap().to_owned()
    };
    let readers: Vec<String> = fleet.instances.iter().map(of).collect();
    let path = |name: &str| fleet.pki.path(name).to_str().unwrap().to_owned();
    let tls = |client: &Party| {
        let of_client = [&client.certificate, &client.private_key];
        let of_client = of_client.map(|it| it.to_str().unwrap().to_owned());
        [vec!["--ca".to_owned(), path("ca.pem"), "--client".to_owned()], of_client.to_vec()]
            .concat()
    };
    let run_as = |code, command: &[&str], client: &Party| {
        let tls = tls(client);
        let command: Vec<_> =
            command.iter().copied().chain(tls.iter().map(String::as_str)).collect();
        run(code, &command, &readers)
    };
    let (text, _) = run_as(0, &["status"], &fleet.good);
    assert!(text.starts_with("2 of 2 instances responded\n"), "{text}");
    let (text, _) = run_as(0, &["report", "--json"], &fleet.good);
    assert_eq!(json(&text)["instances"], serde_json::json!(readers[..1]));
    let fingerprint = Fingerprint::of(&fleet.stolen.spki).to_string();
    let folder = path("evidence");
    run_as(0, &["evidence", &fingerprint, "--output", &folder], &fleet.good);
    // A listed key reads nothing, and neither does a reader without TLS.
    let (text, _) = run_as(3, &["status"], &fleet.stolen);
    assert!(text.starts_with("0 of 2 instances responded\n"), "{text}");
    let (text, _) = run(3, &["status"], &readers);
    assert!(text.starts_with("0 of 2 instances responded\n"), "{text}");
    // An instance with the certificate of another CA is no instance.
    let other = Pki::named("other");
    let ca = other.path("ca.pem");
    let (certificate, key) = (&fleet.good.certificate, &fleet.good.private_key);
    let arguments = ["status", "--ca", ca.to_str().unwrap(), "--client"];
    let client = [certificate.to_str().unwrap(), key.to_str().unwrap()];
    let (text, _) = run(3, &[&arguments[..], &client].concat(), &readers);
    assert!(text.contains("invalid peer certificate"), "{text}");
    let unused = reserved_address().to_string();
    let (text, _) = run_as(0, &["status", "--admin", &unused], &fleet.good);
    assert!(text.starts_with("2 of 3 instances responded\n"), "{text}");
}
