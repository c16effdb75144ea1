//! Pages of the commands that make, change and look at filters.

use super::{
    CHECKSUM, CONFIGURATION, CONFIGURATION_FILE, EXAMPLES, EXIT, FILES, Page, Part, UNUSABLE,
    UNWRITTEN, USAGE,
};

pub(super) const FILTER: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "done; `query`: nothing found; `diff`: the same"),
                ("1", "`query`: a key was found; `diff`: different"),
                USAGE,
                UNUSABLE,
                UNWRITTEN,
            ])],
        ),
        (FILES, &[Part::Terms(&[CHECKSUM])]),
        (
            "STANDARDS",
            &[Part::Text("The format of filter files: https://pwnedkeys.com/filter.html")],
        ),
    ],
    see_also: &[
        "keygate",
        "keygate-filter-accept",
        "keygate-filter-add",
        "keygate-filter-create",
        "keygate-filter-diff",
        "keygate-filter-info",
        "keygate-filter-query",
    ],
};

pub(super) const ACCEPT: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "the update is in use"),
                CONFIGURATION,
                ("3", "nothing waits, it cannot be used, or the proxy does not answer"),
                UNWRITTEN,
            ])],
        ),
        (FILES, &[Part::Terms(&[CONFIGURATION_FILE])]),
        (EXAMPLES, &[Part::Commands("keygate filter accept pwnedkeys --config keygate.toml")]),
    ],
    see_also: &["keygate", "keygate-filter", "keygate-run"],
};

pub(super) const ADD: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "every key is in the filter"),
                USAGE,
                (
                    "3",
                    "the filter cannot be used, or an input cannot: it is named, and the keys of \
                     the others are in the filter",
                ),
                UNWRITTEN,
            ])],
        ),
        (
            FILES,
            &[Part::Terms(&[(
                "FILE.sha256",
                "A checksum that stands beside the filter is checked first, and written anew.",
            )])],
        ),
        (
            EXAMPLES,
            &[Part::Commands(
                "keygate filter add lost.pkbf leaked/ old-client.pem\n\
                 keygate filter add lost.pkbf - < authorized_keys",
            )],
        ),
    ],
    see_also: &["keygate", "keygate-filter", "keygate-filter-create"],
};

pub(super) const CREATE: Page = Page {
    synopsis: Some(
        "keygate filter create FILE --entries N --fp-rate P [--force] [--json]\n\
         keygate filter create FILE --hash-count K --hash-length L [--force] [--json]",
    ),
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "the filter is made"),
                ("2", "wrong usage, or numbers for which there is no filter"),
                ("3", "the file is there already, or cannot be written"),
                UNWRITTEN,
            ])],
        ),
        (
            EXAMPLES,
            &[Part::Commands("keygate filter create lost.pkbf --entries 10000 --fp-rate 1e-6")],
        ),
    ],
    see_also: &["keygate", "keygate-filter", "keygate-filter-add"],
};

pub(super) const DIFF: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "the files are the same"),
                ("1", "they are not"),
                USAGE,
                UNUSABLE,
                UNWRITTEN,
            ])],
        ),
        (FILES, &[Part::Terms(&[CHECKSUM])]),
        (EXAMPLES, &[Part::Commands("keygate filter diff lost.pkbf next.pkbf clients/")]),
    ],
    see_also: &["keygate", "keygate-filter", "keygate-filter-info"],
};

pub(super) const INFO: Page = Page {
    synopsis: None,
    sections: &[
        (EXIT, &[Part::Terms(&[("0", "done"), USAGE, UNUSABLE, UNWRITTEN])]),
        (FILES, &[Part::Terms(&[CHECKSUM])]),
        (EXAMPLES, &[Part::Commands("keygate filter info --json lost.pkbf")]),
    ],
    see_also: &["keygate", "keygate-filter", "keygate-filter-diff"],
};

pub(super) const QUERY: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "no key is in the filter"),
                ("1", "a key is"),
                USAGE,
                (
                    "3",
                    "the filter cannot be used, or an input cannot: it is named, and the others \
                     are answered",
                ),
                UNWRITTEN,
            ])],
        ),
        (FILES, &[Part::Terms(&[CHECKSUM])]),
        (EXAMPLES, &[Part::Commands("keygate filter query lost.pkbf old-client.pem")]),
    ],
    see_also: &["keygate", "keygate-filter", "keygate-key"],
};
