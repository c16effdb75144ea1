//! A revocation list expires while other files change.
//!
//! Guards: `apply_crl_expiry` and `crls_checked_at` in
//! `src/sources/credential_source.rs`.

use std::fs::{File, write};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use keygate::config::Config;
use keygate::metrics::ControlMetrics;
use keygate::snapshot::{Loader, Snapshot};
use keygate::sources::{Commit, JudgementContext, Prepare, Trigger};
use keygate_core::tls::ClientVerifier;

use crate::support::before;
use crate::support::pki::{Pki, RevocationList};
use crate::support::proxy::{Configuration, Configure};
use crate::support::write_filter;

struct Scene {
    pki: Pki,
    loader: Loader,
    /// The verifier of the connections that are open when the list expires.
    verifier: Arc<ClientVerifier>,
    expiry: SystemTime,
}

fn configuration() -> Configuration {
    Configuration::new("127.0.0.1:9").client_auth("crls = [\"clients.crl\"]")
}

fn verifier(snapshot: &Snapshot) -> Arc<ClientVerifier> {
    Arc::clone(&snapshot.services()[0].client_verifier)
}

fn scene() -> Scene {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let (path, text) = (pki.path("keygate.toml"), configuration().text());
    write(&path, &text).unwrap();
    let config = Config::parse(&path, &text).unwrap();
    let (expiry, (loader, first)) = before(Duration::from_secs(8), |expiry| {
        let mut list = RevocationList::new(1, &[]);
        list.expires = expiry;
        pki.crl_with("clients.crl", &list);
        let metrics = ControlMetrics::new().unwrap();
        let links = JudgementContext::default();
        Loader::start_locked(&config, Some(&path), metrics, links).unwrap()
    });
    Scene { pki, loader, verifier: verifier(&first), expiry }
}

impl Scene {
    /// The next look at the files, after the list has expired, is the first one. Connections that
    /// are open then must be verified again.
    fn expires_at_the_next_look(mut self, change: impl FnOnce(&Pki)) {
        // The clock alone shows that a list expires.
        sleep(self.expiry.duration_since(SystemTime::now()).unwrap_or_default());
        change(&self.pki);
        let mut prepare: Prepare = Box::new(|_| Ok(Box::new(|| ()) as Commit));
        let refreshed = self.loader.refresh(Trigger::Poll, &mut prepare);
        let snapshot = refreshed.snapshot.expect("a snapshot without the sessions of before");
        assert!(!Arc::ptr_eq(&verifier(&snapshot), &self.verifier), "a new verifier");
    }
}

#[test]
fn an_expiry_does_not_wait_for_the_writer_of_a_file() {
    scene().expires_at_the_next_look(|pki| {
        let file = File::options().write(true).open(pki.path("clients.crl")).unwrap();
        file.set_modified(SystemTime::now()).unwrap();
    });
}

#[test]
fn an_expiry_is_applied_although_the_configuration_changes_at_the_same_time() {
    let scene = scene();
    let next = configuration().service("forward = { client_cert = false }");
    write(scene.pki.path("keygate.toml"), next.text()).unwrap();
    scene.expires_at_the_next_look(|_| {});
}
