//! The kinds of files that a service names, apart from the CAs and CRLs of its clients. Each kind
//! brings the reading of its files. [`super::service_credentials`] lists the kinds.

use std::path::PathBuf;
use std::time::SystemTime;

use super::context::LoadContext;
use super::credential_files::CredentialFiles;
use super::credential_unit::{CredentialUnit, UnitRejection};
use super::last_good::{LastGood, ReadIf, Reread};
use super::load_errors::LoadErrors;
use super::private_key::ExposedKeyFile;
use super::report::ReloadReport;

/// The value of the files of one kind. The default is the value without files.
pub(crate) trait UnitFiles: Default {
    const UNIT: CredentialUnit;

    /// Paths of the files; empty if the service names none.
    fn paths(files: CredentialFiles<'_>) -> Vec<PathBuf>;

    /// Reads the files, while `before` is in use.
    ///
    /// # Errors
    /// Returns the errors of all files that cannot be used.
    fn read(files: CredentialFiles<'_>, before: &Self, now: SystemTime)
    -> Result<Self, LoadErrors>;

    /// The files with unsafe permissions.
    fn exposed(&self) -> &[ExposedKeyFile];
}

/// The last good value of the files of one kind, whatever its type.
pub(super) trait LoadedUnit {
    fn state(&self) -> UnitState<'_>;

    /// Reads the files again if one of them has changed. Returns the paths of an update in use.
    fn refresh(
        &mut self,
        files: CredentialFiles<'_>,
        now: SystemTime,
    ) -> Reread<Result<String, UnitRejection>>;
}

/// The files of one kind in use.
pub(super) struct UnitState<'a> {
    pub(super) unit: CredentialUnit,
    /// Paths of the files; empty if the service names none.
    pub(super) paths: &'a [PathBuf],
    /// The files with unsafe permissions.
    pub(super) exposed: &'a [ExposedKeyFile],
    pub(super) last_reload: ReloadReport,
}

impl<T: UnitFiles> LoadedUnit for LastGood<T> {
    fn state(&self) -> UnitState<'_> {
        let (paths, exposed, last_reload) =
            (self.paths(), self.get().exposed(), self.last_reload());
        UnitState { unit: T::UNIT, paths, exposed, last_reload }
    }

    fn refresh(
        &mut self,
        files: CredentialFiles<'_>,
        now: SystemTime,
    ) -> Reread<Result<String, UnitRejection>> {
        match self.reread(ReadIf::Changed, now, |before| T::read(files, before, now)) {
            Reread::Pending => Reread::Pending,
            Reread::Read(Ok(value)) => {
                self.replace(value, now);
                let paths: Vec<_> =
                    self.paths().iter().map(|path| path.display().to_string()).collect();
                Reread::Read(Ok(paths.join(", ")))
            }
            Reread::Read(Err(errors)) => {
                Reread::Read(Err(UnitRejection::record(self, T::UNIT, &errors, now)))
            }
            Reread::Unchanged => Reread::Unchanged,
        }
    }
}

/// Reads the files for the first time, or under other settings than `before`.
pub(super) fn load<T: UnitFiles>(
    files: CredentialFiles<'_>,
    before: Option<&LastGood<T>>,
    context: LoadContext<'_>,
) -> Result<LastGood<T>, LoadErrors> {
    let none = T::default();
    let before = before.map_or(&none, LastGood::get);
    let read = || T::read(files, before, context.now);
    let loaded = LastGood::load(T::paths(files), context.now, context.max_wait, read);
    loaded.map_err(|unusable| unusable.error)
}
