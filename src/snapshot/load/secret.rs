//! Files with private keys: what is read of them is wiped, and who else can read them is told.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::process::sandbox;
use crate::regular_file;

/// A private key file whose mode lets others at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposedKeyFile {
    path: PathBuf,
    mode: u32,
}

/// What a mode must not have: reading and writing for everybody, writing for the group. The group may
/// read: so does a service that runs as a user of its own, and so are Kubernetes' volumes with an
/// `fsGroup`.
const LOOSE: u32 = 0o026;

impl ExposedKeyFile {
    fn of(path: &Path, mode: u32) -> Option<Self> {
        let mode = mode & 0o7777;
        (mode & LOOSE != 0).then(|| Self { path: path.to_owned(), mode })
    }
}

impl fmt::Display for ExposedKeyFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, mode) = (self.path.display(), self.mode);
        let who = match (mode & 0o006 != 0, mode & 0o002 != 0) {
            (true, true) => "everybody can replace",
            (true, false) => "everybody can read",
            (false, _) => "its group can replace",
        };
        write!(
            formatter,
            "{who} the private key in {path} (mode {mode:04o}): chmod 0640 if a group must read it, else 0600"
        )
    }
}

/// The content of a regular file of at most `max_size` bytes, and what is wrong with its mode.
pub(super) fn read(
    path: &Path,
    max_size: u64,
) -> io::Result<(Zeroizing<Vec<u8>>, Option<ExposedKeyFile>)> {
    sandbox::check(path)?;
    let mut file = regular_file::open(path)?;
    let metadata = file.metadata()?;
    let too_large = || regular_file::too_large(max_size);
    let size = Some(metadata.len()).filter(|size| *size <= max_size).ok_or_else(too_large)?;
    let size = usize::try_from(size).map_err(|_| too_large())?;
    // To its size at once: a buffer that grows leaves pieces behind. If the file grows meanwhile, it
    // is read again.
    let mut content = Zeroizing::new(vec![0; size]);
    file.read_exact(&mut content)?;
    Ok((content, ExposedKeyFile::of(path, metadata.permissions().mode())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(mode: u32) -> String {
        ExposedKeyFile::of(Path::new("a.key"), mode).map_or_else(String::new, |key| key.to_string())
    }

    #[test]
    fn a_mode_is_loose_when_others_can_read_or_the_group_can_write() {
        for mode in [0o100_400, 0o100_600, 0o100_440, 0o100_640, 0o100_700, 0o100_711] {
            assert_eq!(told(mode), "", "{mode:o}");
        }
        for (mode, who) in [
            (0o100_644, "everybody can read the private key in a.key (mode 0644)"),
            (0o100_604, "everybody can read"),
            (0o100_646, "everybody can replace"),
            (0o100_602, "everybody can replace"),
            (0o100_660, "its group can replace the private key in a.key (mode 0660)"),
        ] {
            assert!(told(mode).starts_with(who), "{}", told(mode));
        }
    }
}
