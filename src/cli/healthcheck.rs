//! `keygate healthcheck`: readiness of the running proxy, for supervisors.
//!
//! Opens only the configuration and the admin address, because probes run every few seconds.

use std::time::Duration;

use clap::ValueHint;

use super::admin_client::AdminClient;
use super::admin_error::AdminError;
use super::duration::parse_duration;
use super::{CliError, ConfigFile, Exit, print_error};

/// Maximum characters of an error response that are printed.
const MAX_SHOWN: usize = 200;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigFile,
    /// Maximum time until the response is complete.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "2s",
        value_parser = parse_duration,
        value_hint = ValueHint::Other
    )]
    timeout: Duration,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let admin = AdminClient::from_config(&args.config.path(), args.timeout)?;
    let Err(error) = admin.get("/readyz") else {
        return Ok(Exit::Done);
    };
    if let AdminError::Status { address, status, body } = &error {
        // Another program may listen on this address: print one escaped line of its response.
        let first_line = body.lines().next().unwrap_or_default();
        let shown: String = first_line.chars().take(MAX_SHOWN).collect();
        let shown = shown.escape_debug();
        print_error(&format_args!("the admin address {address}: {status}: {shown}"));
    } else {
        print_error(&error);
    }
    Ok(Exit::NotReady)
}
