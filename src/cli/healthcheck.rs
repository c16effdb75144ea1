//! `keygate healthcheck`: whether the running proxy is ready, for whoever supervises it.
//!
//! It opens the configuration and the admin address, nothing else: it is run every few seconds.

use std::time::Duration;

use clap::ValueHint;

use super::admin_client::{AdminClient, AdminError};
use super::{CliError, ConfigArgs, Exit, complain};
use crate::config::AdminAddress;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// How long the answer may take.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "2s",
        value_parser = patience,
        value_hint = ValueHint::Other
    )]
    timeout: Duration,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let address = AdminAddress::read(&args.config.config)?;
    let Err(error) = AdminClient::of(&address, args.timeout)?.get("/readyz") else {
        return Ok(Exit::Done);
    };
    if let AdminError::Refused { address, status, body } = &error {
        // Who knows what it was that answered: a line of it will do.
        let why: String = body.lines().next().unwrap_or_default().chars().take(200).collect();
        complain(&format_args!("the admin address {address}: {status}: {}", why.escape_debug()));
    } else {
        complain(&error);
    }
    Ok(Exit::NotReady)
}

fn patience(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("no answer comes in no time".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; write a number and a unit, such as 500ms or 2s")),
    }
}
