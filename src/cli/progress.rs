//! Progress of a long run. Hidden if standard error is not a terminal, as indicatif does.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::counted::counted;

/// Whether a command prints a line for each key. On a terminal, its output shows the progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PerKeyOutput {
    No,
    Yes,
}

/// The number of keys that were read.
pub(super) struct InputProgress {
    spinner: Spinner,
    keys: u64,
}

impl InputProgress {
    pub(super) fn new(per_key_output: PerKeyOutput) -> Self {
        let spinner = Spinner::new();
        if per_key_output == PerKeyOutput::Yes && io::stdout().is_terminal() {
            spinner.0.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self { spinner, keys: 0 }
    }

    /// Adds the keys that were found in a part of an input.
    pub(super) fn advance(&mut self, keys: u64) {
        self.keys += keys;
        if self.spinner.is_visible() {
            self.spinner.show(counted(self.keys, "key"));
        }
    }

    /// Writes a line to standard error, above the progress.
    pub(super) fn print_error(&self, problem: &dyn std::fmt::Display) {
        self.suspend(|| super::print_error(problem));
    }

    /// Calls `use_terminal` while the progress is hidden.
    pub(super) fn suspend<T>(&self, use_terminal: impl FnOnce() -> T) -> T {
        self.spinner.0.suspend(use_terminal)
    }
}

/// A line that is replaced while a command runs, and cleared on drop.
pub(super) struct Spinner(ProgressBar);

impl Spinner {
    pub(super) fn new() -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg} in {elapsed}");
        let bar = ProgressBar::new_spinner(); // without a thread that redraws: `show` does
        Self(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner())))
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
