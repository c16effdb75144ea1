//! Restricts the process to what its configuration names, enforced by the kernel (Landlock).
//!
//! The sandbox is entered before there is a second thread and before any file but the configuration
//! is read. A file that the sandbox denies therefore fails at the start and not at the first
//! reload. A sandbox cannot be widened: [`check`] and [`check_config`] reject access outside it.
//! Rights: landlock(7).

mod access;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, AccessNet, NetPort, RestrictionStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use self::access::{Ports, first_host_name};
use crate::config::{Config, KeyPlace, PlacedProblem, SandboxMode, SandboxPorts};

/// How much of the sandbox is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxStatus {
    /// All restrictions.
    Full,
    /// No restriction, because the kernel has no Landlock or it is disabled.
    None,
    /// No restriction, because `sandbox.mode` is `"off"`.
    Off,
    /// The restrictions that this kernel supports.
    Partial,
}

impl SandboxStatus {
    /// The status as it is logged.
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

/// Why the sandbox cannot be entered.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// `sandbox.mode` is `"required"`, and the kernel has no Landlock.
    #[error(
        "sandbox.mode is \"required\", and this kernel has no Landlock (Linux 5.13 or later, with landlock among its lsm=); set it to \"auto\" to run without a sandbox"
    )]
    Missing,
    /// The kernel rejects the rules.
    #[error("the sandbox cannot be entered: {0}")]
    Rules(#[from] RulesetError),
}

impl SandboxError {
    /// The error with the key of the configuration that requires the sandbox.
    #[must_use]
    pub fn placed(&self) -> PlacedProblem {
        let place = match self {
            Self::Missing => Some(KeyPlace::new("sandbox.mode")),
            Self::Rules(_) => None,
        };
        PlacedProblem { place, problem: self.to_string() }
    }
}

/// Access that the sandbox does not allow. A restart enters a new sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutsideSandbox {
    /// Listening on a TCP port.
    #[error(
        "listening on TCP port {port} is outside the sandbox of this process; restart to widen it"
    )]
    Bind {
        /// The first such port.
        port: u16,
        /// The key with the port.
        place: KeyPlace,
    },
    /// Connecting to a TCP port.
    #[error(
        "connecting to TCP port {port} is outside the sandbox of this process; restart to widen it"
    )]
    Connect {
        /// The first such port.
        port: u16,
        /// The key with the port.
        place: KeyPlace,
    },
    /// Reading a file.
    #[error("{} is outside the sandbox of this process; restart to widen it", path.display())]
    File {
        /// The file, without symbolic links.
        path: PathBuf,
    },
    /// Creating a Unix socket.
    #[error(
        "creating a Unix socket in {} is outside the sandbox of this process; restart to widen it",
        directory.display()
    )]
    Socket {
        /// The directory.
        directory: PathBuf,
        /// The key with the path of the socket.
        place: KeyPlace,
    },
    /// Resolving host names.
    #[error(
        "resolving the host names of upstream servers is outside the sandbox of this process; restart to widen it"
    )]
    Resolver {
        /// The first key with a host name.
        place: KeyPlace,
    },
}

impl OutsideSandbox {
    /// The error with the key of the configuration that needs the access.
    #[must_use]
    pub fn placed(&self) -> PlacedProblem {
        let place = match self {
            Self::Bind { place, .. }
            | Self::Connect { place, .. }
            | Self::Resolver { place }
            | Self::Socket { place, .. } => Some(place.clone()),
            Self::File { .. } => None,
        };
        PlacedProblem { place, problem: self.to_string() }
    }
}

/// The access that the sandbox of this process grants; empty without a sandbox.
static GRANTED: OnceLock<Granted> = OnceLock::new();

/// The access that a sandbox grants.
#[derive(Debug)]
struct Granted {
    /// Device and inode of readable files, and of directories with everything beneath.
    readable: HashSet<(u64, u64)>,
    /// Whether the files that the resolver needs are readable.
    resolver: bool,
    ports: GrantedPorts,
    /// Device and inode of the directories in which Unix sockets may be created.
    sockets: HashSet<(u64, u64)>,
}

/// The TCP ports that a sandbox grants; `None` grants all.
#[derive(Debug, Default)]
struct GrantedPorts {
    connect: Option<HashSet<u16>>,
    bind: Option<HashSet<u16>>,
}

/// Restricts this process to what `config`, read from `file`, names. Must be called from its only
/// thread.
///
/// # Errors
/// Returns an error if `sandbox.mode` is `"required"` and the kernel has no Landlock, or if the
/// kernel rejects the rules.
pub fn enter(config: &Config, file: &Path) -> Result<SandboxStatus, SandboxError> {
    if config.sandbox.mode == SandboxMode::Off {
        return Ok(SandboxStatus::Off);
    }
    let readable = access::readable(config, file);
    let ports = granted_ports(config);
    let status = match restrict(config, &readable, &ports)?.ruleset {
        RulesetStatus::FullyEnforced => SandboxStatus::Full,
        RulesetStatus::PartiallyEnforced => SandboxStatus::Partial,
        RulesetStatus::NotEnforced if config.sandbox.mode == SandboxMode::Required => {
            return Err(SandboxError::Missing);
        }
        RulesetStatus::NotEnforced => return Ok(SandboxStatus::None),
    };
    let readable = readable.iter().filter_map(|path| identity(path)).collect();
    let sockets = access::socket_directories(config);
    let sockets = sockets.iter().filter_map(|directory| identity(directory)).collect();
    let granted = Granted { readable, resolver: first_host_name(config).is_some(), ports, sockets };
    let _ = GRANTED.set(granted); // a process enters one sandbox
    Ok(status)
}

fn granted_ports(config: &Config) -> GrantedPorts {
    match config.sandbox.ports {
        SandboxPorts::Any => GrantedPorts::default(),
        SandboxPorts::Configured => {
            let Ports { connect, bind } = Ports::new(config);
            let [connect, bind] = [connect, bind].map(|it| it.into_keys().collect::<HashSet<_>>());
            // Port 0 becomes any free port, which is not known before the sandbox is entered.
            let bind = Some(bind).filter(|ports| !ports.contains(&0));
            GrantedPorts { connect: Some(connect), bind }
        }
    }
}

fn restrict(
    config: &Config,
    readable: &[PathBuf],
    ports: &GrantedPorts,
) -> Result<RestrictionStatus, RulesetError> {
    let GrantedPorts { connect, bind } = ports;
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
    ruleset
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::ReadFile | AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(&config.state.dir, access::state_directory()))?
        .add_rules(path_beneath_rules(access::log_directory(config), access::log_files()))?
        .add_rules(path_beneath_rules(access::socket_directories(config), access::sockets()))?
        .add_rules(connect.iter().flatten().map(|it| port(it, AccessNet::ConnectTcp)))?
        .add_rules(bind.iter().flatten().map(|it| port(it, AccessNet::BindTcp)))?
        .restrict_self()
}

/// Checks that the sandbox allows the file at `path` to be read, because the kernel only reports
/// "permission denied". A missing file is allowed.
///
/// # Errors
/// Returns an error if the file is outside the sandbox.
pub fn check(path: &Path) -> io::Result<()> {
    let Some(granted) = GRANTED.get() else { return Ok(()) };
    let Ok(real) = path.canonicalize() else { return Ok(()) };
    let is_granted = |path: &Path| identity(path).is_some_and(|it| granted.readable.contains(&it));
    if real.ancestors().any(is_granted) {
        return Ok(());
    }
    let outside = OutsideSandbox::File { path: real };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, outside))
}

/// Checks that the sandbox allows the ports and host names in `config`. [`check`] is for files.
///
/// # Errors
/// Returns the first access outside the sandbox.
pub fn check_config(config: &Config) -> Result<(), OutsideSandbox> {
    let Some(granted) = GRANTED.get() else { return Ok(()) };
    if let (Some(place), false) = (first_host_name(config), granted.resolver) {
        return Err(OutsideSandbox::Resolver { place });
    }
    let is_granted = |directory: &PathBuf| {
        identity(directory).is_none_or(|directory| granted.sockets.contains(&directory))
    };
    let mut sockets = access::asker_directories(config);
    if let Some((directory, place)) = sockets.find(|(directory, _)| !is_granted(directory)) {
        return Err(OutsideSandbox::Socket { directory, place });
    }
    let Ports { connect, bind } = Ports::new(config);
    if let Some((port, place)) = first_outside(connect, granted.ports.connect.as_ref()) {
        return Err(OutsideSandbox::Connect { port, place });
    }
    match first_outside(bind, granted.ports.bind.as_ref()) {
        Some((port, place)) => Err(OutsideSandbox::Bind { port, place }),
        None => Ok(()),
    }
}

/// The lowest port that is not `granted`, with its key.
fn first_outside(
    needed: BTreeMap<u16, KeyPlace>,
    granted: Option<&HashSet<u16>>,
) -> Option<(u16, KeyPlace)> {
    let granted = granted?;
    needed.into_iter().find(|(port, _)| !granted.contains(port))
}

/// Device and inode of the file at `path`.
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}
