//! Rows with verdicts on keys: the output of `query` and `diff` for filters and lists.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::guard::{Guard, VerdictKind};
use keygate_core::spki::{Encoding, Fingerprint};
use serde::Serialize;

use super::counted::counted;
use super::input::{InputArgs, KeyFields};
use super::progress::PerKeyOutput;
use super::{CliError, CliOutput, Exit, print_error};

/// The verdicts of keys that are in a file.
const HITS: [VerdictKind; 2] = [VerdictKind::Listed, VerdictKind::Probable];

/// The option `--max-new-hits`, as the key of a filter or list in the configuration.
#[derive(Debug, clap::Args)]
pub(super) struct NewHitsLimit {
    /// Exit with code 6 if more of the given keys than this have a hit in the new file alone.
    #[arg(long, value_name = "COUNT", requires = "inputs")]
    max_new_hits: Option<u64>,
}

/// The verdict on a key by one file.
pub(super) struct FileVerdict {
    pub(super) name: &'static str,
    /// The encoding that is in the file; `None` if there is none.
    pub(super) encoding: Option<Encoding>,
    /// The collection that has the key. `None` for a kind of file that has no collections.
    pub(super) finding: Option<Option<Arc<str>>>,
}

#[derive(Serialize)]
struct QueryRow<'a> {
    #[serde(flatten)]
    key: KeyFields<'a>,
    verdict: &'static str,
    encoding: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finding: Option<Option<&'a str>>,
}

#[derive(Serialize)]
struct ChangeRow<'a> {
    #[serde(flatten)]
    key: KeyFields<'a>,
    before: &'static str,
    after: &'static str,
}

impl<const REQUIRED: bool> InputArgs<REQUIRED> {
    /// Prints a row for each key, as a JSON object if `json`, and a summary if there are several
    /// inputs. `place` is the file in words, such as "on the list".
    pub(super) fn print_verdicts(
        &self,
        json: bool,
        place: &str,
        mut judge: impl FnMut(&[u8]) -> Result<FileVerdict, CliError>,
    ) -> Result<Exit, CliError> {
        let mut output = CliOutput::new();
        let (mut hits, mut unchecked) = (0_u64, false);
        let counts = self.for_each_key(PerKeyOutput::Yes, |key| {
            let FileVerdict { name, encoding, finding } = judge(key.spki)?;
            hits += u64::from(encoding.is_some());
            unchecked |= name == VerdictKind::Unchecked.as_str();
            let row = QueryRow {
                key: key.fields(),
                verdict: name,
                encoding: encoding.map(Encoding::as_str),
                finding: finding.as_ref().map(Option::as_deref),
            };
            if json { output.json(&row) } else { row.print(&mut output, &key.position()) }
        })?;
        output.flush()?;
        // One readable input needs no summary, and the lack of inputs was reported.
        if counts.inputs > 1 || counts.inputs == 1 && counts.unusable > 0 {
            let (keys, inputs) = (counted(counts.keys, "key"), counted(counts.inputs, "input"));
            let unusable = match counts.unusable_inputs {
                0 => String::new(),
                count => {
                    format!("; {} with places that could not be read", counted(count, "input"))
                }
            };
            print_error(&format_args!("{keys} in {inputs}, {hits} {place}{unusable}"));
        }
        let exit = if unchecked { Exit::Unchecked } else { Exit::Done };
        Ok(counts.exit(if hits > 0 { Exit::Found } else { exit }))
    }

    /// Prints a row for each key whose verdicts by two guards differ, and the number of new hits if
    /// there are inputs. Returns `exit`, unless an input was unusable or the limit is exceeded.
    pub(super) fn print_changes(
        &self,
        json: bool,
        output: &mut CliOutput,
        guards: &[Guard; 2],
        limit: &NewHitsLimit,
        exit: Exit,
    ) -> Result<Exit, CliError> {
        let now = SystemTime::now();
        let mut new_hits = HashSet::new();
        let counts = self.for_each_key(PerKeyOutput::Yes, |key| {
            let [before, after] = guards.each_ref().map(|it| it.judge_key(key.spki, now).as_str());
            if before == after {
                return Ok(());
            }
            if HITS.iter().any(|hit| hit.as_str() == after) {
                new_hits.insert(Fingerprint::of(key.spki));
            }
            let row = ChangeRow { key: key.fields(), before, after };
            if json {
                return output.json(&row);
            }
            let KeyFields { algorithm, fingerprint, .. } = row.key;
            let position = key.position();
            output.line(format_args!("{before} -> {after} {fingerprint} {algorithm} {position}"))
        })?;
        output.flush()?;
        if counts.inputs > 0 {
            let (hits, keys) = (new_hits.len() as u64, counted(counts.keys, "key"));
            print_error(&format_args!("{} in {keys}", counted(hits, "new hit")));
        }
        Ok(match limit.max_new_hits {
            Some(limit) if new_hits.len() as u64 > limit => Exit::OverLimit,
            // A key that was not read may be a new hit.
            Some(_) if counts.unusable > 0 => Exit::Incomplete,
            Some(_) | None => counts.exit(exit),
        })
    }
}

impl QueryRow<'_> {
    fn print(&self, output: &mut CliOutput, position: &str) -> Result<(), CliError> {
        let Self { key: KeyFields { algorithm, fingerprint, .. }, verdict, encoding, finding } =
            self;
        let details: Vec<_> = encoding.iter().chain(finding.iter().flatten()).copied().collect();
        let details = match details.is_empty() {
            true => String::new(),
            false => format!(" ({})", details.join(", ")),
        };
        output.line(format_args!("{verdict} {fingerprint} {algorithm} {position}{details}"))
    }
}

/// Prints a property of two files. A different value is marked with `*`.
pub(super) fn print_compared(
    output: &mut CliOutput,
    name: &str,
    [before, after]: [&(impl AsRef<str> + ?Sized); 2],
) -> Result<(), CliError> {
    let (before, after) = (before.as_ref(), after.as_ref());
    let mark = if before == after { ' ' } else { '*' };
    output.line(format_args!("{mark} {name:<16}{before:<40}{after}"))
}
