//! The command line: one file for each subcommand.
//!
//! `command_line` has the commands with their help, `exit` the exit codes. Results go to standard
//! output, everything else to standard error.

mod accept;
mod admin_client;
mod admin_error;
mod authorizer_hosts;
mod command_line;
mod completions;
mod config;
mod config_file;
mod confirm;
mod counted;
mod demo;
mod drain;
mod duration;
mod evidence;
mod exit;
mod fetch;
mod filter;
mod healthcheck;
mod help;
mod input;
mod instances;
mod jwks;
mod key;
mod list;
mod log;
mod output;
mod probe;
mod progress;
mod proof;
mod reload;
mod report;
mod revoke;
mod run;
mod service;
mod signature;
mod status;
mod tls_client;
mod validate;
mod verdict_rows;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use tokio::runtime::{Builder, Runtime};

use self::command_line::{Cli, CliCommand};
use self::config_file::{ConfigArgs, ConfigFile};
use self::exit::{BoxedError, CliError, Exit};
#[doc(hidden)]
pub use self::help::page as manual_text;
use self::output::{CliOutput, print, print_error, print_json};
use crate::resolver::Resolver;

/// The command line, for the manual pages.
#[doc(hidden)]
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// A runtime for the requests of a command, on this thread.
fn runtime() -> Result<Runtime, CliError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| CliError::system("cannot start a runtime", error))
}

/// Threads that look names up.
fn resolver() -> Result<Resolver, CliError> {
    Resolver::start().map_err(|error| CliError::system("cannot start the resolver threads", error))
}

/// Runs the command given by the process arguments.
#[must_use]
pub fn main() -> ExitCode {
    let matches = help::with_pages(Cli::command(), "keygate").try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        // Help, or wrong usage.
        Err(error) => {
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            let is_printed = error.print().and_then(|()| io::stdout().flush()).is_ok();
            return ExitCode::from(if is_printed { code } else { 4 });
        }
    };
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
        CliCommand::Service(command) => service::run(&command),
        CliCommand::Jwks(args) => jwks::run(&args),
        CliCommand::Key(args) => key::run(&args),
        CliCommand::Probe(args) => probe::run(&args),
        CliCommand::Confirm(args) => confirm::run(&args),
        CliCommand::Evidence(args) => evidence::run(&args),
        CliCommand::Fetch(args) => fetch::run(&args),
        CliCommand::Proof(command) => proof::run(&command),
        CliCommand::Revoke(args) => revoke::run(&args),
        CliCommand::Completions(args) => completions::run(&args, Cli::command()),
    };
    match outcome {
        Ok(exit) => ExitCode::from(exit.code()),
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
