//! Filter updates that arrive in every way under load: admitted clients see no failure, the last
//! good filter is in use at the end, and memory is freed.

use std::fs::{
    File, OpenOptions, Permissions, create_dir, read, remove_dir_all, remove_file, rename,
    set_permissions, write,
};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use keygate::config::{Config, PlacedProblem};
use keygate::metrics::ControlMetrics;
use keygate::snapshot::Loader;
use keygate::sources::{JudgementContext, Prepare, Trigger};
use keygate_core::pkbf::{Filter, Overwrite, Parameters, create};

use crate::support::keygate::Keygate;
use crate::support::load::Load;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, wait_until};

/// 2^26 bits, 8 MiB: large enough that a filter that is not freed is detected.
const HASH_LENGTH: u8 = 26;
const FILTER_KIB: u64 = 8 << 10;
/// Growth of the process for other reasons, in KiB.
const OTHER_KIB: u64 = 4 << 10;

/// A proxy under load, and the filter file that it watches.
struct Stage {
    pki: Pki,
    keygate: Keygate,
    _origin: Origin,
    load: Load,
    lost: Party,
    memory: u64,
}

impl Stage {
    fn new() -> Self {
        Self::with("lost.pkbf", |pki, first| rename(first, pki.path("lost.pkbf")).unwrap())
    }

    /// The configuration names `path`; `prepare` puts the file there.
    fn with(path: &str, prepare: impl FnOnce(&Pki, &Path)) -> Self {
        let (pki, origin) = (Pki::new(), Origin::start());
        let [good, lost] = ["good", "lost"].map(|name| pki.client(name, Kind::P256));
        create_dir(pki.path("made")).unwrap();
        let first = filter(&pki, &[], 1);
        prepare(&pki, &first);
        let text = Configuration::new(origin.address());
        let text = text.set("filters.path", path).text();
        let keygate = Keygate::unprivileged(&pki, &text);
        let load = Load::start(keygate.address(), &pki, &good);
        load.wait_for(500); // everything that grows with use has grown
        let memory = keygate.memory("VmRSS");
        Self { pki, keygate, _origin: origin, load, lost, memory }
    }

    fn file(&self) -> PathBuf {
        self.pki.path("lost.pkbf")
    }

    /// A good update that holds the lost key, outside the watched directory.
    fn update(&self) -> PathBuf {
        self.update_as(2)
    }

    fn update_as(&self, revision: u32) -> PathBuf {
        filter(&self.pki, &[&self.lost.spki], revision)
    }

    fn is_refused(&self, reason: &str) {
        self.keygate.wait_for("a refusal", |line| {
            line["message"] == "filter update rejected, keeping the one in use"
                && line["reason"] == reason
        });
    }

    /// Waits for the filter with this revision, and checks everything that must hold at the end.
    fn ends_with(self, revision: u32) {
        self.keygate.wait_for_status("the last filter", |status| {
            let filter = &status["filters"][0];
            filter["revision"] == revision && filter["last_reload"]["result"] != "refused"
        });
        self.load.wait_for(300);
        assert_eq!(self.load.failures(), Vec::<String>::new(), "clean clients");
        let response = self.keygate.curl(&self.lost, &[]);
        assert!(output_text(&response).contains("access denied"), "{}", output_text(&response));
        // The old filter is freed when the last connection that began with it has ended.
        let most = self.memory + OTHER_KIB;
        wait_until("memory is back", || self.keygate.memory("VmRSS") <= most);
    }
}

/// A filter of [`HASH_LENGTH`] in a new file.
fn filter(pki: &Pki, keys: &[&[u8]], revision: u32) -> PathBuf {
    let _ = create_dir(pki.path("made")); // may exist
    let mut filter = Filter::new(Parameters::new(20, HASH_LENGTH).unwrap()).unwrap();
    keys.iter().for_each(|key| {
        filter.insert(key);
    });
    filter.stamp_as(revision, 1_700_000_000 + u64::from(revision));
    let path = pki.path(&format!("made/{revision}.pkbf"));
    create(&filter, &path, Overwrite::Always).unwrap();
    path
}

#[test]
fn a_renamed_update_is_loaded() {
    let stage = Stage::new();
    rename(stage.update(), stage.file()).unwrap();
    stage.ends_with(2);
}

#[test]
fn an_update_written_in_place_over_seconds_is_loaded_once_complete() {
    let stage = Stage::new();
    let content = read(stage.update()).unwrap();
    let file = OpenOptions::new().write(true).open(stage.file()).unwrap();
    for (position, piece) in content.chunks(128 << 10).enumerate() {
        file.write_all_at(piece, position as u64 * (128 << 10)).unwrap();
        sleep(Duration::from_millis(40)); // a slow writer
    }
    drop(file);
    stage.ends_with(2);
}

/// A writer without a lock may not be done, so that the file is read only after a quiet period.
#[test]
fn a_file_written_a_moment_ago_is_read_later() {
    let pki = Pki::new();
    rename(filter(&pki, &[], 1), pki.path("lost.pkbf")).unwrap();
    let text = Configuration::new("127.0.0.1:9");
    let config = Config::parse(&pki.path("keygate.toml"), &text.text()).unwrap();
    let metrics = ControlMetrics::new().unwrap();
    let (mut loader, _) =
        Loader::start(&config, None, metrics, JudgementContext::default()).unwrap();
    // There is no file that another configuration could come from.
    let mut prepare: Prepare = Box::new(|_| Err(no_other_configuration()));
    let is_left_alone = (2..50).any(|revision| {
        rename(filter(&pki, &[], revision), pki.path("lost.pkbf")).unwrap();
        let progress = loader.refresh(Trigger::Poll, &mut prepare);
        // If the machine is busy for 200 ms, the file settles and is loaded.
        progress.pending && progress.snapshot.is_none()
    });
    assert!(is_left_alone);
}

#[test]
fn a_torn_update_is_rejected_until_its_last_piece_is_written() {
    let stage = Stage::new();
    let content = read(stage.update()).unwrap();
    let mut file = File::create(stage.file()).unwrap();
    let (torn, last) = content.split_at(6 << 20);
    let mut length = 0;
    for piece in torn.chunks(2 << 20) {
        file.write_all(piece).unwrap();
        length += piece.len();
        let problem = format!("the file is {length} bytes long");
        stage.keygate.wait_for("a torn file to be refused", |line| {
            line["reason"] == "size" && line["error"].as_str().unwrap().contains(&problem)
        });
    }
    file.write_all(last).unwrap();
    drop(file);
    stage.ends_with(2);
}

#[test]
fn a_filter_that_is_deleted_and_made_again_is_loaded() {
    let stage = Stage::new();
    let update = stage.update();
    remove_file(stage.file()).unwrap();
    stage.is_refused("io");
    rename(update, stage.file()).unwrap();
    stage.ends_with(2);
}

#[test]
fn a_filter_in_a_replaced_directory_is_loaded() {
    let stage = Stage::with("volume/lost.pkbf", |pki, first| {
        create_dir(pki.path("volume")).unwrap();
        rename(first, pki.path("volume/lost.pkbf")).unwrap();
    });
    let next = stage.pki.path("next");
    create_dir(&next).unwrap();
    rename(stage.update(), next.join("lost.pkbf")).unwrap();
    rename(stage.pki.path("volume"), stage.pki.path("old")).unwrap();
    rename(next, stage.pki.path("volume")).unwrap();
    remove_dir_all(stage.pki.path("old")).unwrap();
    stage.ends_with(2);
}

#[test]
fn an_update_in_a_swapped_kubernetes_volume_is_loaded() {
    let stage = Stage::with("volume/lost.pkbf", |pki, first| {
        create_dir(pki.path("volume")).unwrap();
        create_dir(pki.path("volume/..a")).unwrap();
        rename(first, pki.path("volume/..a/lost.pkbf")).unwrap();
        symlink("..a", pki.path("volume/..data")).unwrap();
        symlink("..data/lost.pkbf", pki.path("volume/lost.pkbf")).unwrap();
    });
    create_dir(stage.pki.path("volume/..b")).unwrap();
    rename(stage.update(), stage.pki.path("volume/..b/lost.pkbf")).unwrap();
    symlink("..b", stage.pki.path("volume/..data_tmp")).unwrap();
    rename(stage.pki.path("volume/..data_tmp"), stage.pki.path("volume/..data")).unwrap();
    remove_dir_all(stage.pki.path("volume/..a")).unwrap();
    stage.ends_with(2);
}

#[test]
fn an_unreadable_update_is_loaded_once_readable() {
    let stage = Stage::new();
    let update = stage.update();
    set_permissions(&update, Permissions::from_mode(0o000)).unwrap();
    rename(update, stage.file()).unwrap();
    stage.is_refused("io");
    set_permissions(stage.file(), Permissions::from_mode(0o644)).unwrap();
    stage.ends_with(2);
}

#[test]
fn the_last_of_a_thousand_updates_in_a_burst_is_loaded() {
    let stage = Stage::new();
    for revision in 2..1002 {
        // Small filters that are not synced to disk, to make a burst.
        let mut filter = Filter::new(Parameters::new(20, 16).unwrap()).unwrap();
        filter.insert(&stage.lost.spki);
        filter.stamp_as(revision, 1_700_000_000);
        let (header, bits) = filter.to_parts();
        let path = stage.pki.path("made/burst.pkbf");
        write(&path, [&header[..], bits].concat()).unwrap();
        rename(path, stage.file()).unwrap();
    }
    rename(stage.update_as(1002), stage.file()).unwrap();
    stage.ends_with(1002);
}

#[test]
fn an_update_without_a_file_event_is_loaded() {
    let stage = Stage::with("lost.pkbf", |pki, first| {
        for directory in ["middle", "one", "two"] {
            create_dir(pki.path(directory)).unwrap();
        }
        rename(first, pki.path("one/lost.pkbf")).unwrap();
        symlink(pki.path("one/lost.pkbf"), pki.path("middle/link")).unwrap();
        symlink("middle/link", pki.path("lost.pkbf")).unwrap();
    });
    rename(stage.update(), stage.pki.path("two/lost.pkbf")).unwrap();
    symlink(stage.pki.path("two/lost.pkbf"), stage.pki.path("middle/new")).unwrap();
    rename(stage.pki.path("middle/new"), stage.pki.path("middle/link")).unwrap();
    stage.ends_with(2);
}

#[test]
fn peak_memory_during_a_reload_is_both_filters_and_16_mib() {
    let stage = Stage::new();
    let update = stage.update();
    stage.keygate.forget_peak();
    rename(update, stage.file()).unwrap();
    stage.keygate.wait_for_generation(2);
    let peak = stage.keygate.memory("VmHWM");
    // The memory of the process includes the old filter.
    let most = stage.memory + FILTER_KIB + (16 << 10);
    assert!(peak <= most, "{peak} KiB, {most} KiB are allowed");
    stage.ends_with(2);
}

/// The preparation of a configuration that no test writes.
fn no_other_configuration() -> PlacedProblem {
    PlacedProblem { place: None, problem: "no other configuration exists".to_owned() }
}
