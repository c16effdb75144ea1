//! The command line: one file per subcommand.
//!
//! Results go to standard output, everything else to standard error. Exit codes:
//!
//! - 0: success (`query`: no key found; `confirm`: no key confirmed; `diff`: no difference; `healthcheck`: ready; `proof verify`: a key is proved
//!   compromised)
//! - 1: `query`: a key was found, `confirm`: a key is confirmed, even if an input was unusable; `diff`: the files differ; `healthcheck`: not ready; `proof verify`: no key is proved compromised; `reload`: a file was rejected
//! - 2: wrong usage or configuration; `validate --strict`: a warning
//! - 3: an unusable file or input
//! - 4: an error of the operating system (address in use, no permission, no thread)

mod admin_client;
mod authorizer_hosts;
mod completions;
mod config;
mod confirm;
mod counted;
mod demo;
mod drain;
mod fetch;
mod filter;
mod healthcheck;
mod input;
mod key;
mod list;
mod log;
mod man;
mod printable;
mod progress;
mod proof;
mod reload;
mod report;
mod run;
mod signature;
mod status;
mod validate;

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueHint};

use self::admin_client::AdminError;
use crate::config::ConfigError;
use crate::confirm::ConfirmError;
use crate::pkbf::FilterError;
use crate::process::sandbox::SandboxError;
use crate::server::ServerError;
use crate::signature::SignatureError;
use crate::snapshot::{ListFileError, LoadError, LoadErrors};

/// A TLS-terminating reverse proxy that checks client keys against filters of compromised keys.
///
/// keygate runs in front of mTLS services. The client proves in the TLS handshake that it holds its
/// private key. keygate then looks the public key up in a bloom filter of compromised keys. A hit
/// is rejected, flagged, or passed to the upstream in a header, according to the policy. Filters,
/// CAs and certificates are reloaded without a restart.
#[derive(Debug, Parser)]
#[command(
    name = "keygate",
    version,
    long_version = LONG_VERSION,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the proxy.
    ///
    /// Loads the configuration and every file that it names, then serves until SIGTERM or SIGINT.
    /// If files cannot be used, prints all of them and exits. Watches the configuration and its
    /// files and reloads them when they change. A new configuration is applied as a whole or not at
    /// all. The log goes to standard error, the access log to standard output.
    Run(ConfigFile),
    /// Load everything that `run` would load, print a summary and exit.
    ///
    /// Prints warnings about conditions that `run` accepts, such as a certificate that has expired.
    Validate(validate::Args),
    /// Show the effective configuration, and the schema of all configurations.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Show admitted and rejected clients on loopback.
    ///
    /// Creates a CA, three clients, an upstream server, a source of proofs and a filter that holds the
    /// keys of two clients. Shows that the client "good" is admitted, that "mallory" is rejected
    /// because the source has a proof, and that "carol" is admitted because it has none.
    /// Prints the address of the status page and commands to try, then serves until Ctrl-C. The
    /// files are deleted at the end.
    Demo(demo::Args),
    /// Check whether the running proxy is ready: exit code 0 if ready, 1 if not.
    ///
    /// Requests /readyz from the admin address of the configuration, over TCP or a Unix socket. A
    /// wildcard address is reached on loopback. Prints nothing if the proxy is ready, otherwise the
    /// reason on standard error. Reads only the admin address of the configuration; errors
    /// elsewhere in the file are ignored.
    Healthcheck(healthcheck::Args),
    /// Show what needs attention, and everything that is in use.
    ///
    /// Prints the status page of the running proxy as text: first the conditions that need attention,
    /// worst first, each with the whole reason and the command to run. Then follow filters, lists,
    /// services, counts, expiry dates and the last rejected clients.
    Status(status::Args),
    /// Read changed files again: exit code 0 if everything is in use, 1 if a file was rejected.
    ///
    /// Sends the running proxy the command to check the configuration and every file for changes,
    /// as SIGHUP does. Waits until every usable file is in use. Prints each file that was rejected,
    /// with the reason, also if it was rejected before. The last good value of such a file stays
    /// in use. Reads only the admin address of the configuration.
    Reload(reload::Args),
    /// Take the running proxy out of its load balancer, and put it back with --undo.
    ///
    /// /readyz fails and the health checks of authorizers fail, while clients are served as before.
    /// HTTP/1.1 responses have "Connection: close", so that clients connect to another instance.
    /// The state is lost when the process ends.
    Drain(drain::Args),
    /// List recent clients that were rejected, or that "reject" would have rejected.
    ///
    /// The running proxy keeps the last 2000 clients whose keys were not clean. They are kept in
    /// memory, so a restart clears them.
    Report(report::Args),
    /// Create, change and inspect filter files.
    ///
    /// A filter is a file in the pwnedkeys format, pkbfv1: a header and 2^L bits, of which each key
    /// sets k. A key in the filter is always found. A key that is not in the filter is found by
    /// mistake at a rate that is chosen when the filter is created.
    #[command(subcommand)]
    Filter(filter::FilterCommand),
    /// Check, query and compare exact lists.
    ///
    /// A list is a blocklist.dat of badkeys, or a text with one digest of a key a line. It has no
    /// false positives.
    #[command(subcommand)]
    List(list::ListCommand),
    /// Print the algorithm and the fingerprints of keys.
    ///
    /// One private key has several public encodings. Each encoding has its own fingerprint, the
    /// SHA-256 of its SubjectPublicKeyInfo. All of them are printed.
    Key(key::Args),
    /// Ask a source of proofs about keys: exit code 0 if none is confirmed, 1 if any is.
    ///
    /// The source is the one of the configuration, or --url and --proofs. With a configuration, only
    /// keys in a filter of `confirm.filters` are asked about. Prints a line for each key: verdict,
    /// fingerprint of the encoding, name of the encoding, position, and source. A verdict is
    /// "confirmed", "cleared", or "probable" if there is no answer. The source learns the
    /// fingerprints; --dry-run shows them and asks nothing.
    Confirm(confirm::Args),
    /// Download filters and lists, check them, and replace the files.
    ///
    /// Each filter and list with a `source` in the configuration is requested, unless it is unchanged.
    /// A download that was cut short is continued. The checks of a reload are made before the file is
    /// replaced. If anything is wrong, the file in use stays, and the exit code is 3. A running proxy
    /// sees the new file by itself.
    Fetch(fetch::Args),
    /// Verify and create proofs that a key is compromised.
    ///
    /// A proof is a statement that is signed with the compromised key itself, in the format of the
    /// pwnedkeys API. A filter hit is only probable, a proof is certain.
    #[command(subcommand)]
    Proof(proof::ProofCommand),
    /// Print a completion script for a shell.
    Completions(completions::Args),
    /// Write the manual pages.
    #[command(hide = true)]
    Man(man::Args),
}

/// The version for `--version`. `build.rs` sets the commit and the target.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("KEYGATE_COMMIT"),
    "\ntarget: ",
    env!("KEYGATE_TARGET"),
    "\ncryptography: AWS-LC (aws-lc-rs), TLS: rustls"
);

/// The command line without hidden commands.
///
/// The generators of completions and manual pages include hidden commands.
fn public_command() -> clap::Command {
    let all = Cli::command();
    let public = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let about = all.get_about().cloned().unwrap_or_default();
    let long_about = all.get_long_about().cloned().unwrap_or_default();
    clap::Command::new("keygate")
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .long_about(long_about)
        .subcommand_required(true)
        .subcommands(public)
}

/// The option `--config`.
#[derive(Debug, clap::Args)]
struct ConfigArgs {
    /// The configuration file [env: KEYGATE_CONFIG] [default: /etc/keygate/keygate.toml].
    // Not an `env` of clap, because a variable would then conflict with other options.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    /// The file of the option, or of the variable `KEYGATE_CONFIG`, or the default.
    fn path(&self) -> PathBuf {
        let variable = || std::env::var_os("KEYGATE_CONFIG").filter(|path| !path.is_empty());
        let file = self.config.clone().or_else(|| variable().map(PathBuf::from));
        file.unwrap_or_else(|| PathBuf::from("/etc/keygate/keygate.toml"))
    }
}

/// The configuration file, as an argument or as the option `--config`.
#[derive(Debug, clap::Args)]
struct ConfigFile {
    /// The configuration file, instead of --config.
    #[arg(value_name = "CONFIG", conflicts_with = "config", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    #[command(flatten)]
    option: ConfigArgs,
}

impl ConfigFile {
    fn path(&self) -> PathBuf {
        self.file.clone().unwrap_or_else(|| self.option.path())
    }
}

/// Outcome of a command that ran to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    Done,
    /// An error with this exit code, which the result on standard output describes.
    Failed(u8),
    Found,
    /// Some inputs were unusable; each one was reported on standard error.
    Incomplete,
    /// No given key is proved compromised.
    NotProved,
    /// The proxy is not ready or does not respond; the reason was reported on standard error.
    NotReady,
    /// The running proxy rejected a file.
    Rejected,
    /// There are warnings, and `--strict` was given.
    Warned,
}

/// Error that ends a command.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Confirm(#[from] ConfirmError),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Filter { path: PathBuf, source: FilterError },
    #[error("{}: {source}", path.display())]
    List { path: PathBuf, source: ListFileError },
    #[error(transparent)]
    Load(#[from] LoadErrors),
    #[error("{0}")]
    Operation(String),
    #[error("cannot write the result: {0}")]
    Output(#[source] io::Error),
    #[error("{0}")]
    Parameters(#[source] FilterError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("{}: {source}", path.display())]
    Signature { path: PathBuf, source: SignatureError },
    #[error("{operation}: {source}")]
    System { operation: &'static str, source: BoxedError },
    #[error("{0}")]
    Usage(String),
}

type BoxedError = Box<dyn std::error::Error + Send + Sync>;

impl CliError {
    fn system(operation: &'static str, source: impl Into<BoxedError>) -> Self {
        Self::System { operation, source: source.into() }
    }

    /// The error, with one line for each problem of the configuration and each unusable file.
    fn lines(&self) -> Vec<String> {
        match self {
            Self::Config(error) => error.lines(),
            Self::Load(errors) | Self::Server(ServerError::Load(errors)) => errors.lines(),
            Self::Admin(_)
            | Self::Confirm(_)
            | Self::File { .. }
            | Self::Filter { .. }
            | Self::List { .. }
            | Self::Operation(_)
            | Self::Output(_)
            | Self::Parameters(_)
            | Self::Sandbox(_)
            | Self::Server(_)
            | Self::Signature { .. }
            | Self::System { .. }
            | Self::Usage(_) => vec![self.to_string()],
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Parameters(_)
            | Self::Server(ServerError::InheritedSockets(_) | ServerError::Metrics(_))
            | Self::Usage(_) => 2,
            Self::Load(errors) | Self::Server(ServerError::Load(errors)) => {
                let lacks_thread = errors.iter().any(|it| matches!(it, LoadError::Thread(_)));
                if lacks_thread { 4 } else { 3 }
            }
            Self::Admin(_)
            | Self::Confirm(_)
            | Self::File { .. }
            | Self::Filter { .. }
            | Self::List { .. }
            | Self::Operation(_)
            | Self::Server(ServerError::Confirm(_))
            | Self::Signature { .. } => 3,
            Self::Output(_)
            | Self::Server(
                ServerError::AccessLog(_)
                | ServerError::Admin(_)
                | ServerError::Bind(_)
                | ServerError::Control(_)
                | ServerError::Loader(_)
                | ServerError::Thread(_)
                | ServerError::Resolver(_)
                | ServerError::Worker(_),
            )
            | Self::Sandbox(_)
            | Self::System { .. } => 4,
        }
    }
}

/// Runs the command given by the process arguments.
#[must_use]
pub fn main() -> ExitCode {
    let matches = man::with_pages(Cli::command()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = match cli.command {
        CliCommand::Run(args) => run::run(&args.path()),
        CliCommand::Validate(args) => validate::run(&args),
        CliCommand::Config(command) => config::run(&command),
        CliCommand::Demo(args) => demo::run(&args),
        CliCommand::Healthcheck(args) => healthcheck::run(&args),
        CliCommand::Status(args) => status::run(&args),
        CliCommand::Reload(args) => reload::run(&args),
        CliCommand::Drain(args) => drain::run(&args),
        CliCommand::Report(args) => report::run(&args),
        CliCommand::Filter(command) => filter::run(&command),
        CliCommand::List(command) => list::run(&command),
        CliCommand::Key(args) => key::run(&args),
        CliCommand::Confirm(args) => confirm::run(&args),
        CliCommand::Fetch(args) => fetch::run(&args),
        CliCommand::Proof(command) => proof::run(&command),
        CliCommand::Completions(args) => completions::run(&args),
        CliCommand::Man(args) => man::run(&args),
    };
    match outcome {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Found | Exit::NotProved | Exit::NotReady | Exit::Rejected) => ExitCode::from(1),
        Ok(Exit::Failed(code)) => ExitCode::from(code),
        Ok(Exit::Warned) => ExitCode::from(2),
        Ok(Exit::Incomplete) => ExitCode::from(3),
        // The reader closed the pipe, for example `head`.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            error.lines().iter().for_each(|line| print_error(line));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Parses the value of `--timeout`.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("the timeout must not be zero".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; write a number and a unit, such as 500ms or 2s")),
    }
}

/// Writes a line to standard error.
fn print_error(error: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "keygate: {error}"); // standard error may be closed
}

/// Writes a line to standard output.
fn print(line: impl std::fmt::Display) -> Result<(), CliError> {
    writeln!(io::stdout(), "{line}").map_err(CliError::Output)
}

/// Buffered standard output, flushed after each line if it is a terminal.
struct CliOutput {
    writer: BufWriter<StdoutLock<'static>>,
    is_terminal: bool,
}

impl CliOutput {
    fn new() -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Self { writer: BufWriter::with_capacity(64 << 10, stdout.lock()), is_terminal }
    }

    fn line(&mut self, line: impl std::fmt::Display) -> Result<(), CliError> {
        writeln!(self.writer, "{line}").map_err(CliError::Output)?;
        if self.is_terminal { self.flush() } else { Ok(()) }
    }

    fn json(&mut self, value: &impl serde::Serialize) -> Result<(), CliError> {
        self.line(json(value)?)
    }

    fn flush(&mut self) -> Result<(), CliError> {
        self.writer.flush().map_err(CliError::Output)
    }
}

/// Writes a value as one line of JSON to standard output.
fn print_json(value: &impl serde::Serialize) -> Result<(), CliError> {
    print(json(value)?)
}

fn json(value: &impl serde::Serialize) -> Result<String, CliError> {
    serde_json::to_string(value).map_err(|error| CliError::Output(error.into()))
}
