//! Blocklists from a source: signatures of both files, and older ones.
//!
//! Guards: `companions_of_metadata` in `src/fetch/companion.rs`, `ensure_not_older` in
//! `src/sources/list/read.rs`.

use std::fs::{copy, create_dir, write};
use std::process::Output;

use super::badkeys_scene::BadkeysScene;
use super::scene::{names, rejected, succeeded};
use crate::support::blocklist::Blocklist;
use crate::support::minisign::{Minisign, beside};
use crate::support::mirror::Fetch;
use crate::support::proxy::{Configuration, Configure};
use crate::support::skip;

/// A mirror of a blocklist, with a configuration of the list.
struct Configured {
    scene: BadkeysScene,
}

impl std::ops::Deref for Configured {
    type Target = BadkeysScene;

    fn deref(&self) -> &BadkeysScene {
        &self.scene
    }
}

impl Configured {
    /// `None` skips the test.
    fn new(settings: &str) -> Option<Self> {
        let this = Self { scene: BadkeysScene::new()? };
        create_dir(this.pki.path("badkeys")).unwrap();
        this.configure(settings);
        Some(this)
    }

    /// Writes the configuration, with these settings of the list.
    fn configure(&self, settings: &str) {
        let list = format!(
            "[[lists]]\nname = \"badkeys\"\nformat = \"badkeys\"\npath = \"badkeys/blocklist.dat\"\n\
             {settings}\nsource = {{ url = {:?}, trust_anchors = \"ca.pem\" }}",
            self.url()
        );
        let text = Configuration::new("127.0.0.1:9").global(&list).text();
        write(self.pki.path("keygate.toml"), text).unwrap();
    }

    fn run(&self) -> Output {
        self.mirror.date_files();
        let config = self.pki.path("keygate.toml");
        Fetch::start(&["--json", "--config", config.to_str().unwrap()]).ended()
    }

    fn fails(&self, problem: &str) {
        let before = self.in_use();
        rejected(&self.run(), problem);
        assert!(self.in_use() == before, "{problem}: the files in use have changed");
    }

    /// Publishes a list of this date, with two signatures.
    fn publish_signed(&self, list: &Blocklist, signer: &Minisign) {
        self.publish(list);
        for name in ["blocklist.dat", "badkeysdata.json"] {
            signer.sign(&self.mirror.path("v0").join(name), "timestamp:1893456000");
        }
    }
}

#[test]
fn both_files_of_a_signed_blocklist_have_signatures() {
    if skip::without("minisign") {
        return;
    }
    let Some(scene) = Configured::new("minisign_key = \"keys.pub\"") else { return };
    let ours = Minisign::new();
    copy(ours.public_key(), scene.pki.path("keys.pub")).unwrap();
    let first = scene.list(1000);
    scene.publish(&first);
    let [list, metadata] =
        ["v0/blocklist.dat", "v0/badkeysdata.json"].map(|name| scene.mirror.path(name));
    scene.fails("/v0/blocklist.dat.minisig: 404 Not Found; minisign_key needs a signature");
    ours.sign(&list, "the unpacked list");
    scene.fails("/v0/badkeysdata.json.minisig: 404 Not Found; minisign_key needs a signature");
    ours.sign(&metadata, "the metadata");
    assert_eq!(succeeded(&scene.run())["result"], "installed");
    assert!(scene.has(&first));
    let names = names(&scene.pki.path("badkeys"));
    assert_eq!(
        names[1..],
        ["badkeysdata.json", "badkeysdata.json.minisig", "blocklist.dat", "blocklist.dat.minisig"]
    );
    assert_eq!(succeeded(&scene.run())["result"], "unchanged");
    // Names of findings that nobody has signed.
    let renamed = first.clone().with("date", "2027-01-01".into());
    scene.publish(&renamed);
    scene.fails("rejected: ");
    assert!(scene.in_use().0.is_some_and(|json| !json.windows(4).any(|it| it == b"2027")));
    ours.sign(&metadata, "the metadata");
    assert_eq!(succeeded(&scene.run())["result"], "installed");
}

#[test]
fn an_older_blocklist_of_the_source_is_rejected_although_it_has_valid_signatures() {
    if skip::without("minisign") {
        return;
    }
    let signed = "minisign_key = \"keys.pub\"";
    let Some(scene) = Configured::new(signed) else { return };
    let ours = Minisign::new();
    copy(ours.public_key(), scene.pki.path("keys.pub")).unwrap();
    let dated = |count, date: &str| scene.list(count).with("date", date.into());
    let [older, newer] = [dated(1400, "2024-01-31"), dated(1500, "2024-02-01T09:30:00Z")];
    scene.publish_signed(&newer, &ours);
    assert_eq!(succeeded(&scene.run())["result"], "installed");
    scene.publish_signed(&older, &ours);
    let problem = "rejected: rollback: it is of 2024-01-31 00:00:00 UTC, and the list in use is of \
                   2024-02-01 09:30:00 UTC: fetch it again later, or set rollback = \"allow\"";
    scene.fails(problem);
    // More records, and the same date as before the update.
    scene.publish_signed(&dated(1600, "2024-01-31"), &ours);
    scene.fails(problem);
    let mut undated = scene.list(1400);
    undated.metadata.as_object_mut().unwrap().remove("date");
    scene.publish_signed(&undated, &ours);
    scene.fails("rollback: it has no date, and the list in use is of 2024-02-01 09:30:00 UTC");
    assert!(scene.has(&newer));
    // The list of the same day, once more.
    let corrected = dated(1450, "2024-02-01T09:30:00Z");
    scene.publish_signed(&corrected, &ours);
    assert_eq!(succeeded(&scene.run())["result"], "installed");

    scene.publish_signed(&older, &ours);
    scene.configure(&format!("{signed}\nrollback = \"allow\""));
    assert_eq!(succeeded(&scene.run())["result"], "installed");
    assert!(scene.has(&older));
    assert!(beside(&scene.pki.path("badkeys/blocklist.dat")).exists());
}

#[test]
fn an_older_blocklist_is_rejected_without_a_configuration_too() {
    let Some(scene) = BadkeysScene::new() else { return };
    let newer = scene.list(1000).with("date", "2024-02-01".into());
    scene.publish(&newer);
    scene.fetched();
    let older = scene.list(1100).with("date", "2024-01-31".into());
    scene.publish(&older);
    scene.fails(
        "rollback: it is of 2024-01-31 00:00:00 UTC, and the list in use is of 2024-02-01 0",
    );
    // The message names a setting that the command lacks.
    scene.fails("--badkeys has --url and --trust-anchors alone; write a configuration for other");
    // On purpose: without the files in use there is nothing to compare with.
    for name in ["blocklist.dat", "badkeysdata.json"] {
        std::fs::remove_file(scene.pki.path("badkeys").join(name)).unwrap();
    }
    scene.fetched();
    assert!(scene.has(&older));
    // A date in the future rejects no later list.
    scene.publish(&scene.list(1200).with("date", "2999-01-01".into()));
    scene.fetched();
    scene.publish(&newer);
    scene.fetched();
    assert!(scene.has(&newer));
}
