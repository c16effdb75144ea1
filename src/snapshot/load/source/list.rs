//! An exact list, read again when its file, its checksum file, its signature or its metadata
//! change.

mod read;

use std::cell::OnceCell;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tracing::{info, warn};

use self::read::paths;
pub(crate) use self::read::read;
use crate::config::{ListConfig, ListFormat};
use crate::guard::ExactList;
use crate::metrics::{Label, ListMetrics};
use crate::signature::FileSignature;
use crate::snapshot::list_rejection_reason::ListRejectionReason;
use crate::snapshot::load::check::rollback::MAX_CLOCK_SKEW;
use crate::snapshot::load::context::LoadContext;
use crate::snapshot::load::error::{ListFileError, LoadError};
use crate::snapshot::load::last_good::{LastGood, ReadIf, Reread, ValueChange};
use crate::snapshot::load::signed::LoadedList;
use crate::snapshot::report::ListReport;
use crate::snapshot::warning::Warning;
use crate::unix_time;

/// A configured list and the last good state of its file.
#[derive(Debug)]
pub(crate) struct ListSource {
    config: ListConfig,
    metrics: ListMetrics<ListRejectionReason>,
    list: LastGood<LoadedList>,
    is_stale: bool,
    /// Why the copy in the state directory is in use at the start, and not the file.
    rejection: Option<ListFileError>,
}

impl ListSource {
    /// Reads the list for the first time, or under other settings than those of `in_use`, which is
    /// the source with the same name. If the file of a new list is rejected, the copy in the state
    /// directory is used.
    ///
    /// # Errors
    /// Returns an error if the list cannot be used, and no copy can be used in its place.
    pub(crate) fn load(
        config: ListConfig,
        in_use: Option<&Self>,
        context: LoadContext<'_>,
    ) -> Result<Self, LoadError> {
        let kept = OnceCell::new();
        let kept = || match in_use {
            // Under new settings the file must be usable: the list in use stays otherwise.
            Some(_) => None,
            None => kept.get_or_init(|| context.kept_lists.read(&config)).clone(),
        };
        let before = || match in_use {
            Some(source) => Some(source.list().clone()),
            None => kept().map(|kept| kept.list),
        };
        let read = || read(&config, before);
        let loaded = LastGood::load(paths(&config), context.now, context.max_wait, read);
        let (list, rejection) = match loaded {
            Ok(list) => (list, None),
            Err(source) => match kept() {
                Some(kept) => {
                    let mut list = LastGood::new(kept, context.now);
                    list.watch(paths(&config));
                    let reason = ListRejectionReason::of(&source).as_str();
                    list.record_rejection(Some(reason), &source, context.now);
                    (list, Some(source))
                }
                None => return Err(LoadError::of_list(&config, source, context.file)),
            },
        };
        let metrics = context.metrics.list(&config.name);
        Ok(Self { config, metrics, list, is_stale: false, rejection })
    }

    /// Logs and counts the first value, which is now in use.
    pub(crate) fn show_loaded(&mut self, now: SystemTime) {
        let entries = self.list().len();
        self.metrics.record_loaded(entries, self.date());
        self.log_loaded(entries, None);
        self.log_warnings(now);
        if let Some(rejection) = &self.rejection {
            self.metrics.record_rejected(ListRejectionReason::of(rejection));
        }
        self.check_age(now);
    }

    fn log_loaded(&self, entries: usize, before: Option<usize>) {
        let signature = self.list.get().signature();
        info!(
            list = %self.config.name,
            entries,
            before,
            signed_by = signature.map(FileSignature::key_id),
            comment = signature.map(FileSignature::comment),
            "list loaded"
        );
    }

    /// The faults of the list that an operator must mend.
    pub(crate) fn warnings(&self, now: SystemTime) -> Vec<Warning> {
        let list = || self.config.name.clone();
        let rejection = self.rejection.as_ref().map(|rejection| Warning::LastGoodListInUse {
            list: list(),
            path: self.config.path.clone(),
            reason: ListRejectionReason::of(rejection),
            error: rejection.to_string(),
        });
        let deprecated = self.is_deprecated().then(|| Warning::DeprecatedList { list: list() });
        let is_ageless = self.max_age().is_some() && self.age(now).is_none();
        let ageless = is_ageless.then(|| Warning::AgelessList { list: list(), date: self.date() });
        let empty = self.list().is_empty().then(|| Warning::EmptyList { list: list() });
        let stale = self.overdue(now);
        rejection.into_iter().chain(deprecated).chain(ageless).chain(stale).chain(empty).collect()
    }

    /// Reads the list again if one of its files has changed.
    pub(crate) fn refresh(&mut self, now: SystemTime) -> ValueChange {
        self.check_age(now);
        let read = |before: &LoadedList| read(&self.config, || Some(before.list.clone()));
        match self.list.reread(ReadIf::Changed, now, read) {
            Reread::Pending => ValueChange::Pending,
            Reread::Read(Ok(list)) if self.has_same_content(&list.list) => self.keep(list, now),
            Reread::Read(Ok(list)) => self.activate(list, now),
            Reread::Read(Err(error)) => self.reject(&error, now),
            Reread::Unchanged => ValueChange::Same,
        }
    }

    /// Whether an update has the content in use, so that no connection needs to be judged again.
    fn has_same_content(&self, update: &ExactList) -> bool {
        match (self.list(), update) {
            (ExactList::Badkeys(list), ExactList::Badkeys(update)) => list == update,
            (ExactList::Badkeys(_) | ExactList::Fingerprints(_), _) => false,
        }
    }

    fn keep(&mut self, update: LoadedList, now: SystemTime) -> ValueChange {
        // The file may have been signed again, with another key.
        self.list.get_mut().signed = update.signed;
        self.list.record_unchanged(now);
        self.rejection = None;
        self.metrics.record_unchanged();
        ValueChange::Same
    }

    fn activate(&mut self, list: LoadedList, now: SystemTime) -> ValueChange {
        let (entries, before) = (list.list.len(), self.list().len());
        self.list.replace(list, now);
        self.rejection = None;
        self.metrics.record_loaded(entries, self.date());
        self.log_loaded(entries, Some(before));
        if before > 0 && entries <= before / 2 {
            warn!(list = %self.config.name, entries, before, "list lost half of its keys or more");
        }
        self.log_warnings(now);
        self.check_age(now);
        ValueChange::Replaced
    }

    /// Logs the warnings. [`Self::check_age`] logs that of the age once.
    fn log_warnings(&self, now: SystemTime) {
        let is_of_age = |warning: &Warning| matches!(warning, Warning::StaleList { .. });
        self.warnings(now).iter().filter(|it| !is_of_age(it)).for_each(Warning::log);
    }

    /// Logs once when the list in use becomes older than `max_age`, and sets its metric. A list of
    /// unknown age counts as stale; its warning is one of [`Self::warnings`].
    fn check_age(&mut self, now: SystemTime) {
        let overdue = self.overdue(now);
        let is_stale = overdue.is_some() || self.max_age().is_some() && self.age(now).is_none();
        self.metrics.set_stale(is_stale);
        if let Some(warning) = overdue
            && !self.is_stale
        {
            warning.log();
        }
        self.is_stale = is_stale;
    }

    /// The warning that the list in use is older than `max_age`.
    fn overdue(&self, now: SystemTime) -> Option<Warning> {
        let (max_age, age) = self.max_age().zip(self.age(now))?;
        let list = self.config.name.clone();
        (age > max_age).then_some(Warning::StaleList { list, age, max_age })
    }

    /// The age of the list in use. `None` if it has no date, or one that lies in the future, which
    /// would hide its age.
    fn age(&self, now: SystemTime) -> Option<Duration> {
        let (date, now) = (self.date()?, unix_time::seconds(now));
        let age = Duration::from_secs(now.saturating_sub(date));
        (date <= now.saturating_add(MAX_CLOCK_SKEW)).then_some(age)
    }

    fn max_age(&self) -> Option<Duration> {
        match self.config.format {
            ListFormat::Badkeys(settings) => settings.max_age,
            ListFormat::Fingerprints => None,
        }
    }

    /// The date of the list in use, in seconds since the Unix epoch, if it has one.
    fn date(&self) -> Option<u64> {
        match self.list() {
            ExactList::Badkeys(list) => list.date,
            ExactList::Fingerprints(_) => None,
        }
    }

    fn is_deprecated(&self) -> bool {
        match self.list() {
            ExactList::Badkeys(list) => list.is_deprecated,
            ExactList::Fingerprints(_) => false,
        }
    }

    fn reject(&mut self, error: &ListFileError, now: SystemTime) -> ValueChange {
        let reason = ListRejectionReason::of(error);
        if !self.list.record_rejection(Some(reason.as_str()), error, now) {
            return ValueChange::Same;
        }
        self.metrics.record_rejected(reason);
        warn!(
            list = %self.config.name,
            path = %self.config.path.display(),
            reason = reason.as_str(),
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
    pub(crate) fn list(&self) -> &ExactList {
        &self.list.get().list
    }

    /// The list in use with its signature.
    pub(crate) fn loaded(&self) -> &LoadedList {
        self.list.get()
    }

    /// Paths of the list, its checksum file, its metadata, the signatures and the keys.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        self.list.paths()
    }

    /// The list in use and the result of the last attempt to read it.
    pub(crate) fn report(&self) -> ListReport {
        let last_reload = self.list.last_reload();
        ListReport {
            last_good_in_use: self.rejection.is_some(),
            ..ListReport::new(self.list.get(), &self.config.path, self.is_stale, last_reload)
        }
    }
}
