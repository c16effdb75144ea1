//! The reference of all keys, read from `docs/configuration.md`. Tests compare that page with the
//! code that reads configurations.

const PAGE: &str = include_str!("../../docs/configuration.md");

/// A table of the configuration, with its keys in the order of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReferenceTable {
    /// Such as `services.limits`; empty for the keys at the top.
    pub(super) name: &'static str,
    /// Text before the keys.
    pub(super) text: String,
    pub(super) keys: Vec<ReferenceKey>,
}

/// A key of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReferenceKey {
    pub(super) name: &'static str,
    /// Type and bounds, such as `number, 0 to 1024`.
    pub(super) takes: &'static str,
    /// The default as TOML; `None` if the key is required or off by default.
    pub(super) default: Option<&'static str>,
    pub(super) is_required: bool,
    pub(super) meaning: &'static str,
}

/// The arrays of tables.
const ARRAYS: [&str; 5] = ["authorizers", "exceptions", "filters", "lists", "services"];

impl ReferenceTable {
    pub(super) fn is_array(&self) -> bool {
        ARRAYS.contains(&self.name)
    }

    /// Whether the absence of the table is a setting of its own, not a table of defaults.
    pub(super) fn is_optional(&self) -> bool {
        let phrases =
            ["Optional", "Without the table", "Without this table", "Off unless", "Required for"];
        // Rules by name: without the table every client of the CAs is allowed.
        let is_allow = self.name.ends_with(".allow");
        is_allow || phrases.iter().any(|phrase| self.text.contains(phrase))
    }

    pub(super) fn has_required_key(&self) -> bool {
        self.keys.iter().any(|key| key.is_required)
    }

    /// The name of the table around it, and its own name there.
    pub(super) fn split(&self) -> (&'static str, &'static str) {
        self.name.rsplit_once('.').unwrap_or(("", self.name))
    }
}

/// All tables, outer ones before inner ones. The tables `services.policy` and `authorizers.policy`
/// have the keys of `policy`.
pub(super) fn tables() -> Vec<ReferenceTable> {
    let mut tables: Vec<ReferenceTable> = Vec::new();
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let name = heading.strip_prefix('`').and_then(|it| it.strip_suffix('`'));
            let name = name.unwrap_or_default();
            tables.push(ReferenceTable { name, text: String::new(), keys: Vec::new() });
            continue;
        }
        let Some(table) = tables.last_mut() else { continue };
        match key(line) {
            Some(key) => table.keys.push(key),
            None if line.starts_with('|') => {}
            None => {
                table.text += line;
                table.text.push(' ');
            }
        }
    }
    tables.retain(|table| !table.name.is_empty() || !table.keys.is_empty());
    let policy = tables.iter().find(|table| table.name == "policy").map(|it| it.keys.clone());
    for table in tables.iter_mut().filter(|table| table.name.ends_with(".policy")) {
        table.keys = policy.clone().unwrap_or_default();
        if table.name == "authorizers.policy" {
            table.keys.retain(|key| !["reject_with", "evict_within"].contains(&key.name));
        }
    }
    tables
}

fn key(line: &'static str) -> Option<ReferenceKey> {
    let mut cells = line.split(" | ");
    let name = cells.next()?.strip_prefix("| `")?.strip_suffix('`')?;
    let (takes, default) = (cells.next()?, cells.next()?);
    let (_changed, meaning) = (cells.next()?, cells.next()?.trim_end_matches(" |"));
    let is_required = default == "required";
    let default = default.strip_prefix('`').and_then(|it| it.strip_suffix('`'));
    Some(ReferenceKey { name, takes, default, is_required, meaning })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_tables_and_keys() {
        let tables = tables();
        let table = |name: &str| tables.iter().find(|table| table.name == name).unwrap();
        let workers = table("").keys[0];
        assert_eq!((workers.name, workers.takes), ("workers", "number, 0 to 1024"));
        assert_eq!((workers.default, workers.is_required), (Some("0"), false));
        assert!(table("filters").is_array() && table("filters").keys[0].is_required);
        assert!(table("confirm").is_optional() && !table("services.limits").is_optional());
        assert_eq!(table("services.policy").keys, table("policy").keys);
        assert_eq!(table("authorizers.policy").keys.len() + 2, table("policy").keys.len());
        assert_eq!(table("services.upstream.tls").split(), ("services.upstream", "tls"));
    }
}
