//! `keygate fetch`: downloads filters, lists and CRLs, once or again and again.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use clap::ValueHint;
use keygate_core::regular_file::FileSize;
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{interval, sleep};

use super::counted::{counted, counted_entries};
use super::duration::parse_duration;
use super::progress::Spinner;
use super::{CliError, CliOutput, ConfigArgs, Exit, print_error, resolver, runtime};
use crate::config::{Config, Shrink, SourceUrl};
use crate::confirm::jittered;
use crate::fetch::{BADKEYS_URL, FetchError, FetchJob, FetchedFile, write_textfile};
use crate::resolver::Resolver;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Fetch the public badkeys blocklist into this directory, without a configuration. The
    /// directory is created if it does not exist.
    #[arg(long, value_name = "DIR", conflicts_with = "config", value_hint = ValueHint::DirPath)]
    badkeys: Option<PathBuf>,
    /// URL of badkeysdata.json on a mirror, with --badkeys.
    #[arg(long, requires = "badkeys", conflicts_with = "config", default_value = BADKEYS_URL, value_hint = ValueHint::Url)]
    url: String,
    /// CAs that may issue the certificate of the source (PEM), with --badkeys. Default: the CAs of
    /// the system.
    #[arg(long, value_name = "FILE", requires = "badkeys", conflicts_with = "config", value_hint = ValueHint::FilePath)]
    trust_anchors: Option<PathBuf>,
    /// Fetch only files that do not exist. Before a start of the proxy, which needs its files, an
    /// old file is better than none.
    #[arg(long, conflicts_with = "every")]
    missing: bool,
    /// Repeat after this time, such as "1h", until SIGTERM. After an error, repeat earlier.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    every: Option<Duration>,
    /// Write metrics to this file, for the textfile collector of the node exporter.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    textfile: Option<PathBuf>,
    /// Install filters that lost half of their entries or more. A running proxy holds them for
    /// `keygate filter accept`.
    #[arg(long)]
    allow_shrunk: bool,
    /// Print one JSON object per file.
    #[arg(long)]
    json: bool,
}

/// First pause after an error, 1 min. It is doubled with each error in a row, up to `--every`.
const FIRST_BACK_OFF: Duration = Duration::from_secs(60);

/// Errors name settings of a configuration, most of which `--badkeys` lacks.
const WITHOUT_CONFIGURATION: &str = "--badkeys has --url and --trust-anchors alone; write a configuration \
    for other settings, or remove both files of the directory to go back to an older list";

/// The outcome for one file.
#[derive(Serialize)]
struct FetchRow<'a> {
    kind: &'static str,
    name: &'a str,
    path: String,
    url: String,
    /// `failed`, `installed` or `unchanged`.
    result: &'static str,
    entries: Option<u64>,
    bytes: u64,
    resumed: u64,
    /// Whether the source names the format of the list deprecated.
    deprecated: bool,
    error: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let mut jobs = jobs(args)?;
    if args.missing {
        jobs.retain(|job| !job.path().exists());
    }
    let (resolver, runtime) = (resolver()?, runtime()?);
    match args.every {
        None => {
            let is_complete = runtime.block_on(run_all(args, &jobs, &resolver))?;
            Ok(if is_complete { Exit::Done } else { Exit::Incomplete })
        }
        Some(every) => repeat(args, every, jobs, &resolver, &runtime),
    }
}

fn jobs(args: &Args) -> Result<Vec<FetchJob>, CliError> {
    if let Some(directory) = &args.badkeys {
        return Ok(vec![badkeys(args, directory)?]);
    }
    let path = args.config.path();
    let config = Config::read(&path)?;
    let shrunk = if args.allow_shrunk { Shrink::Allow } else { Shrink::Refuse };
    let jobs = FetchJob::all(&config, shrunk);
    if jobs.is_empty() {
        let path = path.display();
        let problem = format!(
            "{path}: no filter, list or CRL has a source, such as source = {{ url = \"https://HOST/FILE\" }}"
        );
        return Err(CliError::Usage(problem));
    }
    Ok(jobs)
}

fn badkeys(args: &Args, directory: &Path) -> Result<FetchJob, CliError> {
    let url = SourceUrl::without_credentials(&args.url);
    let problem = match SourceUrl::parse_file(&args.url).filter(|it| !it.is_blocklist()) {
        None => " is not the URL of badkeysdata.json: write https://HOST/badkeysdata.json",
        Some(it) if !it.is_authenticated() => {
            ": http:// to another machine lets anybody on the way replace the list: use https://"
        }
        Some(it) => return Ok(FetchJob::badkeys(directory, it, args.trust_anchors.clone())),
    };
    Err(CliError::Usage(format!("--url {url:?}{problem}")))
}

/// Runs all jobs again and again until SIGTERM or SIGINT. The configuration is read each time.
fn repeat(
    args: &Args,
    every: Duration,
    first: Vec<FetchJob>,
    resolver: &Resolver,
    runtime: &Runtime,
) -> Result<Exit, CliError> {
    let failed = |error| CliError::system("cannot receive signals", error);
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut jobs = Ok(first);
        let mut failures = 0;
        let rounds = async {
            loop {
                let is_complete = match &jobs {
                    Ok(jobs) => run_all(args, jobs, resolver).await?,
                    Err(error) => {
                        CliError::lines(error).iter().for_each(|line| print_error(line));
                        false
                    }
                };
                failures = if is_complete { 0 } else { failures + 1 };
                // Machines that were started together do not load the source together.
                sleep(jittered(pause(every, failures))).await;
                jobs = self::jobs(args);
            }
        };
        tokio::select! {
            // A download that is cut short here is continued by the next run.
            _ = terminate.recv() => Ok(Exit::Done),
            _ = interrupt.recv() => Ok(Exit::Done),
            ended = rounds => ended,
        }
    })
}

/// The pause after a run, with this number of runs in a row that had an error.
fn pause(every: Duration, failures: u32) -> Duration {
    match failures.checked_sub(1) {
        None => every,
        Some(earlier) => every.min(FIRST_BACK_OFF.saturating_mul(2_u32.saturating_pow(earlier))),
    }
}

/// Runs all jobs once. Returns whether none had an error.
async fn run_all(args: &Args, jobs: &[FetchJob], resolver: &Resolver) -> Result<bool, CliError> {
    let mut is_complete = true;
    for job in jobs {
        let outcome = run_with_progress(job, resolver).await;
        is_complete &= show(args, job, &outcome)?;
    }
    if let Some(path) = &args.textfile
        && let Err(error) = write_textfile(path, jobs)
    {
        print_error(&format_args!(
            "--textfile {}: {error}; create its directory, writable for this user",
            path.display()
        ));
        is_complete = false;
    }
    Ok(is_complete)
}

/// Runs a job, and shows the size of its download on a terminal.
async fn run_with_progress(job: &FetchJob, resolver: &Resolver) -> Result<FetchedFile, FetchError> {
    let spinner = Spinner::new();
    let mut run = pin!(job.run(resolver));
    let mut ticks = interval(Duration::from_millis(250));
    loop {
        tokio::select! {
            outcome = &mut run => break outcome,
            _ = ticks.tick(), if spinner.is_visible() => {
                spinner.show(format!("{}: {}", job.name(), FileSize(job.part_size())));
            }
        }
    }
}

/// Prints an outcome. Returns whether there is nothing for the operator to do.
fn show(
    args: &Args,
    job: &FetchJob,
    outcome: &Result<FetchedFile, FetchError>,
) -> Result<bool, CliError> {
    let (kind, name) = (job.kind(), job.name());
    let (result, file, error) = match outcome {
        Err(error) => ("failed", None, Some(error.to_string())),
        Ok(file) if file.is_new => ("installed", Some(file), None),
        Ok(file) => ("unchanged", Some(file), None),
    };
    if let Some(error) = &error {
        print_error(&format_args!("{kind} {name:?}: {error}"));
        if args.badkeys.is_some() {
            print_error(&WITHOUT_CONFIGURATION);
        }
    }
    for error in file.into_iter().flat_map(|file| &file.errors) {
        print_error(&format_args!("{kind} {name:?}: {error}; another source has the file"));
    }
    let deprecation = file.and_then(|file| file.deprecation.as_deref());
    if let Some(text) = deprecation {
        let text = if text.is_empty() { String::new() } else { format!(" ({text})") };
        print_error(&format_args!(
            "{kind} {name:?}: {}: the format of the list is deprecated{text}, it may not be updated any more; look for a newer keygate",
            job.url()
        ));
    }
    let mut output = CliOutput::new();
    if args.json {
        let default = FetchedFile::default();
        let FetchedFile { entries, bytes, resumed, .. } = file.unwrap_or(&default);
        output.json(&FetchRow {
            kind,
            name,
            path: job.path().display().to_string(),
            url: job.url(),
            result,
            entries: *entries,
            bytes: *bytes,
            resumed: *resumed,
            deprecated: deprecation.is_some(),
            error,
        })?;
    } else if let Some(file) = file {
        let entries = file.entries.map(|entries| format!(", {}", counted_entries(entries)));
        let entries = entries.unwrap_or_default();
        let bytes = counted(file.bytes, "byte");
        let path = job.path().display();
        output
            .line(format_args!("{kind} {name}: {result}: {path}{entries}, {bytes} downloaded"))?;
    }
    output.flush()?;
    Ok(outcome.is_ok() && deprecation.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_after_an_error_is_shorter_and_grows() {
        let minutes = |every: u64, failures| pause(Duration::from_secs(every * 60), failures);
        for (failures, expected) in [(0, 60), (1, 1), (2, 2), (3, 4), (7, 60), (u32::MAX, 60)] {
            assert_eq!(minutes(60, failures).as_secs(), expected * 60, "{failures}");
        }
        let short = Duration::from_secs(5);
        assert_eq!((pause(short, 0), pause(short, 9)), (short, short));
    }
}
