//! File events alone start a reload: here the poll comes once an hour.

use std::fs::{create_dir, rename};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use keygate::blocking::BlockingPool;
use keygate::config::{Config, PlacedProblem};
use keygate::log_writer::LogReopener;
use keygate::metrics::ControlMetrics;
use keygate::snapshot::watch::FileWatcher;
use keygate::snapshot::{Current, Loader};
use keygate::sources::JudgementContext;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::support::pki::Pki;
use crate::support::proxy::{Configuration, Configure};
use crate::support::{TIMEOUT, write_revision};

async fn wait_for_generation(current: &Current, generation: u64) {
    let reached = timeout(TIMEOUT, async {
        while current.load().generation < generation {
            sleep(Duration::from_millis(10)).await;
        }
    });
    reached.await.unwrap_or_else(|_| panic!("no event for generation {generation}"));
}

/// Installs the revisions 1 to 3 of a filter with `install`; the configuration names `path`.
/// The first look of a watcher needs no event, so that only the last revision shows that events
/// arrive.
async fn check(path: &str, install: impl Fn(&Pki, &Path, u32)) {
    let pki = Pki::new();
    create_dir(pki.path("made")).unwrap();
    let next = |revision: u32| {
        let made = pki.path("made/next.pkbf");
        write_revision(&made, &[], revision);
        install(&pki, &made, revision);
    };
    next(1);
    let text = Configuration::new("127.0.0.1:9").set("filters.path", path).text();
    let config = Config::parse(&pki.path("keygate.toml"), &text).unwrap();
    let metrics = ControlMetrics::new().unwrap();
    let (loader, snapshot) =
        Loader::start(&config, None, metrics, JudgementContext::default()).unwrap();
    let current: Current = Arc::new(ArcSwap::from_pointee(snapshot));
    let report = Arc::new(ArcSwap::from_pointee(loader.report()));
    let (_commands, received) = mpsc::channel(1);
    let watcher = FileWatcher {
        loader,
        prepare: Box::new(|_| Err(no_other_configuration())),
        current: Arc::clone(&current),
        report,
        commands: received,
        judgements: watch::channel(0).0,
        poll_interval: Duration::from_secs(3600),
        reopener: LogReopener::default(),
        thread: BlockingPool::new("loader", 1).unwrap(),
    };
    let watcher = tokio::spawn(watcher.run());
    for revision in [2, 3] {
        next(revision);
        wait_for_generation(&current, u64::from(revision)).await;
    }
    watcher.abort();
}

#[tokio::test]
async fn a_renamed_file_is_an_event() {
    check("lost.pkbf", |pki, made, _| rename(made, pki.path("lost.pkbf")).unwrap()).await;
}

#[tokio::test]
async fn a_file_rewritten_in_place_is_an_event() {
    check("lost.pkbf", |pki, made, _| {
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(pki.path("lost.pkbf"));
        let file = file.unwrap();
        file.lock().unwrap();
        file.write_all_at(&std::fs::read(made).unwrap(), 0).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_swapped_link_of_a_kubernetes_volume_is_an_event() {
    check("volume/lost.pkbf", |pki, made, revision| {
        let version = format!("..{revision}");
        std::fs::create_dir_all(pki.path("volume").join(&version)).unwrap();
        rename(made, pki.path("volume").join(&version).join("lost.pkbf")).unwrap();
        symlink(&version, pki.path("volume/..data_tmp")).unwrap();
        rename(pki.path("volume/..data_tmp"), pki.path("volume/..data")).unwrap();
        let _ = symlink("..data/lost.pkbf", pki.path("volume/lost.pkbf")); // the first time
    })
    .await;
}

#[tokio::test]
async fn a_changed_target_of_a_link_is_an_event() {
    check("lost.pkbf", |pki, made, _| {
        std::fs::create_dir_all(pki.path("elsewhere")).unwrap();
        rename(made, pki.path("elsewhere/real.pkbf")).unwrap();
        let _ = symlink("elsewhere/real.pkbf", pki.path("lost.pkbf")); // the first time
    })
    .await;
}

/// The preparation of a configuration that no test writes.
fn no_other_configuration() -> PlacedProblem {
    PlacedProblem { place: None, problem: "no other configuration exists".to_owned() }
}
