//! `keygate man`: the manual pages, for whoever makes packages.
//!
//! Names, descriptions and options are those of the command line; what a page has besides is in
//! [`pages`]. keygate.toml(5) is the example configuration: see [`configuration`].

mod configuration;
mod pages;

use std::io;
use std::path::PathBuf;

use clap::{Command, ValueHint};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use self::pages::{Page, Part, Section};
use super::{CliError, Exit};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The directory for them; made if it is not there.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let mut command = super::shown().disable_help_subcommand(true);
    command.build();
    let mut rendered = vec![("keygate.toml.5".to_owned(), configuration::page())];
    render_all(&command, &mut rendered).map_err(CliError::Output)?;
    std::fs::create_dir_all(&args.out)
        .and_then(|()| {
            rendered.iter().try_for_each(|(name, page)| std::fs::write(args.out.join(name), page))
        })
        .map_err(|error| CliError::Operation(format!("{}: {error}", args.out.display())))?;
    Ok(Exit::Done)
}

/// A page for the command and for each below it.
fn render_all(command: &Command, rendered: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let page = pages::of(name);
    rendered.push((format!("{name}.1"), render(command, &page)?));
    command.get_subcommands().try_for_each(|below| render_all(below, rendered))
}

fn render(command: &Command, page: &Page) -> io::Result<Vec<u8>> {
    let synopsis = page.synopsis.map_or_else(|| synopsis(command), str::to_owned);
    let usage = command.clone().override_usage(synopsis).subcommand_help_heading("COMMANDS");
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let man = Man::new(usage);
    let mut text = title(name, 1).into_bytes();
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let mut roff = Roff::new();
    page.sections.iter().for_each(|section| add(section, &mut roff));
    roff.control("SH", ["SEE ALSO"]);
    let pages = page.see_also.iter().map(|page| format!("{page}(1)"));
    let others = pages.chain(["keygate.toml(5)".to_owned()]).collect::<Vec<_>>().join(", ");
    roff.text([roman(others)]);
    roff.to_writer(&mut text)?;
    Ok(text)
}

/// The first line of a page. The date is left out: a page belongs to its version, and the generator
/// cannot write that there is none.
fn title(name: &str, section: u8) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(".TH {} {section} \"\" \"keygate {version}\"\n", name.to_uppercase())
}

/// The command with its options and inputs on a line. The options that all commands have are left
/// out.
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

fn add((heading, parts): &Section, roff: &mut Roff) {
    roff.control("SH", [*heading]);
    for (at, part) in parts.iter().enumerate() {
        if at > 0 && !matches!(part, Part::Terms(_)) {
            roff.control("PP", []);
        }
        match part {
            Part::Commands(lines) => {
                roff.control("RS", ["4"]).control("nf", []);
                for line in lines.lines() {
                    roff.text([roman(line)]);
                }
                roff.control("fi", []).control("RE", []);
            }
            Part::Terms(terms) => {
                for (term, meaning) in *terms {
                    roff.control("TP", []).text([bold(*term)]).text(words(meaning));
                }
            }
            Part::Text(text) => {
                roff.text(words(text));
            }
        }
    }
}

/// Text in which what stands between backticks is bold.
fn words(text: &str) -> Vec<Inline> {
    let pieces = text.split('`').enumerate();
    pieces.map(|(at, piece)| if at % 2 == 0 { roman(piece) } else { bold(piece) }).collect()
}
