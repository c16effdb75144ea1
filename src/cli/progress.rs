//! Progress of a long run, shown on a terminal only.

use std::fs::Metadata;
use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::counted::counted;

/// Whether a command prints a line for each key. Its output then takes the place of a progress bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PerKeyOutput {
    No,
    Yes,
}

/// A bar if the size of all inputs is known, else a spinner. Both show the number of keys.
pub(super) struct InputProgress {
    bar: ProgressBar,
    keys: u64,
}

impl InputProgress {
    /// Hidden if standard error is not a terminal, or if lines per key are printed to a terminal.
    pub(super) fn new(inputs: &[String], per_key_output: PerKeyOutput) -> Self {
        let prints_keys = per_key_output == PerKeyOutput::Yes && io::stdout().is_terminal();
        let is_visible = io::stderr().is_terminal() && !prints_keys;
        let bar = match total_size(inputs) {
            Some(total) => ProgressBar::with_draw_target(Some(total), target(is_visible))
                .with_style(style("{bar:32} {percent:>3} % {msg} in {elapsed}")),
            None => ProgressBar::with_draw_target(None, target(is_visible))
                .with_style(style("{spinner} {msg} in {elapsed}")),
        };
        if is_visible {
            bar.tick(); // without a thread that redraws, which may be refused: `advance` does
        }
        Self { bar, keys: 0 }
    }

    /// Adds `bytes` of input and the `keys` found in them.
    pub(super) fn advance(&mut self, bytes: u64, keys: u64) {
        self.keys += keys;
        if !self.bar.is_hidden() {
            self.bar.inc(bytes);
            self.bar.set_message(counted(self.keys, "key"));
        }
    }

    /// Writes a line to standard error; the bar is hidden meanwhile.
    pub(super) fn print_error(&self, problem: &dyn std::fmt::Display) {
        self.suspend(|| super::print_error(problem));
    }

    /// Calls `use_terminal` while the bar is hidden.
    pub(super) fn suspend<T>(&self, use_terminal: impl FnOnce() -> T) -> T {
        self.bar.suspend(use_terminal)
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A line that is replaced while a command waits, and cleared on drop.
pub(super) struct Spinner(ProgressBar);

impl Spinner {
    /// Hidden if standard error is not a terminal.
    pub(super) fn new() -> Self {
        let target = target(io::stderr().is_terminal());
        Self(ProgressBar::with_draw_target(None, target).with_style(style("{spinner} {msg}")))
    }

    pub(super) fn is_visible(&self) -> bool {
        !self.0.is_hidden()
    }

    pub(super) fn show(&self, message: String) {
        self.0.set_message(message);
        self.0.tick();
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn target(is_visible: bool) -> ProgressDrawTarget {
    if is_visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Sum of the file sizes, in bytes; `None` if an input is a directory or a stream.
fn total_size(inputs: &[String]) -> Option<u64> {
    let sizes = inputs.iter().map(|input| std::fs::metadata(input).ok());
    sizes.map(|metadata| metadata.filter(Metadata::is_file).map(|file| file.len())).sum()
}
