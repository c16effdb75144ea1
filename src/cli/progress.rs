//! How far a long run has come, on a terminal. In a pipe or a file there is nothing to see.

use std::fs::Metadata;
use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar if the size of all inputs is known, else a spinner; both count keys.
pub(super) struct Progress {
    bar: ProgressBar,
    keys: u64,
}

/// How often what is shown changes at least.
const TICK: Duration = Duration::from_millis(200);

impl Progress {
    /// Shows nothing if standard error is no terminal; nor, for a command that reports on each key,
    /// if its report goes to one.
    pub(super) fn new(inputs: &[String], reports: bool) -> Self {
        let is_visible = io::stderr().is_terminal() && !(reports && io::stdout().is_terminal());
        let bar = match total_size(inputs) {
            Some(total) => ProgressBar::with_draw_target(Some(total), target(is_visible))
                .with_style(style("{bar:32} {percent:>3} % {msg} in {elapsed}")),
            None => ProgressBar::with_draw_target(None, target(is_visible))
                .with_style(style("{spinner} {msg} in {elapsed}")),
        };
        if is_visible {
            bar.enable_steady_tick(TICK);
        }
        Self { bar, keys: 0 }
    }

    /// A piece of an input has been read, with so many keys in it.
    pub(super) fn advance(&mut self, bytes: u64, keys: u64) {
        self.keys += keys;
        if !self.bar.is_hidden() {
            self.bar.inc(bytes);
            self.bar.set_message(format!("{} keys", self.keys));
        }
    }

    /// Says something on standard error without tearing the bar.
    pub(super) fn complain(&self, problem: &dyn std::fmt::Display) {
        self.bar.suspend(|| super::complain(problem));
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn target(is_visible: bool) -> ProgressDrawTarget {
    if is_visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// In bytes; `None` if any input is a directory or a stream.
fn total_size(inputs: &[String]) -> Option<u64> {
    let sizes = inputs.iter().map(|input| std::fs::metadata(input).ok());
    sizes.map(|metadata| metadata.filter(Metadata::is_file).map(|file| file.len())).sum()
}
