//! A filter, read again when its file, its checksum file, its signature or its canaries change.

mod first_value;
mod loading;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use keygate_core::guard::NamedFilter;
use keygate_core::pkbf::FilterSummary;
use keygate_core::signature::FileSignature;
use keygate_core::unix_time;
use tracing::{info, warn};

use self::first_value::InUse;
pub(crate) use self::first_value::read;
use super::gate::{AcceptError, Gate};
use super::waiting::Guarded;
use crate::config::FilterConfig;
use crate::metrics::{FilterMetrics, Label};
use crate::snapshot::filter_rejection::FilterRejection;
use crate::snapshot::load::check::check_filter;
use crate::snapshot::load::check::dry_run::DryRun;
use crate::snapshot::load::check::rollback::{MAX_CLOCK_SKEW, Watermark};
use crate::snapshot::load::failure::ReadError;
use crate::snapshot::load::file_record::FileRecord;
use crate::snapshot::load::last_good::{LastGood, ReadIf, Reread, ValueChange};
use crate::snapshot::load::signed::{LoadedFilter, ReadFilter};
use crate::snapshot::rejection_reason::RejectionReason;
use crate::snapshot::report::{FilterReport, ReloadReport, SignatureReport, WaitingReport};
use crate::snapshot::warning::Warning;

/// A configured filter and the last good state of its file.
#[derive(Debug)]
pub(crate) struct FilterSource {
    config: FilterConfig,
    metrics: FilterMetrics<RejectionReason>,
    filter: LastGood<LoadedFilter>,
    is_stale: bool,
    /// Whether the filter in use comes from the state directory, because its file was rejected at
    /// the start.
    is_last_good: bool,
    /// The last rejection, unless the file was loaded since.
    rejection: Option<Arc<FilterRejection>>,
    /// The report of the last rejection, kept when the file is loaded.
    last_rejection: Option<ReloadReport>,
    /// Holds rejected updates that may be used later without a change of the file.
    gate: Gate,
}

impl FilterSource {
    /// Logs and counts the first value, which is now in use, and why the file is not in use.
    pub(crate) fn show_loaded(&mut self, now: SystemTime) {
        let sha256 = HEXLOWER.encode(&self.filter().sha256);
        if self.gate.has_accepted(&sha256) {
            self.record_use(&sha256, now);
        }
        self.metrics.record_loaded(self.filter(), unix_time::seconds(now) as f64);
        self.metrics.set_last_good_in_use(self.is_last_good);
        self.log_loaded();
        for warning in self.warnings() {
            warning.log();
        }
        if let Some(max_new_hits) = &self.gate.untried {
            warn!(filter = %self.config.name, max_new_hits, "max_new_hits was not checked");
        }
        if let Some(rejection) = self.rejection.take() {
            self.reject(rejection, now);
        }
    }

    fn log_loaded(&self) {
        let filter = self.filter();
        let (header, signature) = (filter.filter.header(), self.signature());
        info!(
            filter = %self.config.name,
            revision = header.revision,
            entries = header.entry_count,
            sha256 = HEXLOWER.encode(&filter.sha256),
            signed_by = signature.map(FileSignature::key_id),
            comment = signature.map(FileSignature::comment),
            max_new_hits = self.gate.untried,
            "filter loaded"
        );
    }

    fn in_use(&self) -> InUse<'_> {
        let (filter, gate) = (self.filter.get(), &self.gate);
        InUse { filter, gate, is_last_good: self.is_last_good }
    }

    /// The faults of the filter in use that an operator must mend.
    pub(crate) fn warnings(&self) -> Vec<Warning> {
        let filter = &self.config.name;
        let is_empty = self.filter().filter.header().entry_count == 0;
        let empty = is_empty.then(|| Warning::empty_filter(filter));
        let rejection = self.rejection.as_ref().filter(|_| self.is_last_good);
        let last_good = rejection.map(|rejection| {
            Warning::last_good_filter(filter, &self.config.path, rejection.reason(), rejection)
        });
        last_good.into_iter().chain(empty).collect()
    }

    /// Reads the filter again if a file has changed, or if a held update may be used now. An update
    /// is tried on the recent clients of `dry_run`.
    pub(crate) fn refresh(&mut self, now: SystemTime, dry_run: &DryRun) -> ValueChange {
        self.check_age(now);
        let read_if = if self.gate.may_be_used(now) { ReadIf::Always } else { ReadIf::Changed };
        let read = |_: &_| read(&self.config);
        match self.filter.reread(read_if, now, read) {
            Reread::Pending => ValueChange::Pending,
            Reread::Read(Ok(file)) => self.update(file, now, dry_run),
            Reread::Read(Err(rejection)) => self.reject(Arc::new(rejection), now),
            Reread::Unchanged => ValueChange::Same,
        }
    }

    fn update(&mut self, read: ReadFilter, now: SystemTime, dry_run: &DryRun) -> ValueChange {
        if *read.file.sha256() == self.filter().sha256 {
            if self.rejection.is_some() {
                let path = self.config.path.display();
                info!(filter = %self.config.name, %path, "filter file is usable again");
            }
            self.clear_rejection();
            // The file may have been signed again, with another key.
            self.filter.get_mut().signature = read.signature;
            self.filter.record_unchanged(now);
            self.metrics.record_unchanged();
            return ValueChange::Same;
        }
        let update = check_filter(&self.config, read, Some(self.watermark()), now);
        let update = update.and_then(|update| self.ensure_may_be_used(update, now, dry_run));
        match update {
            Ok(update) => {
                self.gate.untried = dry_run.untried(None, self.config.max_new_hits);
                self.activate(update, now)
            }
            Err(rejection) => self.reject(Arc::new(rejection), now),
        }
    }

    /// Returns `update` if it needs no operator, or if an operator has accepted it.
    fn ensure_may_be_used(
        &mut self,
        update: LoadedFilter,
        now: SystemTime,
        dry_run: &DryRun,
    ) -> Result<LoadedFilter, FilterRejection> {
        let before = self.gate.entries_before(self.filter().filter.explained_entries(), now);
        let (hits, allowed) = (dry_run.new_hits_of_filter(&update.named), self.config.max_new_hits);
        self.gate.check(
            WaitingReport::of_filter(&update.named, before, hits, allowed),
            None,
            false,
            now,
        )?;
        Ok(update)
    }

    fn activate(&mut self, update: LoadedFilter, now: SystemTime) -> ValueChange {
        let sha256 = HEXLOWER.encode(&update.named.sha256);
        self.record_use(&sha256, now);
        self.clear_rejection();
        self.metrics.record_loaded(&update.named, unix_time::seconds(now) as f64);
        self.filter.replace(update, now);
        self.log_loaded();
        for warning in self.warnings() {
            warning.log();
        }
        self.check_age(now);
        ValueChange::Replaced
    }

    /// Records that the update with this SHA-256, in hex, replaces the filter.
    fn record_use(&mut self, sha256: &str, now: SystemTime) {
        let entries_before = self.filter().filter.explained_entries();
        if let Some(accepted) = self.gate.record_use(sha256, entries_before, now) {
            accepted.log();
            self.metrics.accepted.inc();
        }
    }

    fn reject(&mut self, rejection: Arc<FilterRejection>, now: SystemTime) -> ValueChange {
        self.gate.record_rejection(rejection.needs_operator(), rejection.failure());
        if let FilterRejection::Future { updated } = *rejection {
            self.gate.hold_until(updated.saturating_sub(MAX_CLOCK_SKEW));
        }
        let reason = rejection.reason();
        if !self.filter.record_rejection(Some(reason.as_str()), &*rejection, now) {
            return ValueChange::Same;
        }
        self.metrics.record_rejected(reason);
        let waiting = self.gate.acceptable();
        warn!(
            filter = %self.config.name,
            path = %self.config.path.display(),
            reason = reason.as_str(),
            error = %rejection,
            revision_in_use = self.filter().filter.header().revision,
            sha256 = waiting.map(|waiting| waiting.sha256.as_str()),
            clients = waiting.map(WaitingReport::client_list).filter(|list| !list.is_empty()),
            "filter update rejected, keeping the one in use"
        );
        self.last_rejection = Some(self.filter.last_reload());
        self.rejection = Some(rejection);
        ValueChange::Same
    }

    /// Forgets the rejection, because the file is in use now.
    fn clear_rejection(&mut self) {
        self.rejection = None;
        self.gate.clear();
        self.is_last_good = false;
        self.metrics.set_last_good_in_use(false);
    }

    /// Logs once when the filter in use becomes older than `max_age`, and sets its metric.
    fn check_age(&mut self, now: SystemTime) {
        let Some(max_age) = self.config.max_age else {
            self.metrics.set_stale(false); // a previous configuration may have set `max_age`
            return;
        };
        let updated = self.filter().filter.header().updated_at;
        let age = unix_time::seconds(now).saturating_sub(updated);
        let is_stale = age > max_age.as_secs();
        self.metrics.set_stale(is_stale);
        if is_stale && !self.is_stale {
            warn!(
                filter = %self.config.name,
                age = %humantime::format_duration(Duration::from_secs(age)),
                max_age = %humantime::format_duration(max_age),
                "the filter in use is stale: keys that leaked since are not in it"
            );
        }
        self.is_stale = is_stale;
    }

    /// The configuration of the filter.
    pub(crate) fn config(&self) -> &FilterConfig {
        &self.config
    }

    /// The filter in use.
    pub(crate) fn filter(&self) -> &Arc<NamedFilter> {
        &self.filter.get().named
    }

    /// The signature of the filter in use; `None` if none was needed.
    fn signature(&self) -> Option<&FileSignature> {
        self.filter.get().signature.as_deref()
    }

    /// Name of the filter.
    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// The watermark of the filter in use.
    pub(crate) fn watermark(&self) -> Watermark {
        Watermark::from_header(self.filter().filter.header())
    }

    /// Paths of the filter, its checksum file, its signature, the keys and its canaries.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        self.filter.paths()
    }

    /// The facts that outlive a restart.
    pub(crate) fn record(&self) -> FileRecord {
        let entries = self.filter().filter.explained_entries();
        FileRecord::new(&self.config.path, entries, &self.gate).of_filter(self.filter.get())
    }

    /// The filter in use, the result of the last attempt to read it, and the waiting update.
    pub(crate) fn report(&self) -> FilterReport {
        let NamedFilter { name, filter, sha256 } = &**self.filter();
        FilterReport {
            name: name.to_string(),
            summary: FilterSummary::of(&self.config.path, filter, sha256),
            loaded: self.filter.loaded_at(),
            stale: self.is_stale,
            last_good_in_use: self.is_last_good,
            last_reload: self.filter.last_reload(),
            last_rejection: self.last_rejection.clone(),
            dry_run: self.gate.report(),
            signature: self.signature().map(SignatureReport::of),
        }
    }
}

impl Guarded for FilterSource {
    fn accept(&mut self, sha256: &[u8; 32], peer: &str) -> Result<(), AcceptError> {
        self.gate.accept(sha256, peer)
    }

    fn problem_of(&self, sha256: &[u8; 32]) -> Option<String> {
        (self.filter().sha256 != *sha256).then(|| self.filter.problem())
    }
}
