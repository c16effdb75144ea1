//! Lists that move from ring to ring by `deploy/fleet/keygate-rings`: nginx as the store, signed
//! lists, `keygate fetch`, Prometheus as the gate.
//!
//! Guards: `print_changes` in `src/cli/verdict_rows.rs`, `show_file` and `set_new_hits` in
//! `src/metrics/list.rs`, `Gate` in `src/sources/gate.rs`.

use std::fs::{copy, create_dir, read_dir, read_link, read_to_string, write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use keygate_core::spki::Fingerprint;
use serde_json::json;

use crate::support::keygate::{BINARY, Keygate};
use crate::support::minisign::Minisign;
use crate::support::mirror::Fetch;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::{Program, reserved_address};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, skip, wait_for};

const FLEET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/fleet");

/// Time between two polls of an instance, and the shortest time in a ring, for measurements.
fn poll() -> String {
    std::env::var("KEYGATE_FLEET_POLL").unwrap_or_else(|_| "1s".to_owned())
}

fn soak() -> String {
    std::env::var("KEYGATE_FLEET_SOAK").unwrap_or_else(|_| "1s".to_owned())
}

/// Three rings with an instance each, and their store.
struct Scene {
    pki: Pki,
    minisign: Minisign,
    clients: Vec<Party>,
    listed: Party,
    /// A client that no list has.
    steady: Party,
    rings: Vec<Keygate>,
    prometheus: std::net::SocketAddr,
    _fetches: Vec<Fetch>,
    programs: Vec<Program>,
    origin: Origin,
}

impl Scene {
    /// `None` skips the test.
    fn new() -> Option<Self> {
        if ["nginx", "prometheus", "promtool", "minisign"].into_iter().any(skip::without) {
            return None;
        }
        let (pki, minisign, origin) = (Pki::new(), Minisign::new(), Origin::start());
        let client = |name: &str| pki.client(name, Kind::P256);
        let clients = ["a", "b", "c", "d"].map(client).into();
        let [listed, steady] = ["listed", "steady"].map(client);
        let mut scene = Self {
            clients,
            listed,
            steady,
            rings: Vec::new(),
            prometheus: reserved_address(),
            _fetches: Vec::new(),
            programs: Vec::new(),
            origin,
            pki,
            minisign,
        };
        scene.start_store();
        Some(scene)
    }

    fn start_store(&mut self) {
        let (pki, store) = (&self.pki, reserved_address());
        let server = [
            ("443", store.to_string()),
            ("/etc/nginx/store.pem", pki.path("server.pem").display().to_string()),
            ("/etc/nginx/store.key", pki.path("server.key").display().to_string()),
            ("/srv/keygate-rings", pki.path("store").display().to_string()),
        ];
        let server = server.iter().fold(
            read_to_string(format!("{FLEET}/store.conf")).unwrap(),
            |text, (documented, used)| {
                assert!(text.contains(documented), "{documented}");
                text.replace(documented, used)
            },
        );
        let text = format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log;\nevents {{}}\n\
             http {{ access_log off; client_body_temp_path b; proxy_temp_path p;\n\
             fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;\n{server}}}\n"
        );
        write(pki.path("nginx.conf"), text).unwrap();
        let mut nginx = Command::new("nginx");
        nginx.arg("-p").arg(pki.directory()).arg("-c").arg(pki.path("nginx.conf"));
        self.programs.push(Program::start(&mut nginx).listening_on(store));

        // The first version is linked by hand, because no ring can prove it.
        let first = self.version("first", &[]);
        assert_eq!(self.rings("publish", first.to_str().unwrap(), 0).status.code(), Some(0));
        let target = read_link(self.pki.path("store/ring0")).unwrap();
        for ring in ["ring1", "ring2"] {
            std::os::unix::fs::symlink(&target, self.pki.path("store").join(ring)).unwrap();
        }
        let directories: Vec<_> = (0..3).map(|ring| self.directory(ring, &store)).collect();
        for directory in &directories {
            let once =
                ["--config", directory.join("fetch.toml").to_str().unwrap()].map(str::to_owned);
            let once = Fetch::start(&once.each_ref().map(String::as_str)).ended();
            assert!(once.status.success(), "{}", output_text(&once));
            let text = read_to_string(directory.join("fetch.toml")).unwrap();
            self.rings.push(Keygate::in_directory(directory, &text));
            let path = directory.join("fetch.toml");
            let again = ["--every", &poll(), "--config", path.to_str().unwrap()];
            self._fetches.push(Fetch::start(&again));
        }
        let targets: Vec<serde_json::Value> = (0..)
            .zip(&self.rings)
            .map(|(ring, keygate): (usize, &Keygate)| {
                let target = [keygate.admin_address().to_string()];
                json!({ "targets": target, "labels": { "ring": format!("{ring}") } })
            })
            .collect();
        let text = json!({
            "global": { "scrape_interval": "200ms", "scrape_timeout": "200ms" },
            "scrape_configs": [{ "job_name": "keygate", "static_configs": targets }],
        });
        write(self.pki.path("prometheus.yml"), text.to_string()).unwrap();
        let mut prometheus = Command::new("prometheus");
        prometheus
            .arg(format!("--config.file={}", self.pki.path("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", self.pki.path("data").display()))
            .arg(format!("--web.listen-address={}", self.prometheus));
        self.programs.push(Program::start(&mut prometheus).listening_on(self.prometheus));
    }

    /// The directory of an instance, with the configuration for it and for `keygate fetch`.
    fn directory(&self, ring: usize, store: &std::net::SocketAddr) -> PathBuf {
        let directory = self.pki.path(&format!("instance-{ring}"));
        create_dir(&directory).unwrap();
        for entry in read_dir(self.pki.directory()).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                copy(entry.path(), directory.join(entry.file_name())).unwrap();
            }
        }
        let list = format!(
            "[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\nmax_new_hits = 1000\nminisign_key = \"{}\"\n\
             source = {{ url = \"https://{store}/ring{ring}/deny.txt\", trust_anchors = \"ca.pem\" }}\n",
            self.minisign.public_key().display()
        );
        let configuration =
            Configuration::new(self.origin.address()).unset("filters").global(&list);
        write(directory.join("fetch.toml"), configuration.text()).unwrap();
        directory
    }

    /// A signed list with the keys of `listed` and of these clients.
    fn version(&self, name: &str, clients: &[&Party]) -> PathBuf {
        let path = self.pki.path(&format!("{name}.txt"));
        let keys = clients.iter().map(|it| format!("{}\n", Fingerprint::of(&it.spki)));
        write(&path, format!("# {name}\n") + &keys.collect::<String>()).unwrap();
        self.minisign.sign(&path, name);
        path
    }

    /// Runs the script with this limit of new hits, on the real store.
    fn rings(&self, command: &str, argument: &str, max_new_hits: u32) -> Output {
        self.rings_of(&self.pki.path("store"), command, argument, max_new_hits)
    }

    fn rings_of(&self, store: &Path, command: &str, argument: &str, max_new_hits: u32) -> Output {
        let binaries = Path::new(BINARY).parent().unwrap().display().to_string();
        // The configuration of ring 0 with the address in use.
        let report = self.pki.path("report.toml");
        if let Some(keygate) = self.rings.first() {
            let configuration = Configuration::new(self.origin.address());
            let address = keygate.admin_address().to_string();
            write(&report, configuration.set("admin.listen", address).text()).unwrap();
        }
        let path = std::env::var("PATH").unwrap();
        Command::new(format!("{FLEET}/keygate-rings"))
            .args([command, argument])
            .env("PATH", format!("{binaries}:{path}"))
            .env("STORE", store)
            .env("MINISIGN_KEY", self.minisign.public_key())
            .env("CLIENTS", format!("keygate report --clients --config {}", report.display()))
            .env("MAX_NEW_HITS", max_new_hits.to_string())
            .env("PROMETHEUS", format!("http://{}", self.prometheus))
            .env("GATE", format!("{FLEET}/gate.promql"))
            .env("SOAK", soak())
            .env("EVIDENCE", "5m")
            .env("MIN_HANDSHAKES", "2")
            .output()
            .unwrap()
    }

    fn promoted(&self, store: &Path, ring: &str, max_new_hits: u32) {
        wait_for("an open gate", || {
            // Prometheus counts handshakes from its first scrape on.
            let before = ring.parse::<usize>().unwrap() - 1;
            assert!(self.admits(before, &self.steady));
            let output = self.rings_of(store, "promote", ring, max_new_hits);
            if output.status.success() { Ok(()) } else { Err(output_text(&output)) }
        });
    }

    fn admits(&self, ring: usize, client: &Party) -> bool {
        self.rings[ring].curl(client, &[]).stdout == b"hello\n"
    }

    fn wait_for_rejection(&self, ring: usize, client: &Party) {
        wait_for("the rejection", || {
            if self.admits(ring, client) { Err(format!("ring {ring} admits")) } else { Ok(()) }
        });
    }

    /// The SHA-256 of the list that a ring has.
    fn target(&self, ring: usize) -> PathBuf {
        read_link(self.pki.path(&format!("store/ring{ring}"))).unwrap()
    }
}

#[test]
fn a_list_goes_from_ring_to_ring_and_a_bad_one_stops_in_ring_0() {
    let Some(mut scene) = Scene::new() else { return };
    for ring in 0..3 {
        for client in scene.clients.iter().chain([&scene.listed, &scene.steady]) {
            assert!(scene.admits(ring, client), "{ring}: {}", client.name);
        }
    }
    let clients = std::mem::take(&mut scene.clients);
    let [a, b, c, d] = &clients[..] else { unreachable!() };

    let new_hits = "keygate_list_new_hits{list=\"deny\"}";
    assert!(scene.rings[0].metrics()[new_hits].is_nan(), "nothing was examined at the start");
    // A list without a signature of the key is not published.
    let forged = scene.pki.path("forged.txt");
    write(&forged, "# forged\n").unwrap();
    copy(scene.pki.path("first.txt.minisig"), scene.pki.path("forged.txt.minisig")).unwrap();
    assert!(!scene.rings("publish", forged.to_str().unwrap(), 9).status.success());

    // A good list: one known client, within the limit.
    let good = scene.version("good", &[&scene.listed]);
    let published = Instant::now();
    let output = scene.rings("publish", good.to_str().unwrap(), 1);
    assert!(output.status.success(), "{}", output_text(&output));
    let output = scene.rings("promote", "2", 1);
    assert_eq!(output.status.code(), Some(0), "ring 1 has what ring 2 has");
    for ring in ["1", "2"] {
        scene.promoted(&scene.pki.path("store"), ring, 1);
    }
    for ring in 0..3 {
        scene.wait_for_rejection(ring, &scene.listed);
        assert!([a, b, c, d].iter().all(|client| scene.admits(ring, client)));
    }
    println!(
        "published in ring 0 to rejected everywhere, poll {}, soak {}: {:?}",
        poll(),
        soak(),
        published.elapsed()
    );
    let metrics = scene.rings[2].metrics();
    let info = metrics.keys().find(|it| it.starts_with("keygate_list_info{")).unwrap();
    let sha256 = scene.target(2).file_name().unwrap().to_str().unwrap().to_owned();
    assert!(info.contains(&sha256) && info.contains("version=\"good\""), "{info}");
    assert_eq!(metrics[new_hits], 1.0);

    // A bad list: half of the known clients. `list diff` stops it before publication.
    let bad = scene.version("bad", &[&scene.listed, a, b]);
    let before = scene.target(0);
    let output = scene.rings("publish", bad.to_str().unwrap(), 1);
    assert_eq!(output.status.code(), Some(6), "{}", output_text(&output));
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(shown.lines().filter(|line| line.starts_with("clean -> listed")).count(), 2);
    assert_eq!(scene.target(0), before);

    // Published against its advice, it stops in ring 0.
    assert!(scene.rings("publish", bad.to_str().unwrap(), 9).status.success());
    scene.wait_for_rejection(0, a);
    // All conditions but the limit hold once a copy of the store is promoted.
    let other = scene.pki.path("other");
    create_dir(&other).unwrap();
    std::os::unix::fs::symlink(scene.target(0), other.join("ring0")).unwrap();
    scene.promoted(&other, "1", 2);
    let output = scene.rings("promote", "1", 1);
    assert_eq!(output.status.code(), Some(75), "{}", output_text(&output));
    assert!(output_text(&output).contains("gate of ring 0 is closed"), "{}", output_text(&output));
    assert_eq!((scene.target(1), scene.target(2)), (before.clone(), before));
    for ring in 1..3 {
        assert!([a, b, c, d].iter().all(|client| scene.admits(ring, client)));
    }
    // Its successor has no new hit in ring 0, and the same ones in the next ring.
    let successor =
        scene.version("successor", &[&scene.listed, a, b, &scene.pki.client("e", Kind::P256)]);
    let output = scene.rings("publish", successor.to_str().unwrap(), 1);
    assert_eq!(output.status.code(), Some(6), "{}", output_text(&output));
    // Without Prometheus the gate is closed.
    scene.programs.pop();
    let output = scene.rings("promote", "1", 9);
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
}
