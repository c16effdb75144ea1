//! The sources of one kind, in the order of the configuration: all filters, or all services.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::time::SystemTime;

use super::check::dry_run::DryRun;
use super::context::LoadContext;
use super::last_good::ValueChange;
use super::load_errors::{LoadErrors, all};

/// The files of one table of the configuration, and their last good value.
pub(crate) trait FileSource: Sized {
    type Config: PartialEq;

    fn config(&self) -> &Self::Config;

    fn name(&self) -> &str;

    /// The source `in_use` that a source with this `config` replaces, also under another name.
    fn replaced_by<'a>(
        config: &Self::Config,
        in_use: &'a [Self],
        context: LoadContext<'_>,
    ) -> Option<&'a Self>;

    /// Reads the files for the first time, or under other settings than `before`.
    ///
    /// # Errors
    /// Returns the errors of all files that cannot be used.
    fn load(
        config: &Self::Config,
        before: Option<&Self>,
        context: LoadContext<'_>,
    ) -> Result<Self, LoadErrors>;

    /// Logs and counts the first values, which are now in use.
    fn log_and_count_first_load(&mut self, now: SystemTime);

    /// Reads files that have changed again, and returns each result. Updates are checked by `dry_run` on recent clients.
    fn refresh(&mut self, now: SystemTime, dry_run: &DryRun) -> Vec<ValueChange>;

    /// Paths of all files that are read again when they change.
    fn paths(&self) -> impl Iterator<Item = &PathBuf>;
}

/// The sources of one kind in use.
#[derive(Debug)]
pub(crate) struct SourceSet<S>(Vec<S>);

/// The sources of one kind in a new configuration, of which only new ones are loaded.
pub(crate) struct StagedSet<S>(Vec<Staged<S>>);

/// One source of a new configuration.
enum Staged<S> {
    /// The source in use at this index.
    Kept(usize),
    /// A source that was loaded.
    New(S),
}

impl<S> Default for SourceSet<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S: FileSource> SourceSet<S> {
    /// Loads what is new in `configs`. The sources in use do not change.
    pub(crate) fn stage(
        &self,
        configs: &[S::Config],
        context: LoadContext<'_>,
    ) -> Result<StagedSet<S>, LoadErrors> {
        let staged = configs.iter().map(|config| {
            if let Some(index) = self.iter().position(|known| known.config() == config) {
                return Ok(Staged::Kept(index));
            }
            S::load(config, S::replaced_by(config, self, context), context).map(Staged::New)
        });
        all(staged).map(StagedSet)
    }

    /// Puts the staged sources in use. Returns the names that are no longer in use.
    pub(crate) fn apply(&mut self, staged: StagedSet<S>, now: SystemTime) -> Vec<String> {
        let mut names: Vec<_> = self.iter().map(|source| source.name().to_owned()).collect();
        let mut known: Vec<_> = self.0.drain(..).map(Some).collect();
        for staged in staged.0 {
            match staged {
                Staged::Kept(index) => self.0.extend(known.get_mut(index).and_then(Option::take)),
                Staged::New(mut source) => {
                    source.log_and_count_first_load(now);
                    self.0.push(source);
                }
            }
        }
        names.retain(|name| !self.iter().any(|source| source.name() == name));
        names
    }

    /// Reads every source again if its files have changed. Adds each result to `changes`.
    pub(crate) fn refresh(
        &mut self,
        now: SystemTime,
        dry_run: &DryRun,
        changes: &mut Vec<ValueChange>,
    ) {
        for source in &mut self.0 {
            changes.extend(source.refresh(now, dry_run));
        }
    }

    /// Paths of all files that are read again when they change.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.iter().flat_map(S::paths)
    }
}

impl<S> StagedSet<S> {
    /// The sources of the new configuration, some of which may be `in_use`.
    pub(crate) fn sources<'a>(&'a self, in_use: &'a [S]) -> impl Iterator<Item = &'a S> {
        self.0.iter().filter_map(|staged| match staged {
            Staged::Kept(index) => in_use.get(*index),
            Staged::New(source) => Some(source),
        })
    }
}

impl<S> Deref for SourceSet<S> {
    type Target = [S];

    fn deref(&self) -> &[S] {
        &self.0
    }
}

impl<S> DerefMut for SourceSet<S> {
    fn deref_mut(&mut self) -> &mut [S] {
        &mut self.0
    }
}
