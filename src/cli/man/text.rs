//! Parser for the text of the manual pages, `docs/man/*.md`.
//!
//! A page uses a small part of Markdown: `## ` begins a section, `- **TERM**: MEANING` is a term, a
//! fence encloses commands, and everything else is a paragraph. A term or paragraph ends at an
//! empty line. The title, `# `, is for readers of the Markdown and is skipped.

/// A heading and the blocks below it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ManSection<'a> {
    pub(super) heading: &'a str,
    pub(super) blocks: Vec<Block<'a>>,
}

/// A block of a section. Text between backticks is bold.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Block<'a> {
    /// Lines as they are typed.
    Commands(Vec<&'a str>),
    Paragraph(String),
    Term {
        term: &'a str,
        meaning: String,
    },
}

/// Returns the sections of a page, in order.
pub(super) fn parse(text: &str) -> Vec<ManSection<'_>> {
    let mut sections: Vec<ManSection<'_>> = Vec::new();
    let mut is_fenced = false;
    let mut continues = false; // whether the next line may continue the last block
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            sections.push(ManSection { heading, blocks: Vec::new() });
            continues = false;
            continue;
        }
        let Some(ManSection { blocks, .. }) = sections.last_mut() else { continue };
        if line.starts_with("```") {
            is_fenced = !is_fenced;
            continues = false;
            if is_fenced {
                blocks.push(Block::Commands(Vec::new()));
            }
        } else if line.is_empty() {
            continues = false;
        } else if let (true, Some(Block::Commands(lines))) = (is_fenced, blocks.last_mut()) {
            lines.push(line);
        } else if let Some((term, meaning)) = term(line) {
            blocks.push(Block::Term { term, meaning: meaning.to_owned() });
            continues = true;
        } else if let (true, Some(Block::Paragraph(text) | Block::Term { meaning: text, .. })) =
            (continues, blocks.last_mut())
        {
            text.push(' ');
            text.push_str(line.trim());
        } else {
            blocks.push(Block::Paragraph(line.to_owned()));
            continues = true;
        }
    }
    sections
}

fn term(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("- **")?.split_once("**: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_split_into_sections_and_blocks() {
        let text = "# title\n\nskipped\n\n## FILES\n\n- **a**: first\n  line\n- **b**: second\n\n\
            Some\ntext.\n\nMore.\n\n```sh\nrun it\nagain\n```\n\n## SEE ALSO\n\nkeygate(1)\n";
        let paragraph = |text: &str| Block::Paragraph(text.to_owned());
        let blocks = vec![
            Block::Term { term: "a", meaning: "first line".to_owned() },
            Block::Term { term: "b", meaning: "second".to_owned() },
            paragraph("Some text."),
            paragraph("More."),
            Block::Commands(vec!["run it", "again"]),
        ];
        let files = ManSection { heading: "FILES", blocks };
        let see_also = ManSection { heading: "SEE ALSO", blocks: vec![paragraph("keygate(1)")] };
        assert_eq!(parse(text), [files, see_also]);
    }
}
