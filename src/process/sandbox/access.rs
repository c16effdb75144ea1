//! The files and ports that a configuration needs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use keygate_core::badkeys;
use landlock::{AccessFs, BitFlags};

use crate::config::{
    Config, KeyPlace, ListConfig, ListFormat, ListenAddress, ServerAddress, SocketGroup, SourceUrl,
};

/// Files for the memory and the metrics of the process, the kernel version and the number of cores.
const PROCESS_FILES: [&str; 6] = [
    "/proc/meminfo",
    "/proc/self",
    "/proc/stat",
    "/proc/sys/kernel/osrelease",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
];
/// Files for the resolver of the C library: files in /etc that are replaced by renaming, and
/// modules that are loaded by the first lookup.
const RESOLVER_FILES: [&str; 6] =
    ["/etc", "/lib", "/lib64", "/run/systemd/resolve", "/usr/lib", "/usr/lib64"];
/// Port of DNS over TCP, which is used for responses that are too long for UDP.
const DNS_PORT: u16 = 53;

/// The TCP ports that a configuration needs, each with a key that needs it.
#[derive(Debug)]
pub(super) struct Ports {
    /// Ports of upstream servers, of the source of proofs, of the collector of traces and of DNS.
    pub(super) connect: BTreeMap<u16, KeyPlace>,
    /// Ports of the services, the authorizers and the admin address.
    pub(super) bind: BTreeMap<u16, KeyPlace>,
}

impl Ports {
    /// The ports that `config` needs.
    pub(super) fn new(config: &Config) -> Self {
        let servers = servers(config).filter_map(|(server, place)| match server {
            ServerAddress::Tcp { port, .. } => Some((*port, place)),
            ServerAddress::Unix(_) => None,
        });
        let urls = urls(config).map(|(url, place)| (url.port, place));
        let resolver = first_host_name(config).map(|place| (DNS_PORT, place));
        let services =
            config.services.iter().map(|service| (service.listen.port(), service.listen_place()));
        let listeners = config
            .authorizers
            .iter()
            .map(|authorizer| (&authorizer.listen, authorizer.listen_place()));
        let listeners = listeners.chain(config.admin.addresses());
        let listeners = listeners.filter_map(|(listen, place)| match listen {
            ListenAddress::Tcp(address) => Some((address.port(), place)),
            ListenAddress::Unix(_) => None,
        });
        Self {
            connect: servers.chain(urls).chain(resolver).collect(),
            bind: services.chain(listeners).collect(),
        }
    }
}

/// The first key by which an upstream server, the source of proofs or the collector of traces is
/// given by host name. `None`: no names are resolved.
pub(super) fn first_host_name(config: &Config) -> Option<KeyPlace> {
    let mut servers = servers(config).filter_map(|(server, place)| match server {
        ServerAddress::Tcp { host, .. } => host.parse::<IpAddr>().is_err().then_some(place),
        ServerAddress::Unix(_) => None,
    });
    let urls = || urls(config).find_map(|(url, place)| url.has_name().then_some(place));
    servers.next().or_else(urls)
}

/// The files and directories that `config`, read from `file`, needs to read.
pub(super) fn readable(config: &Config, file: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = PROCESS_FILES.iter().map(PathBuf::from).collect();
    if first_host_name(config).is_some() {
        paths.extend(RESOLVER_FILES.iter().map(PathBuf::from));
        paths.extend(directories(Path::new("/etc/resolv.conf")));
    }
    paths.extend(directories(file));
    let mut groups = config.authorizers.iter().map(|it| &it.socket_group);
    let of_readers = config.admin.readers.as_ref().map(|it| &it.socket_group);
    let has_name = |group: &Option<_>| matches!(group, Some(SocketGroup::Name(_)));
    if groups.any(has_name) || of_readers.is_some_and(has_name) {
        paths.push(PathBuf::from("/etc"));
    }
    paths.extend(config.files().into_iter().flat_map(directories));
    paths.extend(config.lists.iter().filter_map(metadata).flat_map(|it| directories(&it)));
    paths.extend(config.state.dir.clone());
    paths.extend(config.confirm.as_ref().and_then(|confirm| confirm.proofs.clone()));
    paths.retain(|path| path.exists());
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// Path of the metadata of a blocklist.
fn metadata(list: &ListConfig) -> Option<PathBuf> {
    (list.format == ListFormat::Badkeys).then(|| badkeys::metadata_path(&list.path))
}

/// The directory in the path of `file`, and the one that contains it after symbolic links are
/// followed. Both are watched for changes.
fn directories(file: &Path) -> Vec<PathBuf> {
    let named = parent(file);
    let real = file.canonicalize().ok().and_then(|real| real.parent().map(Path::to_owned));
    named.into_iter().chain(real).collect()
}

/// Rights to replace a file in the state directory.
pub(super) fn state_directory() -> BitFlags<AccessFs> {
    AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::MakeReg
        | AccessFs::RemoveFile
        | AccessFs::Truncate
}

/// The directory of the access log.
pub(super) fn log_directory(config: &Config) -> Option<PathBuf> {
    parent(config.access_log.path.as_deref()?)
}

/// Rights to append to a log file, and to create it again after it was renamed.
pub(super) fn log_files() -> BitFlags<AccessFs> {
    AccessFs::WriteFile | AccessFs::MakeReg
}

/// Rights to create a Unix socket in place of a stale one.
pub(super) fn sockets() -> BitFlags<AccessFs> {
    AccessFs::MakeSock | AccessFs::RemoveFile
}

/// The directories of the Unix sockets that the process listens on. Landlock has no rights to
/// create a file in a file of another kind.
pub(super) fn socket_directories(config: &Config) -> Vec<PathBuf> {
    let of_askers = asker_directories(config).map(|(directory, _)| directory);
    let of_admin = config.admin.addresses().filter_map(|(address, _)| directory_of(address));
    let directories = of_askers.chain(of_admin);
    directories.filter(|directory| directory.is_dir()).collect()
}

/// The directories of the Unix sockets of authorizers, each with the key that names the socket.
pub(super) fn asker_directories(config: &Config) -> impl Iterator<Item = (PathBuf, KeyPlace)> {
    config.authorizers.iter().filter_map(|authorizer| {
        let place = authorizer.listen_place();
        Some((directory_of(&authorizer.listen)?, place))
    })
}

/// The directory of a Unix socket.
fn directory_of(address: &ListenAddress) -> Option<PathBuf> {
    match address {
        ListenAddress::Tcp(_) => None,
        ListenAddress::Unix(path) => parent(path),
    }
}

/// The directory in `path`, which is the working directory for a name alone.
fn parent(path: &Path) -> Option<PathBuf> {
    path.parent().map(|directory| {
        if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory.to_owned() }
    })
}

/// The URLs that the proxy itself sends requests to, each with its key.
fn urls(config: &Config) -> impl Iterator<Item = (&SourceUrl, KeyPlace)> {
    let source = config.confirm.iter().filter_map(|confirm| confirm.url.as_ref());
    let source = source.map(|url| (url, KeyPlace::new("confirm.url")));
    let collector = config.traces.iter().map(|traces| &traces.endpoint);
    source.chain(collector.map(|url| (url, KeyPlace::new("traces.endpoint"))))
}

/// The upstream servers, each with its key.
fn servers(config: &Config) -> impl Iterator<Item = (&ServerAddress, KeyPlace)> {
    config.services.iter().flat_map(|service| {
        let place = KeyPlace::in_table("services", &service.name, "upstream.servers");
        service.upstream.servers.iter().map(move |it| (&it.address, place.clone()))
    })
}
