//! Checks of addresses without a socket: `keygate validate` runs beside a process that listens.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

use super::bind::BindError;
use super::unix::{SocketOwner, directory_of, ensure_bindable};
use crate::config::{Config, ListenAddress};

/// Directories in which service managers make the directory of a socket at each start.
const VOLATILE: [&str; 2] = ["/run", "/var/run"];

/// The Unix sockets of authorizers and of the admin server that cannot be bound: the group or the
/// directory does not exist, or the path is another kind of file. A missing directory in `/run` is
/// no error.
#[must_use]
pub fn unusable_addresses(config: &Config) -> Vec<BindError> {
    let authorizers = config.authorizers.iter().map(|it| (&it.listen, SocketOwner::new(it)));
    let listeners = authorizers.chain([(&config.admin.listen, SocketOwner::default())]);
    let readers = config.admin.readers.iter().map(|it| (&it.listen, SocketOwner::for_readers(it)));
    let listeners = listeners.chain(readers);
    let problem = |(address, owner): (&ListenAddress, SocketOwner)| {
        let ListenAddress::Unix(path) = address else { return None };
        let source = check_socket(owner, path).err()?;
        Some(BindError::new(config, address, source))
    };
    listeners.filter_map(problem).collect()
}

/// The configured TCP addresses whose IP address this machine does not have, without duplicates.
#[must_use]
pub fn foreign_addresses(config: &Config) -> BTreeSet<SocketAddr> {
    let of_authorizers = config.authorizers.iter().map(|authorizer| &authorizer.listen);
    let admin = config.admin.addresses().map(|(address, _)| address);
    let listeners = of_authorizers.chain(admin).filter_map(|listener| match listener {
        ListenAddress::Tcp(address) => Some(*address),
        ListenAddress::Unix(_) => None,
    });
    let all = config.services.iter().map(|service| service.listen).chain(listeners);
    all.filter(|address| is_foreign(*address)).collect()
}

/// A UDP socket at a port of the kernel's choice takes no address from a process that listens.
fn is_foreign(mut address: SocketAddr) -> bool {
    address.set_port(0);
    let bound = UdpSocket::bind(address);
    bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}

fn check_socket(owner: SocketOwner, path: &Path) -> io::Result<()> {
    owner.resolved()?;
    match directory_of(path) {
        Some(directory) if !directory.exists() && is_made_at_the_start(directory) => Ok(()),
        Some(_) | None => ensure_bindable(path),
    }
}

fn is_made_at_the_start(directory: &Path) -> bool {
    directory.parent().is_some_and(|parent| VOLATILE.iter().any(|it| parent == Path::new(it)))
}
