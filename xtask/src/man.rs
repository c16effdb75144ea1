//! The manual pages: a page for each command, and keygate.toml(5).
//!
//! Names, descriptions and options come from the command line, the other sections from
//! `docs/man/pages.md`. Paragraphs, fences and lists `- **TERM**: MEANING` are the Markdown there.

use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use keygate::cli;

/// The example configuration, which has every key with its default.
const EXAMPLE: &str = include_str!("../../config/keygate.toml");

/// Writes all pages to `directory`, which is created if it does not exist.
///
/// # Errors
/// Returns an error if `docs/man/pages.md` lacks a page, or if a file cannot be written.
pub fn write(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("keygate.toml.5"), page_of_configuration()?)?;
    let mut command = cli::command().disable_help_subcommand(true);
    command.build();
    write_commands(&command, directory)
}

/// Writes the pages of `command` and of its subcommands.
fn write_commands(command: &Command, directory: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    std::fs::write(directory.join(format!("{name}.1")), page(command, name)?)?;
    command.get_subcommands().try_for_each(|below| write_commands(below, directory))
}

fn page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    let sections = sections(name)?;
    // Commands whose options exclude each other have a written synopsis.
    let written = sections.iter().find(|(heading, _)| *heading == "SYNOPSIS");
    let mut command = command.clone().subcommand_help_heading("COMMANDS");
    if let Some((_, synopsis)) = written {
        command = command.override_usage(commands(synopsis).join("\n"));
    }
    let has_subcommands = command.has_subcommands();
    let man = Man::new(command);
    let mut page = title(name, 1).into_bytes();
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_subcommands {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    let others = sections.iter().filter(|(heading, _)| *heading != "SYNOPSIS");
    others.for_each(|(heading, text)| add_section(&mut roff, heading, text));
    roff.to_writer(&mut page)?;
    Ok(page)
}

fn page_of_configuration() -> io::Result<String> {
    let mut roff = Roff::new();
    roff.control("SH", ["NAME"]).text([roman("keygate.toml - configuration of keygate(1)")]);
    for (heading, text) in sections("keygate.toml")? {
        if heading == "SEE ALSO" {
            roff.control("SH", ["EXAMPLE"]);
            // The first line is for editors.
            add_lines(&mut roff, EXAMPLE.lines().filter(|line| !line.starts_with("#:schema ")));
        }
        add_section(&mut roff, heading, text);
    }
    Ok(title("keygate.toml", 5) + &roff.render())
}

/// The title line of a page. The date is empty, because a page belongs to a version.
fn title(name: &str, section: u8) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(".TH {} {section} \"\" \"keygate {version}\"\n", name.to_uppercase())
}

/// The headings of a page and the text below each.
fn sections(name: &str) -> io::Result<Vec<(&'static str, &'static str)>> {
    let text = cli::manual_text(name)
        .ok_or_else(|| io::Error::other(format!("docs/man/pages.md has no page {name}")))?;
    Ok(text.split("\n## ").skip(1).filter_map(|section| section.split_once("\n\n")).collect())
}

/// The lines of the fences in `text`.
fn commands(text: &str) -> Vec<&str> {
    let fences = text.split("```").skip(1).step_by(2);
    fences.flat_map(|fence| fence.lines().skip(1)).collect()
}

fn add_section(roff: &mut Roff, heading: &str, text: &str) {
    roff.control("SH", [heading]);
    for (at, block) in text.trim_end().split("\n\n").enumerate() {
        if let Some(list) = block.strip_prefix("- **") {
            for (term, meaning) in list.split("\n- **").filter_map(|it| it.split_once("**: ")) {
                roff.control("TP", []).text([bold(term)]).text(inlines(meaning));
            }
            continue;
        }
        if at > 0 {
            roff.control("PP", []);
        }
        if block.starts_with("```") {
            add_lines(roff, commands(block).into_iter());
        } else {
            roff.text(inlines(block));
        }
    }
}

/// Adds lines as they are.
fn add_lines<'a>(roff: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    roff.control("RS", ["4"]).control("nf", []);
    lines.for_each(|line| {
        roff.text([roman(line)]);
    });
    roff.control("fi", []).control("RE", []);
}

/// Text of several lines as one paragraph. Text between backticks is bold.
fn inlines(text: &str) -> Vec<Inline> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let pieces = text.split('`').enumerate();
    pieces.map(|(at, piece)| if at % 2 == 0 { roman(piece) } else { bold(piece) }).collect()
}
