//! Names of upstream servers that the system's resolver looks up.

use std::fs;
use std::process::Command;

use crate::support::client::Client;
use crate::support::http2::Http2;
use crate::support::keygate::{BINARY, Keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{skip, system, wait_until, write_filter};

/// Starts keygate with the resolver of `tests/programs/names.c`.
fn start(pki: &Pki, configuration: &Configuration) -> Keygate {
    let library = pki.path("names.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/names.c");
    let library = library.to_str().unwrap();
    let built = system("cc", &["-shared", "-fPIC", "-o", library, source, "-ldl"]);
    assert!(built.status.success(), "{built:?}");
    let mut command = Command::new(BINARY);
    command.env("LD_PRELOAD", library).env("LOOK_UPS", pki.path("look-ups"));
    Keygate::run_by(command, pki, &configuration.text())
}

fn threads(keygate: &Keygate) -> usize {
    fs::read_dir(format!("/proc/{}/task", keygate.pid())).unwrap().count()
}

#[test]
fn a_name_that_hangs_delays_no_other_service_and_takes_one_thread() {
    if skip::without("cc") {
        return;
    }
    let origin = Origin::start();
    let pki = Pki::new();
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let second = format!(
        "listen = \"127.0.0.2:0\"\nupstream.servers = [\"http://origin.test:{}\"]",
        origin.address().port()
    );
    let configuration = Configuration::new("hang.test:80")
        .upstream("connect_timeout = \"1h\"")
        .workers(1)
        .second_service(&second);
    let keygate = start(&pki, &configuration);
    let listening = keygate.wait_for("the second address", |line| {
        line["message"] == "listening" && line["services"] == "second"
    });
    let second = listening["address"].as_str().unwrap().parse().unwrap();
    let before = threads(&keygate);

    let mut hanging = Http2::connect(&pki, keygate.address(), &good);
    for stream in 0..40 {
        hanging.send_get(2 * stream + 1);
    }
    let look_ups = || fs::read(pki.path("look-ups")).unwrap().len();
    wait_until("a look-up that hangs", || look_ups() > 0);
    for _ in 0..3 {
        // A connection each, and so a name each.
        let mut client = Client::connect(&pki, second, &good);
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "));
    }
    assert_eq!(look_ups(), 1, "requests share a look-up");
    let after = threads(&keygate);
    assert!(after <= before + 1, "{before} threads became {after}");
}

#[test]
fn a_name_that_does_not_exist_is_502() {
    if skip::without("cc") {
        return;
    }
    let pki = Pki::new();
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let keygate = start(&pki, &Configuration::new("missing.test:80"));
    let response = keygate.curl(&good, &["-w", "%{http_code}"]);
    assert!(response.stdout.ends_with(b"502"), "{response:?}");
    let line = keygate.wait_for("the failure", |line| line["message"] == "upstream failed");
    let error = line["error"].as_str().unwrap();
    assert!(error.starts_with("cannot resolve the host of http://missing.test:80: "), "{error}");
}
