//! A proxy whose filter changes under it.

use std::fs::{create_dir, rename};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use serde_json::Value;

use super::keygate::Keygate;
use super::origin::Origin;
use super::pki::{Kind, Party, Pki};
use super::proxy::{Configuration, Configure};
use super::{output_text, write_filter, write_revision};

/// A proxy whose filter holds `lost`, and two clients that it admits.
pub struct Scene {
    pub pki: Pki,
    pub keygate: Keygate,
    pub good: Party,
    pub lost: Party,
    /// Will be in the next filter.
    pub next: Party,
}

impl Scene {
    /// The configuration names `path`; `prepare` puts the file there. It is given a finished
    /// filter.
    pub fn with(path: &str, prepare: impl FnOnce(&Pki, &Path)) -> Self {
        Self::configured(prepare, |configuration| configuration.set("filters.path", path))
    }

    pub fn new() -> Self {
        Self::with("lost.pkbf", |pki, first| rename(first, pki.path("lost.pkbf")).unwrap())
    }

    pub fn configured(
        prepare: impl FnOnce(&Pki, &Path),
        change: impl FnOnce(Configuration) -> Configuration,
    ) -> Self {
        let (pki, origin) = (Pki::new(), Origin::start());
        let [good, lost, next] = ["good", "lost", "next"].map(|name| pki.client(name, Kind::P256));
        create_dir(pki.path("made")).unwrap();
        let first = pki.path("made/first.pkbf");
        write_filter(&first, &[&lost.spki]);
        prepare(&pki, &first);
        let keygate = change(Configuration::new(origin.address())).start(&pki);
        let scene = Self { pki, keygate, good, lost, next };
        scene.admits(&scene.good);
        scene.admits(&scene.next);
        scene.refuses(&scene.lost);
        scene
    }

    /// A complete filter of revision 2 with `lost` and `next`, outside the watched directory.
    pub fn update(&self) -> PathBuf {
        let path = self.pki.path("made/update.pkbf");
        write_revision(&path, &[&self.lost.spki, &self.next.spki], 2);
        path
    }

    pub fn admits(&self, client: &Party) {
        let response = self.keygate.curl(client, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
    }

    pub fn refuses(&self, client: &Party) {
        let text = self.keygate.rejection(client);
        assert!(text.contains("access denied"), "{}: {text}", client.name);
    }

    /// The first filter is in use.
    pub fn is_as_it_was(&self) {
        self.admits(&self.good);
        self.admits(&self.next);
        self.refuses(&self.lost);
        assert_eq!(self.keygate.status()["filters"][0]["revision"], 1);
    }

    /// Waits for the filter with these bytes, from [`Scene::update`], to be in use.
    pub fn is_replaced_by(&self, update: &[u8]) {
        let keygate = &self.keygate;
        keygate.wait_for_generation(2);
        self.refuses(&self.next);
        self.refuses(&self.lost);
        self.admits(&self.good);

        let status =
            keygate.wait_for_status("revision 2", |status| status["filters"][0]["revision"] == 2);
        assert_eq!(status["generation"], 2);
        assert_eq!(status["filters"][0]["entries"], 2);
        let sha256 = HEXLOWER.encode(digest(&SHA256, update).as_ref());
        assert_eq!(status["filters"][0]["sha256"], sha256.as_str());
        assert_eq!(status["filters"][0]["last_reload"]["result"], "loaded");
        let info = format!("keygate_filter_info{{filter=\"lost\",sha256=\"{sha256}\"}}");
        assert_eq!(keygate.metric(&info), 1.0);
        assert_eq!(keygate.metric("keygate_filter_revision{filter=\"lost\"}"), 2.0);
        assert_eq!(keygate.metric(LOADED), 2.0, "the first one, then the update");
        assert_eq!(keygate.metric(SUCCESSFUL), 1.0);
    }

    /// Waits until an update is rejected with `reason` and an error that contains `problem`.
    pub fn is_refused(&self, reason: &str, problem: &str) {
        self.keygate.wait_for("a refused update", |line| {
            line["message"] == "filter update rejected, keeping the one in use"
                && line["reason"] == reason
                && contains(&line["error"], problem)
        });
        let status = self.keygate.wait_for_status("the refusal", |status| {
            contains(&status["filters"][0]["last_reload"]["error"], problem)
        });
        let last = &status["filters"][0]["last_reload"];
        assert_eq!((&last["result"], &last["reason"]), (&"refused".into(), &reason.into()));
        assert_eq!(self.keygate.metric(SUCCESSFUL), 0.0);
        assert!(self.keygate.metric(&refusals(reason)) >= 1.0, "{reason} is counted");
    }
}

pub const LOADED: &str = "keygate_filter_reloads_total{filter=\"lost\",result=\"loaded\"}";
pub const REFUSED: &str = "keygate_filter_reloads_total{filter=\"lost\",result=\"refused\"}";
pub const SUCCESSFUL: &str = "keygate_filter_last_reload_successful{filter=\"lost\"}";

pub fn refusals(reason: &str) -> String {
    format!("keygate_filter_refusals_total{{filter=\"lost\",reason=\"{reason}\"}}")
}

pub fn contains(text: &Value, part: &str) -> bool {
    text.as_str().is_some_and(|text| text.contains(part))
}
