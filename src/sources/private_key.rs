//! Reads private key files: zeroizes their content, and reports unsafe permissions.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use keygate_core::regular_file;
use zeroize::Zeroizing;

use crate::files::read_with;
use crate::process::sandbox;

/// A private key file that users other than its owner can read or replace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposedKeyFile {
    path: PathBuf,
    mode: u32,
    /// The secret in the file.
    content: &'static str,
}

/// Permissions that a private key file must not have: read or write for everybody, write for the
/// group.
///
/// Read for the group is allowed. A service that runs as its own user needs it, and Kubernetes sets
/// it on volumes with an `fsGroup`.
const UNSAFE_MODE: u32 = 0o026;

impl ExposedKeyFile {
    /// `None` if `mode` allows neither reading by everybody nor writing by others.
    fn from_mode(path: &Path, mode: u32) -> Option<Self> {
        let mode = mode & 0o7777;
        let content = "private key";
        (mode & UNSAFE_MODE != 0).then(|| Self { path: path.to_owned(), mode, content })
    }

    /// The same file, which has no private key but this `content`.
    pub(super) fn with(self, content: &'static str) -> Self {
        Self { content, ..self }
    }
}

impl fmt::Display for ExposedKeyFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, content, .. } = self;
        let path = self.path.display();
        let access = match (mode & 0o006 != 0, mode & 0o002 != 0) {
            (true, true) => "everybody can replace",
            (true, false) => "everybody can read",
            (false, _) => "its group can replace",
        };
        write!(
            formatter,
            "{access} the {content} in {path} (mode {mode:04o}): chmod 0640 if a group must read it, else 0600"
        )
    }
}

/// The content of a private key file, zeroized on drop.
pub(crate) struct PrivateKeyFile {
    /// PEM, as it is in the file.
    pub(crate) content: Zeroizing<Vec<u8>>,
    /// The problem with the permissions of the file, if they are unsafe.
    pub(crate) exposed: Option<ExposedKeyFile>,
}

/// Reads the private key file at `path` within the sandbox.
///
/// # Errors
/// Returns an error if the sandbox does not allow the file, or if it cannot be read, is not a
/// regular file, or is larger than `max_size` bytes.
pub(crate) fn read(path: &Path, max_size: u64) -> io::Result<PrivateKeyFile> {
    read_with(path, move |path| {
        sandbox::check(path)?;
        read_zeroized(path, max_size)
    })
}

fn read_zeroized(path: &Path, max_size: u64) -> io::Result<PrivateKeyFile> {
    let mut file = regular_file::open(path)?;
    let metadata = file.metadata()?;
    let too_large = || regular_file::too_large(metadata.len(), max_size);
    let size = Some(metadata.len()).filter(|size| *size <= max_size).ok_or_else(too_large)?;
    let size = usize::try_from(size).map_err(|_| too_large())?;
    // The buffer has its final size at once, because a buffer that grows leaves copies in memory.
    // A file that grows meanwhile is read again later, because its state has changed.
    let mut content = Zeroizing::new(vec![0; size]);
    file.read_exact(&mut content)?;
    let exposed = ExposedKeyFile::from_mode(path, metadata.permissions().mode());
    Ok(PrivateKeyFile { content, exposed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(mode: u32) -> String {
        let exposed = ExposedKeyFile::from_mode(Path::new("a.key"), mode);
        exposed.map_or_else(String::new, |key| key.to_string())
    }

    #[test]
    fn a_mode_is_unsafe_if_others_can_read_or_the_group_can_write() {
        for mode in [0o100_400, 0o100_600, 0o100_440, 0o100_640, 0o100_700, 0o100_711] {
            assert_eq!(problem(mode), "", "{mode:o}");
        }
        for (mode, expected) in [
            (0o100_644, "everybody can read the private key in a.key (mode 0644)"),
            (0o100_604, "everybody can read"),
            (0o100_646, "everybody can replace"),
            (0o100_602, "everybody can replace"),
            (0o100_660, "its group can replace the private key in a.key (mode 0660)"),
        ] {
            assert!(problem(mode).starts_with(expected), "{}", problem(mode));
        }
    }
}
