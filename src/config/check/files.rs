//! Checks that no two filters and lists share a file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};

use keygate_core::badkeys;

use super::Input;
use crate::config::message::brief;
use crate::config::{Config, ListConfig, ListFormat};

/// Checks that each filter and list has a file of its own, and each blocklist a directory of its
/// own, because `badkeysdata.json` in a directory is the metadata of one blocklist.
pub(super) fn once(input: &Input<'_>, config: &Config) {
    let filters = config.filters.iter().enumerate().map(|(index, filter)| {
        (format!("filters[{index}].path"), format!("filter {:?}", filter.name), &filter.path)
    });
    let lists = config.lists.iter().enumerate().map(|(index, list)| {
        (format!("lists[{index}].path"), format!("list {:?}", list.name), &list.path)
    });
    let mut owners: HashMap<&Path, String> = HashMap::new();
    for (at, subject, path) in filters.chain(lists) {
        match owners.entry(path) {
            Entry::Occupied(owner) => {
                let problem = format!(
                    "{} is the file of {} too; give each filter and list its own file, or remove one of the two",
                    brief(&path.to_string_lossy()),
                    owner.get()
                );
                input.report_at(&at, problem);
            }
            Entry::Vacant(place) => {
                place.insert(subject);
            }
        }
    }
    metadata_once(input, &config.lists);
}

fn metadata_once(input: &Input<'_>, lists: &[ListConfig]) {
    let mut owners: HashMap<PathBuf, &ListConfig> = HashMap::new();
    let blocklists = lists.iter().enumerate();
    let blocklists = blocklists.filter(|(_, list)| list.format == ListFormat::Badkeys);
    for (index, list) in blocklists {
        let metadata = badkeys::metadata_path(&list.path);
        let owner = *owners.entry(metadata.clone()).or_insert(list);
        // The same file has been reported.
        if owner.path != list.path {
            let problem = format!(
                "{} is in the directory of list {:?}, and {} belongs to one blocklist; give each blocklist a directory of its own",
                brief(&list.path.to_string_lossy()),
                owner.name,
                brief(&metadata.to_string_lossy())
            );
            input.report_at(&format!("lists[{index}].path"), problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::example::{MINIMAL, parse};

    /// The problem of the shortest configuration, whose filter `lost` is `lost.pkbf`, with these
    /// tables. Empty if there is none.
    fn problem(tables: &[(&str, &str, &str)]) -> String {
        let table = |(kind, name, keys): &(&str, &str, &str)| {
            format!("\n[[{kind}]]\nname = {name:?}\npath = {keys}\n")
        };
        let tables: String = tables.iter().map(table).collect();
        parse(&format!("{MINIMAL}{tables}")).err().map_or_else(String::new, |it| it.to_string())
    }

    #[test]
    fn a_filter_or_list_has_a_file_of_its_own() {
        for (other, owner) in [
            (
                &[("filters", "b", "\"./lost.pkbf\"")][..],
                "filters.b.path: /etc/keygate/./lost.pkbf is the file of filter \"lost\"",
            ),
            (
                &[("lists", "b", "\"/etc/keygate/lost.pkbf\"")],
                "lists.b.path: /etc/keygate/lost.pkbf is the file of filter \"lost\"",
            ),
            (
                &[("lists", "a", "\"x\""), ("lists", "b", "\"x\"")],
                "lists.b.path: /etc/keygate/x is the file of list \"a\"",
            ),
            (
                &[
                    ("lists", "a", "\"x\"\nformat = \"badkeys\""),
                    ("lists", "b", "\"x\"\nformat = \"badkeys\""),
                ],
                "lists.b.path: /etc/keygate/x is the file of list \"a\"",
            ),
        ] {
            let found = problem(other);
            assert!(found.contains(owner), "{owner}: {found}");
            assert!(found.contains("give each filter and list its own file"), "{found}");
            assert_eq!(found.lines().count(), 1, "{found}");
        }
        let apart =
            [("filters", "b", "\"b\""), ("lists", "b", "\"b.txt\""), ("lists", "c", "\"c.txt\"")];
        assert_eq!(problem(&apart), "");
    }

    #[test]
    fn a_blocklist_has_a_directory_of_its_own() {
        let badkeys = |path: &str| format!("{path:?}\nformat = \"badkeys\"");
        let (one, two) = (badkeys("b/one.dat"), badkeys("b/two.dat"));
        let found = problem(&[("lists", "one", &one), ("lists", "two", &two)]);
        for part in [
            "lists.two.path: /etc/keygate/b/two.dat is in the directory of list \"one\"",
            "/etc/keygate/b/badkeysdata.json belongs to one blocklist",
            "give each blocklist a directory of its own",
        ] {
            assert!(found.contains(part), "{part}: {found}");
        }
        let two = badkeys("c/two.dat");
        let text = ("lists", "text", "\"b/text.txt\"");
        assert_eq!(problem(&[("lists", "one", &one), ("lists", "two", &two), text]), "");
    }
}
