//! The command line: one file for each subcommand.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 done (`query`:
//! nothing found; `diff`: the same; `healthcheck`: ready), 1 found (`diff`: different; `healthcheck`: not ready), 2 wrong usage or configuration, 3 a file or input that cannot be used,
//! 4 the system refuses (an address in use, no permission, no thread).

mod admin_client;
mod completions;
mod demo;
mod filter;
mod healthcheck;
mod input;
mod key;
mod log;
mod man;
mod progress;
mod report;
mod run;
mod validate;

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, ValueHint};

use self::admin_client::AdminError;
use crate::config::ConfigError;
use crate::pkbf::FilterError;
use crate::process::sandbox::SandboxError;
use crate::server::ServerError;
use crate::snapshot::LoadError;

/// A TLS-terminating reverse proxy that checks every client key against a list of compromised keys.
///
/// It stands in front of mTLS services. In the handshake, after the client has proved that it holds
/// its key, the key is looked up in a filter of keys whose private halves are known to have leaked,
/// and the client is refused, flagged, or the service is told in a header. Filters, CAs and
/// certificates are replaced while it runs.
#[derive(Debug, Parser)]
#[command(name = "keygate", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve.
    ///
    /// Loads everything that the configuration names, takes its addresses and serves until SIGTERM
    /// or SIGINT. What cannot be used it names, and ends. Every file is watched and replaced while
    /// it runs, and so is the configuration: all of it is put to use, or nothing. The log goes to
    /// standard error, the access log to standard output.
    Run(ConfigArgs),
    /// Load everything as `run` would, print a summary, serve nothing.
    Validate(ConfigArgs),
    /// Show an admitted and a refused client, all on loopback, all made for the occasion.
    ///
    /// Makes a CA, two clients, a filter that holds the key of one of them and an origin; shows the
    /// good client admitted and the lost one refused; prints a curl line for each; and serves until
    /// Ctrl-C.
    Demo(demo::Args),
    /// Ask the running proxy whether it is ready: exit code 0 if it is, else 1.
    ///
    /// Asks /readyz on the admin address of the configuration, over TCP or a Unix socket; a wildcard
    /// is asked on loopback. Says nothing if the proxy is ready, and why on standard error if it is
    /// not. Opens nothing but the configuration, of which only the admin address must be right.
    Healthcheck(healthcheck::Args),
    /// Ask the running proxy who was refused lately, and who would have been.
    ///
    /// The proxy remembers the last 2000 clients whose keys were not clean, in memory: a restart
    /// forgets them.
    Report(report::Args),
    /// Make filter files, and look into them.
    ///
    /// A filter is a file in the pwnedkeys format, pkbfv1: a header, then 2^L bits, of which each key
    /// sets k. A key that is in it is always found; one that is not is found by mistake at a rate
    /// that is chosen when the filter is made.
    #[command(subcommand)]
    Filter(filter::Command),
    /// Show the algorithm and the fingerprints of keys.
    ///
    /// One private key has several public encodings, and each has a fingerprint, the SHA-256 of its
    /// SubjectPublicKeyInfo: all are shown.
    Key(key::Args),
    /// Print what a shell needs to complete the command line.
    Completions(completions::Args),
    /// Write the manual pages.
    #[command(hide = true)]
    Man(man::Args),
}

/// The command line without what is only for packagers: completions and manual pages would show
/// hidden commands, too.
fn shown() -> clap::Command {
    let all = Cli::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let about = all.get_about().cloned().unwrap_or_default();
    let long_about = all.get_long_about().cloned().unwrap_or_default();
    clap::Command::new("keygate")
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .long_about(long_about)
        .subcommand_required(true)
        .subcommands(shown)
}

/// Where the configuration is.
#[derive(Debug, clap::Args)]
struct ConfigArgs {
    /// The configuration file.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/keygate/keygate.toml",
        value_hint = ValueHint::FilePath
    )]
    config: PathBuf,
}

/// How a command that did its work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    Done,
    Found,
    /// Some inputs could not be used, and each has been named.
    Incomplete,
    /// The proxy is not ready, or does not answer; why has been said.
    NotReady,
}

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{}: {source}", path.display())]
    Filter { path: PathBuf, source: FilterError },
    #[error(transparent)]
    Load(#[from] LoadError),
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
    #[error("{what}: {reason}")]
    System { what: &'static str, reason: String },
}

impl CliError {
    fn system(what: &'static str, reason: impl ToString) -> Self {
        Self::System { what, reason: reason.to_string() }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Parameters(_)
            | Self::Server(ServerError::InheritedSockets(_) | ServerError::Metrics(_)) => 2,
            Self::Admin(_)
            | Self::Filter { .. }
            | Self::Load(_)
            | Self::Operation(_)
            | Self::Server(ServerError::Load(_)) => 3,
            Self::Output(_)
            | Self::Server(
                ServerError::Admin(_)
                | ServerError::Bind(_)
                | ServerError::Control(_)
                | ServerError::Worker(_),
            )
            | Self::Sandbox(_)
            | Self::System { .. } => 4,
        }
    }
}

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(args) => run::run(&args.config),
        Command::Validate(args) => validate::run(&args.config),
        Command::Demo(args) => demo::run(&args),
        Command::Healthcheck(args) => healthcheck::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Filter(command) => filter::run(&command),
        Command::Key(args) => key::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    };
    match outcome {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Found | Exit::NotReady) => ExitCode::from(1),
        Ok(Exit::Incomplete) => ExitCode::from(3),
        // Whoever reads the output has seen enough.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Says on standard error what went wrong.
fn complain(error: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "keygate: {error}"); // without standard error, nobody listens
}

/// Writes a line to standard output.
fn say(line: impl std::fmt::Display) -> Result<(), CliError> {
    writeln!(io::stdout(), "{line}").map_err(CliError::Output)
}

/// Standard output for many lines: written in large pieces, but line by line for a terminal.
struct Output {
    writer: BufWriter<StdoutLock<'static>>,
    is_terminal: bool,
}

impl Output {
    fn new() -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Self { writer: BufWriter::with_capacity(64 << 10, stdout.lock()), is_terminal }
    }

    fn line(&mut self, line: impl std::fmt::Display) -> Result<(), CliError> {
        writeln!(self.writer, "{line}").map_err(CliError::Output)?;
        if self.is_terminal { self.end() } else { Ok(()) }
    }

    fn json(&mut self, value: &impl serde::Serialize) -> Result<(), CliError> {
        self.line(json(value)?)
    }

    /// Everything is out.
    fn end(&mut self) -> Result<(), CliError> {
        self.writer.flush().map_err(CliError::Output)
    }
}

/// Writes a value as one line of JSON to standard output.
fn say_json(value: &impl serde::Serialize) -> Result<(), CliError> {
    say(json(value)?)
}

fn json(value: &impl serde::Serialize) -> Result<String, CliError> {
    serde_json::to_string(value).map_err(|error| CliError::Output(error.into()))
}
