//! The metrics of fetching, as a file for the textfile collector of the node exporter.

use std::fmt::Write as _;
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use keygate_core::regular_file::directory_of;

use super::job::FetchJob;
use super::state::FetchCounts;

/// A series: its name, type, help text and value.
type Series = (&'static str, &'static str, &'static str, fn(&FetchCounts) -> u64);

const SERIES: [Series; 5] = [
    (
        "keygate_fetch_deprecated",
        "gauge",
        "1 if the source names the format of the list deprecated.",
        |counts| counts.is_deprecated.into(),
    ),
    ("keygate_fetch_failures_total", "counter", "Runs that ended with an error.", |counts| {
        counts.failures
    }),
    ("keygate_fetch_installed_total", "counter", "Runs that installed a new version.", |counts| {
        counts.installed
    }),
    (
        "keygate_fetch_last_installed_timestamp_seconds",
        "gauge",
        "End of the last run that installed a new version; 0 before the first one.",
        |counts| counts.last_installed,
    ),
    (
        "keygate_fetch_last_success_timestamp_seconds",
        "gauge",
        "End of the last run without an error; 0 before the first one.",
        |counts| counts.last_success,
    ),
];

/// Replaces the file at `path` by the metrics of `jobs`. A reader finds the old or the new file.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn write_textfile(path: &Path, jobs: &[FetchJob]) -> io::Result<()> {
    let text = text(jobs);
    // The collector reads files whose names end in `.prom`.
    let mut staged = tempfile::Builder::new()
        .prefix(".keygate-fetch-")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(directory_of(path))?;
    staged.write_all(text.as_bytes())?;
    staged.as_file().set_permissions(Permissions::from_mode(0o644))?;
    staged.as_file().sync_all()?;
    staged.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// The metrics in the text format of Prometheus.
fn text(jobs: &[FetchJob]) -> String {
    let counts: Vec<_> = jobs.iter().map(FetchJob::counts).collect();
    let mut text = String::new();
    for (name, kind, help, value) in SERIES {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}"); // never fails
        for (job, counts) in jobs.iter().zip(&counts) {
            // The name of CRLs is a path.
            let subject = job.name().replace('\\', "\\\\").replace('"', "\\\"");
            let subject = subject.replace('\n', "\\n");
            let labels = format!("kind=\"{}\",name=\"{subject}\"", job.kind());
            let _ = writeln!(text, "{name}{{{labels}}} {}", value(counts));
        }
    }
    text
}
