//! Checks of addresses without a socket: `keygate validate` runs beside a process that listens.

use std::io;
use std::path::Path;

use super::bind::BindError;
use super::unix::{SocketOwner, directory_of, ensure_bindable};
use crate::config::{AuthorizerConfig, Config, ListenAddress};

/// Directories in which service managers make the directory of a socket at each start.
const VOLATILE: [&str; 2] = ["/run", "/var/run"];

/// The Unix sockets of authorizers that cannot be bound: the group or the directory does not exist,
/// or the path is another kind of file. A missing directory in `/run` is no error.
#[must_use]
pub fn unusable_addresses(config: &Config) -> Vec<BindError> {
    let problem = |authorizer: &AuthorizerConfig| {
        let ListenAddress::Unix(path) = &authorizer.listen else { return None };
        let source = check_socket(authorizer, path).err()?;
        Some(BindError { address: authorizer.listen.clone(), source })
    };
    config.authorizers.iter().filter_map(problem).collect()
}

fn check_socket(authorizer: &AuthorizerConfig, path: &Path) -> io::Result<()> {
    SocketOwner::of(authorizer).resolved()?;
    match directory_of(path) {
        Some(directory) if !directory.exists() && is_made_at_the_start(directory) => Ok(()),
        Some(_) | None => ensure_bindable(path),
    }
}

fn is_made_at_the_start(directory: &Path) -> bool {
    directory.parent().is_some_and(|parent| VOLATILE.iter().any(|it| parent == Path::new(it)))
}
