//! The folder with the evidence about a key.
//!
//! Guards: `ask` in `src/cli/evidence.rs`, `found_chain` in `src/recent_hits/hit.rs`.

use std::fs::{metadata, read, read_to_string, rename, write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use keygate_core::spki::Fingerprint;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::keygate::keygate;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{output_text, skip, system};

const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A proxy with a list, and a client with an open connection.
struct Scene {
    proxy: Running,
    stolen: Party,
    client: Client,
}

fn scene() -> Scene {
    let proxy = Proxy::new().global("lists = [{ name = \"incident\", path = \"deny.txt\" }]");
    write(proxy.pki.path("deny.txt"), "# none yet\n").unwrap();
    let stolen = proxy.pki.client("stolen", Kind::P256);
    let proxy = proxy.start();
    let mut client = Client::connect(&proxy.pki, proxy.address(), &stolen);
    client.send(GET);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    Scene { proxy, stolen, client }
}

impl Scene {
    /// Puts the key of the client on the list, and waits until its connection is closed.
    fn evict(&mut self) {
        let (next, list) = (self.pki().path("next.txt"), self.pki().path("deny.txt"));
        write(&next, format!("{}\n", Fingerprint::of(&self.stolen.spki))).unwrap();
        rename(next, list).unwrap();
        self.proxy.wait_for("the eviction", |line| {
            line["message"] == "client key rejected, closing connection"
        });
        self.client.whatever_comes();
    }

    fn pki(&self) -> &Pki {
        &self.proxy.pki
    }

    /// Writes the evidence to `folder`; the command must end with `code`.
    fn evidence(&self, code: i32, folder: &str, arguments: &[&str]) -> Output {
        let fingerprint = Fingerprint::of(&self.stolen.spki).to_string();
        let (address, path) = (self.proxy.admin_address().to_string(), self.pki().path(folder));
        let path = path.to_str().unwrap();
        let own = ["evidence", &fingerprint, "--admin", &address, "--output", path];
        let output = keygate(&[&own[..], arguments].concat());
        assert_eq!(output.status.code(), Some(code), "{}", output_text(&output));
        output
    }

    fn json(&self, folder: &str) -> Value {
        serde_json::from_slice(&read(self.pki().path(folder).join("evidence.json")).unwrap())
            .unwrap()
    }
}

fn mode(path: &Path) -> u32 {
    metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_folder_has_the_client_the_list_and_the_time_to_the_eviction() {
    let mut scene = scene();
    scene.evict();
    scene.proxy.rejection(&scene.stolen);
    scene.evidence(0, "evidence", &[]);
    let folder = scene.pki().path("evidence");
    let evidence = scene.json("evidence");
    assert_eq!((&evidence["algorithm"], evidence["count"].as_u64()), (&json!("p256"), Some(2)));
    let clients = evidence["clients"].as_array().unwrap();
    let hit = clients.iter().find(|it| it["verdict"] == "listed").unwrap();
    assert_eq!((&hit["service"], &hit["action"]), (&json!("test"), &json!("reject")));
    assert_eq!((&hit["source"]["name"], &hit["list"]), (&json!("incident"), &json!("incident")));
    let list = data_encoding::HEXLOWER.encode(
        aws_lc_rs::digest::digest(
            &aws_lc_rs::digest::SHA256,
            &read(scene.pki().path("deny.txt")).unwrap(),
        )
        .as_ref(),
    );
    assert_eq!(hit["source"]["sha256"], list, "the version of a list of fingerprints");
    assert_eq!(hit["stage"], "handshake", "the last rejection does not hide the eviction");
    assert!(hit["evicted"].as_u64() >= hit["source"]["loaded"].as_u64());
    assert!(hit["seconds_to_eviction"].as_u64().unwrap() < 60, "{hit}");
    let admitted = clients.iter().find(|it| it["key_exchange"].is_string()).unwrap();
    assert!(evidence["first_seen"].as_u64() <= admitted["last_seen"].as_u64());
    assert_eq!(evidence["last_seen"], hit["last_seen"]);

    assert_eq!(hit["chain"][0], "certificate-1.pem");
    let leaf = CertificateDer::from_pem_file(folder.join("certificate-1.pem")).unwrap();
    assert_eq!(leaf, scene.stolen.der);
    let query = keygate(&["key", folder.join("key.pem").to_str().unwrap()]);
    assert!(output_text(&query).contains(evidence["fingerprint"].as_str().unwrap()));
    let readme = read_to_string(folder.join("README.txt")).unwrap();
    for part in [
        "subject: CN=stolen",
        "service: test",
        "name: incident",
        "For the CA",
        " UTC",
        "certificate-1.pem",
    ] {
        assert!(readme.contains(part), "{part} is not in {readme}");
    }
    assert!(evidence["files"].as_array().unwrap().len() >= 2);
    assert_eq!(mode(&folder), 0o700);
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    let text = String::from_utf8_lossy(&scene.evidence(3, "evidence", &[]).stderr).into_owned();
    assert!(text.contains("it is not empty; give another --output"), "{text}");
    assert_eq!(scene.json("evidence"), evidence, "nothing was replaced");
}

#[test]
fn instances_are_merged_and_one_that_does_not_respond_is_a_line() {
    let (mut scene, mut other) = (scene(), scene());
    scene.evict();
    // The other proxy sees the same key.
    other.stolen = Party { name: "copy".to_owned(), ..other.stolen };
    let same = Fingerprint::of(&scene.stolen.spki);
    let (next, list) = (other.pki().path("next.txt"), other.pki().path("deny.txt"));
    let copy = other.pki().client_with_spki("copy", &scene.stolen.spki, &scene.stolen.key);
    write(&next, format!("{same}\n")).unwrap();
    rename(next, list).unwrap();
    other.proxy.wait_for_generation(2);
    let mut rejected = Client::connect(other.pki(), other.proxy.address(), &copy);
    let _ = rejected.try_send(GET); // the alert may come first
    rejected.whatever_comes();
    other.proxy.wait_for("the rejection", |line| line["message"] == "client key rejected");
    let second = other.proxy.admin_address().to_string();
    scene.evidence(0, "both", &["--admin", &second]);
    let evidence = scene.json("both");
    assert_eq!(evidence["instances"].as_object().unwrap().len(), 2);
    let instances = |name: &str| {
        let clients = evidence["clients"].as_array().unwrap().iter();
        clients.filter(|it| it["verdict"] == "listed" && it["instance"] == name).count()
    };
    assert_eq!((instances(&second), instances(&scene.proxy.admin_address().to_string())), (1, 1));

    drop(other);
    scene.evidence(3, "one", &["--admin", &second]);
    let evidence = scene.json("one");
    let error = evidence["instances"][&second]["error"].as_str().unwrap();
    assert!(error.contains("start keygate, or correct admin.listen"), "{error}");
    let readme = read_to_string(scene.pki().path("one/README.txt")).unwrap();
    assert!(readme.contains(&format!("{second}: \n    error: the admin address")), "{readme}");
}

#[test]
fn a_private_key_signs_proofs_and_requests_and_is_not_copied() {
    if skip::without("openssl") {
        return;
    }
    let mut scene = scene();
    scene.evict();
    let key = scene.stolen.private_key.to_str().unwrap();
    scene.evidence(0, "evidence", &["--key", key]);
    let folder = scene.pki().path("evidence");
    for (request, name) in [
        ("digicert.csr", "CN = Proof of Key Compromise for DigiCert"),
        ("compromised.csr", "has been publicly disclosed. It should not be used for any purpose."),
    ] {
        let path = folder.join(request);
        let made = ["req", "-verify", "-noout", "-subject", "-in", path.to_str().unwrap()];
        let output = system("openssl", &made);
        let shown = output_text(&output);
        assert!(output.status.success() && shown.contains(name), "{shown}");
        let keys = keygate(&["key", path.to_str().unwrap()]);
        let fingerprint = Fingerprint::of(&scene.stolen.spki).to_string();
        assert!(output_text(&keys).contains(&fingerprint), "{}", output_text(&keys));
    }
    let proof = folder.join(format!("{}.jws", Fingerprint::of(&scene.stolen.spki)));
    let verified =
        ["proof", "verify", proof.to_str().unwrap(), scene.stolen.certificate.to_str().unwrap()];
    assert!(keygate(&verified).status.success());
    let secret = read_to_string(&scene.stolen.private_key).unwrap();
    let secret = secret.lines().nth(1).unwrap();
    for entry in folder.read_dir().unwrap() {
        let content = read(entry.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&content).contains(secret));
    }
    let other = scene.proxy.good.private_key.to_str().unwrap();
    let text = output_text(&scene.evidence(3, "other", &["--key", other]));
    assert!(text.contains("give the compromised key"), "{text}");
    assert!(!scene.pki().path("other").exists());
}

#[test]
fn a_stored_proof_is_copied_if_the_key_signed_it() {
    let mut scene = scene();
    scene.evict();
    let directory = scene.pki().path("proofs");
    std::fs::create_dir(&directory).unwrap();
    let created = [
        "proof",
        "create",
        scene.stolen.private_key.to_str().unwrap(),
        "--dir",
        directory.to_str().unwrap(),
    ];
    assert!(keygate(&created).status.success());
    let name = format!("{}.jws", Fingerprint::of(&scene.stolen.spki));
    let mut configuration = scene.proxy.configuration.text();
    configuration += "\n[confirm]\nproofs = \"proofs\"\ncanary = \"off\"\n";
    let path = scene.pki().path("with-proofs.toml");
    write(&path, configuration).unwrap();
    let arguments = ["--config", path.to_str().unwrap()];
    scene.evidence(0, "evidence", &arguments);
    let copied = scene.pki().path("evidence").join(&name);
    assert_eq!(read(copied).unwrap(), read(directory.join(&name)).unwrap());
    // A proof that another key signed proves nothing.
    let good = keygate_core::proof::create(&scene.proxy.good.key).unwrap().remove(0);
    write(directory.join(&name), good.json).unwrap();
    scene.evidence(0, "without", &arguments);
    assert!(!scene.pki().path("without").join(&name).exists());
    // A file that cannot be read may be the proof. So may one that a broken configuration names.
    write(directory.join(&name), vec![b' '; 1 << 20]).unwrap();
    let text = output_text(&scene.evidence(3, "unread", &arguments));
    assert!(text.contains(&format!("{name}: larger than")), "{text}");
    write(&path, "[confirm]\nproofs = 7\n").unwrap();
    let text = output_text(&scene.evidence(3, "broken", &arguments));
    assert!(text.contains("confirm.proofs"), "{text}");
    assert!(scene.pki().path("broken/evidence.json").exists());
}

#[test]
fn a_key_that_no_proxy_knows_leaves_no_folder() {
    let scene = scene();
    let (address, path) = (scene.proxy.admin_address().to_string(), scene.pki().path("evidence"));
    let unknown = "0".repeat(64);
    let output =
        keygate(&["evidence", &unknown, "--admin", &address, "--output", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    assert!(output_text(&output).contains("no proxy knows the key"), "{}", output_text(&output));
    assert!(!path.exists());
}
