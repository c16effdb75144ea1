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
use crate::snapshot::warning::Warning;

/// A configured list and the last good state of its file.
#[derive(Debug)]
pub(crate) struct ListSource {
    config: ListConfig,
    metrics: ListMetrics,
    list: LastGood<Arc<FingerprintList>>,
    /// Why the copy in the state directory is in use at the start, and not the file.
    rejection: Option<ListFileError>,
}

impl ListSource {
    /// Reads the list for the first time. If the file is rejected and `may_use_kept`, the copy in the
    /// state directory is used.
    ///
    /// # Errors
    /// Returns an error if the list cannot be used, and no copy can be used in its place.
    pub(crate) fn load(
        config: ListConfig,
        may_use_kept: bool,
        context: LoadContext<'_>,
    ) -> Result<Self, LoadError> {
        let paths = vec![config.path.clone(), sidecar_of(&config.path)];
        let kept = || context.kept_lists.read(&config).filter(|_| may_use_kept);
        let entries = || kept().map_or(0, |list| list.len());
        let read = || read(&config, entries).map(Arc::new);
        let (list, rejection) =
            match LastGood::load(paths.clone(), context.now, context.max_wait, read) {
                Ok(list) => (list, None),
                Err(source) => match kept() {
                    Some(kept) => {
                        let mut list = LastGood::new(Arc::new(kept), context.now);
                        list.watch(paths);
                        list.record_rejection(None, &source, context.now);
                        (list, Some(source))
                    }
                    None => {
                        let (name, path) = (config.name.clone(), config.path.clone());
                        return Err(LoadError::List { name, path, source });
                    }
                },
            };
        let metrics = context.metrics.list(&config.name);
        Ok(Self { config, metrics, list, rejection })
    }

    /// Logs and counts the first value, which is now in use.
    pub(crate) fn show_loaded(&self) {
        self.metrics.record_loaded(self.list.get().len());
        info!(list = %self.config.name, entries = self.list.get().len(), "list loaded");
        if let Some(warning) = self.warning() {
            self.metrics.record_rejected();
            warning.log();
        }
    }

    /// The fault of the file of the list that an operator must mend.
    pub(crate) fn warning(&self) -> Option<Warning> {
        let rejection = self.rejection.as_ref()?;
        Some(Warning::LastGoodListInUse {
            list: self.config.name.clone(),
            path: self.config.path.clone(),
            error: rejection.to_string(),
        })
    }

    /// Reads the list again if its file or its checksum file has changed.
    pub(crate) fn refresh(&mut self, now: SystemTime) -> ValueChange {
        let read = |before: &Arc<FingerprintList>| read(&self.config, || before.len());
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
        self.rejection = None;
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
fn read(
    config: &ListConfig,
    entries: impl FnOnce() -> usize,
) -> Result<FingerprintList, ListFileError> {
    let max_size = config.max_size;
    let content = read_with(&config.path, move |path| {
        sandbox::check(path)?;
        let content = regular_file::read(path, max_size)?;
        let sha256 = || digest(&SHA256, &content).as_ref().try_into().unwrap_or_default();
        check_sidecar(path, sha256)?;
        Ok::<_, ListFileError>(content)
    })?;
    // A writer that truncates the file first may not have written yet, or may have failed.
    if content.iter().all(u8::is_ascii_whitespace) {
        let entries = entries();
        if entries > 0 {
            return Err(ListFileError::Emptied { entries });
        }
    }
    let text = String::from_utf8(content).map_err(ListFileError::Text)?;
    Ok(FingerprintList::parse(&config.name, &text)?)
}
