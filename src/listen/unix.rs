//! Files of Unix sockets: binding with owner and mode before the first connection.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

use super::BACKLOG;
use crate::config::{AuthorizerConfig, ReadersConfig, SocketGroup};
use crate::process::inherited_sockets::InheritedSockets;

/// Group and permission bits of a Unix socket. `None` leaves group and bits of the process.
#[derive(Debug, Clone, Default)]
pub(crate) struct SocketOwner {
    mode: Option<u32>,
    group: Option<SocketGroup>,
}

impl SocketOwner {
    pub(super) fn new(authorizer: &AuthorizerConfig) -> Self {
        let group = authorizer.socket_group.clone();
        Self { mode: Some(authorizer.socket_mode), group }
    }

    /// Owner and group may connect to the socket for readers.
    pub(crate) fn for_readers(readers: &ReadersConfig) -> Self {
        Self { mode: Some(0o660), group: readers.socket_group.clone() }
    }

    /// The same owner, with the id of a group that is given by name.
    ///
    /// # Errors
    /// Returns an error if there is no such group.
    pub(super) fn resolved(self) -> io::Result<Self> {
        let group = self.group.as_ref().map(group_id).transpose()?;
        Ok(Self { group: group.map(SocketGroup::Id), ..self })
    }

    fn apply(&self, path: &Path) -> io::Result<()> {
        if let Some(group) = &self.group {
            std::os::unix::fs::lchown(path, None, Some(group_id(group)?)).map_err(|error| {
                let problem = format!("the socket cannot be given to socket_group: {error}");
                io::Error::new(error.kind(), problem)
            })?;
        }
        match self.mode {
            Some(mode) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
            None => Ok(()),
        }
    }
}

/// The file of a Unix socket that this process has bound. Removed when it is dropped, unless
/// another process has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }

    /// Gives the file to `owner`.
    ///
    /// # Errors
    /// Returns an error if another process has replaced the file, or if this process may not change
    /// it.
    pub(super) fn set_owner(&self, owner: &SocketOwner) -> io::Result<()> {
        if identity(&self.path)? != self.identity {
            return Err(io::Error::other("another process has replaced the file"));
        }
        owner.apply(&self.path)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = fs::remove_file(&self.path); // the next start replaces a stale file
        }
    }
}

/// Device and inode of the file at `path`.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    path.symlink_metadata().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Takes the socket at `path` from the inherited ones, or binds it. Replaces a stale socket file.
///
/// A connection is possible only after the file has its group and mode, because the socket listens
/// last.
///
/// # Errors
/// Returns an error if another process listens on the path, if the path is another kind of file, or
/// if the process may not create the file or give it to the group.
pub(crate) fn bind_unix(
    path: &Path,
    owner: &SocketOwner,
    inherited: &InheritedSockets,
) -> io::Result<(StdListener, Option<SocketFile>)> {
    if let Some(listener) = inherited.unix(path)? {
        return Ok((listener, None));
    }
    ensure_bindable(path)?;
    if is_stale(path) {
        fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile::new(path)?;
    file.set_owner(owner)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok((socket.into(), Some(file)))
}

/// The id of a group, whose name is looked up in /etc/group.
fn group_id(group: &SocketGroup) -> io::Result<u32> {
    let name = match group {
        SocketGroup::Id(id) => return Ok(*id),
        SocketGroup::Name(name) => name,
    };
    let groups = fs::read_to_string("/etc/group")?;
    let id = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name.as_str()) {
            return None;
        }
        fields.nth(1)?.parse().ok()
    });
    let missing = || {
        io::Error::other(format!(
            "socket_group: /etc/group has no group {name:?}; create it, or give its number"
        ))
    };
    id.ok_or_else(missing)
}

/// Checks that a socket can have this path.
///
/// # Errors
/// Returns an error if its directory does not exist or cannot be searched, or if it is a file of
/// another kind.
pub(super) fn ensure_bindable(path: &Path) -> io::Result<()> {
    if let Some(directory) = directory_of(path) {
        let shown = directory.display();
        let problem = match directory.metadata() {
            Ok(metadata) if metadata.is_dir() => None,
            Ok(_) => Some(format!("{shown} is no directory; remove it, or give another path")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Some(format!("there is no directory {shown}; create it"))
            }
            Err(error) => Some(format!("{shown}: {error}")),
        };
        if let Some(problem) = problem {
            return Err(io::Error::other(problem));
        }
    }
    let is_other = |metadata: fs::Metadata| !metadata.file_type().is_socket();
    if path.symlink_metadata().is_ok_and(is_other) {
        return Err(io::Error::other("the file is no socket; remove it, or give another path"));
    }
    Ok(())
}

/// The directory in a path; `None` if the path has none.
pub(super) fn directory_of(path: &Path) -> Option<&Path> {
    path.parent().filter(|directory| !directory.as_os_str().is_empty())
}

/// Whether no process listens on the socket file at `path`. A killed process leaves such a file.
fn is_stale(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket())
        && try_connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Connects without waiting for a place in the queue of a process that does not accept.
fn try_connect(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_whose_queue_is_full_is_not_stale() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ask.sock");
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        assert!(is_stale(&path), "it does not listen yet");
        socket.listen(0).unwrap();
        let waiting = || {
            let client = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            client.set_nonblocking(true).unwrap();
            client.connect(&SockAddr::unix(&path).unwrap()).is_ok().then_some(client)
        };
        let queue: Vec<_> = std::iter::from_fn(waiting).collect();
        assert!(!queue.is_empty());
        assert!(!is_stale(&path));
        drop(socket);
        assert!(is_stale(&path), "a process that was killed leaves such a file");
    }
}
