//! From a key in a repository to the revocation of its certificate, by the commands of the pages.

use std::fs::{create_dir, read, read_to_string, remove_file, write};
use std::path::Path;
use std::process::Output;

use keygate_core::spki::{self, Fingerprint, keys_in};
use keygate_core::tls::CertificateSummary;
use serde_json::{Value, json};

use crate::support::asker::Asker;
use crate::support::client::Client;
use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pebble::Pebble;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::webhook::{
    CSR, ID, SECRET, UID, is_issued, is_stored, request_of, review, with_request, write_secret,
    x509_request,
};
use crate::support::{blocks, output_text, shell, skip, system, write_filter};

const AFTER_A_HIT: &str = include_str!("../../../docs/after-a-hit.md");
const LISTS: &str = include_str!("../../../docs/lists.md");
const SCANNER: &str = "## Your own secret scanner";

/// The section of the page on lists about scanners: its commands and its settings.
fn scanner() -> ([String; 2], String) {
    let section = LISTS.split_once(SCANNER).unwrap().1.split_once("\n## ").unwrap().0;
    let [settings] = blocks(section, "toml").try_into().unwrap();
    (blocks(section, "sh").try_into().unwrap(), settings)
}

/// Puts `app` into `directory`: a repository with a key that a later commit deletes, one in JSON,
/// one in YAML, and a binary file.
fn repository(directory: &Path, keys: [&str; 3]) {
    let [pem, json, yaml] = keys;
    let app = directory.join("app");
    create_dir(&app).unwrap();
    let git = |arguments: &[&str]| {
        let who =
            ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"];
        let place = ["-C", app.to_str().unwrap()];
        let output = system("git", &[&place[..], &who, arguments].concat());
        assert!(output.status.success(), "{}", output_text(&output));
    };
    git(&["init", "-q"]);
    let random: Vec<u8> =
        (0..100_000_u32).map(|it| it.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    write(app.join("aaa.bin"), random).unwrap();
    write(app.join("deploy.key"), pem).unwrap();
    write(app.join("config.json"), json!({ "tls": { "key": json } }).to_string()).unwrap();
    let indented: Vec<_> = yaml.lines().map(|line| format!("    {line}\n")).collect();
    write(app.join("values.yaml"), format!("key: |\n{}", indented.concat())).unwrap();
    git(&["add", "."]);
    git(&["commit", "-qm", "one"]);
    ["deploy.key", "config.json"].iter().for_each(|file| remove_file(app.join(file)).unwrap());
    git(&["add", "--all"]);
    git(&["commit", "-qm", "two"]);
}

fn fingerprint(key: &str) -> String {
    Fingerprint::of(&keys_in(key.as_bytes()).remove(0).key.unwrap()).to_string()
}

#[test]
fn git_and_a_scanner_find_the_keys_of_a_repository() {
    if skip::without("git") {
        return;
    }
    let pki = Pki::new();
    let parties = [("pem", Kind::P256), ("json", Kind::Ed25519), ("yaml", Kind::Rsa2048)];
    let keys =
        parties.map(|(name, kind)| read_to_string(pki.client(name, kind).private_key).unwrap());
    repository(pki.directory(), keys.each_ref().map(String::as_str));
    let ([plain, scanner], _) = scanner();
    let program = "target/python/bin/betterleaks";
    let missing = "no betterleaks in target/python: scripts/install-test-packages tests";
    let has_scanner = !skip::unless(Path::new(program).exists(), missing);
    let function = plain.split_once("\n}\n").unwrap().0.to_owned() + "\n}\n";
    let path = std::fs::canonicalize("target/python/bin").unwrap_or_default();
    let with_scanner = format!("PATH=$PATH:{}\n{function}{scanner}", path.display());
    for (commands, is_there) in [(plain, true), (with_scanner, has_scanner)] {
        if is_there {
            shell(pki.directory(), &commands);
            let list = read_to_string(pki.path("leaked.txt")).unwrap();
            for key in &keys {
                assert!(list.contains(&fingerprint(key)), "{commands}: {list}");
            }
            remove_file(pki.path("leaked.txt")).unwrap();
        }
    }
}

/// The commands of a page, with the values of its variables.
fn page_commands(pki: &Pki, variables: &[(&str, &str)], commands: &str) -> Output {
    let set: String = variables.iter().map(|(name, value)| format!("{name}='{value}'\n")).collect();
    shell(pki.directory(), &(set + commands))
}

/// A client whose certificate pebble has issued, with its chain.
fn client_of(pebble: &Pebble, pki: &Pki) -> Party {
    let like = pki.client("stolen", Kind::P256);
    let certificate = pki.path("stolen-chain.pem");
    let der = pebble.order("client.example", &like.private_key, &certificate).remove(0);
    assert_eq!(spki::of_certificate(&der).unwrap(), like.spki);
    Party { certificate, der, ..like }
}

/// Authorizers for the CA and for the cluster that issue certificates.
fn webhooks(pki: &Pki) -> String {
    write_secret(&pki.path("webhook.secret"), SECRET);
    format!(
        r#"
        [[authorizers]]
        name = "ca"
        protocol = "step-ca"
        listen = "unix:ca.sock"
        webhooks = [{{ id = {ID:?}, secret = "webhook.secret" }}]

        [[authorizers]]
        name = "cluster"
        protocol = "admission"
        listen = "unix:cluster.sock"
        "#
    )
}

/// Whether the CA and the cluster let the key of a client have a new certificate, each with its
/// message.
fn reissues(pki: &Pki, client: &Party) -> [(bool, String); 2] {
    let request = request_of(client);
    let body = x509_request(&request, &client.spki);
    let ca = Asker::unix(&pki.path("ca.sock")).ask_for_certificate(&body);
    let body = review(CSR, "CREATE", with_request(&request));
    let cluster = Asker::unix(&pki.path("cluster.sock")).review(&body);
    [(is_issued(&ca), ca.body), (is_stored(&cluster, UID), cluster.body)]
}

fn serve(pki: &Pki, pebble: &Pebble, origin: &Origin, settings: &str) -> Keygate {
    write(pki.path("pebble-root.pem"), pebble.root()).unwrap();
    write_filter(&pki.path("lost.pkbf"), &[&b"another key"[..]]);
    let configuration = Configuration::new(origin.address()).global(settings);
    configuration.client_auth("trust_anchors = \"pebble-root.pem\"").start(pki)
}

#[test]
fn a_key_in_a_repository_leads_to_the_revocation_of_its_certificate() {
    if skip::without("git") {
        return;
    }
    let (pki, origin) = (Pki::new(), Origin::start());
    let Some(pebble) = Pebble::start(&pki) else { return };
    let stolen = client_of(&pebble, &pki);
    let ([scan, _], settings) = scanner();
    write(pki.path("leaked.txt"), "# none yet\n").unwrap();
    let proxy = serve(&pki, &pebble, &origin, &(settings + &webhooks(&pki)));
    assert!(reissues(&pki, &stolen).iter().all(|(is_issued, _)| *is_issued));
    let mut client = Client::with_chain(&pki, proxy.address(), &stolen);
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 "));

    // The key is found in a repository, and its client is evicted.
    let key = read_to_string(&stolen.private_key).unwrap();
    repository(pki.directory(), [&key; 3]);
    shell(pki.directory(), &scan);
    let evicted = proxy.wait_for("the eviction", |line| {
        line["message"] == "client key rejected, closing connection"
    });
    assert_eq!((&evicted["list"], &evicted["verdict"]), (&json!("leaked"), &json!("listed")));
    client.whatever_comes();

    // The evidence has the certificate, its issuer and the proof.
    let fingerprint = evicted["fingerprint"].as_str().unwrap();
    assert_eq!(fingerprint, Fingerprint::of(&stolen.spki).to_string());
    let [evidence, revoke] = blocks(AFTER_A_HIT, "sh").try_into().unwrap();
    let (admin, directory) = (proxy.admin_address().to_string(), pebble.directory());
    let variables = [("FINGERPRINT", fingerprint), ("ADMIN", &admin), ("DIRECTORY", &directory)];
    page_commands(&pki, &variables, &evidence);
    let json: Value =
        serde_json::from_slice(&read(pki.path("evidence/evidence.json")).unwrap()).unwrap();
    let hit = json["clients"].as_array().unwrap().iter().find(|it| it["evicted"].is_u64()).unwrap();
    assert_eq!(hit["dns_names"], json!(["client.example"]));
    assert!(hit["issuer"].as_str().unwrap().contains("Pebble Intermediate CA"), "{hit}");
    assert!(hit["chain"].as_array().unwrap().len() >= 2, "{hit}");
    assert!(hit["seconds_to_eviction"].is_u64(), "{hit}");
    assert!(pki.path(&format!("evidence/{fingerprint}.jws")).exists());

    // The certificate in the evidence is revoked, once.
    let serial = CertificateSummary::new(&stolen.der).serial;
    assert_eq!(pebble.status(&serial)["Status"], "Valid");
    let (dry_run, real) = revoke.split_once('\n').unwrap();
    let output = output_text(&page_commands(&pki, &variables, dry_run));
    assert!(output.contains("nothing was sent"), "{output}");
    assert_eq!(pebble.status(&serial)["Status"], "Valid");
    let output = output_text(&page_commands(&pki, &variables, real));
    assert!(output.contains("revoked, with the reason keyCompromise"), "{output}");
    let status = pebble.status(&serial);
    assert_eq!((&status["Status"], &status["Reason"]), (&json!("Revoked"), &json!(1)), "{status}");
    let paths = ["evidence/certificate-1.pem", "stolen.key", "ca.pem"].map(|it| pki.path(it));
    let [certificate, key, ca] = paths.each_ref().map(|path| path.to_str().unwrap());
    let again =
        ["revoke", certificate, "--key", key, "--acme", &directory, "--trust-anchors", ca, "--yes"];
    let output = keygate(&again);
    let shown = output_text(&output);
    assert_eq!(output.status.code(), Some(3), "{shown}");
    assert!(shown.contains("alreadyRevoked"), "{shown}");

    // The key gets no further certificate.
    for (is_issued, message) in reissues(&pki, &stolen) {
        assert!(!is_issued && message.contains("listed;list="), "{message}");
    }
    let good = pki.client("good", Kind::P256);
    assert!(reissues(&pki, &good).iter().all(|(is_issued, _)| *is_issued));
}
