//! A list of fingerprints, read again when its file or its checksum file changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use tracing::{info, warn};

use crate::config::ListConfig;
use crate::guard::FingerprintList;
use crate::metrics::ListMetrics;
use crate::pkbf::{check_sidecar, sidecar_of};
use crate::process::sandbox;
use crate::regular_file;
use crate::snapshot::load::context::LoadContext;
use crate::snapshot::load::error::{ListFileError, LoadError};
use crate::snapshot::load::file::read_with;
use crate::snapshot::load::last_good::{LastGood, ReadIf, Reread, ValueChange};
use crate::snapshot::report::ListReport;

/// A configured list and the last good state of its file.
#[derive(Debug)]
pub(crate) struct ListSource {
    config: ListConfig,
    metrics: ListMetrics,
    list: LastGood<Arc<FingerprintList>>,
}

impl ListSource {
    /// Reads the list for the first time.
    ///
    /// # Errors
    /// Returns an error if the list cannot be used.
    pub(crate) fn load(config: ListConfig, context: LoadContext<'_>) -> Result<Self, LoadError> {
        let paths = vec![config.path.clone(), sidecar_of(&config.path)];
        let list =
            LastGood::load(paths, context.now, context.max_wait, || read(&config, 0).map(Arc::new));
        let list = list.map_err(|source| LoadError::List {
            name: config.name.clone(),
            path: config.path.clone(),
            source,
        })?;
        let metrics = context.metrics.list(&config.name);
        metrics.record_loaded(list.get().len());
        Ok(Self { config, metrics, list })
    }

    /// Logs the first value, which is now in use.
    pub(crate) fn log_loaded(&self) {
        info!(list = %self.config.name, entries = self.list.get().len(), "list loaded");
    }

    /// Reads the list again if its file or its checksum file has changed.
    pub(crate) fn refresh(&mut self, now: SystemTime) -> ValueChange {
        let read = |before: &Arc<FingerprintList>| read(&self.config, before.len());
        match self.list.reread(ReadIf::Changed, now, read) {
            Reread::Pending => ValueChange::Pending,
            Reread::Read(Ok(list)) => self.activate(list, now),
            Reread::Read(Err(error)) => self.reject(&error, now),
            Reread::Unchanged => ValueChange::Same,
        }
    }

    fn activate(&mut self, list: FingerprintList, now: SystemTime) -> ValueChange {
        let (entries, before) = (list.len(), self.list.get().len());
        self.list.replace(Arc::new(list), now);
        self.metrics.record_loaded(entries);
        info!(list = %self.config.name, entries, before, "list loaded");
        if before > 0 && entries <= before / 2 {
            warn!(list = %self.config.name, entries, before, "list lost half of its keys or more");
        }
        ValueChange::Replaced
    }

    fn reject(&mut self, error: &ListFileError, now: SystemTime) -> ValueChange {
        if !self.list.record_rejection(None, error, now) {
            return ValueChange::Same;
        }
        self.metrics.record_rejected();
        warn!(
            list = %self.config.name,
            path = %self.config.path.display(),
            %error,
            "list update rejected, keeping the one in use"
        );
        ValueChange::Same
    }

    /// The configuration of the list.
    pub(crate) fn config(&self) -> &ListConfig {
        &self.config
    }

    /// The list in use.
    pub(crate) fn list(&self) -> &Arc<FingerprintList> {
        self.list.get()
    }

    /// Paths of the list and its checksum file.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        self.list.paths()
    }

    /// The list in use and the result of the last attempt to read it.
    pub(crate) fn report(&self) -> ListReport {
        ListReport::new(self.list.get(), &self.config.path, self.list.last_reload())
    }
}

/// Reads the list, while a list of `entries` keys is in use.
fn read(config: &ListConfig, entries: usize) -> Result<FingerprintList, ListFileError> {
    let max_size = config.max_size;
    let content = read_with(&config.path, move |path| {
        sandbox::check(path)?;
        let content = regular_file::read(path, max_size)?;
        let sha256 = || digest(&SHA256, &content).as_ref().try_into().unwrap_or_default();
        check_sidecar(path, sha256)?;
        Ok::<_, ListFileError>(content)
    })?;
    // A writer that truncates the file first may not have written yet, or may have failed.
    if content.iter().all(u8::is_ascii_whitespace) && entries > 0 {
        return Err(ListFileError::Emptied { entries });
    }
    let text = String::from_utf8(content).map_err(ListFileError::Text)?;
    Ok(FingerprintList::parse(&config.name, &text)?)
}
