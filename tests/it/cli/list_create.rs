//! Lists of the keys that a CA has revoked as compromised, from CRLs of OpenSSL.
//!
//! Guards: `of_compromised_keys` and `revokes` in `crates/core/src/tls/crls/list.rs`, `among` in
//! `crates/core/src/tls/crls/issuers.rs`.

use std::fs::{copy, create_dir, read_to_string, remove_file, write};
use std::path::Path;
use std::process::Command;

use keygate_core::spki::{Fingerprint, keys_in};

use super::bench::{Bench, problem};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, skip, write_filter};

const CONFIG: &str = "[ca]\ndefault_ca = it\n[it]\ndatabase = index.txt\nserial = serial\n\
    new_certs_dir = .\ndefault_md = sha256\ndefault_days = 30\ndefault_crl_days = 30\n\
    crlnumber = crlnumber\npolicy = any\nunique_subject = no\n[any]\ncommonName = supplied\n\
    [v3]\nbasicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign,cRLSign\n\
    [leaf]\nbasicConstraints = CA:FALSE\n";

/// A CA of OpenSSL in a directory of its own.
struct OpensslCa<'a>(&'a Path);

impl<'a> OpensslCa<'a> {
    /// A CA with this name. Its serial numbers begin with 1.
    fn new(directory: &'a Path, name: &str) -> Self {
        create_dir(directory).unwrap();
        for (file, content) in
            [("ca.cnf", CONFIG), ("index.txt", ""), ("serial", "01\n"), ("crlnumber", "07\n")]
        {
            write(directory.join(file), content).unwrap();
        }
        let ca = Self(directory);
        ca.openssl(&format!(
            "req -x509 -config ca.cnf -extensions v3 -newkey ec -pkeyopt ec_paramgen_curve:P-256 \
             -noenc -keyout ca.key -out ca.pem -days 30 -subj /CN={name}"
        ));
        ca
    }

    fn openssl(&self, arguments: &str) {
        let mut openssl = Command::new("openssl");
        let output =
            openssl.args(arguments.split_whitespace()).current_dir(self.0).output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", output_text(&output));
    }

    /// `NAME.pem` with the key `KEY.key`, which is made if it is not there.
    fn issue(&self, name: &str, key: &str) {
        if !self.0.join(format!("{key}.key")).exists() {
            self.openssl(&format!(
                "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {key}.key"
            ));
        }
        self.openssl(&format!(
            "req -config ca.cnf -new -key {key}.key -subj /CN={name} -out {name}.csr"
        ));
        self.openssl(&format!(
            "ca -config ca.cnf -batch -notext -keyfile ca.key -cert ca.pem -extensions leaf -in {name}.csr -out {name}.pem"
        ));
    }

    fn revoke(&self, name: &str, reason: &str) {
        let reason =
            if reason.is_empty() { String::new() } else { format!("-crl_reason {reason}") };
        self.openssl(&format!(
            "ca -config ca.cnf -keyfile ca.key -cert ca.pem -revoke {name}.pem {reason}"
        ));
    }

    /// `ca.crl` in PEM and `ca.der`.
    fn crl(&self) {
        self.openssl("ca -config ca.cnf -keyfile ca.key -cert ca.pem -gencrl -out ca.crl");
        self.openssl("crl -in ca.crl -outform DER -out ca.der");
    }
}

fn fingerprint(certificate: &Path) -> String {
    let spki = keys_in(&std::fs::read(certificate).unwrap()).remove(0).key.unwrap();
    Fingerprint::of(&spki).to_string()
}

#[test]
fn only_keys_that_the_ca_revoked_as_compromised_are_listed() {
    if skip::without("openssl") {
        return;
    }
    let bench = Bench::new("list");
    let (own, same, issued) = (bench.path("own"), bench.path("same"), bench.path("issued"));
    let ca = OpensslCa::new(&own, "Test");
    for name in ["stolen", "gone", "replaced", "held", "good"] {
        ca.issue(name, name);
    }
    for (name, reason) in [
        ("stolen", "keyCompromise"),
        ("gone", "keyCompromise"),
        ("replaced", "superseded"),
        ("held", ""),
    ] {
        ca.revoke(name, reason);
    }
    ca.crl();
    ca.issue("renewed", "stolen");
    // Another CA of the same name has issued the same serial number.
    let other = OpensslCa::new(&same, "Test");
    other.issue("other", "other");
    create_dir(&issued).unwrap();
    create_dir(issued.join("more")).unwrap();
    for (from, to) in [
        (own.join("stolen.pem"), "stolen.pem"),
        (own.join("stolen.pem"), "more/copy.pem"),
        (own.join("replaced.pem"), "replaced.pem"),
        (own.join("held.pem"), "held.pem"),
        (own.join("good.pem"), "good.pem"),
        (same.join("other.pem"), "other.pem"),
        (own.join("good.key"), "good.key"),
        (own.join("ca.crl"), "ca.crl"),
    ] {
        copy(from, issued.join(to)).unwrap();
    }
    write(issued.join("notes"), "nothing").unwrap();
    let create = ["create", "revoked.txt", "--from-crl", "own/ca.crl", "--certificates", "issued"];

    // Without the CA, or with another one of the same name, nothing is written.
    let output = bench.run(3, &create);
    assert!(
        problem(&output)
            .contains("no certificate of the CA CN=Test; put its certificate into issued"),
        "{}",
        problem(&output)
    );
    copy(same.join("ca.pem"), issued.join("ca.pem")).unwrap();
    let output = bench.run(3, &create);
    assert!(
        problem(&output).contains("own/ca.crl: the list at position 1"),
        "{}",
        problem(&output)
    );
    // A client with the name of the CA may sign no CRL.
    ca.issue("Test", "evil");
    ca.openssl("ca -config ca.cnf -keyfile evil.key -cert Test.pem -gencrl -out evil.crl");
    copy(own.join("Test.pem"), issued.join("evil.pem")).unwrap();
    let evil = ["create", "revoked.txt", "--from-crl", "own/evil.crl", "--certificates", "issued"];
    assert!(problem(&bench.run(3, &evil)).contains("own/evil.crl: the list at position 1"));
    remove_file(issued.join("evil.pem")).unwrap();
    assert!(!bench.path("revoked.txt").exists());

    copy(own.join("ca.pem"), issued.join("own-ca.pem")).unwrap();
    let lines = bench.lines(0, &create);
    assert_eq!(
        lines,
        [
            "revoked.txt: 1 key of 1 certificates with the reason keyCompromise",
            "not in issued: 1 with the reason keyCompromise",
        ]
    );
    let list = read_to_string(bench.path("revoked.txt")).unwrap();
    assert!(list.starts_with("# keyCompromise by the CRL of CN=Test, number 7, issued "), "{list}");
    assert_eq!(list.matches(&fingerprint(&own.join("stolen.pem"))).count(), 1, "{list}");
    // The renewed certificate has the same key.
    bench.run(1, &["query", "revoked.txt", "own/renewed.pem"]);
    bench.run(0, &["query", "revoked.txt", "own/replaced.pem", "own/good.pem", "same/other.pem"]);

    // Certificates and CRLs in DER have the same effect, and an older list is replaced.
    ca.openssl("x509 -in stolen.pem -outform DER -out ../issued/stolen.pem");
    remove_file(issued.join("more/copy.pem")).unwrap();
    let der = ["create", "revoked.txt", "--from-crl", "own/ca.der", "--certificates", "issued"];
    assert_eq!(bench.lines(0, &der), lines);
    let list = list.replace("issued/more/copy.pem", "issued/stolen.pem");
    assert_eq!(read_to_string(bench.path("revoked.txt")).unwrap(), list);

    // A damaged certificate or CRL leaves the list.
    let pem = read_to_string(own.join("stolen.pem")).unwrap();
    write(issued.join("broken.pem"), pem.replacen("MII", "MIA", 1)).unwrap();
    assert!(problem(&bench.run(3, &der)).contains("broken.pem"));
    remove_file(issued.join("broken.pem")).unwrap();
    let mut crl = std::fs::read(own.join("ca.der")).unwrap();
    *crl.last_mut().unwrap() ^= 1;
    write(bench.path("forged.der"), crl).unwrap();
    let forged = ["create", "revoked.txt", "--from-crl", "forged.der", "--certificates", "issued"];
    assert!(problem(&bench.run(3, &forged)).contains("forged.der: "));
    assert_eq!(read_to_string(bench.path("revoked.txt")).unwrap(), list);
    let both = [&create[..], &["--from-crl", "own/ca.der"]].concat();
    assert!(bench.lines(0, &both)[1].ends_with(" 3 with the reason keyCompromise"));
}

/// `openssl ca` writes version 1 without extensions. Guard: `revokes`.
#[test]
fn a_certificate_of_version_1_is_found() {
    if skip::without("openssl") {
        return;
    }
    let bench = Bench::new("list");
    let own = bench.path("own");
    let ca = OpensslCa::new(&own, "Test");
    ca.openssl("req -config ca.cnf -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -keyout old.key -subj /CN=old -out old.csr");
    ca.openssl(
        "ca -config ca.cnf -batch -notext -keyfile ca.key -cert ca.pem -in old.csr -out old.pem",
    );
    ca.revoke("old", "keyCompromise");
    ca.crl();
    let create = ["create", "revoked.txt", "--from-crl", "own/ca.crl", "--certificates", "own"];
    assert!(bench.lines(0, &create)[0].starts_with("revoked.txt: 1 key of 1 certificates"));
    bench.run(1, &["query", "revoked.txt", "own/old.pem"]);
}

#[test]
fn a_renewed_certificate_with_a_revoked_key_stays_out() {
    if skip::without("openssl") {
        return;
    }
    let (bench, pki, origin) = (Bench::new("list"), Pki::new(), Origin::start());
    let own = bench.path("own");
    let ca = OpensslCa::new(&own, "Test");
    ca.issue("stolen", "stolen");
    ca.revoke("stolen", "keyCompromise");
    ca.crl();
    ca.openssl("pkcs8 -topk8 -nocrypt -in stolen.key -outform DER -out stolen.pk8");
    let key = std::fs::read(own.join("stolen.pk8")).unwrap();
    let spki = keys_in(&key).remove(0).key.unwrap();
    let renewed = pki.client_with_spki("renewed", &spki, &key);
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[&b"another key"[..]]);
    write(pki.path("revoked.txt"), "# none yet\n").unwrap();
    let list = "lists = [{ name = \"revoked\", path = \"revoked.txt\" }]";
    let keygate = Configuration::new(origin.address()).global(list).start(&pki);
    let out = pki.path("revoked.txt");
    let create =
        ["create", out.to_str().unwrap(), "--from-crl", "own/ca.crl", "--certificates", "own"];
    bench.run(0, &create);
    keygate.wait_for_generation(2);
    use crate::support::client::Client;
    let mut client = Client::connect(&pki, keygate.address(), &renewed);
    let _ = client.try_send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); // the alert may come first
    client.whatever_comes();
    let line = keygate.wait_for("the rejection", |line| line["message"] == "client key rejected");
    assert_eq!((&line["verdict"], &line["list"]), (&"listed".into(), &"revoked".into()));
    assert_eq!(keygate.curl(&good, &[]).stdout, b"hello\n");
}
