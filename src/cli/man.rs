//! `keygate man`: writes the manual pages, for packages.
//!
//! Names, descriptions and options come from the command line. The other sections come from
//! `docs/man`, see [`pages`]. keygate.toml(5) is generated from the example configuration, see
//! [`configuration`].

mod configuration;
mod help;
mod pages;
mod text;

use std::io;
use std::path::PathBuf;

use clap::{Command, ValueHint};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

pub(super) use self::help::with_pages;
use self::text::{Block, ManSection};
use super::{CliError, Exit};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory to write the pages to; created if missing.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: PathBuf,
}

/// A rendered page.
struct Page {
    file_name: String,
    roff: Vec<u8>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let mut command = super::command_line::public_command().disable_help_subcommand(true);
    command.build();
    let configuration = configuration::page();
    let mut pages = vec![Page { file_name: "keygate.toml.5".to_owned(), roff: configuration }];
    render_all(&command, &mut pages)?;
    std::fs::create_dir_all(&args.out)
        .and_then(|()| {
            pages
                .iter()
                .try_for_each(|page| std::fs::write(args.out.join(&page.file_name), &page.roff))
        })
        .map_err(|source| CliError::File { path: args.out.clone(), source })?;
    Ok(Exit::Done)
}

/// Renders a page for the command and one for each subcommand.
fn render_all(command: &Command, pages: &mut Vec<Page>) -> Result<(), CliError> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let markdown = pages::markdown(name)
        .ok_or_else(|| CliError::Operation(format!("docs/man has no text for {name}")))?;
    let roff = render(command, &text::parse(markdown)).map_err(CliError::Output)?;
    pages.push(Page { file_name: format!("{name}.1"), roff });
    command.get_subcommands().try_for_each(|below| render_all(below, pages))
}

fn render(command: &Command, sections: &[ManSection<'_>]) -> io::Result<Vec<u8>> {
    let synopsis = written_synopsis(sections).unwrap_or_else(|| synopsis(command));
    let usage = command.clone().override_usage(synopsis).subcommand_help_heading("COMMANDS");
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let man = Man::new(usage);
    let mut page = title(name, 1).into_bytes();
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    let others = sections.iter().filter(|section| section.heading != SYNOPSIS);
    others.for_each(|section| add(section, &mut roff));
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// Renders the title line of a page.
///
/// The date is empty, because a page belongs to a version. The generator requires the field.
fn title(name: &str, section: u8) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(".TH {} {section} \"\" \"keygate {version}\"\n", name.to_uppercase())
}

/// Heading of the optional section that replaces the generated synopsis.
const SYNOPSIS: &str = "SYNOPSIS";

/// Returns the synopsis of `docs/man`, for commands whose options exclude each other.
fn written_synopsis(sections: &[ManSection<'_>]) -> Option<String> {
    let section = sections.iter().find(|section| section.heading == SYNOPSIS)?;
    section.blocks.iter().find_map(|block| match block {
        Block::Commands(lines) => Some(lines.join("\n")),
        Block::Paragraph(_) | Block::Term { .. } => None,
    })
}

/// Returns the command with its options and inputs on one line, without `--help` and `--version`.
fn synopsis(command: &Command) -> String {
    let mut line = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    for option in command.get_arguments().filter(|argument| !argument.is_positional()) {
        let Some(long) = option.get_long().filter(|long| !["help", "version"].contains(long))
        else {
            continue;
        };
        let value = option.get_value_names().filter(|_| option.get_action().takes_values());
        let value = value.map(|names| format!(" {}", names.join(" "))).unwrap_or_default();
        line += &format!(" [--{long}{value}]");
    }
    for input in command.get_positionals() {
        let name = input.get_value_names().unwrap_or_default().join(" ");
        let many = input.get_num_args().is_some_and(|count| count.max_values() > 1);
        let name = if many { name + "..." } else { name };
        line += &if input.is_required_set() { format!(" {name}") } else { format!(" [{name}]") };
    }
    if command.has_subcommands() { line + " COMMAND" } else { line }
}

fn add(section: &ManSection<'_>, roff: &mut Roff) {
    roff.control("SH", [section.heading]);
    for (at, block) in section.blocks.iter().enumerate() {
        if at > 0 && !matches!(block, Block::Term { .. }) {
            roff.control("PP", []);
        }
        match block {
            Block::Commands(lines) => {
                roff.control("RS", ["4"]).control("nf", []);
                for line in lines {
                    roff.text([roman(*line)]);
                }
                roff.control("fi", []).control("RE", []);
            }
            Block::Paragraph(text) => {
                roff.text(inlines(text));
            }
            Block::Term { term, meaning } => {
                roff.control("TP", []).text([bold(*term)]).text(inlines(meaning));
            }
        }
    }
}

/// Renders text between backticks bold.
fn inlines(text: &str) -> Vec<Inline> {
    let pieces = text.split('`').enumerate();
    pieces.map(|(at, piece)| if at % 2 == 0 { roman(piece) } else { bold(piece) }).collect()
}
