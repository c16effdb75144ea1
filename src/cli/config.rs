//! `keygate config`: the effective values of a configuration, and the schema of all configurations.

use clap::Subcommand;

use super::{CliError, CliOutput, ConfigFile, Exit};
use crate::config::{Config, EffectiveTable, schema};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Print the effective value of every key, with its origin.
    ///
    /// Prints the configuration as TOML. Each value has its origin as a comment: the line of the
    /// file, or "default". Keys that are off, and optional tables that are absent, are left out.
    Show(ShowArgs),
    /// Print the JSON Schema of the configuration, for editors.
    ///
    /// Editors with TOML support complete and check a file whose first line names the schema:
    /// "#:schema keygate.schema.json".
    Schema,
}

#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    config: ConfigFile,
    /// Print one JSON object per table.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(command: &ConfigCommand) -> Result<Exit, CliError> {
    let mut output = CliOutput::new();
    match command {
        ConfigCommand::Show(args) => {
            let file = args.config.path();
            let tables = Config::effective(&file)?;
            if args.json {
                tables.iter().try_for_each(|table| output.json(table))?;
            } else {
                let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
                let name = name.replace(char::is_control, "?");
                tables.iter().try_for_each(|table| show(&mut output, &name, table))?;
            }
        }
        ConfigCommand::Schema => {
            let text = serde_json::to_string_pretty(&schema());
            output.line(text.map_err(|error| CliError::Output(error.into()))?)?;
        }
    }
    output.flush()?;
    Ok(Exit::Done)
}

fn show(output: &mut CliOutput, file: &str, table: &EffectiveTable) -> Result<(), CliError> {
    if !table.header.is_empty() {
        output.line("")?;
        output.line(&table.header)?;
    }
    for value in &table.values {
        let setting = format!("{} = {}", value.key, value.toml);
        match value.line {
            Some(line) => output.line(format_args!("{setting:<40} # {file}:{line}"))?,
            None => output.line(format_args!("{setting:<40} # default"))?,
        }
    }
    Ok(())
}
