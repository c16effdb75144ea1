//! Converts `[[lists]]`.

use super::Checker;
use super::fetch::Protection;
use crate::config::raw::{List, RawListFormat};
use crate::config::{BlocklistConfig, ListConfig, ListFormat, Rollback, Shrink};

/// Default of `max_size` for a list of fingerprints, in bytes, 16 MiB.
const MAX_FINGERPRINTS_SIZE: u64 = 16 << 20;
/// Default of `max_size` for a blocklist, in bytes, 256 MiB. The published one has 60 MB.
const MAX_BLOCKLIST_SIZE: u64 = 256 << 20;

impl Checker<'_> {
    pub(super) fn list(&self, path: &str, list: &List) -> ListConfig {
        let (format, max_size) = match list.format {
            RawListFormat::Badkeys => {
                let max_age = list.max_age.map(|age| age.0);
                let rollback = list.rollback.unwrap_or(Rollback::Refuse);
                (ListFormat::Badkeys(BlocklistConfig { max_age, rollback }), MAX_BLOCKLIST_SIZE)
            }
            RawListFormat::Fingerprints => {
                self.ensure_no_blocklist_keys(path, list);
                (ListFormat::Fingerprints, MAX_FINGERPRINTS_SIZE)
            }
        };
        let protection = Protection::of(list.minisign_key.as_ref());
        let source = self.source(path, list.source.as_ref(), protection);
        let is_blocklist = matches!(format, ListFormat::Badkeys(_));
        if source.as_ref().is_some_and(|source| is_blocklist && source.url.is_blocklist()) {
            let problem = "the URL of a list; with format = \"badkeys\" give that of badkeysdata.json, which names the list";
            self.conflict(format!("{path}.source.url"), problem);
        }
        ListConfig {
            name: self.name(path, list.name.clone()),
            path: self.path(&format!("{path}.path"), &list.path),
            max_size: list.max_size.map_or(max_size, |size| size.0),
            format,
            min_records: list.min_records.unwrap_or(0),
            shrink: list.shrink.unwrap_or(Shrink::Refuse),
            canaries: self.paths(&format!("{path}.canaries"), &list.canaries),
            max_new_hits: list.max_new_hits,
            source,
            minisign_key: self.minisign_key(path, list.minisign_key.as_deref()),
        }
    }

    fn ensure_no_blocklist_keys(&self, path: &str, list: &List) {
        for (key, is_given) in
            [("max_age", list.max_age.is_some()), ("rollback", list.rollback.is_some())]
        {
            if is_given {
                let problem = "only for format = \"badkeys\"; remove it, or set the format";
                self.conflict(format!("{path}.{key}"), problem);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::example::{MINIMAL, parse};
    use keygate_core::spki::RsaExponents;

    fn lists(keys: &str) -> Result<Vec<ListConfig>, String> {
        let text = format!("{MINIMAL}\n[[lists]]\nname = \"l\"\npath = \"l.dat\"\n{keys}");
        parse(&text).map(|config| config.lists).map_err(|error| error.to_string())
    }

    #[test]
    fn a_blocklist_has_settings_that_a_list_of_fingerprints_has_not() {
        let list = lists("format = \"badkeys\"").unwrap().remove(0);
        let settings = BlocklistConfig::default();
        assert_eq!((list.format, list.max_size), (ListFormat::Badkeys(settings), 256 << 20));
        let keys = "format = \"badkeys\"\nmax_size = \"1MiB\"\nmin_records = 7\nmax_age = \"30d\"\nrollback = \"allow\"\nshrink = \"allow\"";
        let list = lists(keys).unwrap().remove(0);
        let max_age = Some(Duration::from_secs(30 * 86_400));
        let rollback = Rollback::Allow;
        let settings = BlocklistConfig { max_age, rollback };
        assert_eq!((list.format, list.max_size), (ListFormat::Badkeys(settings), 1 << 20));
        assert_eq!((list.min_records, list.shrink), (7, Shrink::Allow));
        let list = lists("").unwrap().remove(0);
        assert_eq!((list.format, list.max_size), (ListFormat::Fingerprints, 16 << 20));
        for (key, value) in [("max_age", "\"30d\""), ("rollback", "\"allow\"")] {
            let problem = lists(&format!("{key} = {value}")).unwrap_err();
            assert!(problem.contains(&format!("lists.l.{key}: only for format")), "{problem}");
        }
        let problem = lists("format = \"badkeys\"\nmax_age = \"0s\"").unwrap_err();
        assert!(problem.contains("lists.l.max_age: 0 would expire at once"), "{problem}");
        for name in ["blocklist.dat", "blocklist.dat.xz"] {
            let source = format!("source = {{ url = \"https://a.example/{name}\" }}");
            lists(&source).unwrap();
            let problem = lists(&format!("format = \"badkeys\"\n{source}")).unwrap_err();
            assert!(problem.contains("lists.l.source.url: the URL of a list"), "{problem}");
        }
    }

    #[test]
    fn a_filter_has_related_exponents() {
        let with = |value: &str| {
            let keys = format!("path = \"lost.pkbf\"\nrelated_exponents = {value}");
            let config = parse(&MINIMAL.replace("path = \"lost.pkbf\"", &keys));
            config.map(|config| config.filters[0].related_exponents).map_err(|it| it.to_string())
        };
        assert_eq!(with("[]"), Ok(RsaExponents::NONE));
        assert_eq!(with("[65537, 3]"), Ok(RsaExponents::default()));
        assert_eq!(with("[3, 5, 17, 35, 37, 257, 65537]"), Ok(RsaExponents::ALL));
        let problem = with("[3, 7]").unwrap_err();
        assert!(problem.contains("related_exponents: 7 is none of 3, 5, 17"), "{problem}");
    }
}
