//! Rows with verdicts on keys: the output of `query` and `diff` for filters and lists.

use std::fmt::Display;
use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::guard::{Guard, VerdictKind};
use keygate_core::spki::Encoding;
use serde::Serialize;

use super::counted::counted;
use super::input::{self, FoundKey, InputCounts, PassphraseArgs};
use super::progress::PerKeyOutput;
use super::{CliError, CliOutput, Exit, print_error};

/// The keys that a command judges, and the form of its rows.
pub(super) struct JudgedInputs<'a> {
    pub(super) inputs: &'a [String],
    pub(super) passphrase: &'a PassphraseArgs,
    /// Whether each row is a JSON object.
    pub(super) json: bool,
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
    input: &'a str,
    line: Option<u64>,
    algorithm: String,
    fingerprint: String,
    verdict: &'static str,
    encoding: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finding: Option<Option<&'a str>>,
}

#[derive(Serialize)]
struct ChangeRow<'a> {
    input: &'a str,
    line: Option<u64>,
    algorithm: String,
    fingerprint: String,
    before: &'static str,
    after: &'static str,
}

impl JudgedInputs<'_> {
    /// Prints a row for each key, and a summary if there are several inputs. `place` is the file in
    /// words, such as "on the list".
    pub(super) fn print_verdicts(
        &self,
        place: &str,
        mut judge: impl FnMut(&[u8]) -> Result<FileVerdict, CliError>,
    ) -> Result<Exit, CliError> {
        let mut output = CliOutput::new();
        let (mut hits, mut unchecked) = (0_u64, false);
        let counts = self.for_each_key(|key| {
            let FileVerdict { name, encoding, finding } = judge(key.spki)?;
            hits += u64::from(encoding.is_some());
            unchecked |= name == VerdictKind::Unchecked.as_str();
            let row = QueryRow {
                input: key.input,
                line: key.line,
                algorithm: key.algorithm(),
                fingerprint: key.fingerprint(),
                verdict: name,
                encoding: encoding.map(Encoding::as_str),
                finding: finding.as_ref().map(Option::as_deref),
            };
            if self.json { output.json(&row) } else { row.print(&mut output, &key.position()) }
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

    /// Prints a row for each key whose verdicts by two guards differ. Returns `exit`, unless an input
    /// was unusable.
    pub(super) fn print_changes(
        &self,
        output: &mut CliOutput,
        guards: &[Guard; 2],
        exit: Exit,
    ) -> Result<Exit, CliError> {
        let now = SystemTime::now();
        let counts = self.for_each_key(|key| {
            let [before, after] =
                guards.each_ref().map(|it| it.judge_presented_key(key.spki, now).as_str());
            if before == after {
                return Ok(());
            }
            let (algorithm, fingerprint) = (key.algorithm(), key.fingerprint());
            if self.json {
                let FoundKey { input, line, .. } = *key;
                let row = ChangeRow { input, line, algorithm, fingerprint, before, after };
                return output.json(&row);
            }
            let position = key.position();
            output.line(format_args!("{before} -> {after} {fingerprint} {algorithm} {position}"))
        })?;
        output.flush()?;
        Ok(counts.exit(exit))
    }

    fn for_each_key(
        &self,
        visit: impl FnMut(&FoundKey<'_>) -> Result<(), CliError>,
    ) -> Result<InputCounts, CliError> {
        input::for_each_key(self.inputs, self.passphrase, PerKeyOutput::Yes, visit)
    }
}

impl QueryRow<'_> {
    fn print(&self, output: &mut CliOutput, position: &str) -> Result<(), CliError> {
        let Self { algorithm, fingerprint, verdict, encoding, finding, .. } = self;
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
    name: impl Display,
    [before, after]: [String; 2],
) -> Result<(), CliError> {
    let mark = if before == after { ' ' } else { '*' };
    output.line(format_args!("{mark} {name}{before:<24}{after}"))
}
