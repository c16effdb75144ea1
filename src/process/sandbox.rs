//! What the process may still do once it has read its configuration, held by the kernel (Landlock).
//!
//! It is entered before there is a second thread and before any file but the configuration is
//! read, so that what a reload will need is tried at the start. It cannot be widened: what a later
//! configuration or link names outside of it is refused, with the words of [`check`]. Rights:
//! landlock(7).

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use crate::config::{AdminAddress, Config, SandboxMode, SandboxPorts, ServerAddress};

/// What is in force, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Everything that was asked for.
    Full,
    /// The kernel has no Landlock, or it is not turned on.
    None,
    /// The configuration wants none.
    Off,
    /// As much as the kernel knows of.
    Partial,
}

impl Status {
    /// The word for it in the log.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::None => "none",
            Self::Off => "off",
            Self::Partial => "partial",
        }
    }
}

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// It is required, and the kernel has none.
    #[error(
        "sandbox.mode is \"required\", and this kernel has no Landlock (Linux 5.13 or later, with landlock among its lsm=); set it to \"auto\" to do without"
    )]
    Missing,
    /// The kernel refuses it.
    #[error("the sandbox cannot be entered: {0}")]
    Refused(#[from] RulesetError),
}

/// What was granted to this process, which has one sandbox at most.
static GRANTED: OnceLock<Granted> = OnceLock::new();

#[derive(Debug)]
struct Granted {
    /// Device and inode of what may be read, and of directories with everything beneath.
    readable: HashSet<(u64, u64)>,
    /// Whether host names can be resolved.
    names: bool,
    /// TCP ports to connect to and to bind; `None`: any.
    connect: Option<HashSet<u16>>,
    bind: Option<HashSet<u16>>,
}

/// Limits this process, from its only thread on, to what `config`, read from `file`, names.
///
/// # Errors
/// It is required and the kernel has none, or the kernel refuses it.
pub fn enter(config: &Config, file: &Path) -> Result<Status, SandboxError> {
    if config.sandbox.mode == SandboxMode::Off {
        return Ok(Status::Off);
    }
    let readable = readable(config, file);
    let names = needs_names(config);
    let limits_ports = config.sandbox.ports == SandboxPorts::Configured;
    let connect = limits_ports.then(|| connect_ports(config));
    // Port 0 is any port that is free: which, is known too late.
    let bind = limits_ports.then(|| bind_ports(config)).filter(|ports| !ports.contains(&0));

    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V5))?
        .scope(Scope::from_all(ABI::V6))?;
    if connect.is_some() {
        ruleset = ruleset.handle_access(AccessNet::ConnectTcp)?;
    }
    if bind.is_some() {
        ruleset = ruleset.handle_access(AccessNet::BindTcp)?;
    }
    let port = |port: &u16, access: AccessNet| Ok::<_, RulesetError>(NetPort::new(*port, access));
    let connects = connect.iter().flatten().map(|it| port(it, AccessNet::ConnectTcp));
    let binds = bind.iter().flatten().map(|it| port(it, AccessNet::BindTcp));
    let restricted = ruleset
        .create()?
        .add_rules(path_beneath_rules(&readable, AccessFs::ReadFile | AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(&config.state_dir, writes()))?
        .add_rules(path_beneath_rules(socket_directory(config), sockets()))?
        .add_rules(connects)?
        .add_rules(binds)?
        .restrict_self()?;
    let status = match restricted.ruleset {
        RulesetStatus::FullyEnforced => Status::Full,
        RulesetStatus::PartiallyEnforced => Status::Partial,
        RulesetStatus::NotEnforced if config.sandbox.mode == SandboxMode::Required => {
            return Err(SandboxError::Missing);
        }
        RulesetStatus::NotEnforced => return Ok(Status::None),
    };
    let readable = readable.iter().filter_map(|path| identity(path)).collect();
    let _ = GRANTED.set(Granted { readable, names, connect, bind }); // it is the first
    Ok(status)
}

/// Whether the sandbox lets this file be read, if it is there: the kernel would only say "permission
/// denied".
///
/// # Errors
/// It does not.
pub fn check(path: &Path) -> io::Result<()> {
    let Some(granted) = GRANTED.get() else { return Ok(()) };
    let Ok(real) = path.canonicalize() else { return Ok(()) };
    let is_granted = |path: &Path| identity(path).is_some_and(|it| granted.readable.contains(&it));
    if real.ancestors().any(is_granted) {
        return Ok(());
    }
    let problem =
        format!("{} is outside the sandbox of this process; restart to widen it", real.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

/// Whether the sandbox lets another configuration work, but for its files: those are tried.
///
/// # Errors
/// What it needs besides.
pub fn check_config(config: &Config) -> Result<(), String> {
    let Some(granted) = GRANTED.get() else { return Ok(()) };
    let outside = |what: String| {
        Err(format!("{what} is outside the sandbox of this process; restart to widen it"))
    };
    if needs_names(config) && !granted.names {
        return outside("resolving the host names of upstream servers".to_owned());
    }
    for (wanted, allowed, what) in [
        (connect_ports(config), &granted.connect, "connecting to TCP port"),
        (bind_ports(config), &granted.bind, "listening on TCP port"),
    ] {
        let Some(allowed) = allowed else { continue };
        if let Some(port) = wanted.difference(allowed).min() {
            return outside(format!("{what} {port}"));
        }
    }
    Ok(())
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Directories with all that is beneath them, and a few files.
fn readable(config: &Config, file: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = OF_THE_PROCESS.iter().map(PathBuf::from).collect();
    if needs_names(config) {
        paths.extend(OF_THE_RESOLVER.iter().map(PathBuf::from));
        paths.extend(directories(Path::new("/etc/resolv.conf")));
    }
    paths.extend(directories(file));
    paths.extend(config.files().into_iter().flat_map(directories));
    paths.extend(config.state_dir.clone());
    paths.retain(|path| path.exists());
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// The directory that a file is named in and the one that it really is in: as they are watched.
fn directories(file: &Path) -> Vec<PathBuf> {
    let named = file.parent().map(|directory| {
        if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory.to_owned() }
    });
    let real = file.canonicalize().ok().and_then(|real| real.parent().map(Path::to_owned));
    named.into_iter().chain(real).collect()
}

/// What metrics of the process are made of, how old the kernel is, and how many cores it has.
const OF_THE_PROCESS: [&str; 5] = [
    "/proc/self",
    "/proc/stat",
    "/proc/sys/kernel/osrelease",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
];
/// What the resolver of the C library reads: files in /etc that are replaced by renaming, and modules
/// that it loads when it is first asked.
const OF_THE_RESOLVER: [&str; 6] =
    ["/etc", "/lib", "/lib64", "/run/systemd/resolve", "/usr/lib", "/usr/lib64"];

/// What replacing a file in the state directory takes.
fn writes() -> BitFlags<AccessFs> {
    AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::MakeReg
        | AccessFs::RemoveFile
        | AccessFs::Truncate
}

/// What making a Unix socket takes, in place of one that was left over.
fn sockets() -> BitFlags<AccessFs> {
    AccessFs::MakeSock | AccessFs::RemoveFile
}

fn socket_directory(config: &Config) -> Option<PathBuf> {
    match &config.admin {
        AdminAddress::Tcp(_) => None,
        AdminAddress::Unix(path) => path.parent().map(Path::to_owned),
    }
}

fn servers(config: &Config) -> impl Iterator<Item = &ServerAddress> {
    config.services.iter().flat_map(|service| &service.upstream.servers).map(|it| &it.address)
}

fn needs_names(config: &Config) -> bool {
    servers(config).any(|server| match server {
        ServerAddress::Tcp { host, .. } => host.parse::<std::net::IpAddr>().is_err(),
        ServerAddress::Unix(_) => false,
    })
}

/// Those of upstreams, and of DNS, which answers over TCP what is too long for UDP.
fn connect_ports(config: &Config) -> HashSet<u16> {
    let ports = servers(config).filter_map(|server| match server {
        ServerAddress::Tcp { port, .. } => Some(*port),
        ServerAddress::Unix(_) => None,
    });
    ports.chain(needs_names(config).then_some(53)).collect()
}

fn bind_ports(config: &Config) -> HashSet<u16> {
    let admin = match &config.admin {
        AdminAddress::Tcp(address) => Some(address.port()),
        AdminAddress::Unix(_) => None,
    };
    config.services.iter().map(|service| service.listen.port()).chain(admin).collect()
}
