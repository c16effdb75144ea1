//! Updates of CAs and CRLs that are tried on recent clients before they are used.
//!
//! Guards: `ClientUpdate` in `src/sources/client_gates.rs`, `new_hits_of_verifier` in
//! `src/sources/check/dry_run.rs`.

use std::fs::{create_dir, read_dir, read_to_string, remove_file, rename, write};
use std::io::Read;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::output_text;
use crate::support::pki::{Kind, Party, Pki, RevocationList};
use crate::support::proxy::{Configuration, Configure};
use crate::support::scene::contains;
use crate::support::write_filter;

const NOT_CHECKED: &str = "not checked: no recent client";

/// A service with the clients of two CAs, each with a list in a file of its own. It admits one new
/// hit at once.
struct Scene {
    ours: Pki,
    theirs: Pki,
    keygate: Keygate,
    clients: [Party; 3],
    stranger: Party,
    _origin: Origin,
}

impl Scene {
    fn new() -> Self {
        let (ours, theirs, origin) = (Pki::new(), Pki::named("Another CA"), Origin::start());
        let clients = ["one", "two", "three"].map(|name| ours.client(name, Kind::P256));
        let stranger = theirs.client("stranger", Kind::P256);
        write_filter(&ours.path("lost.pkbf"), &[]);
        create_dir(ours.path("state")).unwrap();
        let pem = [&ours, &theirs].map(|pki| read_to_string(pki.path("ca.pem")).unwrap());
        write(ours.path("clients.pem"), pem.concat()).unwrap();
        write(ours.path("ours.crl"), list(&ours, 1, &[])).unwrap();
        write(ours.path("theirs.crl"), list(&theirs, 1, &[])).unwrap();
        let configuration = Configuration::new(origin.address())
            .global("state = { dir = \"state\" }")
            .client_auth("trust_anchors = \"clients.pem\"")
            .client_auth("crls = [\"ours.crl\", \"theirs.crl\"]")
            .client_auth("max_new_hits = 1");
        let keygate = configuration.start(&ours);
        Self { ours, theirs, keygate, clients, stranger, _origin: origin }
    }

    fn all_connect(&self) {
        self.clients.iter().chain([&self.stranger]).for_each(|client| self.admits(client));
    }

    fn admits(&self, client: &Party) {
        let response = self.keygate.curl(client, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
    }

    fn refuses(&self, client: &Party, problem: &str) {
        let text = self.keygate.rejection(client);
        assert!(text.contains(problem), "{}: {text}", client.name);
    }

    fn publish(&self, name: &str, content: impl AsRef<[u8]>) {
        write(self.ours.path("next"), content).unwrap();
        rename(self.ours.path("next"), self.ours.path(name)).unwrap();
    }

    fn publish_ours(&self, number: u64, revoked: &[&Party]) {
        self.publish("ours.crl", list(&self.ours, number, revoked));
    }

    /// The status of the service whose update of these files waits.
    fn waits(&self, files: &str, new_hits: u64) -> Value {
        self.keygate.wait_for("an update that waits", |line| {
            line["message"] == "certificate update rejected, keeping those in use"
                && line["files"] == files
                && line["reason"] == "new_hits"
                && contains(&line["error"], "keygate service accept")
        });
        self.is_waiting(new_hits)
    }

    fn is_waiting(&self, new_hits: u64) -> Value {
        let status = self.keygate.wait_for_status("an update that waits", |status| {
            status["services"][0]["waiting"]["new_hits"] == new_hits
                && contains(&status["attention"][0]["problem"], "an update waits (new_hits)")
        });
        let condition = &status["attention"][0];
        assert_eq!(
            (&condition["level"], &condition["subject"]),
            (&"amber".into(), &"service test".into()),
            "{condition}"
        );
        assert!(contains(&condition["command"], "service accept test"), "{condition}");
        let page = self.keygate.admin("/").1;
        assert!(page.contains("keygate service accept test") && page.contains("CN=two"), "{page}");
        assert!(!page.contains("keygate validate"), "{page}");
        status["services"][0].clone()
    }

    fn number_of(&self, list: usize) -> Value {
        self.keygate.status()["services"][0]["crls"][list]["number"].clone()
    }

    fn restart(&mut self) {
        self.keygate.signal("TERM");
        assert!(self.keygate.ended().success());
        let text = read_to_string(self.ours.path("keygate.toml")).unwrap();
        self.keygate = Keygate::configured(&self.ours, &text);
    }

    fn accept(&self, arguments: &[&str]) -> Output {
        let text = read_to_string(self.ours.path("keygate.toml")).unwrap();
        let address = format!("listen = \"{}\"", self.keygate.admin_address());
        let config = self.ours.path("admin.toml");
        write(&config, text.replacen("listen = \"127.0.0.1:0\"", &address, 1)).unwrap();
        let own = ["service", "accept", "test", "--config", config.to_str().unwrap()];
        keygate(&[&own[..], arguments].concat())
    }

    fn accepts(&self, client: &Party) {
        let shown = self.accept(&[]);
        assert_eq!(shown.status.code(), Some(1), "{}", output_text(&shown));
        assert!(
            output_text(&shown).contains(&format!("CN={}", client.name)),
            "{}",
            output_text(&shown)
        );
        let accepted = self.accept(&["--yes"]);
        assert!(accepted.status.success(), "{}", output_text(&accepted));
        self.keygate.wait_for("the decision", |line| {
            line["message"] == "certificate update accepted by an operator"
                && line["service"] == "test"
        });
        let status = self.keygate.status();
        assert!(status["services"][0]["waiting"].is_null(), "{status}");
    }
}

/// A process that holds a lease on a file, so that nobody else can open it.
struct Lease(Child);

impl Lease {
    fn take(path: &std::path::Path) -> Self {
        let program = "import fcntl, signal, sys\n\
            signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
            file = open(sys.argv[1], 'r+')\n\
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
            print('held', flush=True)\n\
            sys.stdin.read()";
        let mut command = Command::new("python3");
        let command = command.args(["-c", program]).arg(path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut held = [0; 4];
        child.stdout.as_mut().unwrap().read_exact(&mut held).unwrap();
        Self(child)
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

fn list(pki: &Pki, number: u64, revoked: &[&Party]) -> String {
    pki.signed_crl(&RevocationList::new(number, revoked)).pem().unwrap()
}

#[test]
fn a_crl_that_revokes_many_recent_clients_waits_and_keeps_no_other_one_out() {
    let mut scene = Scene::new();
    scene.all_connect();
    let [one, two, three] = &scene.clients;
    scene.publish_ours(2, &[one]);
    scene.keygate.wait_for_generation(2);
    scene.refuses(one, "certificate revoked");

    scene.publish_ours(3, &[one, two, three]);
    let service = scene.waits("crls", 2);
    assert!(contains(&service["waiting"]["path"], "ours.crl"), "{service}");
    let condition = &scene.keygate.status()["attention"][0];
    let consequence = "; until then none of its revocations applies";
    assert!(contains(&condition["problem"], consequence), "{condition}");
    let series = "keygate_crl_refusals_total{reason=\"new_hits\",service=\"test\"}";
    assert_eq!(scene.keygate.metric(series), 1.0);
    for client in [two, three] {
        scene.admits(client);
    }

    scene.publish("theirs.crl", list(&scene.theirs, 2, &[&scene.stranger]));
    scene.keygate.wait_for_generation(3);
    scene.refuses(&scene.stranger, "certificate revoked");
    scene.admits(two);

    scene.restart();
    let [one, two, three] = &scene.clients;
    scene.is_waiting(2);
    scene.refuses(one, "certificate revoked");
    scene.refuses(&scene.stranger, "certificate revoked");
    for client in [two, three] {
        scene.admits(client);
    }
    assert_eq!(scene.number_of(1), "2");
    scene.accepts(two);
    assert_eq!(scene.number_of(1), "3");
    for client in [one, two, three] {
        scene.refuses(client, "certificate revoked");
    }
}

#[test]
fn cas_that_reject_many_recent_clients_wait_and_keep_no_crl_out() {
    let scene = Scene::new();
    scene.all_connect();
    let [one, two, three] = &scene.clients;
    scene.publish("clients.pem", read_to_string(scene.theirs.path("ca.pem")).unwrap());
    let service = scene.waits("client_ca", 3);
    assert!(contains(&service["waiting"]["path"], "clients.pem"), "{service}");
    scene.all_connect();
    scene.publish_ours(2, &[one]);
    scene.keygate.wait_for_generation(2);
    scene.refuses(one, "certificate revoked");
    scene.admits(two);
    scene.waits("client_ca", 3);
    scene.accepts(two);
    for client in [two, three] {
        scene.refuses(client, "unknown ca");
    }
    scene.admits(&scene.stranger);
}

/// Guards: `lacks_every_crl` in `src/sources/client_auth.rs`; `warned` in
/// `src/admin/attention/files.rs`; the order in `Loader::warnings`.
#[test]
fn cas_without_any_crl_are_a_warning_before_they_are_accepted_and_the_first_condition_after() {
    let scene = Scene::new();
    scene.all_connect();
    let third = Pki::named("Third CA");
    let ca = |pki: &Pki| read_to_string(pki.path("ca.pem")).unwrap();
    let warning = "warning: with it no CA has a list in client_auth.crls";
    scene.publish("clients.pem", ca(&scene.theirs));
    scene.waits("client_ca", 3);
    let shown = output_text(&scene.accept(&[]));
    assert!(!shown.contains(warning), "one has a list: {shown}");
    let condition = &scene.keygate.status()["attention"][0];
    assert!(!contains(&condition["problem"], "revocations"), "of CAs: {condition}");
    scene.publish("clients.pem", ca(&third));
    scene.is_waiting(4);
    let shown = output_text(&scene.accept(&[]));
    assert!(shown.contains(warning), "{shown}");
    assert_eq!(scene.accept(&["--yes"]).status.code(), Some(0));
    let status = scene.keygate.wait_for_status("the condition", |status| {
        contains(&status["attention"][0]["problem"], "client_auth.crls has no list of CN=Third CA")
    });
    let conditions = status["attention"].as_array().unwrap();
    assert_eq!(conditions[0]["level"], "red", "{status}");
    let empty = conditions.last().unwrap();
    assert!(contains(&empty["problem"], "it has no entries"), "{status}");
}

#[test]
fn cas_still_wait_after_a_restart_and_the_lists_fit_the_copies() {
    let mut scene = Scene::new();
    scene.all_connect();
    let foreign = Pki::named("A foreign CA");
    scene.publish("clients.pem", read_to_string(foreign.path("ca.pem")).unwrap());
    scene.waits("client_ca", 4);
    scene.restart();
    scene.is_waiting(4);
    scene.all_connect();

    // A list that is lost as well has a copy of its own.
    remove_file(scene.ours.path("theirs.crl")).unwrap();
    scene.restart();
    scene.all_connect();
    scene.publish("theirs.crl", list(&scene.theirs, 1, &[]));
    scene.is_waiting(4);
    scene.accepts(&scene.clients[1]);
    scene.refuses(&scene.clients[1], "unknown ca");
}

#[test]
fn a_crl_still_waits_after_a_restart_without_the_file_of_its_ca() {
    let mut scene = Scene::new();
    scene.all_connect();
    let [one, two, three] = &scene.clients;
    scene.publish_ours(2, &[one, two, three]);
    scene.waits("crls", 3);
    let cas = read_to_string(scene.ours.path("clients.pem")).unwrap();
    remove_file(scene.ours.path("clients.pem")).unwrap();
    scene.restart();
    scene.all_connect();
    scene.publish("clients.pem", cas);
    scene.is_waiting(3);
    scene.all_connect();
}

#[test]
fn an_update_of_crls_that_was_tried_on_nobody_says_so() {
    let scene = Scene::new();
    let [one, two, three] = &scene.clients;
    scene.publish_ours(2, &[one, two, three]);
    scene.keygate.wait_for("the update", |line| {
        line["message"] == "certificates loaded"
            && line["files"] == "crls"
            && line["max_new_hits"] == NOT_CHECKED
    });
    scene.keygate.wait_for_status("the update", |status| {
        status["services"][0]["max_new_hits"] == NOT_CHECKED
    });
    scene.refuses(two, "certificate revoked");
}

#[test]
fn a_crl_that_waits_keeps_no_crl_of_another_ca_out_of_use_in_the_same_file() {
    let mut scene = Scene::new();
    scene.all_connect();
    let [one, two, _] = &scene.clients;
    let lists =
        [list(&scene.ours, 2, &[one, two]), list(&scene.theirs, 2, &[&scene.stranger])].concat();
    scene.publish("ours.crl", lists);
    scene.waits("crls", 2);
    for _ in 0..2 {
        scene.refuses(&scene.stranger, "certificate revoked");
        scene.clients.iter().for_each(|client| scene.admits(client));
        // The copy of the file has both lists.
        scene.restart();
        scene.is_waiting(2);
    }
}

#[test]
fn a_list_that_rejects_recent_pins_waits() {
    let mut scene = Scene::new();
    let foreign = Pki::named("A foreign CA");
    let pins = ["one", "two"].map(|name| foreign.client(name, Kind::P256));
    let cas = read_to_string(scene.ours.path("clients.pem")).unwrap();
    let certificates = pins.each_ref().map(|pin| read_to_string(&pin.certificate).unwrap());
    scene.publish("clients.pem", cas + &certificates.concat());
    scene.keygate.wait_for_generation(2);
    pins.iter().for_each(|pin| scene.admits(pin));
    // A pin is rejected if a list names its CA, which is no anchor.
    let lists = [list(&scene.theirs, 2, &[&scene.stranger]), list(&foreign, 1, &[])];
    scene.publish("theirs.crl", lists.concat());
    scene.waits("crls", 2);
    scene.refuses(&scene.stranger, "certificate revoked");
    pins.iter().for_each(|pin| scene.admits(pin));
    scene.restart();
    scene.is_waiting(2);
    pins.iter().for_each(|pin| scene.admits(pin));
    scene.accepts(&pins[0]);
    pins.iter().for_each(|pin| assert!(!scene.keygate.curl(pin, &[]).status.success()));
}

#[test]
fn an_update_that_is_accepted_while_a_file_is_being_written_is_used_after_it() {
    let scene = Scene::new();
    scene.all_connect();
    let [one, two, three] = &scene.clients;
    scene.publish_ours(2, &[one, two, three]);
    scene.waits("crls", 3);
    let lease = Lease::take(&scene.ours.path("theirs.crl"));
    let accepted = scene.accept(&["--yes"]);
    let text = output_text(&accepted);
    assert!(!accepted.status.success() && text.contains("is being written"), "{text}");
    scene.admits(two);
    lease.end();
    scene.keygate.wait_for("the decision", |line| {
        line["message"] == "certificate update accepted by an operator"
    });
    scene.keygate.wait_for_generation(2);
    scene.refuses(two, "certificate revoked");
}

#[test]
fn a_start_without_copies_says_that_it_uses_the_update_that_waited() {
    let mut scene = Scene::new();
    scene.all_connect();
    let [one, two, three] = &scene.clients;
    scene.publish_ours(2, &[one, two, three]);
    scene.waits("crls", 3);
    let state = scene.ours.path("state");
    scene.keygate.signal("TERM");
    assert!(scene.keygate.ended().success());
    for file in read_dir(state).unwrap().map(|it| it.unwrap().path()) {
        if file.file_name().unwrap().to_str().unwrap().starts_with("last-good-") {
            remove_file(file).unwrap();
        }
    }
    let text = read_to_string(scene.ours.path("keygate.toml")).unwrap();
    scene.keygate = Keygate::configured(&scene.ours, &text);
    scene.keygate.wait_for("the update", |line| {
        line["level"] == "WARN"
            && line["service"] == "test"
            && line["message"] == "max_new_hits was not checked"
    });
    let service = scene.keygate.status()["services"][0].clone();
    let problem = "not checked: an update waited, and state.dir has no copy of the files before it";
    assert_eq!(service["max_new_hits"], problem);
    assert!(service["waiting"].is_null(), "{service}");
    scene.refuses(&scene.clients[1], "certificate revoked");
    scene.admits(&scene.stranger);
}

#[test]
fn an_update_still_waits_after_its_service_was_renamed() {
    let scene = Scene::new();
    scene.all_connect();
    let [one, two, three] = &scene.clients;
    scene.publish_ours(2, &[one, two, three]);
    scene.waits("crls", 3);
    let text = read_to_string(scene.ours.path("keygate.toml")).unwrap();
    let renamed = text.replacen("name = \"test\"", "name = \"renamed\"", 1);
    assert_ne!(text, renamed);
    scene.publish("keygate.toml", renamed);
    scene.keygate.wait_for_status("the update to wait", |status| {
        let service = &status["services"][0];
        service["name"] == "renamed" && service["waiting"]["new_hits"] == 3
    });
    scene.all_connect();
}

impl Scene {
    /// Ends the proxy, and removes the copies whose names begin so.
    fn stop_and_lose(&mut self, copies: &str) {
        self.keygate.signal("TERM");
        assert!(self.keygate.ended().success());
        for file in read_dir(self.ours.path("state")).unwrap().map(|it| it.unwrap().path()) {
            if file.file_name().unwrap().to_str().unwrap().starts_with(copies) {
                remove_file(file).unwrap();
            }
        }
    }

    /// The errors of a start, which fails.
    fn failed_start(&self) -> String {
        let config = self.ours.path("keygate.toml");
        let mut command = Command::new("timeout"); // a start that succeeds does not end
        let command = command.args(["30", env!("CARGO_BIN_EXE_keygate"), "run", "--config"]);
        let output = command.arg(config).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        output_text(&output)
    }
}

const RESTORE: &str = "restore the files that were in use, or remove max_new_hits";

/// Neither the CAs in use, which lack a list, nor those that wait can be used.
#[test]
fn cas_that_waited_do_not_start_without_a_list_of_the_cas_before_them() {
    let mut scene = Scene::new();
    scene.all_connect();
    let foreign = Pki::named("A foreign CA");
    scene.publish("clients.pem", read_to_string(foreign.path("ca.pem")).unwrap());
    scene.waits("client_ca", 4);
    scene.stop_and_lose("last-good-crl-");
    let lost = read_to_string(scene.ours.path("theirs.crl")).unwrap();
    remove_file(scene.ours.path("theirs.crl")).unwrap();
    let text = scene.failed_start();
    assert!(text.contains("theirs.crl: No such file"), "{text}");
    assert!(text.contains(RESTORE), "{text}");

    // Also if lists of the CAs that waited have replaced the lists of the CAs before them.
    write(scene.ours.path("theirs.crl"), lost).unwrap();
    for name in ["ours.crl", "theirs.crl"] {
        write(scene.ours.path(name), list(&foreign, 1, &[])).unwrap();
    }
    let text = scene.failed_start();
    assert!(text.contains("ours.crl: ") && text.contains("CN=Test CA"), "{text}");
    assert!(text.contains(RESTORE), "{text}");
}
