//! Exit codes, environment and examples in `--help`, from the text of the manual pages.

use clap::Command;

/// The manual pages in Markdown: `# NAME` begins a page.
const PAGES: &str = include_str!("../../docs/man/pages.md");

/// Returns the text of a manual page such as `keygate-run` after its title, in Markdown; `None` if no
/// page has this name.
#[must_use]
pub fn page(name: &str) -> Option<&'static str> {
    PAGES.split("\n# ").find_map(|page| page.strip_prefix(name)?.strip_prefix('\n'))
}

/// Adds exit codes, environment and examples of its manual page to the help of each command.
pub(super) fn with_pages(command: Command, name: &str) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|it| it.get_name().to_owned()).collect();
    let command = below.iter().fold(command, |command, subcommand| {
        let name = format!("{name}-{subcommand}");
        command.mut_subcommand(subcommand, |it| with_pages(it, &name))
    });
    command.after_long_help(page(name).map(sections).unwrap_or_default())
}

fn sections(page: &str) -> String {
    let mut help = String::new();
    for section in page.split("\n## ").skip(1) {
        let (heading, text) = section.split_once('\n').unwrap_or_default();
        let heading = match heading {
            "EXIT STATUS" => "Exit codes",
            "ENVIRONMENT" => "Environment",
            "EXAMPLES" => "Examples",
            _ => continue,
        };
        help += &format!("\n{heading}:\n");
        let mut is_fenced = false;
        for line in text.lines().filter(|line| !line.is_empty()) {
            let is_fence = line.starts_with("```");
            is_fenced ^= is_fence;
            if !is_fence {
                let indent = if is_fenced { "    " } else { "  " };
                let term = line.strip_prefix("- **").map(|term| term.replacen("**: ", ": ", 1));
                help += &format!("{indent}{}\n", term.as_deref().unwrap_or(line));
            }
        }
    }
    help.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_has_three_sections_of_a_page() {
        let page = "\n## EXIT STATUS\n\n- **0**: done\n- **1**: a\n  b\n\n## FILES\n\n- **f**: left \
                    out\n\n## EXAMPLES\n\nSome text:\n\n```sh\nkeygate a\n```\n";
        let expected =
            "Exit codes:\n  0: done\n  1: a\n    b\n\nExamples:\n  Some text:\n    keygate a";
        assert_eq!(sections(page), expected);
    }
}
