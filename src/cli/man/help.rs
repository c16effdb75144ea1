//! Exit codes and examples in `--help`, from the manual pages.

use std::fmt::Write;

use clap::Command;

use super::pages;
use super::text::{self, Block};

/// Columns of a line of help text.
const WIDTH: usize = 100;

/// Adds the exit codes and examples of its manual page to the long help of each command.
pub(in crate::cli) fn with_pages(command: Command) -> Command {
    with_page(command, "keygate")
}

fn with_page(command: Command, name: &str) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|it| it.get_name().to_owned()).collect();
    let command = below.into_iter().fold(command, |command, subcommand| {
        let name = format!("{name}-{subcommand}");
        command.mut_subcommand(&subcommand, |it| with_page(it, &name))
    });
    match pages::markdown(name).map(sections) {
        Some(text) if !text.is_empty() => command.after_long_help(text),
        Some(_) | None => command,
    }
}

/// The sections on exit codes and examples of a page, as text.
fn sections(page: &str) -> String {
    let mut help = String::new();
    for section in text::parse(page) {
        let heading = match section.heading {
            "EXIT STATUS" => "Exit codes:",
            "ENVIRONMENT" => "Environment:",
            "EXAMPLES" => "Examples:",
            _ => continue,
        };
        help += if help.is_empty() { "" } else { "\n" };
        let _ = writeln!(help, "{heading}"); // a String takes every write
        for block in &section.blocks {
            match block {
                Block::Commands(lines) => {
                    lines.iter().for_each(|line| help += &format!("    {line}\n"));
                }
                Block::Paragraph(text) => help += &wrapped("  ", "  ", text),
                Block::Term { term, meaning } => {
                    let begin = format!("  {term}: ");
                    let indent = " ".repeat(begin.len());
                    help +=
                        &wrapped(&begin, if term.len() > 8 { "    " } else { &indent }, meaning);
                }
            }
        }
    }
    help.trim_end().to_owned()
}

/// Lines of at most [`WIDTH`] columns that begin with `first`, and then with `next`.
fn wrapped(first: &str, next: &str, text: &str) -> String {
    let mut lines = String::new();
    let mut line = first.to_owned();
    for word in text.split_whitespace() {
        let is_empty = line.ends_with(' ');
        if !is_empty && line.len() + 1 + word.len() > WIDTH {
            lines += &line;
            lines.push('\n');
            next.clone_into(&mut line);
        } else if !is_empty {
            line.push(' ');
        }
        line += word;
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sections_are_text_of_a_limited_width() {
        let page = format!(
            "# a\n\n## EXIT STATUS\n\n- **0**: done\n- **1**: {}\n\n## FILES\n\n- **f**: left out\n\n\
             ## EXAMPLES\n\nSome text:\n\n```sh\nkeygate a\n```\n",
            "word ".repeat(30)
        );
        let shown = sections(&page);
        let line = |count| "word ".repeat(count).trim_end().to_owned();
        let expected = format!(
            "Exit codes:\n  0: done\n  1: {}\n     {}\n\nExamples:\n  Some text:\n    keygate a",
            line(19),
            line(11)
        );
        assert_eq!(shown, expected);
    }
}
