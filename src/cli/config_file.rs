//! Ways to name the configuration: an argument, `--config`, or the variable `KEYGATE_CONFIG`.

use std::path::PathBuf;

use clap::ValueHint;

/// The option `--config`.
#[derive(Debug, clap::Args)]
pub(super) struct ConfigArgs {
    /// The configuration file [env: KEYGATE_CONFIG] [default: /etc/keygate/keygate.toml].
    // Not an `env` of clap, because a variable would then conflict with other options.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    /// The file of the option, or of the variable `KEYGATE_CONFIG`, or the default.
    pub(super) fn path(&self) -> PathBuf {
        let variable = || std::env::var_os("KEYGATE_CONFIG").filter(|path| !path.is_empty());
        let file = self.config.clone().or_else(|| variable().map(PathBuf::from));
        file.unwrap_or_else(|| PathBuf::from("/etc/keygate/keygate.toml"))
    }
}

/// The configuration file, as an argument or as the option `--config`.
#[derive(Debug, clap::Args)]
pub(super) struct ConfigFile {
    /// The configuration file, instead of --config.
    #[arg(value_name = "CONFIG", conflicts_with = "config", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    #[command(flatten)]
    option: ConfigArgs,
}

impl ConfigFile {
    pub(super) fn path(&self) -> PathBuf {
        self.file.clone().unwrap_or_else(|| self.option.path())
    }
}
