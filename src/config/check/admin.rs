//! Checks the admin address alone, for the commands to a running process. They are needed while its
//! file is being edited, so that errors elsewhere in the file do not matter.

use std::path::Path;

use crate::config::document::{self, Document};
use crate::config::input::{Takes, take};
use crate::config::{AdminConfig, Config, ConfigError, ConfigProblem, ListenAddress};

/// Checks the admin address in `content`, and nothing else.
pub(in crate::config) fn admin(
    file: &Path,
    content: Vec<u8>,
) -> Result<ListenAddress, ConfigError> {
    let invalid = |problems| ConfigError::Invalid { file: file.to_owned(), problems };
    match String::from_utf8(content) {
        Ok(text) => match Document::parse(&text, &Config::form()) {
            Ok(document) => address(file, &document),
            Err(problem) => address_of_lines(file, &text).ok_or(vec![problem]),
        }
        .map_err(invalid),
        Err(error) => address_of_lines(file, &String::from_utf8_lossy(error.as_bytes()))
            .ok_or_else(|| invalid(vec![document::encoding_problem(&error)])),
    }
}

fn address(file: &Path, document: &Document<'_>) -> Result<ListenAddress, Vec<ConfigProblem>> {
    take::<AdminConfig>(file, document, "admin").map(|admin| admin.listen)
}

/// The address in a text that is not TOML, if one line sets it. The default address is not used,
/// because a mistake may hide another one.
fn address_of_lines(file: &Path, text: &str) -> Option<ListenAddress> {
    // A text of several lines may have such a line.
    if text.contains("\"\"\"") || text.contains("'''") {
        return None;
    }
    let mut table = "";
    let mut lines = text.lines().filter(|line| {
        let header = line.trim_start().strip_prefix('[').map(|it| it.trim_start_matches('['));
        table = header.map_or(table, |it| it.split(']').next().unwrap_or_default().trim());
        match table.trim_matches(['"', '\'']) {
            "" => line.starts_with("admin"),
            name => name == "admin" && line.trim_start().starts_with("listen"),
        }
    });
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    let header = if line.starts_with("admin") { "" } else { "[admin]\n" };
    let text = format!("{header}{line}\n");
    let document = Document::parse(&text, &Config::form()).ok()?;
    document.value("admin.listen")?;
    let address = address(file, &document).ok()?;
    // A character that is not UTF-8.
    (!address.to_string().contains(char::REPLACEMENT_CHARACTER)).then_some(address)
}
